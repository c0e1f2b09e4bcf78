/*
 * answer.h - one answer on its way to the terminal: tokens are drawn, decoded and shown as they
 * come, and every bit of their logits goes into the fingerprint and, if asked for, into a file.
 */
#ifndef SAMEBITS_ANSWER_H
#define SAMEBITS_ANSWER_H

#include "tutorials/common/demo.h"
#include "tutorials/common/npy.h"

/* What --dump-logits writes to; opened by the first answer of the run. */
struct answer_output {
    struct npy logits;
};

/* Starts a sequence of the run and its cache. Returns 0, or -1 with err set; then nothing is left
 * to end. */
int answer_start(struct demo *demo, struct sequence *s, struct kv_cache **cache,
                 const struct sampling_options *sampling, struct error *err);

/* Ends it: its fingerprint goes into the run's. Both may be zeroed. */
void answer_end(struct demo *demo, struct sequence *s, struct kv_cache *cache);

/* Whether n more prompt ids and one token fit into the context. */
bool answer_fits(const struct demo *demo, const struct sequence *s, int n);

/*
 * Adds n prompt ids to s and answers them: to stdout as text, or as ids with --ids. Prints the
 * metrics on stderr. Returns 0, or -1 with err set.
 */
int answer(struct demo *demo, struct sequence *s, struct kv_cache *cache, const int32_t *ids, int n,
           int max_new, struct answer_output *output, struct error *err);

#endif
