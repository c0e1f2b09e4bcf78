/*
 * attention: causal attention of one sequence over its contiguous BFP16 cache. This file is the
 * definition; whatever else computes attention, on any device, gives its bits.
 *
 * A row is one token and one query head. The positions that it sees go in tiles of 256, from
 * position 0 on. For each tile:
 *
 *     sum[j]  = x . k[j]            of mantissas, exact; rounded down to a multiple of 256
 *     s[j]    = sum[j] as a number  float32; the unit of the query makes a score of it
 *     m       = the largest score
 *     p[j]    = e^(score[j] - m)
 *     l       = the sum of all p    in units of 2^-23, exact
 *     w[j]    = p[j] * 2^e          e: the exponent of v[j]; then snapped to BFP16 as one row
 *     o       = the sum of w[j] * v[j], of mantissas, exact; rounded down to a multiple of 256
 *
 * The tiles' m, l and o are merged in ascending order, each operation rounded to float32, and the
 * result is o / l. Nothing else depends on an order. (Online softmax: Milakov and Gimelshein, 2018;
 * tiles: Dao et al., 2022.)
 *
 * The rows that share a kv head are taken in blocks, so that the sums of a tile are two products of
 * matrices. Blocks need nothing of each other: the threads share them out.
 */
#include "ref/attention.h"

/* ---- one row and one tile ------------------------------------------------------------------- */

int ref_load_query(const struct block_memory *m, int r, const float *q, struct row_name name) {
    int16_t *mantissas = m->k; /* no tile is there yet */
    int e = ref_snap_or_fault(name.dev, mantissas, q, m->head_dim, name.site, name.token);
    ref_put_query(m, r, mantissas);
    return e;
}

struct tile_result ref_tile_softmax(int16_t *weights, const float *s, const double *v_units, int n,
                                    struct num_score_unit unit, struct row_name name) {
    float largest = -INFINITY, p[TILE], w[TILE];
    for (int j = 0; j < n; j++)
        largest = s[j] > largest ? s[j] : largest;
    struct tile_result tile = {.m = num_tile_max(largest, unit)};
    if (!isfinite(tile.m))
        ref_fault(name.dev, name.site, name.token);
    struct num_window window = num_window_of(largest, unit.binary);
    uint32_t units = 0; /* at most 256 * 2^23: fits */
    for (int j = 0; j < n; j++) {
        p[j] = num_probability(s[j], window);
        units += num_probability_units(p[j]);
    }
    tile.l = (float)units * 0x1p-23f;
    for (int j = 0; j < n; j++)
        w[j] = num_weight_in_units(p[j], v_units[j]);
    tile.exponent = ref_snap_or_fault(name.dev, weights, w, n, name.site, name.token);
    return tile;
}

void ref_merge_tile(float *o, float *m, float *l, const struct tile_result *tile, const float *sums,
                    int head_dim) {
    float old, fresh; /* what the values so far, and the tile's, are multiplied by */
    attention_merge_sums(m, l, tile->m, tile->l, &old, &fresh);
    for (int d = 0; d < head_dim; d++)
        o[d] = num_merge(o[d], old, num_weighted_value(sums[d], tile->exponent), fresh);
}

/* ---- blocks of rows ------------------------------------------------------------------------- */

struct call {
    struct device *dev;
    float *y;       /* [n_tokens, n_heads, head_dim] */
    const float *q; /* [n_tokens, n_heads, head_dim] */
    const struct kv_layer *kv;
    int n_tokens, kv_len, site;
    const struct attention_shape *shape;
    void *memory; /* of all threads */
};

struct block {
    const struct call *call;
    int kv_head, first_row, n_rows; /* rows of a kv head: token * group + head in the group */
    struct block_memory memory;
    struct num_score_unit unit[BLOCK_ROWS]; /* of each query */
    float m[BLOCK_ROWS], l[BLOCK_ROWS];     /* of each row so far; its o is in y */
    float k_units[TILE];
    double v_units[TILE];
};

static int group_of(const struct call *c) {
    return c->shape->n_heads / c->shape->n_kv_heads;
}

static int token_of(const struct block *b, int r) {
    return (b->first_row + r) / group_of(b->call);
}

/* Where row r is in q and y. */
static size_t place_of(const struct block *b, int r) {
    int group = group_of(b->call), head = b->kv_head * group + (b->first_row + r) % group;
    size_t row = (size_t)token_of(b, r) * (size_t)b->call->shape->n_heads + (size_t)head;
    return row * (size_t)b->call->shape->head_dim;
}

/* How many positions row r sees: up to its own. The queries are the newest positions; more queries
 * than positions see nothing. */
static int n_seen(const struct block *b, int r) {
    return b->call->kv_len - b->call->n_tokens + token_of(b, r) + 1;
}

