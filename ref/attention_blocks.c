/*
 * Attention over caches of any layout and type.
 *
 * The KV positions are cut into tiles of 256. Per tile, query and head: exact scores, one softmax
 * with the tile's own maximum, weights snapped to BFP16 and an exact weighted sum of values. The
 * tiles are merged in ascending order in float32, the only order that the result depends on.
 *
 * The loops: queries go in blocks of rows (row = one token and one query head of the group that
 * shares a kv head), so that scores and weighted sums of a tile are two dgemm calls. Blocks need
 * nothing of each other: they are what the threads share out.
 *
 * Tiles that sequences share (model/attention/cascade.h) come first, in blocks of all their rows: what a row
 * has found there, its m, l and o, is kept, and its next block goes on from it.
 */
#include "ref/attention.h"

#include <cblas.h>

enum { TILE = ATTENTION_TILE, BLOCK_ROWS = 256 };

/* What a block does: rows of one sequence from its first own tile on to the end; or of all members
 * of a stretch, its tiles. */
struct block_item {
    int sequence; /* its number; of a stretch, a member's: they have the same pages there */
    int stretch;  /* -1: none */
    int first_row, n_rows; /* row = token * group + head in the group; of a stretch, its tokens are
                              those of all members, one after the other */
};

/* What the blocks of a call share. */
struct work {
    const struct attention_call *call;
    struct block_item *items;
    float *max, *l; /* [n_tokens, n_heads] of rows between blocks */
    double *memory; /* [workers, memory_each] */
    size_t memory_each;
    int first_item; /* of those that are run now */
};

/* A row of a block. */
struct row {
    int sequence, i; /* the query's number in it */
    int token, head; /* of the call */
};

/* A block of rows, and the memory of the thread that works on it. */
struct block {
    const struct attention_call *call;
    const struct work *work;
    const struct block_item *item;
    int head;           /* kv head */
    double *x;          /* [BLOCK_ROWS, head_dim] queries */
    double *scores;     /* [BLOCK_ROWS, TILE] dot products, then weights */
    double *values;     /* [BLOCK_ROWS, head_dim] weighted sums of the tile */
    double *k, *v;      /* [TILE, head_dim] the tile */
    double *v_unit;     /* [TILE] 2^exponent of each value row; a NaN: it cannot be read */
    int16_t *mantissas; /* [head_dim] */
    struct row rows[BLOCK_ROWS];
    struct num_score_unit unit[BLOCK_ROWS]; /* of each query, */
    float k_unit[TILE];                     /* of each key; a NaN: it cannot be read */
    float max[BLOCK_ROWS], l[BLOCK_ROWS];   /* the running m and l of each row */
};

static int group_of(const struct attention_call *c) {
    return c->shape.n_heads / c->shape.n_kv_heads;
}

/* Which rows these are. */
static void find_rows(struct block *b) {
    const struct attention_call *c = b->call;
    const struct block_item *item = b->item;
    int group = group_of(c), member = 0, before = 0, sequence = item->sequence;
    const struct shared_stretch *s =
        item->stretch < 0 ? NULL : &c->cascade->stretches[item->stretch];
    for (int r = 0; r < item->n_rows; r++) {
        int i = (item->first_row + r) / group - before;
        if (s)
            sequence = c->cascade->members[s->first_member + member];
        while (i >= c->sequences[sequence].n_tokens) { /* only of a stretch */
            before += c->sequences[sequence].n_tokens;
            i -= c->sequences[sequence].n_tokens;
            sequence = c->cascade->members[s->first_member + ++member];
        }
        b->rows[r] = (struct row){sequence, i, c->sequences[sequence].first_token + i,
                                  b->head * group + (item->first_row + r) % group};
    }
}

/* A row's place in what is kept for each, and in q and y. */
static size_t number_of(const struct block *b, int r) {
    return (size_t)b->rows[r].token * (size_t)b->call->shape.n_heads + (size_t)b->rows[r].head;
}

static size_t place_of(const struct block *b, int r) {
    return number_of(b, r) * (size_t)b->call->shape.head_dim;
}

/* The first tile that a sequence does not share. */
static int own_tile(const struct attention_call *c, int sequence) {
    return c->cascade && c->cascade->n_stretches ? c->cascade->own_tile[sequence] : 0;
}

