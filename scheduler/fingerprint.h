/*
 * fingerprint.h - 64 bits that stand for every bit of every logit a run produced.
 *
 * A sequence's fingerprint is XXH3 (xxHash, Collet) over its rows of logits, little-endian
 * float32, in the order of its steps: one row for each token drawn. A run of one sequence has that
 * sequence's fingerprint; a run of several has XXH3 over their fingerprints (8 bytes each, little
 * endian) in sequence order. So a schedule that interleaves sequences cannot change it, and the
 * same sequence can be recognised alone and in a batch.
 */
#ifndef SAMEBITS_FINGERPRINT_H
#define SAMEBITS_FINGERPRINT_H

#include "model/error.h"

#include <stddef.h>
#include <stdint.h>

struct fingerprint {
    void *state; /* XXH3 state; NULL before fingerprint_start */
    int parts;
    uint64_t only; /* the fingerprint of the single sequence added so far */
};

/* Starts from nothing. Returns 0, or -1 with err set (no memory). */
int fingerprint_start(struct fingerprint *f, struct error *err);

/* Adds one row of logits, host memory [vocab_size]. */
void fingerprint_add_logits(struct fingerprint *f, const float *logits, int vocab_size);

/* Adds the finished fingerprint of a sequence: for the fingerprint of a run. */
void fingerprint_add_sequence(struct fingerprint *f, uint64_t sequence);

/* The value so far. */
uint64_t fingerprint_value(const struct fingerprint *f);

/* Frees the state; a zeroed one is fine. */
void fingerprint_end(struct fingerprint *f);

#endif
