/*
 * attention.h - what the files of the attention kernels share.
 *
 * attention.cu has version 1, and the choice between the versions; gpu/fast/prompt has versions 2
 * and 3.
 */
#ifndef SAMEBITS_GPU_ATTENTION_H
#define SAMEBITS_GPU_ATTENTION_H

#include "gpu/gpu.h"

/* The arguments of the op, as a kernel gets them. */
struct attention_arguments {
    float *y;       /* [tokens of the op, n_heads, head_dim] */
    const float *q; /* [tokens of the op, n_heads, head_dim] */
    int n_tokens, kv_len, n_heads, n_kv_heads, head_dim;
    double scale;
    float v_scale; /* of the values: 1, but for fp8 */
    int site;
    unsigned long long *fault;
    int page_size; /* of a paged cache */
};

/* Whether neither masks nor scores nor elements need any care: the plain one of two kernels. */
bool gpu_attention_is_plain(const struct kv_views *kv, const struct attention_variant *variant);

/* Whether the prompt kernels (gpu/fast/prompt: versions 2 and 3) run here; and the one that is
 * asked for as a version of attention, or the better one. With work, its items; else the sequence
 * of the arguments. */
struct attention_work;
bool gpu_attention_fits_tensor_cores(const struct gpu_device *gpu, int head_dim);
void gpu_attention_prompt(struct gpu_device *gpu, const struct attention_arguments *a,
                          const struct kv_views *kv, const struct attention_variant *variant,
                          const struct attention_work *work);

/* At most that of 2^60 for what num_divide_near may divide: magnitudes from 2^-60 to 2^60. */
static __device__ __forceinline__ uint32_t farness_of(float x) {
    return 2 * num_bits(x) - 2 * num_bits(0x1p-60f); /* without the sign; below, it wraps around */
}

#endif
