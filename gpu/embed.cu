/*
 * embed: rows of the embedding matrix w, back in float32, y [n_tokens, hidden]; the digits of a
 * weight are put together again. take_rows: some rows of many, bit by bit.
 */
#include "gpu/gpu.h"
#include "gpu/ptx/tensor_core.h"

__global__ static void embed_1(float *y, const int32_t *token_ids, const int8_t *high,
                               const int8_t *low, const int8_t *exponents, int k, int padded) {
    run_in_turn();
    int token = token_ids[blockIdx.x];
    size_t at = (size_t)token * (size_t)padded;
    double unit = num_pow2(exponents[token] - 15);
    for (int i = (int)threadIdx.x; i < k; i += (int)blockDim.x)
        y[(size_t)blockIdx.x * (size_t)k + (size_t)i] =
            (float)((256 * high[at + (size_t)i] + low[at + (size_t)i]) * unit);
}

void gpu_embed(struct device *dev, float *y, /* [n_tokens, w->k] */
               const int32_t *token_ids,     /* [n_tokens] */
               const struct matrix *w, int n_tokens) {
    struct gpu_device *gpu = gpu_of(dev);
    const int8_t *high = (const int8_t *)w->mantissas;
    int padded = gpu_padded(w->k);
    if (n_tokens)
        GPU_LAUNCH_EARLY(gpu, embed_1, n_tokens, 128, 0, y, token_ids, high,
                   high + (size_t)w->n * (size_t)padded, w->exponents, w->k, padded);
}

__global__ static void take_rows_1(float *y, const float *x, const int32_t *rows, int n_cols) {
    run_in_turn();
    const float *from = x + (size_t)rows[blockIdx.x] * (size_t)n_cols;
    for (int i = (int)threadIdx.x; i < n_cols; i += (int)blockDim.x)
        y[(size_t)blockIdx.x * (size_t)n_cols + (size_t)i] = from[i];
}

void gpu_take_rows(struct device *dev, float *y, /* [n_rows, n_cols] */
                   const float *x,               /* [any, n_cols] */
                   const int32_t *rows,          /* [n_rows] */
                   int n_rows, int n_cols) {
    struct gpu_device *gpu = gpu_of(dev);
    if (n_rows)
        GPU_LAUNCH_EARLY(gpu, take_rows_1, n_rows, 128, 0, y, x, rows, n_cols);
}
