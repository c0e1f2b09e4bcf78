/*
 * cascade.h - phase 10: which sequences of a batch have the same beginning in the same pages, so
 * that attention can read its keys and values once for all of them.
 *
 * It is found in the page table alone: sequences share a tile when the pages that hold its 256
 * positions are the same ones, at the same places. Whole tiles only: a tile is the unit in which
 * attention's sums are made (numerics.h), so that a row that goes on from shared tiles has the bits
 * that it would have alone. What shared tiles give is the beginning of every row's chain of merges.
 *
 * Stretches of shared tiles form a tree: sixty sequences may share a system prompt, and eight of
 * them the document that follows it.
 *
 * The ideas: Hydragen (Juravsky et al., 2024); cascade inference in FlashInfer (Ye et al., 2024);
 * ChunkAttention (Ye et al., 2024). Those merge finished parts, which rounds otherwise than one
 * pass; here the chain goes on, tile after tile.
 */
#ifndef SAMEBITS_MODEL_ATTENTION_CASCADE_H
#define SAMEBITS_MODEL_ATTENTION_CASCADE_H

#include "model/attention/variant.h"
#include "model/error.h"
#include "model/attention/kv_view.h"
#include "model/attention/paged_batch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Whole tiles that the members have in the same pages. */
struct shared_stretch {
    int first_tile, n_tiles;
    int first_member, n_members; /* in cascade.members; at least 2 */
    int depth;                   /* 0: from position 0 on; else behind a stretch of depth - 1 */
};

/* When sharing pays, for a device. What it costs is the same however many stretches there are, so
 * what it spares is counted over all of them. */
struct cascade_rule {
    int most_tokens; /* sequences with more queries in the batch take no part; 0: nobody does */
    int least_tiles_less; /* at least so many reads of a tile are spared: the sum of n_tiles *
                             (n_members - 1) */
};

/* The versions of attention_plan. */
enum plan_version {
    PLAN_BEST,   /* sequences share where it pays, */
    PLAN_SINGLE, /* never, */
    PLAN_SHARES  /* wherever two of them can */
};

/* The rule for a version, of a device with this one. */
struct cascade_rule cascade_rule_of(enum plan_version version, const struct cascade_rule *pays);

struct cascade {
    int n_stretches;
    struct shared_stretch *stretches; /* those of depth 0 first, then 1, ... */
    int32_t *members;                 /* sequences */
    int32_t *own_tile; /* [n_sequences] the first tile that a sequence does not share; nothing
                          when n_stretches is 0 */
    /* Memory of cascade_find. */
    int most_sequences;
    uint8_t *begins;
};

/* Finds the shared tiles of a batch that has passed paged_batch_check. Each sequence keeps at least
 * its last position for itself. Returns 0, or -1 with err set: no memory. */
int cascade_find(struct cascade *c, const struct paged_batch *b, const struct attention_variant *v,
                 const struct cascade_rule *rule, struct error *err);

/* A zeroed one is fine. */
void cascade_end(struct cascade *c);

/* ---- levels ------------------------------------------------------------------------------------
 *
 * A batch as FlashInfer's cascade wrappers take it: level by level, from what most share to what is
 * each one's own.
 */

/* One level: groups of queries that are neighbours, and pages for each group. */
struct cascade_level {
    int n_groups;
    const int32_t *qo_indptr; /* [n_groups + 1] queries; the same last one on every level */
    const int32_t *kv_indptr, *kv_page_indices, *kv_last_page_len; /* as in paged_batch */
};

/*
 * The paged batch whose sequences are the groups of the last level, with the pages of the groups
 * that they lie in on the levels before, and then their own: positions count on from level to
 * level.
 *
 * Where the last page of a group before the last level is not full, the batch gets smaller pages,
 * of which it is a whole number: out->page_size is then the largest that divides the cache's and
 * all those lengths, and out->n_pages as many more. attend must then be given the views of a layout
 * with these two sizes. That works where the positions of a page, and then the next page's, follow
 * each other in memory: in NHD with keys and values in two tensors. In other layouts heads or
 * values lie between, and such levels are refused.
 *
 * cache: where the pages are. The other arrays are host memory of the caller: kv_indptr [n + 1] and
 * kv_last_page_len [n] for n groups of the last level; pages [most_pages]. Returns 0, or -1 with
 * err set, with level and group: no level, a number of groups below 0, an indptr that does not
 * begin at 0 or that falls, levels of different numbers of queries, a group that does not lie in
 * one group of the level before, a last page that is empty or too full, or not full where the
 * layout has no smaller pages, a page outside the pool, too many pages, and what paged_batch_check
 * refuses of the batch (too long a sequence).
 */
int paged_batch_of_levels(struct paged_batch *out, const struct cascade_level *levels, int n_levels,
                          const struct kv_layout *cache, int32_t *kv_indptr,
                          int32_t *kv_last_page_len, int32_t *pages, int most_pages,
                          struct error *err);

#ifdef __cplusplus
}
#endif

#endif
