/*
 * Phase 10: tiles that sequences share (model/cascade.h), computed once for all rows that see them.
 *
 * A stretch of shared tiles is work for versions 2 and 3 of attention (attention.h:
 * attention_work): its rows are those of all members, 64 together, and what they find is kept. Row
 * groups of version 4 then have what is each sequence's own, and keep that, too. In the end the
 * chain of each row is merged, tile after tile (attention_merge.cu), as if it had gone through all
 * of them alone.
 *
 *     plan   the stretches, cut into items that keep all processors busy; a row list is 64 rows
 *     run    split to digits, items; the row groups; the chains
 *
 * All arrays are in one piece whose size grows by half, so that recordings of a pass stay valid
 * while the sequences grow.
 */
#include "gpu/attention_plan.h"

#include <stdlib.h>

enum { TILE = ATTENTION_TILE };

/* Sharing costs some 40 us for its kernels, and pays when it saves more reads than that. Measured:
 * tests/bench/README.md. */
static const int64_t least_bytes_less = (int64_t)400 << 20;

static const size_t most_kept_bytes = (size_t)1 << 29;

static struct cascade_rule sharing_pays(const struct attention_shape *shape) {
    int64_t tile = (int64_t)TILE * shape->n_kv_heads * shape->head_dim * 4; /* bytes of k and v */
    int64_t tiles = least_bytes_less / tile + 1;
    return {SHORT_TOKENS, tiles < INT32_MAX ? (int)tiles : INT32_MAX};
}

static int blocks_of(int count, int size) {
    return (count + size - 1) / size;
}

/* ---- how much ---------------------------------------------------------------------------------
 */

static int tokens_of(const struct cascade *c, const struct paged_batch *b, int stretch) {
    const struct shared_stretch *s = &c->stretches[stretch];
    int n = 0;
    for (int i = s->first_member; i < s->first_member + s->n_members; i++)
        n += b->qo_indptr[c->members[i] + 1] - b->qo_indptr[c->members[i]];
    return n;
}

/* Places of a row list whose items have that many tiles: one for the first item of rows that begin
 * there, which merges its tiles; else one for each tile. */
static int places_of(const struct shared_stretch *s, int tiles_each) {
    int first = s->n_tiles < tiles_each ? s->n_tiles : tiles_each;
    return s->depth ? s->n_tiles : 1 + s->n_tiles - first;
}

static struct cascade_sizes measure(const struct cascade *c, const struct paged_batch *b,
                                    int heads_per_group, int tiles_each) {
    struct cascade_sizes n = {};
    for (int i = 0; i < c->n_stretches; i++) {
        const struct shared_stretch *s = &c->stretches[i];
        int tokens = tokens_of(c, b, i), lists = blocks_of(tokens * heads_per_group, QUERY_ROWS);
        n.tokens += tokens;
        n.segments += tokens;
        n.row_lists += lists;
        n.tiles += s->n_tiles;
        n.items += lists * blocks_of(s->n_tiles, tiles_each);
        n.places += lists * places_of(s, tiles_each);
    }
    n.chains = b->qo_indptr[b->n_sequences];
    return n;
}

static size_t kept_bytes_of(int places, int n_kv_heads, int dim) {
    return (size_t)places * (size_t)n_kv_heads * QUERY_ROWS * (size_t)kept_floats(dim) *
           sizeof(float);
}

/* How many tiles an item has: as many items as blocks run at once, unless what they keep would take
 * too much memory. */
static int tiles_each(const struct attention_plan *p, const struct paged_batch *b, int blocks) {
    const struct cascade *c = &p->shared.cascade;
    int heads_per_group = p->shape.n_heads / p->shape.n_kv_heads, longest = 1, each = 1;
    int64_t all = 0;
    for (int i = 0; i < c->n_stretches; i++) {
        int lists = blocks_of(tokens_of(c, b, i) * heads_per_group, QUERY_ROWS);
        all += (int64_t)lists * c->stretches[i].n_tiles;
        longest = c->stretches[i].n_tiles > longest ? c->stretches[i].n_tiles : longest;
    }
    each = (int)((all + blocks - 1) / blocks);
    while (each < longest &&
           kept_bytes_of(measure(c, b, heads_per_group, each).places, p->shape.n_kv_heads,
                         wide_dim(p->shape.head_dim)) > most_kept_bytes)
        each *= 2;
    return each < longest ? each : longest;
}

