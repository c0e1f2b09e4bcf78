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
