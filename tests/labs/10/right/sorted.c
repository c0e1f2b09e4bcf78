/* Lab 10, solved: all members are sorted by their pages, so that those which go on alike are
 * neighbours, and a stretch is a run of neighbours. */
#include "model/attention/cascade.h"
#include "ref/ref.h"

#include <stdlib.h>
#include <string.h>

enum { TILE = ATTENTION_TILE };

void ref_merge_states(struct device *dev, const struct attention_state *to,
                      const struct attention_state *with, int n_rows, int head_dim) {
    (void)dev;
    for (int row = 0; row < n_rows; row++) {
        float m = to->m[row], other = with->m[row];
        if (other == -INFINITY)
            continue;
        float most = m > other ? m : other;
        float old = m == most ? 1 : num_exp(m - most);
        float fresh = other == most ? 1 : num_exp(other - most);
        to->m[row] = most;
        to->l[row] = num_merge(to->l[row], old, with->l[row], fresh);
        for (size_t d = 0; d < (size_t)head_dim; d++) {
            float *o = &to->o[(size_t)row * (size_t)head_dim + d];
            *o = num_merge(*o, old, with->o[(size_t)row * (size_t)head_dim + d], fresh);
        }
    }
}

static int whole_tiles(const struct paged_batch *b, int i) {
    return (paged_batch_kv_len(b, i) - 1) / TILE;
}

static bool is_common(const struct paged_batch *b, int i, int j, int tile) {
    int64_t first = (int64_t)tile * TILE, last = first + TILE - 1;
    for (int64_t page = first / b->page_size; page <= last / b->page_size; page++)
        if (b->kv_page_indices[b->kv_indptr[i] + page] !=
            b->kv_page_indices[b->kv_indptr[j] + page])
            return false;
    return true;
}

static int common_tiles(const struct paged_batch *b, int i, int j, int tile, int most) {
    int end = tile;
    while (end - tile < most && end < whole_tiles(b, i) && end < whole_tiles(b, j) &&
           is_common(b, i, j, end))
        end++;
    return end - tile;
}

/* Insertion sort by the pages of the tiles that a sequence may share. */
static bool is_behind(const struct paged_batch *b, int i, int j) {
    int tile = common_tiles(b, i, j, 0, INT32_MAX / TILE);
    if (tile >= whole_tiles(b, i) || tile >= whole_tiles(b, j))
        return whole_tiles(b, i) > whole_tiles(b, j);
    int64_t page = (int64_t)tile * TILE / b->page_size;
    const int32_t *x = b->kv_page_indices + b->kv_indptr[i];
    const int32_t *y = b->kv_page_indices + b->kv_indptr[j];
    while (x[page] == y[page])
        page++;
    return x[page] > y[page];
}

static void sort(int32_t *members, const struct paged_batch *b, int n) {
    for (int k = 1; k < n; k++)
        for (int at = k; at > 0 && is_behind(b, members[at - 1], members[at]); at--) {
            int32_t member = members[at];
            members[at] = members[at - 1];
            members[at - 1] = member;
        }
}

/* The runs of neighbours first ... end - 1 that share `tile`. */
static void add_runs(struct cascade *c, const struct paged_batch *b, int first, int end, int tile,
                     int depth) {
    for (int next; first < end; first = next) {
        int least = INT32_MAX / TILE;
        next = first + 1;
        while (next < end && common_tiles(b, c->members[first], c->members[next], tile, 1)) {
            least = common_tiles(b, c->members[first], c->members[next], tile, least);
            next++;
        }
        if (next - first < 2)
            continue;
        c->stretches[c->n_stretches++] =
            (struct shared_stretch){tile, least, first, next - first, depth};
        for (int k = first; k < next; k++)
            c->own_tile[c->members[k]] = tile + least;
    }
}

static void find_stretches(struct cascade *c, const struct paged_batch *b, int n) {
    sort(c->members, b, n);
    add_runs(c, b, 0, n, 0, 0);
    for (int k = 0; k < c->n_stretches; k++) {
        struct shared_stretch s = c->stretches[k];
        add_runs(c, b, s.first_member, s.first_member + s.n_members, s.first_tile + s.n_tiles,
                 s.depth + 1);
    }
}

