/*
 * attend: attention of many sequences over a cache of any layout and type, each through its page
 * table, with any masks and scores. A tile of a row is computed as in attention.c, the definition;
 * this file adds
 *
 *     pages and views    load_tile: any row becomes integers and an exponent (kv_row.c)
 *     masks and scores   weigh: hidden positions do not take part (variant.c)
 *     sinks, states      finish_row
 *     shared tiles       run_block: tiles that sequences share (model/attention/cascade.h) come
 *                        first, in blocks of all their rows; what a row has found there, its m, l
 *                        and o, is kept, and its next block goes on from it
 */
#include "ref/attention.h"

/* What the blocks of a call share. */
struct call {
    struct device *dev;
    float *y;       /* [n_tokens, n_heads, head_dim] */
    const float *q; /* [n_tokens, n_heads, head_dim] */
    struct kv_views kv;
    const struct attention_variant *variant;
    const struct attention_plan *plan;
    int site;
    float *max, *l; /* [n_tokens, n_heads] of rows between blocks */
    void *memory;   /* of all threads */
    int first_item; /* of those that are run now */
};

/* A row of a block. */
struct row {
    int sequence, i; /* the query's number in it */
    int token, head; /* of the call */
    struct num_score_unit unit;
    float max, l; /* the running m and l */
};

struct block {
    const struct call *call;
    const struct block_item *item;
    int head; /* kv head */
    struct block_memory memory;
    struct row rows[BLOCK_ROWS];
    float k_units[TILE];  /* of each key; a NaN: it cannot be read */
    double v_units[TILE]; /* 2^exponent of each value row; a NaN: it cannot be read */
};

/* ---- rows ----------------------------------------------------------------------------------- */

static const struct planned_sequence *sequence_of(const struct block *b, const struct row *r) {
    return &b->call->plan->sequences[r->sequence];
}

/* Which rows these are. */
static void find_rows(struct block *b) {
    const struct attention_plan *p = b->call->plan;
    const struct block_item *item = b->item;
    int group = p->shape.n_heads / p->shape.n_kv_heads;
    int member = 0, before = 0, sequence = item->sequence;
    const struct shared_stretch *s =
        item->stretch < 0 ? NULL : &p->cascade.stretches[item->stretch];
    for (int r = 0; r < item->n_rows; r++) {
        int i = (item->first_row + r) / group - before;
        if (s)
            sequence = p->cascade.members[s->first_member + member];
        while (i >= p->sequences[sequence].n_tokens) { /* only of a stretch */
            before += p->sequences[sequence].n_tokens;
            i -= p->sequences[sequence].n_tokens;
            sequence = p->cascade.members[s->first_member + ++member];
        }
        b->rows[r] = (struct row){.sequence = sequence,
                                  .i = i,
                                  .token = p->sequences[sequence].first_token + i,
                                  .head = b->head * group + (item->first_row + r) % group};
    }
}

/* A row's place in what is kept for each, and in q and y. */
static size_t number_of(const struct block *b, const struct row *r) {
    return (size_t)r->token * (size_t)b->call->plan->shape.n_heads + (size_t)r->head;
}

static size_t place_of(const struct block *b, const struct row *r) {
    return number_of(b, r) * (size_t)b->call->plan->shape.head_dim;
}

static struct row_name name_of(const struct block *b, const struct row *r) {
    return (struct row_name){b->call->dev, b->call->site, r->token};
}

/* Positions in front of a sequence's first token. With padding in front, or with more queries than
 * positions, it is negative, and the first tokens see nothing. */
static int before_of(const struct planned_sequence *s) {
    return s->kv_len - s->n_tokens;
}

/* The positions that a row may see, masks aside. */
static int first_seen(const struct block *b, const struct row *r) {
    return attention_first(b->call->variant, before_of(sequence_of(b, r)), r->i);
}

static int end_seen(const struct block *b, const struct row *r) {
    const struct planned_sequence *s = sequence_of(b, r);
    return attention_end(b->call->variant, before_of(s), r->i, s->kv_len);
}

/* first_tile: of the block. The rows begin there, or go on from what is kept. */
static void load_queries(struct block *b, int first_tile) {
    const struct call *c = b->call;
    int dim = c->plan->shape.head_dim;
    for (int i = 0; i < b->item->n_rows; i++) {
        struct row *r = &b->rows[i];
        size_t number = number_of(b, r), place = place_of(b, r);
        int e = ref_load_query(&b->memory, i, c->q + place, name_of(b, r));
        r->unit = num_score_unit_of(e, c->plan->shape.scale * (double)c->kv.k.scale);
        r->max = first_tile ? c->max[number] : -INFINITY;
        r->l = first_tile ? c->l[number] : 0;
        if (!first_tile)
            memset(c->y + place, 0, sizeof *c->y * (size_t)dim);
    }
}