/* Positions in front of a sequence's first token. With padding in front, or with more queries than
 * positions, it is negative, and the first tokens see nothing. */
static int before_of(const struct attention_sequence *s) {
    return s->kv_len - s->n_tokens;
}

/* first_tile: of the block. The rows begin there, or go on from what is kept. */
static void load_queries(struct block *b, int first_tile) {
    const struct attention_call *c = b->call;
    int dim = c->shape.head_dim;
    for (int r = 0; r < b->item->n_rows; r++) {
        size_t number = number_of(b, r);
        int e = ref_snap_or_fault(c->dev, b->mantissas, c->q + place_of(b, r), dim, c->site,
                                  b->rows[r].token);
        for (int d = 0; d < dim; d++)
            b->x[(size_t)r * (size_t)dim + (size_t)d] = b->mantissas[d];
        b->unit[r] = num_score_unit_of(e, c->shape.scale * (double)c->kv.k.scale);
        b->max[r] = first_tile ? b->work->max[number] : -INFINITY;
        b->l[r] = first_tile ? b->work->l[number] : 0;
        if (!first_tile)
            memset(c->y + place_of(b, r), 0, sizeof *c->y * (size_t)dim);
    }
}

/* A row as integers. Returns the exponent: a row stands for integer * 2^(exponent - 15). One that
 * cannot be read becomes zeros, for the queries that do not see it. */
static int widen_row(double *out, const struct kv_view *view, int64_t row, int64_t exponent_at,
                     int dim) {
    enum kv_type t = view->type;
    const int16_t *from = (const int16_t *)view->data + row;
    if (t == KV_BFP16 && view->element_step == 1 &&
        view->group_step == view->x) { /* in one piece */
        for (int d = 0; d < dim; d++)
            out[d] = from[d];
        return view->exponents[exponent_at];
    }
    uint32_t largest = 0;
    for (int d = 0; d < dim && !kv_type_has_exponents(t); d++) {
        uint32_t bits = kv_load_bits(view->data, t, row + kv_view_element(view, d));
        uint32_t magnitude = kv_magnitude(t, bits);
        largest = magnitude > largest ? magnitude : largest;
    }
    int e = kv_type_has_exponents(t) ? view->exponents[exponent_at] : kv_read_exponent(t, largest);
    float scale = e > BFP_MAX_EXPONENT ? 0 : num_pow2f(15 - e);
    for (int d = 0; d < dim; d++) {
        uint32_t bits = kv_load_bits(view->data, t, row + kv_view_element(view, d));
        out[d] = e > BFP_MAX_EXPONENT ? 0 : kv_integer(t, bits, scale);
    }
    return e;
}

static void load_tile(struct block *b, int first, int n) {
    const struct kv_views *kv = &b->call->kv;
    const int32_t *pages = b->call->sequences[b->item->sequence].pages;
    int dim = b->call->shape.head_dim, size = b->call->page_size;
    for (int j = 0; j < n; j++) {
        int position = first + j, page = pages ? pages[position / size] : 0;
        position = pages ? position % size : position;
        b->k_unit[j] = kv_score_unit(widen_row(
            b->k + (size_t)j * (size_t)dim, &kv->k, kv_view_row(&kv->k, page, position, b->head),
            kv_view_exponent(&kv->k, page, position, b->head), dim));
        b->v_unit[j] = kv_unit(widen_row(b->v + (size_t)j * (size_t)dim, &kv->v,
                                         kv_view_row(&kv->v, page, position, b->head),
                                         kv_view_exponent(&kv->v, page, position, b->head), dim));
    }
}

/* out [m, n] = x [m, k] y, where y is [n, k] when transposed, else [k, n], and all are integers. */
static void multiply(bool transposed, int m, int n, int k, const double *x, int x_step,
                     const double *y, double *out, int out_step) {
    cblas_dgemm(CblasRowMajor, CblasNoTrans, transposed ? CblasTrans : CblasNoTrans, m, n, k, 1, x,
                x_step, y, transposed ? k : n, 0, out, out_step);
}