/* ---- memory -----------------------------------------------------------------------------------
 */

static size_t place(size_t *at, size_t bytes) {
    size_t here = *at;
    *at += (bytes + 15) / 16 * 16;
    return here;
}

/* Where the arrays begin in the piece. */
struct layout {
    size_t counts, row_lists, tiles, items, tokens, segments, chains, bytes;
};

static struct layout lay_out(const struct cascade_sizes *n) {
    struct layout l = {};
    l.counts = place(&l.bytes, sizeof(int32_t) * N_COUNTS);
    l.row_lists = place(&l.bytes, sizeof(struct row_list) * (size_t)n->row_lists);
    l.tiles = place(&l.bytes, sizeof(struct digit_tile) * (size_t)n->tiles);
    l.items = place(&l.bytes, sizeof(struct wide_item) * (size_t)n->items);
    l.tokens = place(&l.bytes, sizeof(int32_t) * (size_t)n->tokens);
    l.segments = place(&l.bytes, sizeof(struct chain_segment) * (size_t)n->segments);
    l.chains = place(&l.bytes, sizeof(struct token_chain) * (size_t)n->chains);
    return l;
}

void attention_plan_cascade_free(struct device *dev, struct cascade_plan *p) {
    dev->ops->free(dev, p->device, p->bytes);
    dev->ops->free(dev, p->work.digits, p->digits_bytes);
    dev->ops->free(dev, p->work.kept, p->kept_bytes);
    free(p->host);
    cascade_end(&p->cascade);
    *p = {};
}

static int more(int room, int need) {
    return need <= room ? room : need + need / 2;
}

static bool has_room(const struct cascade_sizes *room, const struct cascade_sizes *n) {
    return n->row_lists <= room->row_lists && n->tiles <= room->tiles && n->items <= room->items &&
           n->tokens <= room->tokens && n->segments <= room->segments &&
           n->chains <= room->chains && n->places <= room->places;
}

static int reserve(struct device *dev, struct cascade_plan *p, const struct attention_shape *shape,
                   const struct cascade_sizes *n, struct error *err) {
    struct cascade_sizes r = p->room;
    int dim = wide_dim(shape->head_dim);
    if (has_room(&r, n) &&
        digit_bytes(r.row_lists, r.tiles, shape->n_kv_heads, dim) <= p->digits_bytes &&
        kept_bytes_of(r.places, shape->n_kv_heads, dim) <= p->kept_bytes) /* of any shape */
        return 0;
    r = {more(r.row_lists, n->row_lists), more(r.tiles, n->tiles),       more(r.items, n->items),
         more(r.tokens, n->tokens),       more(r.segments, n->segments), more(r.chains, n->chains),
         more(r.places, n->places)};
    struct cascade found = p->cascade; /* stays */
    p->cascade = {};
    attention_plan_cascade_free(dev, p);
    p->cascade = found;
    size_t bytes = lay_out(&r).bytes;
    size_t digits = digit_bytes(r.row_lists, r.tiles, shape->n_kv_heads, dim);
    size_t kept = kept_bytes_of(r.places, shape->n_kv_heads, dim);
    p->host = (unsigned char *)malloc(bytes);
    p->device = (unsigned char *)dev->ops->alloc(dev, bytes, "the plan of shared tiles", err);
    p->bytes = p->device ? bytes : 0;
    if (p->device)
        p->work.digits = (uint8_t *)dev->ops->alloc(dev, digits, "shared tiles", err);
    p->digits_bytes = p->work.digits ? digits : 0;
    if (p->work.digits)
        p->work.kept = (float *)dev->ops->alloc(dev, kept, "the results of shared tiles", err);
    p->kept_bytes = p->work.kept ? kept : 0;
    if (!p->host || !p->work.kept)
        return p->host ? -1 : error_set(err, "out of memory for the plan of shared tiles");
    p->room = r;
    return 0;
}

