/*
 * context_parallel.h - phase 14: attention over positions that are dealt out to ranks, for caches
 * that are longer than one device's memory.
 *
 * Attention works in tiles of 256 positions and merges what it finds there in their order
 * (tutorials/numerics-1.md). So a tile is what a rank can have: tile t of a sequence is rank t %
 * n_ranks's. A block of the pool is n_ranks tiles, and each rank stores one of them: block tables,
 * shared prefixes, copies and preemption need not know.
 *
 * Every rank has all heads and asks its own tiles for all rows. The states that come of it, one for
 * each row and tile, are gathered, and every rank merges them in the order of the tiles: no bit
 * differs from one process's. (Yang et al., "Context Parallelism for Scalable Million-Token
 * Inference", 2024, merge one state of all tiles of a rank, which rounds otherwise.)
 */
#ifndef SAMEBITS_CONTEXT_PARALLEL_H
#define SAMEBITS_CONTEXT_PARALLEL_H

#include "model/forward.h"

/* Whether ranks share the positions of this model's caches. */
bool context_is_shared(const struct model *model);

/* How many positions of a pool's block a rank stores. */
int context_stored(const struct model *model, int block_size);

/* Slots of a pool as the engine counts them, host [n], become this rank's: -1 for those of others,
 * and for -1. */
void context_slots(const struct parallel *ranks, int64_t *slots, int n);

/* Which tiles the rows of a pass ask, and the memory for what they find. */
struct context_plan;

/*
 * Makes *plan, NULL before the first pass, for a batch with a page table (phase 8) whose pages are
 * blocks of n_ranks tiles. Returns 0, or -1 with err set: no memory, another batch, a model with
 * sliding windows, or what attention_plan refuses.
 */
int context_plan_make(struct context_plan **plan, const struct model *model,
                      const struct batch *batch, struct error *err);

/* What attend computes, for all rows of the batch, whose keys and values are in kv, this rank's
 * part of a layer in pages of a tile. y, q: [n_tokens, n_heads, head_dim]. The token of a fault
 * means nothing. */
void context_attend(struct context_plan *plan, const struct model *model, float *y, const float *q,
                    const struct kv_views *kv, int site);

/* NULL is fine. */
void context_plan_free(struct context_plan *plan, struct device *dev);

#endif
