/*
 * Causal attention over BFP16 caches.
 *
 * The KV positions are cut into tiles of 256. Per tile, query and head: exact scores, one softmax
 * with the tile's own maximum, weights snapped to BFP16 and an exact weighted sum of values. The
 * tiles are merged in ascending order in float32, the only order that the result depends on.
 *
 * The loops: queries go in blocks of rows (row = one token and one query head of the group that
 * shares a kv head), so that scores and weighted sums of a tile are two dgemm calls. Blocks need
 * nothing of each other: they are what the threads share out.
 */
#include "ref/attention.h"

#include <cblas.h>

enum { TILE = ATTENTION_TILE, BLOCK_ROWS = 256 };

/* A block of rows, and the memory of the thread that works on it. */
struct block {
    const struct attention_call *call;
    const struct attention_sequence *sequence;
    int head;              /* kv head */
    int first_row, n_rows; /* row = token of the sequence * group + head in the group */
    double *x;             /* [BLOCK_ROWS, head_dim] queries */
    double *scores;        /* [BLOCK_ROWS, TILE] dot products, then weights */
    double *values;        /* [BLOCK_ROWS, head_dim] weighted sums of the tile */
    double *k, *v;         /* [TILE, head_dim] the tile */
    double *k_unit;        /* [TILE] 2^exponent of each key row */
    int16_t *mantissas;    /* [head_dim] */
    int v_exponents[TILE];
    double q_unit[BLOCK_ROWS];            /* what makes a score of a dot product, but for k_unit */
    float max[BLOCK_ROWS], l[BLOCK_ROWS]; /* the running m and l of each row */
};

static int group_of(const struct attention_call *c) {
    return c->shape.n_heads / c->shape.n_kv_heads;
}

/* Row r of the block: its token, counted in the call, and its place in q and y. */
static int token_of(const struct block *b, int r) {
    return b->sequence->first_token + (b->first_row + r) / group_of(b->call);
}

static size_t place_of(const struct block *b, int r) {
    const struct attention_shape *s = &b->call->shape;
    int group = group_of(b->call);
    int head = b->head * group + (b->first_row + r) % group;
    return ((size_t)token_of(b, r) * (size_t)s->n_heads + (size_t)head) * (size_t)s->head_dim;
}

static void load_queries(struct block *b) {
    const struct attention_call *c = b->call;
    int dim = c->shape.head_dim;
    for (int r = 0; r < b->n_rows; r++) {
        int e = ref_snap_or_fault(c->dev, b->mantissas, c->q + place_of(b, r), dim, c->site,
                                  token_of(b, r));
        for (int d = 0; d < dim; d++)
            b->x[(size_t)r * (size_t)dim + (size_t)d] = b->mantissas[d];
        b->q_unit[r] = num_pow2(e - 30) * c->shape.scale;
        b->max[r] = -INFINITY;
        b->l[r] = 0;
        memset(c->y + place_of(b, r), 0, sizeof *c->y * (size_t)dim);
    }
}

static size_t slot_of(const struct block *b, int position) {
    const int32_t *pages = b->sequence->pages;
    int size = b->call->page_size;
    if (!pages)
        return (size_t)position;
    return (size_t)pages[position / size] * (size_t)size + (size_t)(position % size);
}

static void load_tile(struct block *b, int first, int n) {
    const struct kv_layer *kv = b->call->kv;
    size_t dim = (size_t)b->call->shape.head_dim, n_heads = (size_t)b->call->shape.n_kv_heads;
    for (int j = 0; j < n; j++) {
        size_t row = slot_of(b, first + j) * n_heads + (size_t)b->head;
        const int16_t *k = kv->k + row * dim, *v = kv->v + row * dim;
        double *k_wide = b->k + (size_t)j * dim, *v_wide = b->v + (size_t)j * dim;
        for (size_t d = 0; d < dim; d++) {
            k_wide[d] = k[d];
            v_wide[d] = v[d];
        }
        b->k_unit[j] = num_pow2(kv->k_exponents[row]);
        b->v_exponents[j] = kv->v_exponents[row];
    }
}

/* One row of one tile: turns the dot products of its n visible keys into integer weights (0 for
 * the rest of the tile), in place. Returns the exponent of the weights; gives the tile's m and l.
 */
