/*
 * Decode for variants of attention and over bfp8, from phase 9 on: gpu/fast/decode/decode.cu says
 * how it works. A file of its own, because kernels take long to compile.
 */
#include "gpu/fast/decode/kernel.h"

void gpu_attention_decode_variants(struct gpu_device *gpu, const struct attention_arguments *a,
                                   const struct decode_cache *cache,
                                   const struct attention_variant *variant,
                                   const struct attention_plan *plan) {
    if (cache->type == KV_BFP16)
        launch_size<KV_BFP16, true>(gpu, a, cache, variant, plan);
    else if (attention_is_causal_only(variant))
        launch_size<KV_BFP8, false>(gpu, a, cache, variant, plan);
    else
        launch_size<KV_BFP8, true>(gpu, a, cache, variant, plan);
}
