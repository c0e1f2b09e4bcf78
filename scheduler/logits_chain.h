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
    unsigned char *marks;           /* [n][LINK_MARK_BYTES] the beginning of each link */
    int n, capacity;                /* rows so far */
    struct awaited_hashes *awaited; /* whose list has rows for it; NULL: none does */
};

/* Hashes that a device may still compute (hash_wait of ops.h), for the chains that they belong to,
 * in order: a pass waits for those of the pass before it when its own work is on its way. */
struct awaited_hashes {
    struct device *dev;
    struct awaited_hash {
        struct logits_chain *chain; /* NULL: it is gone */
        const unsigned char *hash;  /* host [SHA256_BYTES], to be read after hash_wait */
    } * list;
    int n, capacity;
};

/* A chain without rows, for logits_chain_free; NULL with err set: no memory. */
struct logits_chain *logits_chain_new(struct error *err);

/* Adds the hash of one row of logits, host [SHA256_BYTES]. Returns 0, or -1 with err set (no
 * memory). */
int logits_chain_add(struct logits_chain *c, const unsigned char *hash, struct error *err);

/* Takes it out of the list where it is awaited. NULL is fine. */
void logits_chain_free(struct logits_chain *c);

/* An empty list for a device, for awaited_hashes_free; NULL with err set: no memory. */
struct awaited_hashes *awaited_hashes_new(struct device *dev, struct error *err);

/* The next row of a chain is one whose hash will be at `hash`. A chain is in one list at a time.
 * Returns 0, or -1 with err set (no memory). */
int logits_chain_await(struct logits_chain *c, struct awaited_hashes *a, const unsigned char *hash,
                       struct error *err);

/* Waits for what a chain awaits: then it has all of its rows. Returns 0, or -1 with err set: the
 * device failed, or no memory. */
int logits_chain_complete(struct logits_chain *c, struct error *err);

/* Waits for all of them: each chain gets its rows, and the list is empty. Returns as above. */
int awaited_hashes_take(struct awaited_hashes *a, struct error *err);

/* Their chains stay as they are: without what is awaited. NULL is fine. */
void awaited_hashes_free(struct awaited_hashes *a);

#endif
