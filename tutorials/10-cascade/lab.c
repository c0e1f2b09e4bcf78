/*
 * Lab 10: merge states, and find shared tiles. Your file takes the place of ref/merge_states.c and
 * model/attention/cascade.c; the task is in the section "Lab" of this chapter. `make lab10` builds
 * and grades it.
 *
 * Step 1 uses num_exp (model/numerics.h) and num_merge (model/attention/numerics.h). A state is
 * struct attention_state; the engine's attention_merge_sums stands beside it in
 * model/attention/variant.h and is what you write: do not look it up. Step 2 uses
 * model/attention/paged_batch.h, step 3 model/attention/cascade.h.
 */
#include "model/attention/cascade.h"
#include "ref/ref.h"
#include "tests/labs/not_written.h"

#include <stdlib.h>
#include <string.h>

enum { TILE = ATTENTION_TILE };

/* ---- step 1: merge states -------------------------------------------------------------------- */

/* For each row, `to` becomes the state of what both have seen. A state is o [head_dim], m (the
 * largest score) and l (the sum of all e^(score - m)) of each row. The larger m of the two stays,
 * and that side counts for 1; the other side counts for num_exp(its m - the larger m). If both are
 * equal, both count for 1. Then
 *     l = num_merge(l of to, what it counts for, l of with, what it counts for)
 * and so for each element of o. (One of the two products in it is rounded, so `to` comes first.) A
 * row where `with` has seen nothing (its m is -INFINITY) stays as it is. A row where only `to` has
 * seen nothing gets the other's state by the rule above. */
void ref_merge_states(struct device *dev, const struct attention_state *to,
                      const struct attention_state *with, int n_rows, int head_dim) {
    (void)dev, (void)to, (void)with, (void)n_rows, (void)head_dim;
    not_written("for each row: the larger m, what each side counts for, then l and o with "
                "num_merge");
}

/* ---- step 2: what two sequences share -------------------------------------------------------- */

/* How many whole tiles of 256 positions sequence i may share: never its last position, which it
 * keeps for itself. paged_batch_kv_len(b, i) is its length. */
static int whole_tiles(const struct paged_batch *b, int i) {
    (void)b, (void)i;
    not_written("whole tiles in front of the sequence's last position");
}

/* How many tiles from `tile` on, one after the other, sequences i and j have in the same pages: no
 * more than `most`, which counts from `tile` on, too, and none behind what each may share. The
 * pages of sequence i are b->kv_page_indices[b->kv_indptr[i]] and on; each has b->page_size
 * positions, which may be less or more than a tile and need not divide it. A tile is shared if
 * every page that has one of its positions is the same number, at the same place of both tables. */
static int common_tiles(const struct paged_batch *b, int i, int j, int tile, int most) {
    (void)b, (void)i, (void)j, (void)tile, (void)most, (void)whole_tiles;
    not_written("compare the pages of tile after tile, until one differs");
}

/* ---- step 3: stretches ----------------------------------------------------------------------- */

/* members [n]: the sequences that take part, in c->members. Fills c->stretches and counts them in
 * c->n_stretches (0 before), sets c->own_tile[i] of each member (0 before) to the first tile that
 * it does not share, and orders c->members so that the members of every stretch are neighbours,
 * n_members of them from c->members[first_member] on.
 *
 * A stretch is a run of tiles that at least two members share, as long as all of its members go on
 * alike: where some leave, or end, it ends, and those that still go on alike with another are a
 * next stretch, one deeper. Stretches of depth 0 begin at tile 0 and come first, then those of
 * depth 1, which begin where theirs of depth 0 end, and so on. There are fewer stretches than
 * members, and c->stretches has room for n. */
static void find_stretches(struct cascade *c, const struct paged_batch *b, int n) {
    (void)c, (void)b, (void)n;
    not_written("group the members that share a tile, find how far all of a group go on, and then "
                "look among its members behind that");
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
