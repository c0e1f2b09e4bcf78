/*
 * attention.h - what the files of the attention kernels share.
 *
 * attention.cu has version 1, and the choice between the versions; and version 1 of
 * attention_paged. gpu/fast/prompt has versions 2 and 3.
 */
#ifndef SAMEBITS_GPU_ATTENTION_H
#define SAMEBITS_GPU_ATTENTION_H

#include "gpu/gpu.h"

/* The arguments of the op, as a kernel gets them. */
struct attention_arguments {
    float *y;       /* [tokens of the op, n_heads, head_dim] */
    const float *q; /* [tokens of the op, n_heads, head_dim] */
    struct kv_layer kv;
    int n_tokens, kv_len, n_heads, n_kv_heads, head_dim;
    double scale;
    int site;
    unsigned long long *fault;
    /* Of a paged cache: the pages of the sequence, and which of the op's tokens is its first. pages
     * NULL: contiguous, slot = position. */
    const int32_t *pages;
    int page_size, first_token;
};

static __device__ __forceinline__ size_t slot_of(const struct attention_arguments *a,
                                                 int position) {
    if (!a->pages)
        return (size_t)position;
    return (size_t)a->pages[position / a->page_size] * (size_t)a->page_size +
           (size_t)(position % a->page_size);
}

/* Whether neither masks nor scores nor elements need any care: the plain one of two kernels. */
bool gpu_attention_is_plain(const struct kv_views *kv, const struct attention_variant *variant);

/* Whether the prompt kernels (gpu/fast/prompt: versions 2 and 3) run here; whether they can read a
 * cache; and the one that is asked for as a version of attention, or the better one. With work, its
 * items; else the sequence of the arguments. */
struct attention_work;
bool gpu_attention_fits_tensor_cores(const struct gpu_device *gpu, int head_dim);
bool gpu_attention_can_split(const struct kv_views *kv);
void gpu_attention_prompt(struct gpu_device *gpu, const struct attention_arguments *a,
                          const struct kv_views *kv, const struct attention_variant *variant,
                          const struct attention_work *work);

/* Version 1 of attention_paged: a is of the whole batch. */
struct plan_arrays;
void gpu_attention_paged_1(struct gpu_device *gpu, const struct attention_arguments *a,
                           const struct plan_arrays *plan);

#endif
