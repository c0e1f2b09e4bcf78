/*
 * The shares of attention's plan: which thread block works on which tiles (gpu/fast/plan/plan.h).
 *
 * All blocks run at once, so the share that costs most decides how long it takes. There are three
 * ways to cut, and the cheapest by this count is taken: at equal cost, wherever that falls; the
 * same with a rounder number of shares; or whole row groups, dealt out.
 */
#include "gpu/fast/plan/plan.h"

#include <algorithm>
#include <functional>
#include <stdlib.h>

enum {
    TILE = ATTENTION_TILE,
    TILE_COST = 32,     /* what a tile costs beside its positions, in positions */
    SPLIT_COST = 320,   /* and merging what was split */
    MOST_DEALT = 16384, /* groups times shares: dealing must not take long */
};

bool attention_plan_is_prompt(const struct attention_plan *p, const struct paged_batch *b, int i) {
    return b->qo_indptr[i + 1] - b->qo_indptr[i] > p->decode_tokens;
}

int attention_plan_count_groups(const struct attention_plan *p, const struct paged_batch *b,
                                int heads_per_group) {
    int n = 0;
    for (int i = 0; i < b->n_sequences; i++)
        if (!attention_plan_is_prompt(p, b, i))
            n += blocks_of((b->qo_indptr[i + 1] - b->qo_indptr[i]) * heads_per_group, GROUP_ROWS);
    return n;
}

struct own_tiles attention_plan_own(const struct attention_plan *p, const struct paged_batch *b,
                                    int i, int own_tile) {
    int n_tokens = b->qo_indptr[i + 1] - b->qo_indptr[i], length = paged_batch_kv_len(b, i);
    int end = attention_end(&p->variant, length - n_tokens, n_tokens - 1, length);
    int first = attention_first(&p->variant, length - n_tokens, 0) / TILE;
    first = first > own_tile ? first : own_tile;
    int n = blocks_of(end, TILE) - first;
    return n > 0 ? (struct own_tiles){first, n, end}
                 : (struct own_tiles){own_tile, 1, own_tile * TILE};
}

static void fill_groups(struct row_group *out, const struct attention_plan *p,
                        const struct paged_batch *b, int heads_per_group) {
    const struct attention_variant *v = &p->variant;
    for (int i = 0; i < b->n_sequences; i++) {
        struct token_chain chain = {}; /* of all its tokens */
        if (attention_plan_has_cascade(p) && b->qo_indptr[i] < b->qo_indptr[i + 1])
            chain = p->shared.plan.host.chains[b->qo_indptr[i]];
        int n_tokens = b->qo_indptr[i + 1] - b->qo_indptr[i], rows = n_tokens * heads_per_group;
        for (int first = 0; !attention_plan_is_prompt(p, b, i) && first < rows;
             first += GROUP_ROWS, out++) {
            int end = first + GROUP_ROWS < rows ? first + GROUP_ROWS : rows;
            out->sequence = i;
            out->pages = b->kv_indptr[i];
            out->first_token = b->qo_indptr[i];
            out->first_row = first;
            out->n_rows = end - first;
            out->before = paged_batch_kv_len(b, i) - n_tokens;
            out->length = paged_batch_kv_len(b, i);
            out->own_place = -1;
            if (chain.own_tile) {
                struct own_tiles own = attention_plan_own(p, b, i, chain.own_tile);
                out->kv_len = own.end;
                out->first_tile = own.first;
                out->n_tiles = own.n;
                out->own_place = chain.own_place + first / GROUP_ROWS * own.n;
                continue;
            }
            out->kv_len = attention_end(v, out->before, (end - 1) / heads_per_group, out->length);
            out->first_tile = attention_first(v, out->before, first / heads_per_group) / TILE;
            out->n_tiles = blocks_of(out->kv_len, TILE) - out->first_tile;
            if (out->n_tiles <= 0) { /* an empty one: zeros are written */
                out->first_tile = out->kv_len = 0;
                out->n_tiles = 1;
            }
        }
    }
}

