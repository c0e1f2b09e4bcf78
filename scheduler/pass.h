/*
 * pass.h - one forward pass for one or more sequences: what every phase's loop is made of.
 *
 * A part says which tokens of a sequence the pass reads, and whether the token that follows them is
 * drawn. The pass becomes a batch (model/forward.h), runs, and hands each drawn token to its
 * sequence: it is appended, its logits go into the sequence's fingerprint, and the sequence may be
 * finished.
 *
 * A part that draws may end behind the sequence's tokens, in its draft (phase 13). Then a token is
 * drawn behind the last token of the sequence and behind each drafted one that is read, and the
 * first that is not what was drafted is the last that counts: those behind it were drawn from a
 * text that does not go on like that (Leviathan et al., "Fast Inference from Transformers via
 * Speculative Decoding", 2023). The random number of a token depends on its position alone, so the
 * tokens are those that would be drawn one by one.
 */
#ifndef SAMEBITS_PASS_H
#define SAMEBITS_PASS_H

#include "model/kv_cache.h"
#include "scheduler/sequence.h"

#include <stdbool.h>

struct generator;

struct pass_part {
    struct sequence *sequence;
    struct kv_cache *cache; /* NULL: none, and first is 0. With or without: the same in all parts */
    int first, end;         /* reads the tokens at positions first ... end-1 */
    int padding;            /* rows in front of them that hold nothing (phase 2) */
    bool draw;
};

/*
 * Runs the parts; the n_cached of each sequence becomes the end of its part, less what a draft
 * proposed and was not drawn, though its keys and values were stored. A part may be padding only
 * (first == end). Returns 0, or -1 with err set: no memory, what forward and forward_finish report,
 * what g->on_token reports. Sequences then keep the tokens that they have.
 */
int pass_run(struct generator *g, const struct pass_part *parts, int n, struct error *err);

#endif
