/*
 * attention.h - what the two files of attention share: attention.c is the definition, for one
 * sequence over a contiguous cache; attend.c has page tables, cache types, masks, scores and shared
 * tiles, and computes each tile as attention.c does.
 */
#ifndef SAMEBITS_REF_ATTENTION_H
#define SAMEBITS_REF_ATTENTION_H

#include "ref/integer/integer.h"
#include "ref/ref.h"

enum { TILE = ATTENTION_TILE, BLOCK_ROWS = 256 /* rows whose scores are one matrix product */ };

/* The memory of a thread that works on a block of rows. */
struct block_memory {
    const struct integer_kernels *kernels; /* NULL: OpenBLAS, version 1 */
    int head_dim, padded;                  /* padded: head_dim, a multiple of DIM_STEP */
    int16_t *k, *v;                        /* [TILE, padded] the tile: mantissas */
    int16_t *weights; /* [BLOCK_ROWS, TILE]; behind an odd number of them, a 0 */
    char *queries;    /* [BLOCK_ROWS, query_bytes] as the product wants them */
    size_t query_bytes;
    float *scores; /* [BLOCK_ROWS, TILE] sums of queries and keys */
    float *sums;   /* [BLOCK_ROWS, padded] weighted sums of the values */
    double *wide;  /* version 1: all of that as dgemm wants it */
};

/* The memory of all threads, or NULL when there is none (ref_scratch); and thread `worker`'s. */
void *ref_block_scratch(struct device *dev, int head_dim, const char *op);
struct block_memory ref_block_memory(struct device *dev, void *scratch, int head_dim, int worker);

/* Mantissas [head_dim] of the query of row r. */
void ref_put_query(const struct block_memory *m, int r, const int16_t *q);

/* For the rows first ... first + n_rows - 1 and n positions: scores [r][j] = queries [r] . k [j],
 * and sums [r] = weights [r] v. The sums are exact, then rounded down to a multiple of 256 and to
 * float32. Clobbers nothing else. */
void ref_multiply_keys(const struct block_memory *m, int first, int n_rows, int n);
void ref_multiply_values(const struct block_memory *m, int first, int n_rows, int n);

/* A tile's rows of one head lie apart, so memory is asked for one this many positions ahead. */
enum { AHEAD = 16 };

static inline void ref_prefetch(const void *row, size_t bytes) {
    for (size_t i = 0; i < bytes; i += 64)
        __builtin_prefetch((const char *)row + i);
}

/* What faults of a row are reported with. */
struct row_name {
    struct device *dev;
    int site, token;
};

/* Snaps the query of row r, q [head_dim]. Returns its exponent. */
int ref_load_query(const struct block_memory *m, int r, const float *q, struct row_name name);

/* What a row finds in a tile, beside the weights of its positions. */
struct tile_result {
    float m, l;   /* its maximum, a score; the sum of e^(score - m) */
    int exponent; /* of the weights */
};

/* One softmax over n positions: s [n], what num_score gives; unit, of the query, makes scores of
 * them; v_units [n]: 2^exponent of each value row. Writes the weights [n], snapped to mantissas. */
struct tile_result ref_tile_softmax(int16_t *weights, const float *s, const double *v_units, int n,
                                    struct num_score_unit unit, struct row_name name);

/* A query row, for what the variant makes of it. */
struct varied_row {
    const struct attention_variant *variant;
    const uint8_t *mask; /* of its sequence; NULL: none */
    int i;               /* the query's number in its sequence */
    int before;          /* positions in front of query 0: i is at position before + i; negative
                            where there are more queries than positions */
    int kv_len;
    float slope;    /* of its head, for ALiBi */
    double natural; /* turns what num_score gives into a score */
};

/* Positions of a tile, counted in it: first ... end - 1; none when first >= end. */
struct tile_range {
    int first, end;
};

/* What the row may see of the TILE positions from `tile` on, masks aside. */
struct tile_range ref_seen_in_tile(const struct varied_row *r, int tile);

/* Whether the mask, if there is one, shows position j of the sequence to the row. */
bool ref_mask_shows(const struct varied_row *r, int j);

/* Masks, and what changes scores, for the positions of a range of a tile. s: what num_score gives;
 * it becomes the score where the variant changes scores, and stays as it is elsewhere. Hidden ones
 * become -infinity, whose probability is 0, and their values, which may be some that cannot be
 * read, get the unit 1. Returns whether one is visible. */
bool ref_vary_scores(const struct varied_row *r, int tile, struct tile_range range, float *s,
                     double *v_units);

/* Merges a tile into the o [head_dim], m and l of a row; sums [head_dim] are those of its values.
 */
void ref_merge_tile(float *o, float *m, float *l, const struct tile_result *tile, const float *sums,
                    int head_dim);

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
