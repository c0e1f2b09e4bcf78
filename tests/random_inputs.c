#include "tests/random_inputs.h"

#include "tests/device.h"
#include "tests/oracle.h"

#include <float.h>
#include <stdlib.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

float *random_rows(struct random *r, int n_rows, int n_cols, int kind) {
    float *x = host_array((size_t)n_rows * (size_t)n_cols, sizeof *x);
    for (int row = 0; row < n_rows; row++)
        random_fill(r, x + (size_t)row * (size_t)n_cols, (size_t)n_cols,
                    (enum distribution)((kind < N_DISTRIBUTIONS ? kind : row) % N_DISTRIBUTIONS));
    return x;
}

struct bfp_rows random_bfp_rows(struct random *r, int n_rows, int n_cols, int kind) {
    float *x = random_rows(r, n_rows, n_cols, kind);
    struct bfp_rows rows = host_rows(n_rows, n_cols);
    oracle_snap_rows(rows, x, n_rows, n_cols);
    free(x);
    return rows;
}

void random_logits(struct random *r, float *logits, int vocab, float step) {
    for (int i = 0; i < vocab; i++) {
        float x = 3 * random_normal(r);
        logits[i] = step > 0 ? rintf(x / step) * step : x;
    }
}

struct sampling random_sampling(struct random *r, int vocab) {
    static const float temperatures[] = {0x1p-149f, 1e-6f, 0.1f, 0.7f, 1, 1.5f, 30, 1e20f, FLT_MAX};
    static const float shares[] = {0, 1e-30f, 0.01f, 0.5f, 0.9f, 0.95f, 0.999999f, 1, 1, 1};
    int ranks[] = {0, 0, 1, 2, 40, vocab - 1, vocab, vocab + 1, 1 << 30};
    return (struct sampling){
        .temperature = temperatures[random_int(r, 0, COUNT(temperatures) - 1)],
        .top_k = ranks[random_int(r, 0, COUNT(ranks) - 1)],
        .top_p = shares[random_int(r, 0, COUNT(shares) - 1)],
        .seed = random_bits64(r),
        .sample = (uint32_t)random_bits64(r),
        .position = (uint32_t)random_bits64(r),
    };
}
