/*
 * rope_table.h - the cosines and sines of rotary position embedding, computed once on the host and
 * shared by every device.
 *
 * The angle is float32(position) * float32(inverse frequency), as Hugging Face computes it; its
 * cosine and sine are taken in double and rounded to float32. The double functions are our own:
 * libm's differ in the last bit between C libraries, and although rounding to float32 hides almost
 * all of that, "almost" is not the same bits everywhere.
 */
#ifndef SAMEBITS_ROPE_TABLE_H
#define SAMEBITS_ROPE_TABLE_H

#include "model/config.h"

/* The inverse frequencies out[head_dim / 2], with the scaling of rope (Su et al., 2021; Llama 3's
 * scaling as in Hugging Face's rope_type "llama3"). */
void rope_inverse_frequencies(float *out, const struct rope_config *rope, int head_dim);

/* Fills cos_out and sin_out [n_positions, half] for positions 0 ... n_positions-1, given the
 * inverse frequencies [half]. */
void rope_fill(float *cos_out, float *sin_out, const float *inverse, int half, int n_positions);

#endif
