/*
 * naive_batch.h - phase 2: several sequences in one rectangular batch.
 *
 * The prompts are padded on the left to the longest one, so that all end in the same column, and
 * the batch runs until the longest answer is done. Nobody joins and nobody leaves: the rows in
 * front of short prompts and the rows of finished sequences are computed and thrown away. Phases 3
 * and 4 do away with that waste; here it is counted.
 */
#ifndef SAMEBITS_NAIVE_BATCH_H
#define SAMEBITS_NAIVE_BATCH_H

#include "scheduler/generate.h"

/* Rows that the batch computed, and those that nobody needed. */
struct naive_waste {
    int steps;            /* passes that drew tokens */
    int64_t prompt_rows;  /* sequences times the longest prompt */
    int64_t padding_rows; /* of them, in front of shorter prompts */
    int64_t answer_rows;  /* sequences times steps after the first */
    int64_t idle_rows;    /* of them, of sequences that were done */
};

/*
 * Answers n sequences, each asked (sequence_add_prompt) and with an empty cache of its own. Prompts
 * are read in pieces of g->chunk columns. Each sequence gets the bits that it gets alone. Returns
 * 0, or -1 with err set: a prompt that generate would refuse, or what a pass reports.
 */
int naive_batch_generate(struct generator *g, struct sequence *const *sequences,
                         struct kv_cache *const *caches, int n, struct naive_waste *waste,
                         struct error *err);

#endif
