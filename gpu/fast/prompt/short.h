/*
 * short.h - version 3 of attention for prompts of up to SHORT_POSITIONS positions: short.cu.
 */
#ifndef SAMEBITS_GPU_FAST_PROMPT_SHORT_H
#define SAMEBITS_GPU_FAST_PROMPT_SHORT_H

#include "gpu/fast/prompt/prompt.h"

/* Whether it can do the work, and is faster than the kernel for all prompts. */
bool gpu_attention_short_fits(const struct gpu_device *gpu, const struct attention_arguments *a,
                              const struct kv_views *kv, const struct attention_variant *v,
                              const struct attention_work *work);

/* Does it, for the items of the work; work->is_short. */
void gpu_attention_short(struct gpu_device *gpu, const struct attention_arguments *a,
                         const struct kv_views *kv, const struct attention_work *work);

#endif
