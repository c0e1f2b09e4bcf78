/*
 * Phase 10: tiles that sequences share (model/attention/cascade.h), computed once for all rows that
 * see them.
 *
 * Computes what ../../attention_paged.cu does; gains a factor of 3.5 over sequences that each read
 * the shared pages (64 of them, 8192 of 8448 positions shared, H200: 103 µs, not 363).
 *
 * A stretch is a run of tiles that the same sequences share, its members. It is work for the prompt
 * kernels (prompt.h: attention_work): its rows are those of all members, 64 together, and what they
 * find is kept. So is what decode's row groups find in the tiles behind, which are each sequence's
 * own. Then the chain of each row is merged, tile after tile (gpu/fast/prompt/chains.cu), as if it
 * had gone through all of them alone.
 *
 *     plan   the stretches, cut into items that keep all processors busy; a row list is 64 rows
 *     run    the row groups; split to digits, items; the chains
 *
 * The row groups come first, because tiles can be split while they still are at work: both wait for
 * memory.
 */
#include "gpu/fast/plan/plan.h"

enum { TILE = ATTENTION_TILE };

/* Sharing costs some 20 us for its kernels, and pays when it saves more reads than that. Measured:
 * tests/bench/README.md. */
static const int64_t least_bytes_less = (int64_t)220 << 20;

static struct cascade_rule sharing_pays(const struct attention_shape *shape) {
    int64_t tile = (int64_t)TILE * shape->n_kv_heads * shape->head_dim * 4; /* bytes of k and v */
    int64_t tiles = least_bytes_less / tile + 1;
    return {DECODE_TOKENS, tiles < INT32_MAX ? (int)tiles : INT32_MAX};
}

/* ---- how much ------------------------------------------------------------------------------- */

static int tokens_of(const struct cascade *c, const struct paged_batch *b, int stretch) {
    const struct shared_stretch *s = &c->stretches[stretch];
    int n = 0;
    for (int i = s->first_member; i < s->first_member + s->n_members; i++)
        n += b->qo_indptr[c->members[i] + 1] - b->qo_indptr[c->members[i]];
    return n;
}

static struct work_sizes measure(const struct cascade *c, const struct paged_batch *b,
                                 int heads_per_group, int each) {
    struct work_sizes n = {};
    for (int i = 0; i < c->n_stretches; i++) {
        const struct shared_stretch *s = &c->stretches[i];
        int tokens = tokens_of(c, b, i), lists = blocks_of(tokens * heads_per_group, QUERY_ROWS);
        n.tokens += tokens;
        n.segments += tokens;
        n.row_lists += lists;
        n.tiles += s->n_tiles;
        n.items += lists * work_items_of(s->n_tiles, each);
        n.places += lists * work_results_of(s->n_tiles, each, !s->depth);
    }
    n.counts = N_COUNTS;
    n.chains = b->qo_indptr[b->n_sequences];
    return n;
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
    while (each < longest && work_kept_bytes(measure(c, b, heads_per_group, each).places,
                                             &p->shape) > most_kept_bytes)
        each *= 2;
    return each < longest ? each : longest;
}

/* Whether what own tiles leave would take too much memory. It is a few percent of what they read.
 */
static bool own_takes_too_much(const struct attention_plan *p, const struct paged_batch *b,
                               int heads_per_group) {
    const struct cascade *c = &p->shared.cascade;
    size_t places = 0;
    for (int i = 0; i < b->n_sequences; i++) {
        int rows = (b->qo_indptr[i + 1] - b->qo_indptr[i]) * heads_per_group;
        if (rows && c->own_tile[i])
            places += (size_t)(blocks_of(rows, GROUP_ROWS) *
                               attention_plan_own(p, b, i, c->own_tile[i]).n);
    }
    return group_results_bytes(places, &p->shape) > most_kept_bytes;
}

/* ---- the arrays ----------------------------------------------------------------------------- */

