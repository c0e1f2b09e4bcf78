#include "model/attention/cascade.h"

#include <stdlib.h>
#include <string.h>

enum { TILE = ATTENTION_TILE };

struct cascade_rule cascade_rule_of(enum plan_version version, const struct cascade_rule *pays) {
    struct cascade_rule rule = *pays;
    rule.most_tokens = version == PLAN_SINGLE ? 0 : pays->most_tokens;
    rule.least_tiles_less = version == PLAN_SHARES ? 1 : pays->least_tiles_less;
    return rule;
}

/* Whole tiles that a sequence may share: not its last position. */
static int whole_tiles(const struct paged_batch *b, int i) {
    return (paged_batch_kv_len(b, i) - 1) / TILE;
}

static const int32_t *pages_of(const struct paged_batch *b, int i) {
    return b->kv_page_indices + b->kv_indptr[i];
}

/* The tiles from `tile` on that sequences i and j both have, in the same pages; at most `most`. */
static int common_tiles(const struct paged_batch *b, int i, int j, int tile, int most) {
    const int32_t *x = pages_of(b, i), *y = pages_of(b, j);
    int size = b->page_size, theirs = whole_tiles(b, j) - tile;
    most = theirs < most ? theirs : most;
    if (most <= 0)
        return 0;
    int page = (int)((int64_t)tile * TILE / size);
    int end = (int)(((int64_t)(tile + most) * TILE + size - 1) / size);
    while (page < end && x[page] == y[page])
        page++;
    int common = (int)((int64_t)page * size / TILE) - tile;
    return common < 0 ? 0 : common < most ? common : most;
}

/* The members begin ... end - 1 that go on alike from `tile` become stretches of that depth; they
 * stay in this part of the members, in another order. */
static void find_stretches(struct cascade *c, const struct paged_batch *b, int begin, int end,
                           int tile, int depth) {
    int32_t *members = c->members;
    for (int first = begin, next; first < end; first = next) {
        int least = whole_tiles(b, members[first]) - tile;
        next = first + 1;
        for (int k = first + 1; k < end && least > 0; k++) {
            int common = common_tiles(b, members[first], members[k], tile, least);
            if (!common)
                continue;
            int32_t member = members[k];
            members[k] = members[next];
            members[next++] = member;
            least = common;
        }
        int n = next - first;
        if (n < 2)
            continue;
        c->stretches[c->n_stretches++] = (struct shared_stretch){tile, least, first, n, depth};
        for (int k = first; k < next; k++)
            c->own_tile[members[k]] = tile + least;
    }
}

static size_t bucket_of(int32_t page, size_t n_buckets) {
    return ((uint32_t)page * 2654435761u >> 7) & (n_buckets - 1);
}

static size_t buckets_for(int n) {
    size_t buckets = 64;
    while (buckets < 4 * (size_t)n)
        buckets *= 2;
    return buckets;
}

static int reserve(struct cascade *c, int n, struct error *err) {
    if (n <= c->most_sequences)
        return 0;
    cascade_end(c);
    size_t count = (size_t)n;
    /* A tree with n leaves has at most n - 1 inner nodes. */
    c->stretches = malloc(sizeof *c->stretches * count);
    c->members = malloc(sizeof *c->members * count);
    c->own_tile = malloc(sizeof *c->own_tile * count);
    c->begins = malloc(buckets_for(n));
    if (!c->stretches || !c->members || !c->own_tile || !c->begins) {
        cascade_end(c);
        return error_set(err, "out of memory for the shared tiles of %d sequences", n);
    }
    c->most_sequences = n;
    return 0;
}

/* Whether a sequence may share its beginning: few queries, a whole tile, and its first query sees
 * the first tile. */
static bool takes_part(const struct paged_batch *b, const struct attention_variant *v,
                       const struct cascade_rule *rule, int i) {
    int n_tokens = b->qo_indptr[i + 1] - b->qo_indptr[i];
    int before = paged_batch_kv_len(b, i) - n_tokens;
    return n_tokens > 0 && n_tokens <= rule->most_tokens && whole_tiles(b, i) > 0 &&
           attention_first(v, before, 0) < TILE;
}

