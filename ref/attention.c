/*
 * attention: causal attention of one sequence over its contiguous BFP16 cache.
 *
 * The KV positions are cut into tiles of 256. Per tile, query and head: exact scores, one softmax
 * with the tile's own maximum, weights snapped to BFP16 and an exact weighted sum of values. The
 * tiles are merged in ascending order in float32, the only order that the result depends on.
 *
 * The loops: a tile of keys and values of one kv head is widened to double once and used by all
 * queries that see it, in blocks of rows (row = one token and one query head of the group), so
 * that scores and weighted sums are two dgemm calls per block.
 */
#include "ref/ref.h"

#include <cblas.h>

enum { TILE = ATTENTION_TILE, BLOCK_ROWS = 512 };

/* Everything that the functions below share for one call of the op. */
struct pass {
    struct device *dev;
    float *y; /* [n_tokens, n_heads, head_dim]: the running sum o of each row */
    const struct kv_layer *kv;
    struct attention_shape shape;
    int n_tokens, kv_len, group, site;
    struct bfp_rows q;       /* [n_tokens * n_heads, head_dim] */
    float *max, *sum;        /* [n_tokens * n_heads]: the running m and l of each row */
    double *k_tile, *v_tile; /* [TILE, head_dim] */
    double *k_unit;          /* [TILE] 2^exponent of each key row */
    int v_exponents[TILE];
    double *x;      /* [BLOCK_ROWS, head_dim] queries */
    double *scores; /* [BLOCK_ROWS, TILE] dot products, then weights */
    double *values; /* [BLOCK_ROWS, head_dim] */
};

static void load_tile(struct pass *p, int head, int first, int n) {
    size_t dim = (size_t)p->shape.head_dim;
    for (int j = 0; j < n; j++) {
        size_t row = (size_t)(first + j) * (size_t)p->shape.n_kv_heads + (size_t)head;
        const int16_t *k = p->kv->k + row * dim, *v = p->kv->v + row * dim;
        double *k_wide = p->k_tile + (size_t)j * dim, *v_wide = p->v_tile + (size_t)j * dim;
        for (size_t d = 0; d < dim; d++) {
            k_wide[d] = k[d];
            v_wide[d] = v[d];
        }
        p->k_unit[j] = num_pow2(p->kv->k_exponents[row]);
        p->v_exponents[j] = p->kv->v_exponents[row];
    }
}

/* One row of one tile: turns the dot products of its n visible keys into integer weights (0 for
 * the rest of the tile), in place. Returns the exponent of the weights; gives the tile's m and l.
 */
static int softmax_row(struct pass *p, double *row, int n, int n_tile, double q_unit, int token,
                       float *max_out, float *sum_out) {
    float s[TILE], w[TILE];
    for (int j = 0; j < n; j++)
        s[j] = num_score(row[j], p->k_unit[j], q_unit);
    float max = -INFINITY;
    for (int j = 0; j < n; j++)
        max = s[j] > max ? s[j] : max;
    uint32_t units = 0; /* at most 256 * 2^23: fits */
    for (int j = 0; j < n; j++) {
        s[j] = num_exp(s[j] - max);
        units += num_probability_units(s[j]);
    }
    for (int j = 0; j < n; j++)
        w[j] = num_value_weight(s[j], p->v_exponents[j]);
    int16_t mantissas[TILE];
    int e = ref_snap_or_fault(p->dev, mantissas, w, n, p->site, token);
    for (int j = 0; j < n; j++)
        row[j] = mantissas[j];
    for (int j = n; j < n_tile; j++)
        row[j] = 0;
    *max_out = max;
    *sum_out = (float)units * 0x1p-23f;
    return e;
}

/* Merges a tile's (m, l, o) into the row's. Each operation is rounded, in this order. */
static void merge_row(float *o, float *m, float *l, const double *tile_o, float tile_m,
                      float tile_l, int exponent, int dim) {
    float max = *m > tile_m ? *m : tile_m;
    float a = num_exp(*m - max), b = num_exp(tile_m - max);
    *l = *l * a + tile_l * b;
    for (int d = 0; d < dim; d++)
        o[d] = o[d] * a + num_dot_to_float(tile_o[d], exponent - 30) * b;
    *m = max;
}

/* The rows first ... first + n_rows - 1 of one kv head (row = token * group + head in the group):
 * one tile. */
