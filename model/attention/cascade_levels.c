/* A batch given level by level becomes one page table. */
#include "model/attention/cascade.h"

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