int cascade_find(struct cascade *c, const struct paged_batch *b, const struct attention_variant *v,
                 const struct cascade_rule *rule, struct error *err) {
    int n = b->n_sequences, n_members = 0;
    size_t n_buckets = buckets_for(n);
    c->n_stretches = 0;
    if (!n || !rule->most_tokens)
        return 0;
    if (reserve(c, n, err))
        return -1;
    memset(c->begins, 0, n_buckets);
    /* Most batches share nothing, and are done here: no first page comes twice. */
    for (int i = 0; i < n; i++) {
        c->own_tile[i] = 0;
        if (!takes_part(b, v, rule, i))
            continue;
        uint8_t *count = &c->begins[bucket_of(pages_of(b, i)[0], n_buckets)];
        *count = *count ? 2 : 1;
        c->members[n_members++] = i;
    }
    int left = 0;
    for (int k = 0; k < n_members; k++)
        if (c->begins[bucket_of(pages_of(b, c->members[k])[0], n_buckets)] == 2)
            c->members[left++] = c->members[k];
    int64_t tiles_less = 0;
    find_stretches(c, b, 0, left, 0, 0);
    for (int k = 0; k < c->n_stretches; k++) { /* grows on the way */
        struct shared_stretch s = c->stretches[k];
        tiles_less += (int64_t)s.n_tiles * (s.n_members - 1);
        find_stretches(c, b, s.first_member, s.first_member + s.n_members, s.first_tile + s.n_tiles,
                       s.depth + 1);
    }
    if (tiles_less < rule->least_tiles_less)
        c->n_stretches = 0;
    return 0;
}

void cascade_end(struct cascade *c) {
    free(c->stretches);
    free(c->members);
    free(c->own_tile);
    free(c->begins);
    *c = (struct cascade){0};
}

/* ---- levels ------------------------------------------------------------------------------------
 */

static int check_group(const struct cascade_level *l, int g, int page_size, int n_pages,
                       struct error *err) {
    int first = l->kv_indptr[g], end = l->kv_indptr[g + 1], last = l->kv_last_page_len[g];
    if (first < end && (last < 1 || last > page_size))
        return error_set(err, "its last page has %d positions, not 1 to %d", last, page_size);
    for (int i = first; i < end; i++)
        if (l->kv_page_indices[i] < 0 || l->kv_page_indices[i] >= n_pages)
            return error_set(err, "its page number %d is %d, outside the pool of %d", i - first,
                             l->kv_page_indices[i], n_pages);
    return 0;
}

static int check_level(const struct cascade_level *l, int level, int page_size, int n_pages,
                       struct error *err) {
    struct error why;
    if (l->n_groups < 0)
        return error_set(err, "level %d has %d groups", level, l->n_groups);
    if (l->qo_indptr[0] != 0 || l->kv_indptr[0] != 0)
        return error_set(err, "level %d: an indptr does not begin at 0", level);
    for (int g = 0; g < l->n_groups; g++) /* before they say where pages are */
        if (l->qo_indptr[g + 1] < l->qo_indptr[g] || l->kv_indptr[g + 1] < l->kv_indptr[g])
            return error_set(err, "level %d, group %d: an indptr falls", level, g);
    for (int g = 0; g < l->n_groups; g++)
        if (check_group(l, g, page_size, n_pages, &why))
            return error_set(err, "level %d, group %d: %s", level, g, why.text);
    return 0;
}

/* Positions in the last page of a group; 0: it has none. */
static int last_page(const struct cascade_level *l, int g) {
    return l->kv_indptr[g] < l->kv_indptr[g + 1] ? l->kv_last_page_len[g] : 0;
}

/* The largest size of pages of which the pages before the last level are whole ones, however full:
 * page p of 16 positions is pages 2 p and 2 p + 1 of 8. */
static int common_page_size(const struct cascade_level *levels, int n_levels, int page_size) {
    for (const struct cascade_level *l = levels; l < levels + n_levels - 1; l++)
        for (int g = 0; g < l->n_groups; g++) {
            int rest = last_page(l, g);
            while (rest) { /* Euclid's greatest common divisor */
                int next = page_size % rest;
                page_size = rest;
                rest = next;
            }
        }
    return page_size;
}

/* Where a page cannot be read as several smaller ones, every group before the last level must end
 * with a full one. */