/* ---- a tile --------------------------------------------------------------------------------- */

static void prefetch_row(const struct kv_view *view, int64_t page, int position, int head,
                         int dim) {
    size_t bytes = (size_t)kv_type_bytes(view->type);
    ref_prefetch((const char *)view->data + kv_view_row(view, page, position, head) * (int)bytes,
                 bytes * (size_t)dim);
}

static void load_tile(struct block *b, int tile, int n) {
    const struct kv_views *kv = &b->call->kv;
    const struct attention_plan *p = b->call->plan;
    const int32_t *pages = p->sequences[b->item->sequence].pages;
    int dim = p->shape.head_dim;
    for (int j = 0; j < n; j++) {
        size_t at = (size_t)j * (size_t)b->memory.padded;
        int position = (tile + j) % p->page_size, ahead = tile + j + AHEAD;
        int64_t page = pages[(tile + j) / p->page_size];
        if (j + AHEAD < n) {
            int64_t then = pages[ahead / p->page_size];
            prefetch_row(&kv->k, then, ahead % p->page_size, b->head, dim);
            prefetch_row(&kv->v, then, ahead % p->page_size, b->head, dim);
        }
        int k = ref_load_row(b->memory.k + at, &kv->k, page, position, b->head, dim);
        int v = ref_load_row(b->memory.v + at, &kv->v, page, position, b->head, dim);
        b->k_units[j] = kv_score_unit(k);
        b->v_units[j] = kv_unit(v);
    }
}

static struct varied_row varied(const struct block *b, const struct row *r) {
    const struct attention_variant *v = b->call->variant;
    const struct planned_sequence *sequence = sequence_of(b, r);
    return (struct varied_row){
        .variant = v,
        .mask = v->mask_form ? v->mask + v->mask_offsets[r->sequence] : NULL,
        .i = r->i,
        .before = before_of(sequence),
        .kv_len = sequence->kv_len,
        .slope = v->alibi_slopes ? v->alibi_slopes[r->head] : 0,
        .natural = r->unit.natural,
    };
}

/* What a row may see of a tile, and what it finds there. */
struct found {
    struct tile_range range;
    bool any; /* it sees one */
    struct tile_result tile;
};

/* One row of one tile: turns the dot products into weights, 0 for what it does not see. */
static void weigh(struct block *b, int number, int tile, int n, struct found *f) {
    const struct attention_variant *v = b->call->variant;
    const struct row *r = &b->rows[number];
    const float *sums = b->memory.scores + (size_t)number * TILE;
    double v_units[TILE];
    int first = f->range.first, end = f->range.end;
    int16_t *weights = b->memory.weights + (size_t)number * TILE;
    float s[TILE];
    memset(weights, 0, sizeof *weights * (size_t)(n + n % 2));
    memcpy(v_units, b->v_units, sizeof v_units);
    for (int j = first; j < end; j++)
        s[j] = num_score(sums[j], b->k_units[j]);
    f->any = first < end;
    if (v->mask_form || attention_changes_scores(v)) {
        struct varied_row row = varied(b, r);
        f->any = ref_vary_scores(&row, tile, f->range, s, v_units);
    }
    for (int j = first; j < end; j++)
        s[j] = s[j] == s[j] ? s[j] : INFINITY; /* of a key that cannot be read: a fault */
    if (f->any)
        f->tile = ref_tile_softmax(weights + first, s + first, v_units + first, end - first,
                                   attention_score_unit(v, r->unit), name_of(b, r));
}

/* One tile, for all rows of the block that see something of it. */
static void run_tile(struct block *b, int tile) {
    const struct block_memory *m = &b->memory;
    int n = 0;
    int skip = b->item->n_rows, end = 0; /* rows before and behind those that see something */
    struct found found[BLOCK_ROWS];
    for (int r = 0; r < b->item->n_rows; r++) {
        struct varied_row row = varied(b, &b->rows[r]);
        struct tile_range range = ref_seen_in_tile(&row, tile);
        found[r] = (struct found){.range = range};
        if (range.first >= range.end)
            continue;
        skip = skip < r ? skip : r;
        end = r + 1;
        n = n > range.end ? n : range.end; /* nobody needs the rest */
    }
    if (!end)
        return;
    load_tile(b, tile, n);
    ref_multiply_keys(m, skip, end - skip, n);
    for (int r = skip; r < end; r++)
        weigh(b, r, tile, n, &found[r]);
    ref_multiply_values(m, skip, end - skip, n);
    for (int i = skip; i < end; i++) {
        struct row *r = &b->rows[i];
        if (found[i].any)
            ref_merge_tile(b->call->y + place_of(b, r), &r->max, &r->l, &found[i].tile,
                           m->sums + (size_t)i * (size_t)m->padded, m->head_dim);
    }
}

