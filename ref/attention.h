/*
 * attention.h - what the two files of attention share: attention.c is the definition, for one
 * sequence over a contiguous cache; attend.c has page tables, cache types, masks, scores and shared
 * tiles, and computes each tile as attention.c does.
 */
#ifndef SAMEBITS_REF_ATTENTION_H
#define SAMEBITS_REF_ATTENTION_H

#include "ref/ref.h"

enum { TILE = ATTENTION_TILE, BLOCK_ROWS = 256 /* rows whose scores are one matrix product */ };

/* The memory of a thread that works on a block of rows; all numbers are integers, as dgemm wants
 * them. */
struct block_memory {
    double *x;          /* [BLOCK_ROWS, head_dim] queries */
    double *scores;     /* [BLOCK_ROWS, TILE] dot products of queries and keys, then weights */
    double *sums;       /* [BLOCK_ROWS, head_dim] weighted sums of the tile's values */
    double *k, *v;      /* [TILE, head_dim] the tile */
    int16_t *mantissas; /* [head_dim] */
};

/* The doubles of one thread; the memory of all threads, or NULL when there is none (ref_scratch);
 * and thread `worker`'s. */
static inline size_t block_doubles(int head_dim) {
    size_t dim = (size_t)head_dim;
    return BLOCK_ROWS * (2 * dim + TILE) + 2 * TILE * dim + dim;
}

static inline double *ref_block_scratch(struct device *dev, int head_dim, const char *op) {
    size_t n = block_doubles(head_dim) * (size_t)ref_n_threads(dev);
    return ref_scratch(dev, SCRATCH_X, sizeof(double) * n, op);
}

static inline struct block_memory ref_block_memory(double *scratch, int head_dim, int worker) {
    size_t dim = (size_t)head_dim;
    struct block_memory m = {.x = scratch + (size_t)worker * block_doubles(head_dim)};
    m.sums = m.x + BLOCK_ROWS * dim;
    m.scores = m.sums + BLOCK_ROWS * dim;
    m.k = m.scores + BLOCK_ROWS * TILE;
    m.v = m.k + TILE * dim;
    m.mantissas = (int16_t *)(m.v + TILE * dim);
    return m;
}

/* What faults of a row are reported with. */
struct row_name {
    struct device *dev;
    int site, token;
};

/* Snaps a query to integers, x [head_dim]. Returns its exponent. */
int ref_load_query(double *x, const float *q, const struct block_memory *memory, int head_dim,
                   struct row_name name);

/* What a row finds in a tile, beside the weights of its positions. */
struct tile_result {
    float m, l;   /* its maximum, a score; the sum of e^(score - m) */
    int exponent; /* of the weights */
};

/* One softmax over n positions: s [n], what num_score gives; unit, of the query, makes scores of
 * them; v_units [n]: 2^exponent of each value row. Writes the weights [n], snapped to integers. */
struct tile_result ref_tile_softmax(double *weights, const float *s, const double *v_units, int n,
                                    struct num_score_unit unit, struct row_name name);

/* Merges a tile into the o [head_dim], m and l of a row; sums [head_dim] are those of its values.
 */
void ref_merge_tile(float *o, float *m, float *l, const struct tile_result *tile,
                    const double *sums, int head_dim);

/* The queries and the cache of one sequence. Its queries are the last of its kv_len positions. */
struct planned_sequence {
    int first_token, n_tokens; /* rows of q and y */
    int kv_len;
    const int32_t *pages; /* [ceil(kv_len / page_size)] where its positions lie */
};

/* A block: rows of one sequence, which go from its first own tile on to the end; or rows of all
 * members of a stretch (model/attention/cascade.h), which go through its tiles. */
struct block_item {
    int sequence; /* its number; of a stretch, a member's: they have the same pages there */
    int stretch;  /* -1: none */
    int depth;    /* of the stretch; of a sequence, one more than the last stretch's */
    int first_row, n_rows; /* row = token * group + head in the group; of a stretch, its tokens are
                              those of all members, one after the other */
};

struct attention_plan {
    struct attention_shape shape;
    int page_size, n_sequences, n_tokens, n_items;
    struct planned_sequence *sequences; /* [n_sequences]; their pages are in `pages` */
    int32_t *pages;
    struct block_item *items; /* [n_items] in order of depth */
    struct cascade cascade;
};

#endif
