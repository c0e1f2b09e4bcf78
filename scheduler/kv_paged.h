/*
 * kv_paged.h - phase 7: the KV cache of one sequence as blocks of a pool.
 *
 * The sequence sees positions; its block table says where in the pool they lie. Blocks may be
 * shared with other sequences: with those that begin with the same tokens (prefix_cache.h), and
 * with forks of the sequence. Nobody writes into a block that somebody else reads, or that the
 * prefix cache knows: kv_paged_reserve makes a copy of it first (copy on write).
 */
#ifndef SAMEBITS_KV_PAGED_H
#define SAMEBITS_KV_PAGED_H

#include "model/kv_cache.h"
#include "scheduler/block_table.h"
#include "scheduler/kv_pool.h"
#include "scheduler/prefix_cache.h"

struct kv_paged {
    struct kv_cache base; /* what the forward pass sees; first, so that a pointer to it will do */
    struct kv_pool *pool;
    struct prefix_cache *prefixes; /* NULL: nothing is shared by its tokens */
    struct block_table table;
    int n_stored; /* positions whose keys and values are there */
};

/* An empty cache in pool. prefixes belongs to the same pool, or is NULL. Returns 0, or -1 with err
 * set. The cache must not move. */
int kv_paged_start(struct kv_paged *c, struct kv_pool *pool, struct prefix_cache *prefixes,
                   struct error *err);

/* Gives all blocks back: those that the prefix cache knows stay cached. Returns 0, or -1 with err
 * set to what the allocator says (a double free). The cache is empty then, and can be used again.
 */
int kv_paged_clear(struct kv_paged *c, struct error *err);

/* kv_paged_clear, and frees the table. A zeroed one is fine. */
void kv_paged_end(struct kv_paged *c);

/* Blocks that kv_paged_reserve would take for n_positions: new ones and copies. */
int kv_paged_missing(const struct kv_paged *c, int n_positions);

/* Makes room for positions n_stored ... n_positions - 1, where only this cache writes. Returns 0; 1
 * when the pool has too few blocks, and then nothing has changed; -1 with err set (no memory). */
int kv_paged_reserve(struct kv_paged *c, int n_positions, struct error *err);

/* The positions up to n_positions are there now, and hold tokens [n_positions]: full blocks become
 * known to the prefix cache. */
void kv_paged_stored(struct kv_paged *c, const int32_t *tokens, int n_positions);

/* Gives back the blocks behind what is stored. Returns 0, or -1 with err set (nobody had them). */
int kv_paged_shrink(struct kv_paged *c, struct error *err);

/* Fills an empty cache with the blocks that hold the beginning of tokens [n_tokens], but never all
 * of it, because the last token must be read to know what follows it. Returns 0 with n_stored set,
 * or -1 with err set (no memory): kv_paged_clear gives back what it shares already. */
int kv_paged_match(struct kv_paged *c, const int32_t *tokens, int n_tokens, struct error *err);

/* Makes an empty cache share the blocks of the first n_positions of `from`, which has them. Returns
 * 0 with n_stored set, or -1 with err set (no memory): kv_paged_clear, as above. */
int kv_paged_fork(struct kv_paged *c, const struct kv_paged *from, int n_positions,
                  struct error *err);

/* ---- swap ------------------------------------------------------------------------------------ */

/* The keys and values of a sequence in host memory. */
struct kv_swapped {
    unsigned char *data; /* [n_blocks] of the pool's bytes_per_block */
    int n_blocks, n_stored;
};

/* Copies what c holds to host memory and clears c. Returns 0, or -1 with err set and c as it was
 * (no memory), or the allocator's error. */
int kv_paged_swap_out(struct kv_paged *c, struct kv_swapped *out, struct error *err);

/* The other way round, into an empty cache. Returns 0, and `in` is empty; 1 when the pool has too
 * few blocks, and then nothing has changed; -1 with err set (no memory). */
int kv_paged_swap_in(struct kv_paged *c, struct kv_swapped *in, struct error *err);

/* A zeroed one is fine. */
void kv_swapped_free(struct kv_swapped *s);

#endif
