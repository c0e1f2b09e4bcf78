/*
 * merge_states, finish_states: attention over keys that several calls have seen in parts, as
 * ref/merge_states.c. A warp has a row. Memory-bound: 12 bytes an element for a merge, 8 to finish.
 */
#include "gpu/gpu.h"
#include "gpu/ptx/tensor_core.h"

enum { ROWS = 4, LANES = 32 };

__global__ static void merge_rows(struct attention_state to, struct attention_state with,
                                  int n_rows, int head_dim) {
    run_in_turn();
    int row = (int)(blockIdx.x * ROWS + threadIdx.y), lane = (int)threadIdx.x;
    if (row >= n_rows || with.m[row] == -INFINITY)
        return;
    float m = to.m[row], l = to.l[row], old, fresh;
    attention_merge_sums(&m, &l, with.m[row], with.l[row], &old, &fresh);
    size_t first = (size_t)row * (size_t)head_dim;
    for (size_t d = first + (size_t)lane; d < first + (size_t)head_dim; d += LANES)
        to.o[d] = num_merge(to.o[d], old, with.o[d], fresh);
    __syncwarp(); /* all have read m and l */
    if (lane == 0) {
        to.m[row] = m;
        to.l[row] = l;
    }
}

void gpu_merge_states(struct device *dev, const struct attention_state *to,
                      const struct attention_state *with, int n_rows, int head_dim) {
    struct gpu_device *gpu = gpu_of(dev);
    if (n_rows)
        GPU_LAUNCH_EARLY(gpu, merge_rows, gpu_blocks((size_t)n_rows, ROWS), dim3(LANES, ROWS), 0,
                         *to, *with, n_rows, head_dim);
}

__global__ static void finish_rows(float *y, float *lse, enum lse_base base,
                                   struct attention_state state, float v_scale, int n_rows,
                                   int head_dim) {
    run_in_turn();
    int row = (int)(blockIdx.x * ROWS + threadIdx.y), lane = (int)threadIdx.x;
    if (row >= n_rows)
        return;
    float l = state.l[row];
    if (lse && lane == 0)
        lse[row] = attention_lse(base, state.m[row], l);
    size_t first = (size_t)row * (size_t)head_dim;
    for (size_t d = first + (size_t)lane; d < first + (size_t)head_dim; d += LANES)
        y[d] = (l > 0 ? state.o[d] / l : state.o[d]) * v_scale;
}

void gpu_finish_states(struct device *dev, float *y, float *lse, enum lse_base base,
                       const struct attention_state *state, float v_scale, int n_rows,
                       int head_dim) {
    struct gpu_device *gpu = gpu_of(dev);
    if (n_rows)
        GPU_LAUNCH_EARLY(gpu, finish_rows, gpu_blocks((size_t)n_rows, ROWS), dim3(LANES, ROWS), 0,
                         y, lse, base, *state, v_scale, n_rows, head_dim);
}
