#include "model/context_parallel.h"

#include "model/attention_plans.h"
#include "model/parallel.h"

#include <stdlib.h>

enum { TILE = ATTENTION_TILE, MOST_PAIRS = 4096 };

/* Rows of the pass that are attended to together, as many as keep states within bounds. All ask as
 * many tiles as the longest of them: of what lies behind a row it gets empty states. */
struct row_group {
    int first, n, n_tiles;
    struct attention_plan *plan; /* of this rank's tiles: each pair of a tile and a row, the rows of
                                    a tile together, is a sequence of one query */
};

/* Device memory that grows. */
struct room {
    float *data;
    size_t bytes;
};

struct context_plan {
    struct row_group *groups; /* [max_groups]; plans are kept from pass to pass */
    int n_groups, max_groups;
    int *counts;              /* [n_ranks] of a gathering */
    struct room q, mine, all; /* queries of a group's pairs; their states; those of all ranks */
};

bool context_is_shared(const struct model *model) {
    return model->parallel && model->parallel->by_position;
}

int context_stored(const struct model *model, int block_size) {
    return context_is_shared(model) ? block_size / model->parallel->n_ranks : block_size;
}

void context_slots(const struct parallel *ranks, int64_t *slots, int n) {
    for (int i = 0; i < n; i++) {
        int64_t tile = slots[i] < 0 ? -1 : slots[i] / TILE; /* of the pool */
        slots[i] = tile >= 0 && tile % ranks->n_ranks == ranks->rank
                       ? tile / ranks->n_ranks * TILE + slots[i] % TILE
                       : -1;
    }
}

/* ---- the plan of a pass ---------------------------------------------------------------------- */

/* How many of the group's tiles rank r has. */
static int tiles_of(const struct row_group *g, int r, int n_ranks) {
    return (g->n_tiles - r + n_ranks - 1) / n_ranks;
}

/* Floats of the states of n pairs, in all heads. */
static size_t state_floats(const struct model *m, int n) {
    return (size_t)n * (size_t)m->config.n_heads * (size_t)(m->config.head_dim + 2);
}

/* A row that begins a group, and those behind it. Returns the row that begins the next; -1: err. */
static int add_group(struct context_plan *c, const struct batch *b, int first, struct error *err) {
    if (c->n_groups == c->max_groups) {
        struct row_group *groups = realloc(c->groups, sizeof *groups * (size_t)(c->max_groups + 1));
        if (!groups)
            return error_set(err, "out of memory for the groups of a pass");
        c->groups = groups;
        groups[c->max_groups++].plan = NULL;
    }
    struct row_group *g = &c->groups[c->n_groups++];
    g->first = first;
    g->n = g->n_tiles = 0;
    for (int row = first; row < b->n_tokens; row++, g->n++) {
        int tiles = b->positions[row] / TILE + 1;
        tiles = tiles > g->n_tiles ? tiles : g->n_tiles;
        if (g->n && (int64_t)tiles * (g->n + 1) > MOST_PAIRS)
            break;
        g->n_tiles = tiles;
    }
    return first + g->n;
}

/* This rank's pairs of the group become a batch, in memory [4 * pairs + 2]. */
static struct paged_batch batch_of_pairs(const struct row_group *g, const struct parallel *p,
                                         const struct batch *b, int32_t *memory) {
    int n = tiles_of(g, p->rank, p->n_ranks) * g->n, n_pages = 0;
    int32_t *pages = memory, *last = pages + n, *qo = last + n, *kv = qo + n + 1;
    int sequence = 0;
    for (int i = 0; i < n; i++) {
        int row = g->first + i % g->n, tile = p->rank + i / g->n * p->n_ranks;
        int left = b->positions[row] + 1 - tile * TILE;
        sequence = i % g->n ? sequence : 0;
        while (b->qo_indptr[sequence + 1] <= row)
            sequence++;
        qo[i] = i;
        kv[i] = n_pages;
        last[i] = left < TILE ? left : TILE;
        if (left > 0)
            pages[n_pages++] =
                b->pages->kv_page_indices[b->pages->kv_indptr[sequence] + tile / p->n_ranks];
    }
    qo[n] = n;
    kv[n] = n_pages;
    return (struct paged_batch){n, TILE, b->pages->n_pages, qo, kv, pages, last};
}

static int plan_group(struct row_group *g, const struct model *m, const struct batch *b,
                      struct error *err) {
    const struct ops *ops = m->dev->ops;
    struct attention_shape shape = attention_shape_of(&m->config);
    struct attention_variant variant = attention_variant_causal();
    size_t n = (size_t)tiles_of(g, m->parallel->rank, m->parallel->n_ranks) * (size_t)g->n;
    int32_t *memory = malloc(sizeof *memory * (4 * n + 2));
    int result = memory ? 0 : error_set(err, "out of memory for a pass of %d tokens", b->n_tokens);
    if (!result && !g->plan && !(g->plan = ops->attention_plan_new(m->dev, err)))
        result = -1;
    if (!result) {
        struct paged_batch pairs = batch_of_pairs(g, m->parallel, b, memory);
        shape.kv_type = b->caches[0]->type;
        result = ops->attention_plan(m->dev, g->plan, &pairs, &shape, &variant, err);
    }
    free(memory);
    return result;
}