/* Whether the mask shows a position to row r. */
static bool shows(const struct block *b, int r, int position) {
    const struct attention_variant *v = &b->call->variant;
    const struct row *row = &b->rows[r];
    const uint8_t *mask = v->mask_form ? v->mask + v->mask_offsets[row->sequence] : NULL;
    return attention_shows(v, mask, row->i, position, b->call->sequences[row->sequence].kv_len);
}

/* What changes a score but the scale, for the positions first ... end - 1 of a tile; hidden ones
 * become -infinity, whose probability and weight are 0. Returns whether one is visible. */
static bool vary_scores(struct block *b, int r, int tile, int first, int end, float *s) {
    const struct attention_variant *v = &b->call->variant;
    const struct row *row = &b->rows[r];
    int at = before_of(&b->call->sequences[row->sequence]) + row->i; /* the query's position */
    float slope = v->alibi_slopes ? v->alibi_slopes[row->head] : 0;
    double natural = attention_changes_scores(v) ? b->unit[r].natural : 1;
    bool visible = false;
    for (int j = first; j < end; j++) {
        bool sees = shows(b, r, tile + j);
        s[j] = sees ? attention_score(v, (float)(s[j] * natural), at, tile + j, slope) : -INFINITY;
        visible |= sees;
    }
    return visible;
}

/* What a row finds in a tile. */
struct found {
    bool any;       /* a position that it sees */
    int first, end; /* all that it sees lie between */
    int exponent;   /* of the weights */
    float max, l;
};

/* One row of one tile: turns the dot products into integer weights (0 for what it does not see), in
 * place. */
static void softmax_row(struct block *b, int r, int tile, int n_tile, struct found *f) {
    const struct attention_variant *v = &b->call->variant;
    double *row = b->scores + (size_t)r * TILE;
    int first = f->first, end = f->end;
    struct num_score_unit unit = attention_score_unit(v, b->unit[r]);
    float s[TILE], w[TILE];
    for (int j = first; j < end; j++)
        row[j] = num_floor_256(row[j]);
    for (int j = first; j < end; j++)
        s[j] = num_score((float)row[j], b->k_unit[j]);
    f->any = first < end;
    if (v->mask_form || attention_changes_scores(v))
        f->any = vary_scores(b, r, tile, first, end, s);
    for (int j = 0; j < n_tile && !f->any; j++)
        row[j] = 0;
    if (!f->any)
        return;
    float max = -INFINITY;
    for (int j = first; j < end; j++)
        s[j] = s[j] == s[j] ? s[j] : INFINITY; /* of a key that cannot be read, say */
    for (int j = first; j < end; j++)
        max = s[j] > max ? s[j] : max;
    f->max = num_tile_max(max, unit);
    if (!isfinite(f->max))
        ref_fault(b->call->dev, b->call->site, b->rows[r].token);
    struct num_window window = num_window_of(max, unit.binary);
    uint32_t units = 0; /* at most 256 * 2^23: fits */
    for (int j = first; j < end; j++) {
        s[j] = num_probability(s[j], window);
        units += num_probability_units(s[j]);
    }
    for (int j = first; j < end; j++)
        w[j] = num_weight_in_units(s[j], b->v_unit[j]);
    for (int j = first; j < end && v->mask_form; j++)
        if (!shows(b, r, tile + j)) /* its value may be one that cannot be read */
            w[j] = 0;
    int16_t mantissas[TILE];
    f->exponent = ref_snap_or_fault(b->call->dev, mantissas, w + first, end - first, b->call->site,
                                    b->rows[r].token);
    for (int j = 0; j < first; j++)
        row[j] = 0;
    for (int j = first; j < end; j++)
        row[j] = mantissas[j - first];
    for (int j = end; j < n_tile; j++)
        row[j] = 0;
    f->l = (float)units * 0x1p-23f;
}

/* Merges a tile's (m, l, o) into the row's. Each operation is rounded, in this order. */
static void merge_row(float *o, float *m, float *l, const double *tile_o, float tile_m,
                      float tile_l, int exponent, int dim) {
    float a, b;
    attention_merge_sums(m, l, tile_m, tile_l, &a, &b);
    for (int d = 0; d < dim; d++)
        o[d] = num_merge(o[d], a, num_weighted_value((float)tile_o[d], exponent), b);
}