/* ---- the arrays -------------------------------------------------------------------------------
 */

/* The arrays on the host, and how far they are filled. */
struct filled {
    struct row_list *row_lists;
    struct digit_tile *tiles;
    struct wide_item *items;
    int32_t *tokens;
    struct chain_segment *segments;
    struct token_chain *chains;
    struct cascade_sizes n;
};

/* The row list's rows and its items, over the stretch's tiles, of which the digits begin at tile.
 */
static void fill_list(struct filled *f, const struct shared_stretch *s, int tokens, int first_row,
                      int n_rows, int tile, int each) {
    f->row_lists[f->n.row_lists] = {tokens, first_row,
                                    n_rows < QUERY_ROWS ? n_rows : (int)QUERY_ROWS};
    for (int at = 0; at < s->n_tiles; at += each) {
        int n = s->n_tiles - at < each ? s->n_tiles - at : each;
        int merges = !s->depth && !at; /* the beginning of the rows' chains */
        f->items[f->n.items++] = {f->n.row_lists,     tile + at,   n,
                                  s->first_tile + at, f->n.places, merges};
        f->n.places += merges ? 1 : n;
    }
    f->n.row_lists++;
}

/* Tokens, tiles, row lists and items of a stretch, and a segment for each of its tokens. */
static void fill_stretch(struct filled *f, const struct cascade *c, const struct paged_batch *b,
                         const struct shared_stretch *s, int heads_per_group, int each) {
    int tokens = f->n.tokens, tile = f->n.tiles, pages = b->kv_indptr[c->members[s->first_member]];
    for (int k = s->first_member; k < s->first_member + s->n_members; k++)
        for (int t = b->qo_indptr[c->members[k]]; t < b->qo_indptr[c->members[k] + 1]; t++)
            f->tokens[f->n.tokens++] = t;
    for (int t = 0; t < s->n_tiles; t++)
        f->tiles[f->n.tiles++] = {pages, s->first_tile + t};
    int rows = (f->n.tokens - tokens) * heads_per_group, first_place = f->n.places;
    for (int row = 0; row < rows; row += QUERY_ROWS)
        fill_list(f, s, tokens, row, rows - row, tile, each);
    for (int i = tokens; i < f->n.tokens; i++) { /* after those of the depths before */
        struct token_chain *chain = &f->chains[f->tokens[i]];
        f->segments[chain->first_segment + chain->n_segments++] = {first_place, places_of(s, each),
                                                                   i - tokens};
    }
}

/* Room for each token's segments, and places for what its row groups keep. Returns the places. */
static int fill_chains(struct filled *f, const struct cascade *c, const struct paged_batch *b,
                       int heads_per_group) {
    int places = 0;
    memset(f->chains, 0, sizeof *f->chains * (size_t)b->qo_indptr[b->n_sequences]);
    for (int i = 0; i < c->n_stretches; i++) {
        const struct shared_stretch *s = &c->stretches[i];
        for (int k = s->first_member; k < s->first_member + s->n_members; k++)
            for (int t = b->qo_indptr[c->members[k]]; t < b->qo_indptr[c->members[k] + 1]; t++)
                f->chains[t].n_segments++;
    }
    for (int i = 0; i < b->n_sequences; i++) {
        int first = b->qo_indptr[i], n_tokens = b->qo_indptr[i + 1] - first;
        int own = c->own_tile[i], each = blocks_of(paged_batch_kv_len(b, i), TILE) - own;
        for (int t = first; t < first + n_tokens && own; t++) {
            struct token_chain *chain = &f->chains[t];
            int n = chain->n_segments;
            *chain = {f->n.segments, 0, own, places, each};
            f->n.segments += n;
        }
        places += own ? each * blocks_of(n_tokens * heads_per_group, GROUP_ROWS) : 0;
    }
    return places;
}