/* ---- given: states, rules, memory ------------------------------------------------------------ */

/* The row's result: y = o / l times the scale of the values, and the logarithm of its sum. */
void ref_finish_states(struct device *dev, float *y, float *lse, enum lse_base base,
                       const struct attention_state *state, float v_scale, int n_rows,
                       int head_dim) {
    (void)dev;
    for (int row = 0; row < n_rows; row++) {
        float m = state->m[row], l = state->l[row];
        size_t first = (size_t)row * (size_t)head_dim;
        if (lse)
            lse[row] = attention_lse(base, m, l);
        for (size_t d = first; d < first + (size_t)head_dim; d++)
            y[d] = (l > 0 ? state->o[d] / l : state->o[d]) * v_scale;
    }
}

struct cascade_rule cascade_rule_of(enum plan_version version, const struct cascade_rule *pays) {
    struct cascade_rule rule = *pays;
    rule.most_tokens = version == PLAN_SINGLE ? 0 : pays->most_tokens;
    rule.least_tiles_less = version == PLAN_SHARES ? 1 : pays->least_tiles_less;
    return rule;
}

static int reserve(struct cascade *c, int n, struct error *err) {
    if (n <= c->most_sequences)
        return 0;
    cascade_end(c);
    c->stretches = malloc(sizeof *c->stretches * (size_t)n);
    c->members = malloc(sizeof *c->members * (size_t)n);
    c->own_tile = malloc(sizeof *c->own_tile * (size_t)n);
    if (!c->stretches || !c->members || !c->own_tile) {
        cascade_end(c);
        return error_set(err, "out of memory for the shared tiles of %d sequences", n);
    }
    c->most_sequences = n;
    return 0;
}

/* Few queries, a whole tile in front of the last position, and the first query sees the first
 * tile. */
static bool takes_part(const struct paged_batch *b, const struct attention_variant *v,
                       const struct cascade_rule *rule, int i) {
    int n_tokens = b->qo_indptr[i + 1] - b->qo_indptr[i];
    int kv_len = paged_batch_kv_len(b, i);
    return n_tokens > 0 && n_tokens <= rule->most_tokens && kv_len > TILE &&
           attention_first(v, kv_len - n_tokens, 0) < TILE;
}

/* Two sequences alone, where find_stretches is still to be written. */
static void find_two(struct cascade *c, const struct paged_batch *b) {
    int n = common_tiles(b, c->members[0], c->members[1], 0, INT32_MAX / TILE);
    if (n) {
        c->stretches[c->n_stretches++] = (struct shared_stretch){0, n, 0, 2, 0};
        c->own_tile[c->members[0]] = c->own_tile[c->members[1]] = n;
    }
}

int cascade_find(struct cascade *c, const struct paged_batch *b, const struct attention_variant *v,
                 const struct cascade_rule *rule, struct error *err) {
    int n = b->n_sequences, n_members = 0;
    c->n_stretches = 0;
    if (!n || !rule->most_tokens)
        return 0;
    if (reserve(c, n, err))
        return -1;
    for (int i = 0; i < n; i++) {
        c->own_tile[i] = 0;
        if (takes_part(b, v, rule, i))
            c->members[n_members++] = i;
    }
    if (n == 2 && n_members == 2)
        find_two(c, b);
    else if (n > 2)
        find_stretches(c, b, n_members);
    int64_t tiles_less = 0;
    for (int k = 0; k < c->n_stretches; k++)
        tiles_less += (int64_t)c->stretches[k].n_tiles * (c->stretches[k].n_members - 1);
    if (tiles_less < rule->least_tiles_less)
        c->n_stretches = 0;
    return 0;
}

void cascade_end(struct cascade *c) {
    free(c->stretches);
    free(c->members);
    free(c->own_tile);
    *c = (struct cascade){0};
}