static int softmax_row(struct block *b, int r, int n, int n_tile, float *max_out, float *l_out) {
    double *row = b->scores + (size_t)r * TILE;
    float s[TILE], w[TILE];
    for (int j = 0; j < n; j++)
        s[j] = num_score(row[j], b->k_unit[j], b->q_unit[r]);
    float max = -INFINITY;
    for (int j = 0; j < n; j++)
        max = s[j] > max ? s[j] : max;
    uint32_t units = 0; /* at most 256 * 2^23: fits */
    for (int j = 0; j < n; j++) {
        s[j] = num_exp(s[j] - max);
        units += num_probability_units(s[j]);
    }
    for (int j = 0; j < n; j++)
        w[j] = num_value_weight(s[j], b->v_exponents[j]);
    int16_t mantissas[TILE];
    int e = ref_snap_or_fault(b->call->dev, mantissas, w, n, b->call->site, token_of(b, r));
    for (int j = 0; j < n; j++)
        row[j] = mantissas[j];
    for (int j = n; j < n_tile; j++)
        row[j] = 0;
    *max_out = max;
    *l_out = (float)units * 0x1p-23f;
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

/* One tile, for the rows of the block from `skip` on: those before it see nothing of it. */
static void block_tile(struct block *b, int tile, int skip) {
    const struct attention_sequence *s = b->sequence;
    int dim = b->call->shape.head_dim, n_rows = b->n_rows - skip, group = group_of(b->call);
    int visible[BLOCK_ROWS], exponent[BLOCK_ROWS];
    float max[BLOCK_ROWS], l[BLOCK_ROWS];
    for (int r = skip; r < b->n_rows; r++) {
        int sees = s->kv_len - s->n_tokens + (b->first_row + r) / group + 1 - tile;
        visible[r] = sees < TILE ? sees : TILE;
    }
    int n_tile = visible[b->n_rows - 1]; /* the last row sees most: nobody needs the rest */
    load_tile(b, tile, n_tile);
    double *x = b->x + (size_t)skip * (size_t)dim, *scores = b->scores + (size_t)skip * TILE;
    double *values = b->values + (size_t)skip * (size_t)dim;
    cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasTrans, n_rows, n_tile, dim, 1, x, dim, b->k, dim,
                0, scores, TILE);
    for (int r = skip; r < b->n_rows; r++)
        exponent[r] = softmax_row(b, r, visible[r], n_tile, &max[r], &l[r]);
    cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, n_rows, dim, n_tile, 1, scores, TILE,
                b->v, dim, 0, values, dim);
    for (int r = skip; r < b->n_rows; r++)
        merge_row(b->call->y + place_of(b, r), &b->max[r], &b->l[r],
                  b->values + (size_t)r * (size_t)dim, max[r], l[r], exponent[r], dim);
}

static void run_block(struct block *b) {
    const struct attention_sequence *s = b->sequence;
    int group = group_of(b->call), dim = b->call->shape.head_dim;
    load_queries(b);
    /* Token t of the sequence sees the positions before `before` + t + 1; with padding in front,
     * `before` is negative and the first tokens see nothing. */
    int before = s->kv_len - s->n_tokens;
    int end = before + (b->first_row + b->n_rows - 1) / group + 1;
    for (int tile = 0; tile < end; tile += TILE) {
        int skip = (tile - before) * group - b->first_row;
        block_tile(b, tile, skip > 0 ? skip : 0);
    }
    for (int r = 0; r < b->n_rows; r++)
        for (int d = 0; d < dim && b->l[r] > 0; d++) /* who sees nothing has l = 0 and stays zero */
            b->call->y[place_of(b, r) + (size_t)d] /= b->l[r];
}

struct work {
    const struct attention_call *call;
    int *first_block; /* [n_sequences + 1] per kv head */
    double *memory;   /* [workers, memory_each] */
    size_t memory_each;
};

static int n_blocks_of(const struct attention_call *c, int sequence) {
    return (c->sequences[sequence].n_tokens * group_of(c) + BLOCK_ROWS - 1) / BLOCK_ROWS;
}

/* Item = (block, kv head): the heads of a block are neighbours. */
static void run_item(void *context, int item, int worker) {
    const struct work *w = context;
    const struct attention_call *c = w->call;
    int block = item / c->shape.n_kv_heads, low = 0, high = c->n_sequences;
    while (high - low > 1) { /* the sequence whose blocks begin at or before this one */
        int middle = (low + high) / 2;
        if (w->first_block[middle] <= block)
            low = middle;
        else
            high = middle;
    }
    size_t dim = (size_t)c->shape.head_dim;
    struct block b = {
        .call = c, .sequence = &c->sequences[low], .head = item % c->shape.n_kv_heads};
    int all_rows = b.sequence->n_tokens * group_of(c);
    b.first_row = (block - w->first_block[low]) * BLOCK_ROWS;
    b.n_rows = all_rows - b.first_row < BLOCK_ROWS ? all_rows - b.first_row : BLOCK_ROWS;
    b.x = w->memory + (size_t)worker * w->memory_each;
    b.values = b.x + BLOCK_ROWS * dim;
    b.scores = b.values + BLOCK_ROWS * dim;
    b.k = b.scores + BLOCK_ROWS * TILE;
    b.v = b.k + TILE * dim;
    b.k_unit = b.v + TILE * dim;
    b.mantissas = (int16_t *)(b.k_unit + TILE);
    run_block(&b);
}

void ref_attend(const struct attention_call *c) {
    size_t dim = (size_t)c->shape.head_dim;
    struct work w = {.call = c};
    w.memory_each = BLOCK_ROWS * (dim * 2 + TILE) + TILE * (dim * 2 + 1) + dim;
    w.memory = ref_scratch(c->dev, SCRATCH_SOFTMAX,
                           sizeof *w.memory * w.memory_each * (size_t)ref_n_threads(c->dev), c->op);
    w.first_block = ref_scratch(c->dev, SCRATCH_STATE,
                                sizeof *w.first_block * (size_t)(c->n_sequences + 1), c->op);
    if (!w.memory || !w.first_block)
        return;
    w.first_block[0] = 0;
    for (int i = 0; i < c->n_sequences; i++)
        w.first_block[i + 1] = w.first_block[i] + n_blocks_of(c, i);
    ref_parallel(c->dev, w.first_block[c->n_sequences] * c->shape.n_kv_heads, run_item, &w);
}
