/*
 * attention.h - what the files of the attention kernels share.
 */
#ifndef SAMEBITS_GPU_ATTENTION_H
#define SAMEBITS_GPU_ATTENTION_H

#include "gpu/gpu.h"

/* The arguments of the op, as a kernel gets them. */
struct attention_arguments {
    float *y;       /* [n_tokens, n_heads, head_dim] */
    const float *q; /* [n_tokens, n_heads, head_dim] */
    struct kv_layer kv;
    int n_tokens, kv_len, n_heads, n_kv_heads, head_dim;
    double scale;
    int site;
    unsigned long long *fault;
};

/* Version 2 (attention_prefill.cu): for many tokens, on tensor cores. */
void gpu_attention_prefill(struct gpu_device *gpu, const struct attention_arguments *a);

#endif
