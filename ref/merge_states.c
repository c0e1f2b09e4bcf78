/* merge_states, finish_states: attention over keys that several calls have seen in parts. */
#include "ref/ref.h"

struct states {
    float *y, *lse;
    enum lse_base base;
    struct attention_state to, with;
    float v_scale;
    int head_dim;
};

static void merge_row(void *context, int row, int worker) {
    (void)worker;
    const struct states *s = context;
    size_t dim = (size_t)s->head_dim;
    float *o = s->to.o + (size_t)row * dim, *m = s->to.m + row, *l = s->to.l + row, old, fresh;
    const float *with = s->with.o + (size_t)row * dim;
    if (s->with.m[row] == -INFINITY)
        return;
    attention_merge_sums(m, l, s->with.m[row], s->with.l[row], &old, &fresh);
    for (size_t d = 0; d < dim; d++)
        o[d] = num_merge(o[d], old, with[d], fresh);
}

void ref_merge_states(struct device *dev, const struct attention_state *to,
                      const struct attention_state *with, int n_rows, int head_dim) {
    struct states s = {.to = *to, .with = *with, .head_dim = head_dim};
    ref_parallel(dev, n_rows, merge_row, &s);
}

static void finish_row(void *context, int row, int worker) {
    (void)worker;
    const struct states *s = context;
    size_t dim = (size_t)s->head_dim, first = (size_t)row * dim;
    float m = s->to.m[row], l = s->to.l[row];
    if (s->lse)
        s->lse[row] = attention_lse(s->base, m, l);
    for (size_t d = first; d < first + dim; d++)
        s->y[d] = (l > 0 ? s->to.o[d] / l : s->to.o[d]) * s->v_scale;
}

void ref_finish_states(struct device *dev, float *y, float *lse, enum lse_base base,
                       const struct attention_state *state, float v_scale, int n_rows,
                       int head_dim) {
    struct states s = {
        .y = y, .lse = lse, .base = base, .to = *state, .v_scale = v_scale, .head_dim = head_dim};
    ref_parallel(dev, n_rows, finish_row, &s);
}
