#include "model/context_parallel.h"

#include "model/attention_plans.h"
#include "model/parallel.h"

#include <stdlib.h>
#include <string.h>

enum { TILE = ATTENTION_TILE, MOST_PAIRS = 4096 };

/* A row of the pass. */
struct context_row {
    int32_t row, sequence;
    int n_tiles; /* that it sees */
};

/* Rows that are attended to together: as many as keep states within bounds. A pair is a row and a
 * tile; those of a rank are in the order of the tiles, and of the rows within a tile. */
struct row_group {
    int first, n;                /* of the plan's rows */
    int *n_pairs;                /* [n_ranks] */
    int first_pair;              /* where this rank's pairs begin among those of all groups */
    struct attention_plan *plan; /* each pair a sequence of one query; kept from pass to pass */
};

/* Device memory that grows. */
struct room {
    void *data;
    size_t bytes;
};

struct context_plan {
    struct context_row *rows; /* [n_rows], those with most tiles first */
    int n_rows, max_rows;
    struct row_group *groups; /* [max_groups] */
    int n_groups, max_groups;
    int *counts; /* [n_ranks] of a gathering */
    /* Which row each pair asks for, then where each row of the pass is among `rows`; the pairs'
     * queries; their states, and those of all ranks; results in the order of `rows`. */
    struct room numbers, q, mine, all, y;
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

static int by_tiles(const void *a, const void *b) {
    const struct context_row *x = a, *y = b;
    return x->n_tiles != y->n_tiles ? y->n_tiles - x->n_tiles : x->row - y->row;
}

static int sort_rows(struct context_plan *c, const struct batch *b, struct error *err) {
    if (b->n_tokens > c->max_rows) {
        struct context_row *rows = realloc(c->rows, sizeof *rows * (size_t)b->n_tokens);
        if (!rows)
            return error_set(err, "out of memory for a pass of %d tokens", b->n_tokens);
        c->rows = rows;
        c->max_rows = b->n_tokens;
    }
    c->n_rows = b->n_tokens;
    for (int i = 0, sequence = 0; i < b->n_tokens; i++) {
        while (b->qo_indptr[sequence + 1] <= i)
            sequence++;
        c->rows[i] = (struct context_row){i, sequence, b->positions[i] / TILE + 1};
    }
    qsort(c->rows, (size_t)c->n_rows, sizeof *c->rows, by_tiles);
    return 0;
}

/* How many of the group's rows see the tile; at least that many saw the one before it: n. */
static int rows_that_see(const struct context_plan *c, const struct row_group *g, int tile, int n) {
    while (n > 0 && c->rows[g->first + n - 1].n_tiles <= tile)
        n--;
    return n;
}

/* The next group begins with row `first`. */
static int add_group(struct context_plan *c, int first, int n_ranks, struct error *err) {
    if (c->n_groups == c->max_groups) {
        struct row_group *groups = realloc(c->groups, sizeof *groups * (size_t)(c->max_groups + 1));
        if (!groups)
            return error_set(err, "out of memory for the groups of a pass");
        c->groups = groups;
        groups[c->max_groups] = (struct row_group){.n_pairs = calloc((size_t)n_ranks, sizeof(int))};
        if (!groups[c->max_groups].n_pairs)
            return error_set(err, "out of memory for %d ranks", n_ranks);
        c->max_groups++;
    }
    struct row_group *g = &c->groups[c->n_groups++];
    int n_tiles = c->rows[first].n_tiles; /* no row behind it has more */
    g->first = first;
    g->n = n_tiles < MOST_PAIRS ? MOST_PAIRS / n_tiles : 1;
    g->n = g->n < c->n_rows - first ? g->n : c->n_rows - first;
    memset(g->n_pairs, 0, sizeof *g->n_pairs * (size_t)n_ranks);
    for (int tile = 0, n = g->n; tile < n_tiles; tile++)
        g->n_pairs[tile % n_ranks] += n = rows_that_see(c, g, tile, n);
    return first + g->n;
}

/* Host arrays of the pairs of a group on this rank, in one piece: see paged_batch. */
struct pairs {
    int32_t *rows, *pages, *last, *indptr;
};

/* This rank's pairs of the group, and what attend is to do with them. */
static int plan_group(struct context_plan *c, struct row_group *g, const struct model *m,
                      const struct batch *b, const struct pairs *to, struct error *err) {
    const struct ops *ops = m->dev->ops;
    const struct parallel *p = m->parallel;
    struct attention_shape shape = attention_shape_of(&m->config);
    struct attention_variant variant = attention_variant_causal();
    int i = 0;
    for (int tile = p->rank, n = g->n; tile < c->rows[g->first].n_tiles; tile += p->n_ranks) {
        n = rows_that_see(c, g, tile, n);
        for (int k = 0; k < n; k++, i++) {
            const struct context_row *r = &c->rows[g->first + k];
            int left = b->positions[r->row] + 1 - tile * TILE;
            to->rows[g->first_pair + i] = r->row;
            to->last[i] = left < TILE ? left : TILE;
            to->pages[i] =
                b->pages->kv_page_indices[b->pages->kv_indptr[r->sequence] + tile / p->n_ranks];
        }
    }
    for (int at = 0; at <= i; at++)
        to->indptr[at] = at;
    shape.kv_type = b->caches[0]->type;
    struct paged_batch pages = {i,          TILE,      b->pages->n_pages, to->indptr,
                                to->indptr, to->pages, to->last};
    if (!g->plan)
        g->plan = ops->attention_plan_new(m->dev, err);
    return g->plan ? ops->attention_plan(m->dev, g->plan, &pages, &shape, &variant, err) : -1;
}

static int grow(struct room *r, struct device *dev, size_t bytes, struct error *err) {
    if (bytes <= r->bytes)
        return 0;
    dev->ops->free(dev, r->data, r->bytes);
    r->data = dev->ops->alloc(dev, bytes, "attention of ranks", err);
    r->bytes = r->data ? bytes : 0;
    return r->data ? 0 : -1;
}

/* Floats of n states of all heads. */
static size_t state_floats(const struct model *m, int n) {
    return (size_t)n * (size_t)m->config.n_heads * (size_t)(m->config.head_dim + 2);
}

static int reserve(struct context_plan *c, const struct model *m, struct error *err) {
    size_t width = (size_t)m->config.n_heads * (size_t)m->config.head_dim;
    const struct parallel *p = m->parallel;
    int n_pairs = 0, most_mine = 0, most_all = 0;
    for (int i = 0; i < c->n_groups; i++) {
        struct row_group *g = &c->groups[i];
        int mine = g->n_pairs[p->rank], all = 0;
        for (int r = 0; r < p->n_ranks; r++)
            all += g->n_pairs[r];
        g->first_pair = n_pairs;
        n_pairs += mine;
        most_mine = mine > most_mine ? mine : most_mine;
        most_all = all > most_all ? all : most_all;
    }
    return grow(&c->numbers, m->dev, sizeof(int32_t) * (size_t)(n_pairs + c->n_rows), err) ||
                   grow(&c->q, m->dev, sizeof(float) * width * (size_t)most_mine, err) ||
                   grow(&c->mine, m->dev, sizeof(float) * state_floats(m, most_mine), err) ||
                   grow(&c->all, m->dev, sizeof(float) * state_floats(m, most_all), err) ||
                   grow(&c->y, m->dev, sizeof(float) * width * (size_t)c->n_rows, err)
               ? -1
               : 0;
}

/* All groups' plans, and the numbers of rows go to the device. */
static int plan_groups(struct context_plan *c, const struct model *m, const struct batch *b,
                       struct error *err) {
    const struct row_group *last = &c->groups[c->n_groups - 1];
    size_t n = (size_t)(last->first_pair + last->n_pairs[m->parallel->rank]),
           all = n + (size_t)c->n_rows;
    int32_t *memory = malloc(sizeof *memory * (all + 3 * n + 1));
    int result = memory ? 0 : error_set(err, "out of memory for a pass of %d tokens", c->n_rows);
    struct pairs to = {memory, memory + all, memory + all + n, memory + all + 2 * n};
    for (int i = 0; i < c->n_groups && !result; i++)
        result = plan_group(c, &c->groups[i], m, b, &to, err);
    for (int i = 0; i < c->n_rows && !result; i++)
        memory[n + (size_t)c->rows[i].row] = i;
    if (!result)
        m->dev->ops->upload(m->dev, c->numbers.data, memory, sizeof *memory * all);
    free(memory);
    return result;
}

int context_plan_make(struct context_plan **plan, const struct model *m, const struct batch *b,
                      struct error *err) {
    int n_ranks = m->parallel->n_ranks;
    if (m->config.window)
        return error_set(err, "positions over ranks: not for models with sliding windows");
    if (!b->pages || b->pages->page_size != TILE * n_ranks)
        return error_set(err,
                         "positions over %d ranks: this needs passes of all sequences together, "
                         "and blocks of %d positions",
                         n_ranks, TILE * n_ranks);
    if (!*plan && (*plan = calloc(1, sizeof **plan)))
        (*plan)->counts = calloc((size_t)n_ranks, sizeof(int));
    struct context_plan *c = *plan;
    if (!c || !c->counts)
        return error_set(err, "out of memory for %d ranks", n_ranks);
    if (sort_rows(c, b, err))
        return -1;
    c->n_groups = 0;
    for (int first = 0; first < c->n_rows;)
        if ((first = add_group(c, first, n_ranks, err)) < 0)
            return -1;
    return reserve(c, m, err) || plan_groups(c, m, b, err) ? -1 : 0;
}

void context_plan_free(struct context_plan *c, struct device *dev) {
    if (!c)
        return;
    struct room *rooms[] = {&c->numbers, &c->q, &c->mine, &c->all, &c->y};
    for (size_t i = 0; i < sizeof rooms / sizeof *rooms; i++)
        dev->ops->free(dev, rooms[i]->data, rooms[i]->bytes);
    for (int i = 0; i < c->max_groups; i++) {
        if (c->groups[i].plan)
            dev->ops->attention_plan_free(dev, c->groups[i].plan);
        free(c->groups[i].n_pairs);
    }
    free(c->groups);
    free(c->counts);
    free(c->rows);
    free(c);
}

/* ---- a layer --------------------------------------------------------------------------------- */

/* n states of all heads lie at `at`, o before m before l: the one from pair `first` on. */
static struct attention_state state_at(const struct model *m, float *at, int n, int first) {
    size_t heads = (size_t)m->config.n_heads, dim = (size_t)m->config.head_dim;
    float *sums = at + (size_t)n * heads * dim;
    return (struct attention_state){at + (size_t)first * heads * dim, sums + (size_t)first * heads,
                                    sums + (size_t)(n + first) * heads};
}

/* Merges the gathered states of a group, tile by tile, and returns the result. */
static struct attention_state merge_tiles(struct context_plan *c, const struct row_group *g,
                                          const struct model *m) {
    int n_ranks = m->parallel->n_ranks, heads = m->config.n_heads;
    struct attention_state whole = state_at(m, c->all.data, g->n_pairs[0], 0);
    float *chunk = c->all.data;                                /* of rank tile % n_ranks */
    memset(c->counts, 0, sizeof *c->counts * (size_t)n_ranks); /* pairs of a rank that are merged */
    for (int tile = 0, n = g->n, r = 0; tile < c->rows[g->first].n_tiles;
         tile++, r = tile % n_ranks) {
        chunk = r ? chunk : c->all.data;
        n = rows_that_see(c, g, tile, n);
        struct attention_state next = state_at(m, chunk, g->n_pairs[r], c->counts[r]);
        if (tile)
            m->dev->ops->merge_states(m->dev, &whole, &next, n * heads, m->config.head_dim);
        c->counts[r] += n;
        chunk += state_floats(m, g->n_pairs[r]);
    }
    return whole;
}

static void attend_group(struct context_plan *c, const struct row_group *g, const struct model *m,
                         const float *q, const struct kv_views *kv, int site) {
    const struct ops *ops = m->dev->ops;
    struct parallel *p = m->parallel;
    int n = g->n_pairs[p->rank], heads = m->config.n_heads, dim = m->config.head_dim;
    struct attention_variant variant = attention_variant_causal();
    if (n) {
        struct attention_state mine = state_at(m, c->mine.data, n, 0);
        variant.m = mine.m;
        variant.l = mine.l;
        ops->take_rows(m->dev, c->q.data, q, (int32_t *)c->numbers.data + g->first_pair, n,
                       heads * dim);
        ops->attend(m->dev, mine.o, c->q.data, kv, g->plan, &variant, site);
    }
    for (int r = 0; r < p->n_ranks; r++)
        c->counts[r] = (int)state_floats(m, g->n_pairs[r]);
    parallel_gather_parts(p, m->dev, c->all.data, c->mine.data, c->counts);
    struct attention_state whole = merge_tiles(c, g, m);
    ops->finish_states(m->dev, (float *)c->y.data + (size_t)g->first * (size_t)(heads * dim), NULL,
                       LSE_E, &whole, kv->v.scale, g->n * heads, dim);
}

void context_attend(struct context_plan *c, const struct model *m, float *y, const float *q,
                    const struct kv_views *kv, int site) {
    const struct row_group *last = &c->groups[c->n_groups - 1];
    for (int i = 0; i < c->n_groups; i++)
        attend_group(c, &c->groups[i], m, q, kv, site);
    m->dev->ops->take_rows(m->dev, y, c->y.data,
                           (int32_t *)c->numbers.data + last->first_pair +
                               last->n_pairs[m->parallel->rank],
                           c->n_rows, m->config.n_heads * m->config.head_dim);
}