static void set_work(struct cascade_plan *p, const struct layout *l, const struct plan_arrays *a,
                     const struct cascade_sizes *n) {
    struct attention_work *w = &p->work;
    w->counts = (const int32_t *)(p->device + l->counts);
    w->row_lists = (const struct row_list *)(p->device + l->row_lists);
    w->tiles = (const struct digit_tile *)(p->device + l->tiles);
    w->items = (const struct wide_item *)(p->device + l->items);
    w->tokens = (const int32_t *)(p->device + l->tokens);
    w->token_sequence = a->token_sequence;
    w->qo_indptr = a->qo_indptr;
    w->kv_lens = a->kv_lens;
    w->pages = a->pages;
    w->n_row_lists = n->row_lists;
    w->n_tiles = n->tiles;
    w->n_items = n->items;
    w->most_row_lists = p->room.row_lists;
    w->most_tiles = p->room.tiles;
    p->segments = (const struct chain_segment *)(p->device + l->segments);
    p->chains = (const struct token_chain *)(p->device + l->chains);
}

int attention_plan_cascade(struct device *dev, struct attention_plan *p,
                           const struct paged_batch *b, struct error *err) {
    struct gpu_device *gpu = gpu_of(dev);
    struct cascade_plan *shared = &p->shared;
    struct cascade *c = &shared->cascade;
    struct cascade_rule pays = sharing_pays(&p->shape);
    struct cascade_rule rule =
        cascade_rule_of((enum plan_version)gpu->version[GPU_ATTENTION_PLAN], &pays);
    struct error no_memory;
    if (!gpu_attention_fits_tensor_cores(gpu, p->shape.head_dim) || shared->no_memory ||
        !kv_type_splits(p->shape.kv_type))
        return 0;
    if (cascade_find(c, b, &p->variant, &rule, err))
        return -1;
    if (!c->n_stretches)
        return 0;
    int heads_per_group = p->shape.n_heads / p->shape.n_kv_heads;
    int blocks = gpu->n_processors * 2 / p->shape.n_kv_heads;
    int each = tiles_each(p, b, blocks > 0 ? blocks : 1);
    struct cascade_sizes n = measure(c, b, heads_per_group, each);
    if (reserve(dev, shared, &p->shape, &n, &no_memory)) { /* each sequence by itself, then */
        attention_plan_cascade_free(dev, shared);
        shared->no_memory = true;
        return 0;
    }
    struct layout l = lay_out(&shared->room);
    struct filled f = {};
    f.row_lists = (struct row_list *)(shared->host + l.row_lists);
    f.tiles = (struct digit_tile *)(shared->host + l.tiles);
    f.items = (struct wide_item *)(shared->host + l.items);
    f.tokens = (int32_t *)(shared->host + l.tokens);
    f.segments = (struct chain_segment *)(shared->host + l.segments);
    f.chains = (struct token_chain *)(shared->host + l.chains);
    shared->host_chains = f.chains;
    shared->own_places = fill_chains(&f, c, b, heads_per_group);
    for (int i = 0; i < c->n_stretches; i++)
        fill_stretch(&f, c, b, &c->stretches[i], heads_per_group, each);
    int32_t *counts = (int32_t *)(shared->host + l.counts);
    counts[COUNT_ROW_LISTS] = n.row_lists;
    counts[COUNT_TILES] = n.tiles;
    counts[COUNT_ITEMS] = n.items;
    set_work(shared, &l, &p->arrays, &n);
    dev->ops->upload(dev, shared->device, shared->host, l.bytes);
    return 0;
}

void gpu_attention_shared(struct gpu_device *gpu, const struct attention_arguments *a,
                          const struct kv_views *kv, const struct attention_variant *variant,
                          const struct attention_plan *plan) {
    struct attention_arguments all = *a;
    all.page_size = plan->arrays.page_size;
    if (attention_plan_has_cascade(plan))
        gpu_attention_many_rows(gpu, &all, kv, variant, &plan->shared.work);
}
