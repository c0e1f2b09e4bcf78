/*
 * receipt.h - phase 13: what an answer was made of, so that anybody can check it: on another
 * device, in another batch, and in less time than it took.
 *
 * A receipt is a JSON object:
 *
 * - samebits_receipt: 2, the version of this form
 * - request: what was asked of what
 *   - numerics: the version of the arithmetic (model/numerics.h)
 *   - files: name -> SHA-256 of config, tokenizer and weights (model/files/digests.h)
 *   - kv_type, context: type of the cache, most tokens of a sequence
 *   - prompt: token ids
 *   - temperature, top_p, seed: as texts, because numbers in JSON lose bits
 *   - top_k, sample: sample and seed are the key of the random numbers (num_draw)
 *   - max_new, ignore_stop, stop: when an answer ends; stop is a list of texts
 * - request_sha256: of that object as compact JSON in UTF-8, keys in order
 * - output, finish: token ids, and why there are no more ("stop", "length", ...)
 * - marks: the first four bytes of each link of the logits_chain, one behind the other
 * - logits_sha256: its last link
 *
 * To verify one, prompt and output are read in one prefill: every logit is computed again, every
 * token is drawn again, and all that the receipt says is compared. The first difference decides.
 */
#ifndef SAMEBITS_RECEIPT_H
#define SAMEBITS_RECEIPT_H

#include "scheduler/read_along.h"

#include <jansson.h>

/* What the receipts of a run have in common. */
struct receipt_source {
    const json_t *files; /* folder_digests of the model's folder */
    enum kv_type kv_type;
    const struct generator *generator;
};

/* The receipt of an answer: of a sequence that has a logits_chain and is finished. Returns a new
 * reference, or NULL with err set (no memory, a stop string that is not UTF-8, a device that failed
 * before all hashes had come). */
json_t *receipt_of(const struct receipt_source *source, const struct request *request,
                   const struct sequence *s, struct error *err);

/* ---- verification ---------------------------------------------------------------------------- */

enum receipt_reason {
    RECEIPT_VERIFIED,
    RECEIPT_MALFORMED, /* not as above */
    RECEIPT_NUMERICS,  /* made by other arithmetic */
    RECEIPT_WEIGHTS,   /* made with other files */
    RECEIPT_CONFIG,
    RECEIPT_TOKENIZER,
    RECEIPT_OPTIONS, /* what was asked is not what request_sha256 says */
    RECEIPT_LOGITS,  /* a row of logits has other bits */
    RECEIPT_TOKEN,   /* another token is drawn */
    RECEIPT_END,     /* the answer does not end there, or not for that reason */
    N_RECEIPT_REASONS
};

/* "verified", "other weights" and the like. Static. */
const char *receipt_reason_name(enum receipt_reason reason);

/* A receipt that is read, and what became of it. */
struct receipt {
    enum receipt_reason reason;
    int token;        /* of the answer: the first that deviates; -1: the receipt as a whole does */
    struct error why; /* a sentence; empty when verified */
    struct request request; /* prompt and stops are owned; the draft is the output */
    int32_t *output;
    enum kv_type kv_type;
    int context;
    enum finish finish;
    unsigned char *marks; /* [request.n_draft][LINK_MARK_BYTES] */
    unsigned char logits_sha256[SHA256_BYTES];
};

/* Reads a receipt and compares what can be without running the model: r->reason and why say what
 * was found; RECEIPT_VERIFIED: nothing yet. receipt_free in either case. */
void receipt_read(struct receipt *r, const struct receipt_source *source, const json_t *json);

/* Runs those of n receipts that are RECEIPT_VERIFIED so far, in one batch for each type of cache,
 * and sets what became of them. how: what read_along is to use; its pool and the callbacks of its
 * generator are set here. Returns 0, or -1 with err set: no memory, a device that failed. */
int receipts_verify(struct receipt *receipts, int n, const struct read_along *how, int block_size,
                    struct error *err);

void receipt_free(struct receipt *r);

#endif