/* One tile, for all rows of the block that see something of it. */
static void block_tile(struct block *b, int tile) {
    int dim = b->call->shape.head_dim, n_tile = 0;
    int skip = b->item->n_rows, n_rows = 0; /* rows before and behind those that see something */
    struct found found[BLOCK_ROWS];
    for (int r = 0; r < b->item->n_rows; r++) {
        const struct attention_sequence *s = &b->call->sequences[b->rows[r].sequence];
        int first = attention_first(&b->call->variant, before_of(s), b->rows[r].i) - tile;
        int end = attention_end(&b->call->variant, before_of(s), b->rows[r].i, s->kv_len) - tile;
        found[r].first = first > 0 ? first : 0;
        found[r].end = end < TILE ? end : TILE;
        if (found[r].first >= found[r].end)
            continue;
        skip = skip < r ? skip : r;
        n_rows = r + 1 - skip;
        n_tile = n_tile > found[r].end ? n_tile : found[r].end; /* nobody needs the rest */
    }
    if (!n_rows)
        return;
    load_tile(b, tile, n_tile);
    double *x = b->x + (size_t)skip * (size_t)dim, *scores = b->scores + (size_t)skip * TILE;
    double *values = b->values + (size_t)skip * (size_t)dim;
    multiply(true, n_rows, n_tile, dim, x, dim, b->k, scores, TILE);
    for (int r = skip; r < skip + n_rows; r++)
        softmax_row(b, r, tile, n_tile, &found[r]);
    multiply(false, n_rows, dim, n_tile, scores, TILE, b->v, values, dim);
    for (size_t i = 0; i < (size_t)n_rows * (size_t)dim; i++)
        values[i] = num_floor_256(values[i]);
    for (int r = skip; r < skip + n_rows; r++)
        if (found[r].any)
            merge_row(b->call->y + place_of(b, r), &b->max[r], &b->l[r],
                      b->values + (size_t)r * (size_t)dim, found[r].max, found[r].l,
                      found[r].exponent, dim);
}

/* The end of a row: its sink, its sum's logarithm, and the division. */
static void finish_row(struct block *b, int r) {
    const struct attention_variant *v = &b->call->variant;
    size_t dim = (size_t)b->call->shape.head_dim, head = (size_t)b->rows[r].head;
    float *y = b->call->y + place_of(b, r);
    if (v->sinks) { /* a tile of values that are 0 */
        if (!attention_sink_is_finite(v->sinks[head]))
            ref_fault(b->call->dev, b->call->site, b->rows[r].token);
        double *nothing = b->values + (size_t)r * dim;
        memset(nothing, 0, sizeof *nothing * dim);
        merge_row(y, &b->max[r], &b->l[r], nothing, v->sinks[head], 1, 0, (int)dim);
    }
    attention_note_sums(v, number_of(b, r), b->max[r], b->l[r]);
    bool divides = b->l[r] > 0 && !v->m; /* who sees nothing has l = 0 and stays zero */
    for (size_t d = 0; d < dim && divides; d++)
        y[d] /= b->l[r];
    for (size_t d = 0; d < dim && b->call->kv.v.scale != 1; d++)
        y[d] *= b->call->kv.v.scale;
}

static void run_block(struct block *b) {
    const struct attention_call *c = b->call;
    const struct block_item *item = b->item;
    find_rows(b);
    if (item->stretch >= 0) {
        const struct shared_stretch *s = &c->cascade->stretches[item->stretch];
        load_queries(b, s->first_tile);
        for (int tile = s->first_tile; tile < s->first_tile + s->n_tiles; tile++)
            block_tile(b, tile * TILE);
        for (int r = 0; r < item->n_rows; r++) {
            b->work->max[number_of(b, r)] = b->max[r];
            b->work->l[number_of(b, r)] = b->l[r];
        }
        return;
    }
    const struct attention_sequence *s = &c->sequences[item->sequence];
    int own = own_tile(c, item->sequence) * TILE;
    int first = attention_first(&c->variant, before_of(s), b->rows[0].i) / TILE * TILE;
    int end = attention_end(&c->variant, before_of(s), b->rows[item->n_rows - 1].i, s->kv_len);
    load_queries(b, own / TILE);
    for (int tile = first > own ? first : own; tile < end; tile += TILE)
        block_tile(b, tile);
    for (int r = 0; r < item->n_rows; r++)
        finish_row(b, r);
}

