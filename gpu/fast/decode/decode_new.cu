/* Decode that does the work of norm_rope, too: the newest keys and values are not in the cache yet
 * (new_tokens.h). */
#include "gpu/fast/decode/kernel.h"

void gpu_attention_decode_new(struct gpu_device *gpu, const struct attention_arguments *a,
                              const struct decode_cache *cache,
                              const struct attention_variant *variant,
                              const struct attention_plan *plan, const struct new_tokens *t) {
    if (a->head_dim == 64)
        launch<64, KV_BFP16, false, true>(gpu, a, cache, variant, plan, t);
    else
        launch<128, KV_BFP16, false, true>(gpu, a, cache, variant, plan, t);
}