static int64_t cost_of(const struct row_group *g) {
    return g->kv_len - (int64_t)TILE * g->first_tile + (int64_t)TILE_COST * g->n_tiles;
}

/* Where the work of all is cut: a row group and a tile. */
struct cut {
    int group, tile;
};

/* Moves *at on, from group to group, to the tile at which the cost of all before it is `target`.
 * before: the cost of the groups before at->group. */
static void find_cut(struct cut *at, int64_t *before, const struct row_group *groups, int n_groups,
                     int64_t target) {
    while (at->group < n_groups && *before + cost_of(&groups[at->group]) <= target)
        *before += cost_of(&groups[at->group++]);
    at->tile = 0;
    if (at->group == n_groups || target <= *before) /* rounding may be ahead */
        return;
    at->tile = (int)((target - *before + (TILE + TILE_COST) / 2) / (TILE + TILE_COST));
    if (at->tile >= groups[at->group].n_tiles) {
        *before += cost_of(&groups[at->group++]);
        at->tile = 0;
    }
}

static void clear_shares(struct attention_plan *p, struct decode_share *shares,
                         struct decode_split *splits) {
    p->n_splits = p->longest_split = 0;
    p->n_partial = p->n_own;
    memset(shares, 0, sizeof *shares * (size_t)p->n_shares);
    memset(splits, 0, sizeof *splits * (size_t)p->n_shares);
}

/* A share of n tiles that begins at a cut. */
static void begin_share(struct decode_share *s, const struct row_group *groups, struct cut at,
                        int n_tiles) {
    s->group = at.group;
    s->first = groups[at.group];
    s->begin.n_tiles = n_tiles;
    s->begin.tile = s->first.first_tile + at.tile;
    s->begin.pages = s->first.pages;
    s->begin.kv_len = s->first.kv_len;
    s->split_first = s->split_last = -1;
}

/* The share ends inside a row group: who goes on with it must know, if the group's first tiles are
 * merged to one result. */
static void split_at(struct attention_plan *p, struct decode_share *share,
                     struct decode_split *splits, const struct row_group *groups, struct cut begin,
                     struct cut end) {
    if (groups[end.group].own_place >= 0)
        return;
    if (begin.group != end.group || !begin.tile) { /* this share has the group's beginning */
        struct decode_split *d = &splits[p->n_splits++];
        d->partial = p->n_partial;
        d->n_tiles = groups[end.group].n_tiles;
        d->first_end = end.tile;
        d->group = end.group;
        int later = d->n_tiles - d->first_end;
        p->n_partial += 1 + later;
        p->longest_split = later > p->longest_split ? later : p->longest_split;
    }
    share->split_last = p->n_splits - 1;
}

/* Cuts the work, which costs `all`, into n shares of equal cost. Returns what the most
 * expensive one costs, and the merge. */
static int64_t cut_into(int n, struct attention_plan *p, struct decode_share *shares,
                        struct decode_split *splits, const struct row_group *groups, int64_t all) {
    int64_t before = 0, begun_at = 0, most = 0;
    clear_shares(p, shares, splits);
    struct cut at = {0, 0};
    for (int i = 0; i < n; i++) {
        struct decode_share *s = &shares[i];
        struct cut begin = at;
        find_cut(&at, &before, groups, p->n_groups, all * (i + 1) / n);
        int tiles = at.tile - begin.tile;
        for (int g = begin.group; g < at.group; g++)
            tiles += groups[g].n_tiles;
        if (tiles)
            begin_share(s, groups, begin, tiles);
        s->split_first = begin.tile ? p->n_splits - 1 : -1;
        if (at.tile && tiles)
            split_at(p, s, splits, groups, begin, at);
        int64_t ends_at = before + (int64_t)at.tile * (TILE + TILE_COST);
        most = ends_at - begun_at > most ? ends_at - begun_at : most;
        begun_at = ends_at;
    }
    return most + (p->n_splits ? SPLIT_COST : 0);
}

/* ---- whole groups --------------------------------------------------------------------------- */

/* A row group, and the share that it is dealt to. */
struct dealt_group {
    int64_t cost;
    int32_t group, share;
};