/* Item = (block, kv head): the heads of a block are neighbours. */
static void run_item(void *context, int item, int worker) {
    const struct work *w = context;
    const struct attention_call *c = w->call;
    size_t dim = (size_t)c->shape.head_dim;
    struct block b = {.call = c,
                      .work = w,
                      .item = &w->items[w->first_item + item / c->shape.n_kv_heads],
                      .head = item % c->shape.n_kv_heads};
    b.x = w->memory + (size_t)worker * w->memory_each;
    b.values = b.x + BLOCK_ROWS * dim;
    b.scores = b.values + BLOCK_ROWS * dim;
    b.k = b.scores + BLOCK_ROWS * TILE;
    b.v = b.k + TILE * dim;
    b.v_unit = b.v + TILE * dim;
    b.mantissas = (int16_t *)(b.v_unit + TILE);
    run_block(&b);
}

/* Cuts n rows into blocks. items NULL: only counts. Returns how many. */
static int cut_rows(struct block_item *items, int sequence, int stretch, int n) {
    int count = (n + BLOCK_ROWS - 1) / BLOCK_ROWS;
    for (int i = 0; i < count && items; i++) {
        int first = i * BLOCK_ROWS, left = n - first;
        items[i] =
            (struct block_item){sequence, stretch, first, left < BLOCK_ROWS ? left : BLOCK_ROWS};
    }
    return count;
}

static int cut_stretch(struct block_item *items, const struct attention_call *c, int stretch) {
    const struct shared_stretch *s = &c->cascade->stretches[stretch];
    const int32_t *members = c->cascade->members + s->first_member;
    int n = 0;
    for (int i = 0; i < s->n_members; i++)
        n += c->sequences[members[i]].n_tokens;
    return cut_rows(items, members[0], stretch, n * group_of(c));
}

static int cut_sequence(struct block_item *items, const struct attention_call *c, int sequence) {
    return cut_rows(items, sequence, -1, c->sequences[sequence].n_tokens * group_of(c));
}

static void run(struct work *w, int first, int n) {
    w->first_item = first;
    ref_parallel(w->call->dev, n * w->call->shape.n_kv_heads, run_item, w);
}

void ref_attend_all(const struct attention_call *c) {
    size_t dim = (size_t)c->shape.head_dim, n_items = 0, n_rows = 0;
    int n_stretches = c->cascade ? c->cascade->n_stretches : 0, at = 0;
    for (int i = 0; i < n_stretches; i++)
        n_items += (size_t)cut_stretch(NULL, c, i);
    for (int i = 0; i < c->n_sequences; i++) {
        n_items += (size_t)cut_sequence(NULL, c, i);
        n_rows += (size_t)c->sequences[i].n_tokens * (size_t)c->shape.n_heads;
    }
    struct work w = {.call = c};
    w.memory_each = BLOCK_ROWS * (dim * 2 + TILE) + TILE * (dim * 2 + 1) + dim;
    w.memory = ref_scratch(c->dev, SCRATCH_SOFTMAX,
                           sizeof *w.memory * w.memory_each * (size_t)ref_n_threads(c->dev), c->op);
    w.items = ref_scratch(c->dev, SCRATCH_STATE,
                          sizeof *w.items * n_items + 2 * sizeof *w.max * n_rows, c->op);
    if (!w.memory || !w.items)
        return;
    w.max = (float *)(w.items + n_items);
    w.l = w.max + n_rows;
    for (int i = 0; i < n_stretches;) { /* a depth needs the one before it */
        int first = at, depth = c->cascade->stretches[i].depth;
        for (; i < n_stretches && c->cascade->stretches[i].depth == depth; i++)
            at += cut_stretch(w.items + at, c, i);
        run(&w, first, at - first);
    }
    int first = at;
    for (int i = 0; i < c->n_sequences; i++)
        at += cut_sequence(w.items + at, c, i);
    run(&w, first, at - first);
}