/* Tokens, tiles, row lists and items of a stretch, and a segment for each of its tokens. */
static void fill_stretch(struct work_arrays *f, const struct cascade *c,
                         const struct paged_batch *b, const struct shared_stretch *s,
                         int heads_per_group, int each) {
    int tokens = f->n.tokens, tile = f->n.tiles, pages = b->kv_indptr[c->members[s->first_member]];
    for (int k = s->first_member; k < s->first_member + s->n_members; k++)
        for (int t = b->qo_indptr[c->members[k]]; t < b->qo_indptr[c->members[k] + 1]; t++)
            f->tokens[f->n.tokens++] = t;
    for (int t = 0; t < s->n_tiles; t++)
        f->tiles[f->n.tiles++] = {pages, s->first_tile + t, TILE};
    int rows = (f->n.tokens - tokens) * heads_per_group, first_list = f->n.row_lists;
    int end = (s->first_tile + s->n_tiles) * TILE;
    for (int row = 0; row < rows; row += QUERY_ROWS) {
        struct row_list list = {tokens, row, rows - row, -1, 0, 0, 0, 0, 0};
        struct work_rows all = {list, f->n.row_lists, tile, s->first_tile, s->n_tiles,
                                end,  each,           true, !s->depth};
        work_plan_add_rows(f, &all);
    }
    for (int i = tokens; i < f->n.tokens; i++) { /* after those of the depths before */
        struct token_chain *chain = &f->chains[f->tokens[i]];
        f->segments[chain->first_segment + chain->n_segments++] = {first_list, i - tokens};
    }
}

/* Room for each token's segments, and for the results of own tiles. */
static void fill_chains(struct attention_plan *p, const struct paged_batch *b,
                        int heads_per_group) {
    const struct cascade *c = &p->shared.cascade;
    struct work_arrays *f = &p->shared.plan.host;
    memset(f->chains, 0, sizeof *f->chains * (size_t)b->qo_indptr[b->n_sequences]);
    for (int i = 0; i < c->n_stretches; i++) {
        const struct shared_stretch *s = &c->stretches[i];
        for (int k = s->first_member; k < s->first_member + s->n_members; k++)
            for (int t = b->qo_indptr[c->members[k]]; t < b->qo_indptr[c->members[k] + 1]; t++)
                f->chains[t].n_segments++;
    }
    for (int i = 0; i < b->n_sequences; i++) {
        int begin = b->qo_indptr[i], end = b->qo_indptr[i + 1],
            rows = (end - begin) * heads_per_group;
        if (begin == end || !c->own_tile[i])
            continue;
        int own = attention_plan_own(p, b, i, c->own_tile[i]).n;
        for (int t = begin; t < end; t++) {
            int n = f->chains[t].n_segments;
            f->chains[t] = {f->n.segments, 0,   c->own_tile[i],
                            p->n_own,      own, (t - begin) * heads_per_group};
            f->n.segments += n;
        }
        p->n_own += blocks_of(rows, GROUP_ROWS) * own;
    }
}

void attention_plan_cascade_free(struct device *dev, struct cascade_plan *p) {
    work_plan_free(dev, &p->plan);
    cascade_end(&p->cascade);
    *p = {};
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
    if (!gpu_attention_fits_tensor_cores(gpu, p->shape.head_dim) || shared->no_memory)
        return 0;
    if (cascade_find(c, b, &p->variant, &rule, err))
        return -1;
    int heads_per_group = p->shape.n_heads / p->shape.n_kv_heads;
    if (c->n_stretches && own_takes_too_much(p, b, heads_per_group))
        c->n_stretches = 0;
    if (!c->n_stretches)
        return 0;
    int blocks = gpu->n_processors * 2 / p->shape.n_kv_heads;
    int each = tiles_each(p, b, blocks > 0 ? blocks : 1);
    struct work_sizes n = measure(c, b, heads_per_group, each), from_the_first = {};
    if (work_plan_reserve(dev, &shared->plan, &p->shape, &n, true, &no_memory)) {
        attention_plan_cascade_free(dev, shared); /* each sequence by itself, then */
        shared->no_memory = true;
        return 0;
    }
    struct work_arrays *f = &shared->plan.host;
    fill_chains(p, b, heads_per_group);
    for (int i = 0; i < c->n_stretches; i++)
        fill_stretch(f, c, b, &c->stretches[i], heads_per_group, each);
    f->counts[COUNT_ROW_LISTS] = f->n.row_lists;
    f->counts[COUNT_TILES] = f->n.tiles;
    f->counts[COUNT_ITEMS] = f->n.items;
    shared->work = work_plan_work(&shared->plan, &from_the_first, &p->arrays);
    shared->work.overlaps = true;
    work_plan_upload(dev, &shared->plan);
    return 0;
}

void gpu_attention_shared(struct gpu_device *gpu, const struct attention_arguments *a,
                          const struct kv_views *kv, const struct attention_variant *variant,
                          const struct attention_plan *plan, const struct group_results *own) {
    struct attention_arguments all = *a;
    all.page_size = plan->arrays.page_size;
    gpu_attention_prompt(gpu, &all, kv, variant, &plan->shared.work);
    gpu_attention_chains(gpu, a, variant, plan->n_tokens, &plan->shared.plan, own);
}