/* What a share has been dealt. */
struct share_load {
    int first, n_groups, n_tiles; /* first: where its next group goes */
};

/* What a share's groups cost, and its number. */
typedef std::pair<int64_t, int> share_cost;

/* Deals whole groups to the shares, each to the one that has the least (Graham's rule of the
 * longest first, 1969), when the most expensive share then costs less than `limit`. Returns whether
 * it did: the groups are in another order then. */
static bool deal_whole(struct attention_plan *p, struct decode_share *shares,
                       struct decode_split *splits, struct row_group *groups, int64_t limit) {
    int n = p->n_groups;
    struct dealt_group *dealt = (struct dealt_group *)malloc(sizeof *dealt * (size_t)n);
    struct row_group *ordered = (struct row_group *)malloc(sizeof *ordered * (size_t)n);
    struct share_load *load = (struct share_load *)calloc((size_t)p->n_shares, sizeof *load);
    share_cost *heap = (share_cost *)malloc(sizeof *heap * (size_t)p->n_shares);
    bool pays = dealt && ordered && load && heap;
    for (int s = 0; pays && s < p->n_shares; s++)
        heap[s] = {0, s};
    for (int i = 0; pays && i < n; i++) {
        dealt[i].cost = cost_of(&groups[i]);
        dealt[i].group = i;
    }
    if (pays)
        std::sort(dealt, dealt + n, [](const struct dealt_group &a, const struct dealt_group &b) {
            return a.cost != b.cost ? a.cost > b.cost : a.group < b.group;
        });
    for (int i = 0; pays && i < n; i++) {
        std::pop_heap(heap, heap + p->n_shares, std::greater<>()); /* the least comes last */
        share_cost *least = &heap[p->n_shares - 1];
        dealt[i].share = least->second;
        load[least->second].n_groups++;
        load[least->second].n_tiles += groups[dealt[i].group].n_tiles;
        least->first += dealt[i].cost;
        pays = least->first < limit;
        std::push_heap(heap, heap + p->n_shares, std::greater<>());
    }
    if (pays) {
        clear_shares(p, shares, splits);
        for (int s = 1; s < p->n_shares; s++)
            load[s].first = load[s - 1].first + load[s - 1].n_groups;
        for (int i = 0; i < n; i++)
            ordered[load[dealt[i].share].first++] = groups[dealt[i].group];
        memcpy(groups, ordered, sizeof *groups * (size_t)n);
        for (int s = 0; s < p->n_shares; s++)
            if (load[s].n_groups)
                begin_share(&shares[s], groups, (struct cut){load[s].first - load[s].n_groups, 0},
                            load[s].n_tiles);
    }
    free(dealt);
    free(ordered);
    free(load);
    free(heap);
    return pays;
}

int attention_plan_share(struct attention_plan *p, struct decode_share *shares,
                         struct decode_split *splits, struct row_group *groups,
                         const struct paged_batch *b, struct error *err) {
    int64_t all = 0, tiles = 0;
    fill_groups(groups, p, b, p->shape.n_heads / p->shape.n_kv_heads);
    p->most_rows = 1;
    for (int i = 0; i < p->n_groups; i++) {
        all += cost_of(&groups[i]);
        tiles += groups[i].n_tiles;
        p->most_rows = groups[i].n_rows > p->most_rows ? groups[i].n_rows : p->most_rows;
    }
    if (tiles > INT32_MAX / 2)
        return error_set(err, "attention over %lld tiles in one pass: too many", (long long)tiles);
    p->n_tiles = (int)tiles;
    int64_t cost = cut_into(p->n_shares, p, shares, splits, groups, all);
    if (!p->n_splits)
        return 0;
    if (p->n_groups >= p->n_shares && p->n_groups <= MOST_DEALT / p->n_shares &&
        deal_whole(p, shares, splits, groups, cost))
        return 0;
    int rounded = p->n_shares / 8 * 8;
    if (rounded >= p->n_shares - p->n_shares / 16 &&
        cut_into(rounded, p, shares, splits, groups, all) > cost)
        cut_into(p->n_shares, p, shares, splits, groups, all);
    return 0;
}
