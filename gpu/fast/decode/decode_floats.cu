/*
 * Decode over caches of floats: gpu/fast/decode/decode.cu says how it works,
 * gpu/fast/decode/snapped.h how their rows become mantissas. Kernels take long to compile, so each
 * type has a plain one for one size alone: those for variants do the same.
 */
#include "gpu/fast/decode/kernel.h"

template <enum kv_type TYPE>
static void launch_one_size(struct gpu_device *gpu, const struct attention_arguments *a,
                            const struct decode_cache *cache,
                            const struct attention_variant *variant,
                            const struct attention_plan *plan) {
    if (attention_is_causal_only(variant) && decode_dim(a->head_dim, true) == 128)
        launch<128, TYPE, false>(gpu, a, cache, variant, plan);
    else
        launch_size<TYPE, true>(gpu, a, cache, variant, plan);
}

void gpu_attention_decode_floats(struct gpu_device *gpu, const struct attention_arguments *a,
                                 const struct decode_cache *cache,
                                 const struct attention_variant *variant,
                                 const struct attention_plan *plan) {
    switch (cache->type) {
    case KV_E4M3:
        return launch_one_size<KV_E4M3>(gpu, a, cache, variant, plan);
    case KV_E5M2:
        return launch_one_size<KV_E5M2>(gpu, a, cache, variant, plan);
    case KV_FP16:
        return launch_one_size<KV_FP16>(gpu, a, cache, variant, plan);
    default:
        return launch_one_size<KV_BF16>(gpu, a, cache, variant, plan);
    }
}
