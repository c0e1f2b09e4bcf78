/*
 * random_inputs.h - the inputs that tests feed to ops, made of the numbers of random.h.
 */
#ifndef SAMEBITS_TESTS_RANDOM_INPUTS_H
#define SAMEBITS_TESTS_RANDOM_INPUTS_H

#include "model/ops.h"
#include "tests/random.h"

/* Host memory with floats [n_rows, n_cols]: rows of this kind, or of all kinds in turn when it is
 * N_DISTRIBUTIONS. The caller frees it. */
float *random_rows(struct random *r, int n_rows, int n_cols, int kind);

/* random_rows, snapped; for free_host_rows. */
struct bfp_rows random_bfp_rows(struct random *r, int n_rows, int n_cols, int kind);

/* Fills logits [vocab], of which many tie when `step` is not 0. */
void random_logits(struct random *r, float *logits, int vocab, float step);

/* A way to draw the next token: temperatures and cuts of all sizes. */
struct sampling random_sampling(struct random *r, int vocab);

#endif
