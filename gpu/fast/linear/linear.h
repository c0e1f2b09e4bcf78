/*
 * linear.h - versions 4 to 6 of linear: for few rows (few_rows.cu) and for many (many_rows.cu;
 * many_rows_mma.cu for GPUs without wgmma).
 */
#ifndef SAMEBITS_GPU_FAST_LINEAR_LINEAR_H
#define SAMEBITS_GPU_FAST_LINEAR_LINEAR_H

#include "gpu/gpu.h"

/* Rows of W of a block of version 4 for 17 to 32 rows of x, one on a processor; of a large tile of
 * version 5; the tile of version 6. */
enum { GPU_LINEAR_FEW_OUTS = 32, GPU_LINEAR_MANY_OUTS = 128 };
enum { GPU_LINEAR_MMA_ROWS = 64, GPU_LINEAR_MMA_OUTS = 128 };

/* Whether they can multiply this matrix here. */
bool gpu_linear_few_rows_fits(const struct gpu_device *gpu, const struct matrix *w);
bool gpu_linear_many_rows_fits(const struct gpu_device *gpu, const struct matrix *w);
bool gpu_linear_many_rows_mma_fits(const struct gpu_device *gpu, const struct matrix *w);

/* parts: host [n_parts], matrices with the same k, in one launch; x [n_tokens, k]. */
void gpu_linear_few_rows(struct gpu_device *gpu, const struct linear_part *parts, int n_parts,
                         struct bfp_rows x, int n_tokens);
void gpu_linear_many_rows(struct gpu_device *gpu, const struct linear_part *parts, int n_parts,
                          struct bfp_rows x, int n_tokens);
void gpu_linear_many_rows_mma(struct gpu_device *gpu, const struct linear_part *parts, int n_parts,
                              struct bfp_rows x, int n_tokens);

#endif