static void block_tile(struct pass *p, int head, int tile, int n_tile, int first, int n_rows) {
    int dim = p->shape.head_dim;
    int visible[BLOCK_ROWS], exponent[BLOCK_ROWS], at[BLOCK_ROWS];
    float max[BLOCK_ROWS], sum[BLOCK_ROWS];
    for (int r = 0; r < n_rows; r++) {
        int token = (first + r) / p->group;
        at[r] = token * p->shape.n_heads + head * p->group + (first + r) % p->group;
        int sees = p->kv_len - p->n_tokens + token + 1 - tile;
        visible[r] = sees < 0 ? 0 : sees < n_tile ? sees : n_tile;
        const int16_t *q = p->q.mantissas + (size_t)at[r] * (size_t)dim;
        for (int d = 0; d < dim; d++)
            p->x[(size_t)r * (size_t)dim + (size_t)d] = q[d];
    }
    n_tile = visible[n_rows - 1]; /* the last row sees most: nobody needs the rest of the tile */
    cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasTrans, n_rows, n_tile, dim, 1, p->x, dim,
                p->k_tile, dim, 0, p->scores, TILE);
    for (int r = 0; r < n_rows; r++) {
        double *row = p->scores + (size_t)r * TILE;
        double q_unit = num_pow2(p->q.exponents[at[r]] - 30) * p->shape.scale;
        if (visible[r])
            exponent[r] = softmax_row(p, row, visible[r], n_tile, q_unit, (first + r) / p->group,
                                      &max[r], &sum[r]);
        else
            memset(row, 0, sizeof *row * (size_t)n_tile);
    }
    cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, n_rows, dim, n_tile, 1, p->scores, TILE,
                p->v_tile, dim, 0, p->values, dim);
    for (int r = 0; r < n_rows; r++)
        if (visible[r])
            merge_row(p->y + (size_t)at[r] * (size_t)dim, &p->max[at[r]], &p->sum[at[r]],
                      p->values + (size_t)r * (size_t)dim, max[r], sum[r], exponent[r], dim);
}

static void one_head(struct pass *p, int head) {
    int end = p->n_tokens * p->group;
    for (int tile = 0; tile < p->kv_len; tile += TILE) {
        int n_tile = p->kv_len - tile < TILE ? p->kv_len - tile : TILE;
        load_tile(p, head, tile, n_tile);
        int blind = tile - (p->kv_len - p->n_tokens); /* tokens before this one see nothing of it */
        for (int row = blind > 0 ? blind * p->group : 0; row < end; row += BLOCK_ROWS)
            block_tile(p, head, tile, n_tile, row, end - row < BLOCK_ROWS ? end - row : BLOCK_ROWS);
    }
}

/* Cuts the scratch memory into the arrays of the pass. false: there is not enough. */
static int get_memory(struct pass *p) {
    size_t dim = (size_t)p->shape.head_dim;
    size_t rows = (size_t)p->n_tokens * (size_t)p->shape.n_heads;
    size_t wide = TILE * dim * 2 + TILE + BLOCK_ROWS * (dim * 2 + TILE);
    double *w = ref_scratch(p->dev, SCRATCH_SOFTMAX, sizeof *w * wide, "attention");
    float *state = ref_scratch(p->dev, SCRATCH_STATE, (2 * sizeof *state + 1) * rows, "attention");
    p->q.mantissas =
        ref_scratch(p->dev, SCRATCH_Q, sizeof *p->q.mantissas * rows * dim, "attention");
    if (!w || !state || !p->q.mantissas)
        return -1;
    p->k_tile = w;
    p->v_tile = p->k_tile + TILE * dim;
    p->k_unit = p->v_tile + TILE * dim;
    p->x = p->k_unit + TILE;
    p->values = p->x + BLOCK_ROWS * dim;
    p->scores = p->values + BLOCK_ROWS * dim;
    p->max = state;
    p->sum = state + rows;
    p->q.exponents = (int8_t *)(state + 2 * rows);
    return 0;
}

void ref_attention(struct device *dev, float *y, /* [n_tokens, n_heads, head_dim] */
                   const float *q,               /* [n_tokens, n_heads, head_dim] */
                   const struct kv_layer *kv, int n_tokens, int kv_len,
                   const struct attention_shape *shape, int site) {
    struct pass p = {.dev = dev,
                     .y = y,
                     .kv = kv,
                     .shape = *shape,
                     .n_tokens = n_tokens,
                     .kv_len = kv_len,
                     .group = shape->n_heads / shape->n_kv_heads,
                     .site = site};
    if (get_memory(&p))
        return;
    int n_rows = n_tokens * shape->n_heads, dim = shape->head_dim;
    for (int row = 0; row < n_rows; row++) {
        size_t at = (size_t)row * (size_t)dim;
        p.q.exponents[row] =
            ref_snap_or_fault(dev, p.q.mantissas + at, q + at, dim, site, row / shape->n_heads);
        p.max[row] = -INFINITY;
        p.sum[row] = 0;
        memset(y + at, 0, sizeof *y * (size_t)dim);
    }
    for (int head = 0; head < shape->n_kv_heads; head++)
        one_head(&p, head);
    for (int row = 0; row < n_rows; row++)
        for (int d = 0; d < dim; d++) /* a query that sees nothing has l = 0 and stays zero */
            if (p.sum[row] > 0)
                y[(size_t)row * (size_t)dim + (size_t)d] /= p.sum[row];
}