static void load_tile(struct block *b, int tile, int n) {
    const struct kv_layer *kv = b->call->kv;
    const struct block_memory *m = &b->memory;
    size_t heads = (size_t)b->call->shape->n_kv_heads, dim = (size_t)m->head_dim;
    for (size_t j = 0; j < (size_t)n; j++) {
        size_t row = ((size_t)tile + j) * heads + (size_t)b->kv_head;
        if (j + AHEAD < (size_t)n) {
            ref_prefetch(kv->k + (row + AHEAD * heads) * dim, sizeof *m->k * dim);
            ref_prefetch(kv->v + (row + AHEAD * heads) * dim, sizeof *m->k * dim);
        }
        memcpy(m->k + j * (size_t)m->padded, kv->k + row * dim, sizeof *m->k * dim);
        memcpy(m->v + j * (size_t)m->padded, kv->v + row * dim, sizeof *m->v * dim);
        b->k_units[j] = kv_score_unit(kv->k_exponents[row]);
        b->v_units[j] = num_pow2(kv->v_exponents[row]);
    }
}

/* The softmax of row r: its dot products with the n positions of the tile become weights, which are
 * 0 where the row does not see. */
static struct tile_result weigh(struct block *b, int r, int tile, int n) {
    const float *sums = b->memory.scores + (size_t)r * TILE;
    int seen = n_seen(b, r) - tile < n ? n_seen(b, r) - tile : n;
    float s[TILE];
    int16_t *weights = b->memory.weights + (size_t)r * TILE;
    for (int j = 0; j < seen; j++)
        s[j] = num_score(sums[j], b->k_units[j]);
    for (int j = seen; j < n + n % 2; j++)
        weights[j] = 0;
    struct row_name name = {b->call->dev, b->call->site, token_of(b, r)};
    return ref_tile_softmax(weights, s, b->v_units, seen, b->unit[r], name);
}

/* One tile, for the rows of the block that see something of it: those from `skip` on. */
static void run_tile(struct block *b, int tile) {
    const struct block_memory *m = &b->memory;
    int left = n_seen(b, b->n_rows - 1) - tile, n = left < TILE ? left : TILE, skip = 0;
    while (n_seen(b, skip) <= tile)
        skip++;
    struct tile_result found[BLOCK_ROWS];
    load_tile(b, tile, n);
    ref_multiply_keys(m, skip, b->n_rows - skip, n);
    for (int r = skip; r < b->n_rows; r++)
        found[r] = weigh(b, r, tile, n);
    ref_multiply_values(m, skip, b->n_rows - skip, n);
    for (int r = skip; r < b->n_rows; r++)
        ref_merge_tile(b->call->y + place_of(b, r), &b->m[r], &b->l[r], &found[r],
                       m->sums + (size_t)r * (size_t)m->padded, m->head_dim);
}

/* Item = (block, kv head): the heads of a block are neighbours. */
static void run_block(void *context, int item, int worker) {
    const struct call *c = context;
    int dim = c->shape->head_dim, n_kv_heads = c->shape->n_kv_heads;
    struct block b = {.call = c,
                      .kv_head = item % n_kv_heads,
                      .first_row = item / n_kv_heads * BLOCK_ROWS,
                      .memory = ref_block_memory(c->dev, c->memory, dim, worker)};
    int left = c->n_tokens * group_of(c) - b.first_row;
    b.n_rows = left < BLOCK_ROWS ? left : BLOCK_ROWS;
    for (int r = 0; r < b.n_rows; r++) {
        struct row_name name = {c->dev, c->site, token_of(&b, r)};
        int e = ref_load_query(&b.memory, r, c->q + place_of(&b, r), name);
        b.unit[r] = num_score_unit_of(e, c->shape->scale);
        b.m[r] = -INFINITY;
        memset(c->y + place_of(&b, r), 0, sizeof *c->y * (size_t)dim);
    }
    for (int tile = 0; tile < n_seen(&b, b.n_rows - 1); tile += TILE)
        run_tile(&b, tile);
    for (int r = 0; r < b.n_rows; r++)
        for (int d = 0; d < dim && b.l[r] > 0; d++) /* who sees nothing has l = 0 and stays zero */
            c->y[place_of(&b, r) + (size_t)d] /= b.l[r];
}

void ref_attention(struct device *dev, float *y, /* [n_tokens, n_heads, head_dim] */
                   const float *q,               /* [n_tokens, n_heads, head_dim] */
                   const struct kv_layer *kv, int n_tokens, int kv_len,
                   const struct attention_shape *shape, int site) {
    struct call c = {dev, y, q, kv, n_tokens, kv_len, site, shape, NULL};
    int n_rows = n_tokens * group_of(&c), n_blocks = (n_rows + BLOCK_ROWS - 1) / BLOCK_ROWS;
    c.memory = ref_block_scratch(dev, shape->head_dim, "attention");
    if (c.memory)
        ref_parallel(dev, n_blocks * shape->n_kv_heads, run_block, &c);
}
