/*
 * logits_chain.h - phase 13: SHA-256 over every bit of every logit of an answer, step by step.
 *
 * The fingerprint (fingerprint.h) tells two runs apart; a hash that nobody can aim at proves that
 * they are equal. Link 0 is 32 zero bytes, and link i is SHA-256 of link i-1 followed by the hash
 * of the i-th row of logits (hash_rows of model/ops.h, on the device that has the row). The last
 * link stands for all rows. The first four bytes of each are kept, too, so that two chains that
 * differ show where they begin to.
 */
#ifndef SAMEBITS_LOGITS_CHAIN_H
#define SAMEBITS_LOGITS_CHAIN_H

#include "model/error.h"
#include "model/ops.h"

enum { LINK_MARK_BYTES = 4 };

struct logits_chain {
    void *context; /* libcrypto's */
    unsigned char last[SHA256_BYTES];
    unsigned char *marks; /* [n][LINK_MARK_BYTES] the beginning of each link */
    int n, capacity;      /* rows so far */
};

/* A chain without rows, for logits_chain_free; NULL with err set: no memory. */
struct logits_chain *logits_chain_new(struct error *err);

/* Adds the hash of one row of logits, host [SHA256_BYTES]. Returns 0, or -1 with err set (no
 * memory). */
int logits_chain_add(struct logits_chain *c, const unsigned char *hash, struct error *err);

/* NULL is fine. */
void logits_chain_free(struct logits_chain *c);

#endif
