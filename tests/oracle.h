/*
 * oracle.h - the ops once more, as slowly and plainly as possible.
 *
 * Written from the specification (docs and the comments of ops.h), not from ref/: sums are int64,
 * roundings are integer arithmetic, no BLAS, no blocks, no bit tricks. Three things are shared with
 * the engine, because they are part of the specification as source: num_exp and num_probability
 * with its window, which test_numerics* and slow_numerics check against libm, and num_philox, which
 * test_numerics checks against published vectors. Everything is host memory. Rows that cannot be
 * snapped are the caller's to avoid.
 */
#ifndef SAMEBITS_TESTS_ORACLE_H
#define SAMEBITS_TESTS_ORACLE_H

#include "model/ops.h"

enum { ORACLE_NO_EXPONENT = 128 };

/* n * 2^exponent as float32: one rounding to nearest, ties to even. */
float oracle_round(int64_t n, int exponent);

/* How far y is from e^x, in units of the last place of a float of that size (infinity counts as
 * 2^128). x is not a NaN. */
double oracle_exp_error(float x, float y);

/* oracle_exp_error for tanh(x), and for the natural logarithm of a positive, finite x. */
double oracle_tanh_error(float x, float y);
double oracle_log_error(float x, float y);

/* How far p, which num_probability gives for t, is from 2^t, relative to it; infinite if p breaks
 * another rule: 0 from -127 down and of a NaN, in (0, 1] above, small between -127 and -126. */
double oracle_probability_error(float t, float p);

/* The largest multiple of 256 that is not above sum. */
int64_t oracle_floor_256(int64_t sum);

/* Snaps a row; ORACLE_NO_EXPONENT, with q all zero, when it cannot be stored. */
int oracle_snap(int16_t *q, const float *x, int n);

/* Snaps each row of x[n_rows][n_cols]; all must be storable. */
void oracle_snap_rows(struct bfp_rows y, const float *x, int n_rows, int n_cols);

/* y[n_tokens][n] = x[n_tokens][k] W[n][k]^T. */
void oracle_linear(float *y, struct bfp_rows x, struct bfp_rows w, int n_tokens, int n, int k);

/* y[n_ids][k] = rows of W[n][k]. */
void oracle_embed(float *y, const int32_t *ids, struct bfp_rows w, int n_ids, int k);

void oracle_rmsnorm(float *y, const float *x, const float *gain, int n_rows, int n_cols,
                    double eps);

void oracle_rope(float *x, const int32_t *positions, const float *cos_table, const float *sin_table,
                 int n_tokens, int n_heads, int head_dim);

void oracle_attention(float *y, const float *q, const struct kv_layer *kv, int n_tokens, int kv_len,
                      const struct attention_shape *shape);

void oracle_silu_mul(float *y, const float *gate, const float *up, size_t count);

/* The weight of a logit when tokens are drawn. */
uint32_t oracle_sampling_weight(float logit, float max, float temperature);

/* Marks the tokens that top-k and top-p keep; temperature > 0. Returns how many. */
int oracle_kept(unsigned char *kept, const float *logits, const struct sampling *how, int vocab);

/* The next token; the logits are finite. */
int32_t oracle_sample(const float *logits, const struct sampling *how, int vocab);

#endif
