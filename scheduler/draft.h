/*
 * draft.h - phase 13: speculative decoding: somebody cheap proposes the next tokens, and one pass
 * of the model reads them all and draws a token behind each (pass.h).
 *
 * Since the random number of a token depends on its position alone, a draft is right exactly if it
 * is what would have been drawn: at any temperature, the answer is the one that there is without
 * drafts, token by token, and so are its logits. (Elsewhere a rule of rejection sampling is needed,
 * which keeps the distribution and not the answer: Leviathan et al., "Fast Inference from
 * Transformers via Speculative Decoding", 2023.)
 *
 * Two drafters. One looks where the end of the text has stood before, and proposes what followed
 * there (prompt lookup: Saxena, "Prompt Lookup Decoding", 2023). The other is a smaller model with
 * the same vocabulary, which draws with the random numbers of the sequence, so that it agrees with
 * the large one more often.
 */
#ifndef SAMEBITS_DRAFT_H
#define SAMEBITS_DRAFT_H

#include "model/model.h"
#include "scheduler/sequence.h"

struct drafter {
    /* Proposes at most lengths[i] tokens (0: none) to sequences[i], by sequence_propose. Returns 0,
     * or -1 with err set. */
    int (*propose)(struct drafter *d, struct sequence *const *sequences, const int *lengths, int n,
                   struct error *err);
    void (*free)(struct drafter *d);
    /* What a drafted token costs, as a part of what a token takes that is drawn without drafts; 0:
     * it is measured, as it depends on the model, the device and how many sequences there are. The
     * same drafts in every run need it fixed. */
    double fixed_cost;

    double plain_seconds;     /* measured: of a token without drafts, */
    double measured_cost;     /* and of a drafted one, as a part of it */
    double last_call;         /* clock_now of the last proposal */
    int last_n, last_drafted; /* its sequences and tokens */
    long n_steps;
};

/* Lets d propose to each of n sequences that has no draft: at most `most[i]` tokens, and fewer, or
 * none for a while, where so few of them were accepted lately that drafts take more time than they
 * save. To be called before each step, with all sequences that draw in it. most is changed. d may
 * be NULL: nothing is proposed. Returns 0, or -1 with err set. */
int drafter_propose(struct drafter *d, struct sequence *const *sequences, int *most, int n,
                    struct error *err);

/* What followed the longest end of the text that has stood before, of at least two tokens; a
 * draft ends with a stop token of the model, whose config must stay where it is. NULL with err set:
 * no memory. */
struct drafter *ngram_drafter_new(const struct model_config *config, struct error *err);

/* The drafts of a model, which must have the vocabulary size `vocab`, and must stay where it is;
 * for up to n sequences at once. NULL with err set: another vocabulary, no memory. */
struct drafter *model_drafter_new(struct model *model, int vocab, int n, struct error *err);

/* NULL is fine. */
void drafter_free(struct drafter *d);

#endif