/* ---- blocks --------------------------------------------------------------------------------- */

/* The end of a row: its sink, its sum's logarithm, and the division. */
static void finish_row(struct block *b, struct row *r) {
    const struct attention_variant *v = b->call->variant;
    size_t dim = (size_t)b->call->plan->shape.head_dim;
    float *y = b->call->y + place_of(b, r);
    if (v->sinks) { /* a tile of values that are 0 */
        struct tile_result sink = {.m = v->sinks[r->head], .l = 1};
        if (!attention_sink_is_finite(sink.m))
            ref_fault(b->call->dev, b->call->site, r->token);
        memset(b->memory.sums, 0, sizeof(float) * dim);
        ref_merge_tile(y, &r->max, &r->l, &sink, b->memory.sums, (int)dim);
    }
    attention_note_sums(v, number_of(b, r), r->max, r->l);
    bool divides = r->l > 0 && !v->m; /* who sees nothing has l = 0 and stays zero */
    for (size_t d = 0; d < dim && divides; d++)
        y[d] /= r->l;
    for (size_t d = 0; d < dim && b->call->kv.v.scale != 1; d++)
        y[d] *= b->call->kv.v.scale;
}

/* The tiles of a stretch: what its rows have found is kept. */
static void run_stretch(struct block *b) {
    const struct shared_stretch *s = &b->call->plan->cascade.stretches[b->item->stretch];
    load_queries(b, s->first_tile);
    for (int tile = s->first_tile; tile < s->first_tile + s->n_tiles; tile++)
        run_tile(b, tile * TILE);
    for (int i = 0; i < b->item->n_rows; i++) {
        const struct row *r = &b->rows[i];
        b->call->max[number_of(b, r)] = r->max;
        b->call->l[number_of(b, r)] = r->l;
    }
}

/* The tiles that a sequence does not share, and the end of its rows. */
static void run_sequence(struct block *b) {
    const struct cascade *shared = &b->call->plan->cascade;
    int own = shared->n_stretches ? shared->own_tile[b->item->sequence] * TILE : 0;
    int first = first_seen(b, &b->rows[0]) / TILE * TILE;
    int end = end_seen(b, &b->rows[b->item->n_rows - 1]);
    load_queries(b, own);
    for (int tile = first > own ? first : own; tile < end; tile += TILE)
        run_tile(b, tile);
    for (int r = 0; r < b->item->n_rows; r++)
        finish_row(b, &b->rows[r]);
}

/* Item = (block, kv head): the heads of a block are neighbours. */
static void run_block(void *context, int item, int worker) {
    const struct call *c = context;
    const struct attention_shape *shape = &c->plan->shape;
    struct block b = {.call = c,
                      .item = &c->plan->items[c->first_item + item / shape->n_kv_heads],
                      .head = item % shape->n_kv_heads,
                      .memory = ref_block_memory(c->dev, c->memory, shape->head_dim, worker)};
    find_rows(&b);
    if (b.item->stretch < 0)
        run_sequence(&b);
    else
        run_stretch(&b);
}

void ref_attend(struct device *dev, float *y, /* [n_tokens, n_heads, head_dim] */
                const float *q,               /* [n_tokens, n_heads, head_dim] */
                const struct kv_views *kv, const struct attention_plan *plan,
                const struct attention_variant *variant, int site) {
    struct call c = {
        .dev = dev, .y = y, .q = q, .kv = *kv, .variant = variant, .plan = plan, .site = site};
    size_t n_rows = (size_t)plan->n_tokens * (size_t)plan->shape.n_heads;
    if (variant->m) /* a state is without the scale: finish_states has it */
        c.kv.v.scale = 1;
    c.memory = ref_block_scratch(dev, plan->shape.head_dim, "attention");
    c.max = ref_scratch(dev, SCRATCH_Y, 2 * sizeof *c.max * n_rows, "attention");
    if (!c.memory || !c.max)
        return;
    c.l = c.max + n_rows;
    for (int end; c.first_item < plan->n_items; c.first_item = end) {
        int depth = plan->items[c.first_item].depth; /* each needs the one before it */
        for (end = c.first_item; end < plan->n_items && plan->items[end].depth == depth;)
            end++;
        ref_parallel(dev, (end - c.first_item) * plan->shape.n_kv_heads, run_block, &c);
    }
}
