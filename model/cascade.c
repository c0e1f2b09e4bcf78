#include "model/cascade.h"

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

/* Of members[begin ... end - 1], those that go on alike from `tile` become stretches of that depth;
 * they stay in this part of the members, in another order. */
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
        find_stretches(c, b, s.first_member, s.first_member + s.n_members,
                       s.first_tile + s.n_tiles, s.depth + 1);
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

static int check_level(const struct cascade_level *l, int level, int page_size, bool last,
                       struct error *err) {
    if (l->n_groups < 0)
        return error_set(err, "level %d has %d groups", level, l->n_groups);
    if (l->qo_indptr[0] != 0 || l->kv_indptr[0] != 0)
        return error_set(err, "level %d: an indptr does not begin at 0", level);
    for (int g = 0; g < l->n_groups; g++) {
        int pages = l->kv_indptr[g + 1] - l->kv_indptr[g];
        if (l->qo_indptr[g + 1] < l->qo_indptr[g] || pages < 0)
            return error_set(err, "level %d, group %d: an indptr falls", level, g);
        if (!last && pages && l->kv_last_page_len[g] != page_size)
            return error_set(
                err,
                "level %d, group %d: its last page has %d of %d positions; only on the "
                "last level may pages be unfilled",
                level, g, l->kv_last_page_len[g], page_size);
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

/* The pages of a group, behind those that are there. */
static int add_pages(const struct cascade_level *l, int group, int32_t *pages, int *n, int most,
                     struct error *err) {
    int first = l->kv_indptr[group], count = l->kv_indptr[group + 1] - first;
    if (count > most - *n)
        return error_set(err, "the levels have more than %d pages in all", most);
    memcpy(pages + *n, l->kv_page_indices + first, sizeof *pages * (size_t)count);
    *n += count;
    return 0;
}

int paged_batch_of_levels(struct paged_batch *out, const struct cascade_level *levels, int n_levels,
                          int page_size, int n_pages, int32_t *kv_indptr, int32_t *kv_last_page_len,
                          int32_t *pages, int most_pages, struct error *err) {
    if (n_levels < 1 || page_size < 1)
        return error_set(err, "%d levels of pages of %d", n_levels, page_size);
    for (int i = 0; i < n_levels; i++)
        if (check_level(&levels[i], i, page_size, i == n_levels - 1, err))
            return -1;
    const struct cascade_level *own = &levels[n_levels - 1];
    int n = 0, n_queries = own->qo_indptr[own->n_groups];
    for (int i = 0; i < n_levels; i++)
        if (levels[i].qo_indptr[levels[i].n_groups] != n_queries)
            return error_set(err, "level %d has %d queries, level %d has %d", i,
                             levels[i].qo_indptr[levels[i].n_groups], n_levels - 1, n_queries);
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
            if (add_pages(&levels[i], group, pages, &n, most_pages, err))
                return -1;
        }
        int shared = n;
        if (add_pages(own, s, pages, &n, most_pages, err))
            return -1;
        kv_last_page_len[s] = n > shared ? own->kv_last_page_len[s] : page_size;
        kv_indptr[s + 1] = n;
    }
    *out = (struct paged_batch){.n_sequences = own->n_groups,
                                .page_size = page_size,
                                .n_pages = n_pages,
                                .qo_indptr = own->qo_indptr,
                                .kv_indptr = kv_indptr,
                                .kv_page_indices = pages,
                                .kv_last_page_len = kv_last_page_len};
    return paged_batch_check(out, err);
}
