/*
 * attention_paged, version 4, for caches of floats: attention_decode.cu says how it works,
 * attention_floats.h what is different with fp8, attention_snapped.h with fp16 and bf16. Each type
 * but e4m3 has only the kernels for variants: they take long to compile.
 */
#include "gpu/attention_decode_kernel.h"

void gpu_attention_decode_floats(struct gpu_device *gpu, const struct attention_arguments *a,
                                 const struct decode_cache *cache,
                                 const struct attention_variant *variant,
                                 const struct attention_plan *plan) {
    switch (cache->type) {
    case KV_E4M3:
        return launch_variant<KV_E4M3>(gpu, a, cache, variant, plan);
    case KV_E5M2:
        return launch_size<KV_E5M2, true>(gpu, a, cache, variant, plan);
    case KV_FP16:
        return launch_size<KV_FP16, true>(gpu, a, cache, variant, plan);
    default:
        return launch_size<KV_BF16, true>(gpu, a, cache, variant, plan);
    }
}