static int grow(struct room *r, struct device *dev, size_t n, struct error *err) {
    size_t bytes = sizeof(float) * n;
    if (bytes <= r->bytes)
        return 0;
    dev->ops->free(dev, r->data, r->bytes);
    r->data = dev->ops->alloc(dev, bytes, "attention of ranks", err);
    r->bytes = r->data ? bytes : 0;
    return r->data ? 0 : -1;
}

int context_plan_make(struct context_plan **plan, const struct model *m, const struct batch *b,
                      struct error *err) {
    int n_ranks = m->parallel->n_ranks;
    if (m->config.window)
        return error_set(err, "positions over ranks: not for models with sliding windows");
    if (!b->pages || b->pages->page_size != TILE * n_ranks)
        return error_set(err, "positions over %d ranks: this needs page tables with blocks of %d",
                         n_ranks, TILE * n_ranks);
    if (!*plan && (*plan = calloc(1, sizeof **plan)))
        (*plan)->counts = calloc((size_t)n_ranks, sizeof(int));
    struct context_plan *c = *plan;
    if (!c || !c->counts)
        return error_set(err, "out of memory for %d ranks", n_ranks);
    c->n_groups = 0;
    for (int first = 0; first < b->n_tokens;) {
        if ((first = add_group(c, b, first, err)) < 0)
            return -1;
        struct row_group *g = &c->groups[c->n_groups - 1];
        int mine = tiles_of(g, m->parallel->rank, n_ranks) * g->n;
        if (grow(&c->q, m->dev, (size_t)mine * (size_t)(m->config.n_heads * m->config.head_dim),
                 err) ||
            grow(&c->mine, m->dev, state_floats(m, mine), err) ||
            grow(&c->all, m->dev, state_floats(m, g->n_tiles * g->n), err) ||
            plan_group(g, m, b, err))
            return -1;
    }
    return 0;
}

void context_plan_free(struct context_plan *c, struct device *dev) {
    if (!c)
        return;
    dev->ops->free(dev, c->q.data, c->q.bytes);
    dev->ops->free(dev, c->mine.data, c->mine.bytes);
    dev->ops->free(dev, c->all.data, c->all.bytes);
    for (int i = 0; i < c->max_groups; i++)
        dev->ops->attention_plan_free(dev, c->groups[i].plan);
    free(c->groups);
    free(c->counts);
    free(c);
}

/* ---- a layer --------------------------------------------------------------------------------- */

/* The states of n pairs lie at `at`, o before m before l: those from pair `first` on. */
static struct attention_state state_at(const struct model *m, float *at, int n, int first) {
    size_t heads = (size_t)m->config.n_heads, dim = (size_t)m->config.head_dim;
    float *sums = at + (size_t)n * heads * dim;
    return (struct attention_state){at + (size_t)first * heads * dim, sums + (size_t)first * heads,
                                    sums + (size_t)(n + first) * heads};
}

/* This rank's tiles: their states go to c->mine. */
static void ask_tiles(struct context_plan *c, const struct row_group *g, const struct model *m,
                      const float *q, const struct kv_views *kv, int site) {
    const struct ops *ops = m->dev->ops;
    int n_tiles = tiles_of(g, m->parallel->rank, m->parallel->n_ranks);
    size_t row = (size_t)m->config.n_heads * (size_t)m->config.head_dim, n = (size_t)g->n * row;
    struct attention_state mine = state_at(m, c->mine.data, n_tiles * g->n, 0);
    struct attention_variant variant = attention_variant_causal();
    variant.m = mine.m;
    variant.l = mine.l;
    for (int i = 0; i < n_tiles; i++)
        ops->copy(m->dev, c->q.data + (size_t)i * n, q + (size_t)g->first * row, sizeof *q * n);
    if (n_tiles)
        ops->attend(m->dev, mine.o, c->q.data, kv, g->plan, &variant, site);
}

/* What all ranks found, merged in the order of the tiles. */
static struct attention_state merge_tiles(struct context_plan *c, const struct row_group *g,
                                          const struct model *m) {
    int n_ranks = m->parallel->n_ranks;
    struct attention_state whole = {0};
    float *at = c->all.data; /* of the tile's rank */
    for (int tile = 0; tile < g->n_tiles; tile++) {
        int r = tile % n_ranks, n = tiles_of(g, r, n_ranks) * g->n;
        at = r ? at : c->all.data;
        struct attention_state next = state_at(m, at, n, tile / n_ranks * g->n);
        if (tile)
            m->dev->ops->merge_states(m->dev, &whole, &next, g->n * m->config.n_heads,
                                      m->config.head_dim);
        else
            whole = next;
        at += state_floats(m, n);
    }
    return whole;
}

void context_attend(struct context_plan *c, const struct model *m, float *y, const float *q,
                    const struct kv_views *kv, int site) {
    struct parallel *p = m->parallel;
    int heads = m->config.n_heads, dim = m->config.head_dim;
    for (int i = 0; i < c->n_groups; i++) {
        const struct row_group *g = &c->groups[i];
        ask_tiles(c, g, m, q, kv, site);
        for (int r = 0; r < p->n_ranks; r++)
            c->counts[r] = (int)state_floats(m, tiles_of(g, r, p->n_ranks) * g->n);
        parallel_gather_parts(p, m->dev, c->all.data, c->mine.data, c->counts);
        struct attention_state whole = merge_tiles(c, g, m);
        m->dev->ops->finish_states(m->dev, y + (size_t)g->first * (size_t)(heads * dim), NULL,
                                   LSE_E, &whole, kv->v.scale, g->n * heads, dim);
    }
}