static int check_full(const struct cascade_level *levels, int n_levels,
                      const struct kv_layout *cache, struct error *err) {
    if (cache->order == KV_NHD && !cache->one_tensor)
        return 0;
    for (int i = 0; i < n_levels - 1; i++)
        for (int g = 0; g < levels[i].n_groups; g++) {
            int last = last_page(&levels[i], g);
            if (last && last != cache->page_size)
                return error_set(err,
                                 "level %d, group %d: its last page has %d of %d positions, and "
                                 "only in NHD in two tensors can levels go on behind it: fill it, "
                                 "move its positions to the next level, or kv_convert the cache",
                                 i, g, last, cache->page_size);
        }
    return 0;
}

/* The group of a level that has the queries first ... end - 1; -1: no single one. *from: where to
 * begin looking, groups go on from there. */
static int group_with(const struct cascade_level *l, int *from, int first, int end) {
    while (*from < l->n_groups && l->qo_indptr[*from + 1] <= first)
        ++*from;
    if (first == end && *from == l->n_groups) /* no query, behind all others */
        return l->n_groups - 1;
    return *from < l->n_groups && l->qo_indptr[*from] <= first && end <= l->qo_indptr[*from + 1]
               ? *from
               : -1;
}

/* The page table that is made. */
struct flat_table {
    int32_t *pages;
    int n, most;
    int page_size, parts; /* each page of the levels is so many of these */
};

/* The pages of a group, behind those that are there. */
static int add_pages(struct flat_table *t, const struct cascade_level *l, int group,
                     struct error *err) {
    for (int i = l->kv_indptr[group]; i < l->kv_indptr[group + 1]; i++) {
        bool last = i + 1 == l->kv_indptr[group + 1];
        int count =
            last ? (l->kv_last_page_len[group] + t->page_size - 1) / t->page_size : t->parts;
        if (count > t->most - t->n)
            return error_set(err, "the levels have more than %d pages of %d in all", t->most,
                             t->page_size);
        for (int part = 0; part < count; part++)
            t->pages[t->n++] = l->kv_page_indices[i] * t->parts + part;
    }
    return 0;
}

int paged_batch_of_levels(struct paged_batch *out, const struct cascade_level *levels, int n_levels,
                          const struct kv_layout *cache, int32_t *kv_indptr,
                          int32_t *kv_last_page_len, int32_t *pages, int most_pages,
                          struct error *err) {
    int page_size = cache->page_size, n_pages = cache->n_pages;
    if (n_levels < 1 || page_size < 1 || n_pages < 0 || (int64_t)n_pages * page_size > INT32_MAX)
        return error_set(err, "%d levels over %d pages of %d", n_levels, n_pages, page_size);
    for (int i = 0; i < n_levels; i++)
        if (check_level(&levels[i], i, page_size, n_pages, err))
            return -1;
    if (check_full(levels, n_levels, cache, err))
        return -1;
    const struct cascade_level *own = &levels[n_levels - 1];
    int n_queries = own->qo_indptr[own->n_groups];
    for (int i = 0; i < n_levels; i++)
        if (levels[i].qo_indptr[levels[i].n_groups] != n_queries)
            return error_set(err, "level %d has %d queries, level %d has %d", i,
                             levels[i].qo_indptr[levels[i].n_groups], n_levels - 1, n_queries);
    struct flat_table t = {.pages = pages, .most = most_pages};
    t.page_size = common_page_size(levels, n_levels, page_size);
    t.parts = page_size / t.page_size;
    kv_indptr[0] = 0;
    for (int s = 0; s < own->n_groups; s++) {
        int first = own->qo_indptr[s], end = own->qo_indptr[s + 1];
        for (int i = 0; i < n_levels - 1; i++) {
            int from = 0, group = group_with(&levels[i], &from, first, end);
            if (group < 0)
                return error_set(err,
                                 "level %d, group %d: its queries %d to %d do not lie in one group "
                                 "of level %d",
                                 n_levels - 1, s, first, end - 1, i);
            if (add_pages(&t, &levels[i], group, err))
                return -1;
        }
        int shared = t.n;
        if (add_pages(&t, own, s, err))
            return -1;
        kv_last_page_len[s] =
            t.n > shared ? (own->kv_last_page_len[s] - 1) % t.page_size + 1 : t.page_size;
        kv_indptr[s + 1] = t.n;
    }
    *out = (struct paged_batch){.n_sequences = own->n_groups,
                                .page_size = t.page_size,
                                .n_pages = n_pages * t.parts,
                                .qo_indptr = own->qo_indptr,
                                .kv_indptr = kv_indptr,
                                .kv_page_indices = pages,
                                .kv_last_page_len = kv_last_page_len};
    return paged_batch_check(out, err);
}
