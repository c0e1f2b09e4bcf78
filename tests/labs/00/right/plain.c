/*
 * Another right solution of lab 0: plain loops over integers, a head at a time.
 */
#include "ref/attention.h"

#include <stdlib.h>

/* ---- step 1: rmsnorm ------------------------------------------------------------------------- */

void ref_rmsnorm(struct device *dev, float *y, /* [n_rows, n_cols] */
                 const float *x,               /* [n_rows, n_cols] */
                 const float *gain,            /* [n_cols] */
                 int n_rows, int n_cols, int rows_per_token, double eps, int site) {
    int16_t *q = malloc(sizeof *q * ((size_t)n_cols + 1));
    for (int row = 0; q && row < n_rows; row++) {
        size_t at = (size_t)row * (size_t)n_cols;
        int e = ref_snap_or_fault(dev, q, &x[at], n_cols, site, row / rows_per_token);
        int64_t sum = 0;
        for (int i = n_cols - 1; i >= 0; i--)
            sum += (int64_t)q[i] * (int64_t)q[i];
        float factor = num_rms_factor(sum, e, n_cols, eps);
        for (int i = 0; i < n_cols; i++) {
            float scaled = x[at + (size_t)i] * factor;
            y[at + (size_t)i] = scaled * gain[i];
        }
    }
    free(q);
}

/* Given: the residual add in front of a norm, and the snapping behind it. */
void ref_add_rmsnorm(struct device *dev, float *y, struct bfp_rows snapped, float *x,
                     const float *branch, const float *gain, int n_rows, int n_cols, double eps,
                     int site_x, int site_y) {
    ref_add(dev, x, x, branch, (size_t)n_rows * (size_t)n_cols);
    ref_rmsnorm(dev, y, x, gain, n_rows, n_cols, 1, eps, site_x);
    ref_snap_rows(dev, snapped, y, n_rows, n_cols, site_y);
}

/* ---- step 2: attention ----------------------------------------------------------------------- */

/* Given, for the general op: row r's query as integers, and its exponent. */
int ref_load_query(const struct block_memory *m, int r, const float *q, struct row_name name) {
    int16_t *mantissas = m->k; /* no tile is there yet */
    int e = ref_snap_or_fault(name.dev, mantissas, q, m->head_dim, name.site, name.token);
    ref_put_query(m, r, mantissas);
    return e;
}

struct tile_result ref_tile_softmax(int16_t *weights, const float *s, const double *v_units, int n,
                                    struct num_score_unit unit, struct row_name name) {
    float w[TILE], largest = s[0];
    struct tile_result tile = {0};
    uint32_t sum = 0;
    for (int j = 1; j < n; j++)
        if (s[j] > largest || largest != largest)
            largest = s[j];
    tile.m = num_tile_max(largest, unit);
    if (!isfinite(tile.m))
        ref_fault(name.dev, name.site, name.token);
    struct num_window window = num_window_of(largest, unit.binary);
    for (int j = n - 1; j >= 0; j--) {
        float p = num_probability(s[j], window);
        sum += num_probability_units(p);
        w[j] = num_weight_in_units(p, v_units[j]);
    }
    tile.l = (float)sum * 0x1p-23f;
    tile.exponent = ref_snap_or_fault(name.dev, weights, w, n, name.site, name.token);
    return tile;
}

void ref_merge_tile(float *o, float *m, float *l, const struct tile_result *tile, const float *sums,
                    int head_dim) {
    float before, now;
    attention_merge_sums(m, l, tile->m, tile->l, &before, &now);
    for (int d = 0; d < head_dim; d++) {
        float value = num_weighted_value(sums[d], tile->exponent);
        o[d] = num_merge(o[d], before, value, now);
    }
}

/* One head of one token, which sees the first n_seen positions. */
static void attend_head(struct device *dev, float *y, const float *q, const struct kv_layer *kv,
                        int t, int h, int n_seen, const struct attention_shape *shape, int site) {
    int dim = shape->head_dim, kv_head = h / (shape->n_heads / shape->n_kv_heads);
    size_t at = ((size_t)t * (size_t)shape->n_heads + (size_t)h) * (size_t)dim;
    struct row_name name = {dev, site, t};
    int16_t x[512];
    float *o = y + at, m = -INFINITY, l = 0;
    int e = ref_snap_or_fault(dev, x, q + at, dim, site, t);
    struct num_score_unit unit = num_score_unit_of(e, shape->scale);
    for (int d = 0; d < dim; d++)
        o[d] = 0;
    for (int first = 0; first < n_seen; first += TILE) {
        int n = n_seen - first < TILE ? n_seen - first : TILE;
        float s[TILE];
        double v_units[TILE], exact[512] = {0};
        int16_t weights[TILE];
        for (int j = 0; j < n; j++) {
            size_t row = (size_t)(first + j) * (size_t)shape->n_kv_heads + (size_t)kv_head;
            const int16_t *k = kv->k + row * (size_t)dim;
            int64_t dot = 0;
            for (int d = 0; d < dim; d++)
                dot += (int32_t)x[d] * k[d];
            s[j] =
                num_score((float)num_floor_256((double)dot), kv_score_unit(kv->k_exponents[row]));
            v_units[j] = num_pow2(kv->v_exponents[row]);
        }
        struct tile_result tile = ref_tile_softmax(weights, s, v_units, n, unit, name);
        for (int j = 0; j < n; j++) {
            size_t row = (size_t)(first + j) * (size_t)shape->n_kv_heads + (size_t)kv_head;
            for (int d = 0; d < dim; d++)
                exact[d] += weights[j] * kv->v[row * (size_t)dim + (size_t)d];
        }
        float sums[512];
        for (int d = 0; d < dim; d++)
            sums[d] = (float)num_floor_256(exact[d]);
        ref_merge_tile(o, &m, &l, &tile, sums, dim);
    }
    for (int d = 0; d < dim && l > 0; d++)
        o[d] /= l;
}

void ref_attention(struct device *dev, float *y, /* [n_tokens, n_heads, head_dim] */
                   const float *q,               /* [n_tokens, n_heads, head_dim] */
                   const struct kv_layer *kv, int n_tokens, int kv_len,
                   const struct attention_shape *shape, int site) {
    for (int t = 0; t < n_tokens; t++)
        for (int h = 0; h < shape->n_heads; h++)
            attend_head(dev, y, q, kv, t, h, kv_len - n_tokens + t + 1, shape, site);
}

/* ---- step 3: the draw ------------------------------------------------------------------------ */

struct candidate {
    float logit;
    int32_t id;
    uint32_t weight;
};

static int by_logit(const void *a, const void *b) {
    const struct candidate *x = a, *y = b;
    if (x->logit != y->logit)
        return x->logit > y->logit ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

static int by_id(const void *a, const void *b) {
    const struct candidate *x = a, *y = b;
    return x->id < y->id ? -1 : 1;
}

/* Given: keeps the candidates c [n], whose weights are set, that top-k and top-p leave, in order of
 * id. Returns how many. */
static int keep_likeliest(struct candidate *c, int n, const struct sampling *how) {
    uint64_t all = 0, sum = 0;
    int kept = 0;
    if ((how->top_k <= 0 || how->top_k >= n) && how->top_p >= 1)
        return n;
    qsort(c, (size_t)n, sizeof *c, by_logit);
    n = how->top_k > 0 && how->top_k < n ? how->top_k : n;
    for (int i = 0; i < n; i++)
        all += c[i].weight;
    double enough = ceil((double)how->top_p * (double)all);
    do
        sum += c[kept++].weight;
    while (kept < n && (double)sum < enough);
    qsort(c, (size_t)kept, sizeof *c, by_id);
    return kept;
}

void ref_sample(struct device *dev, int32_t *token_ids, /* [n_rows] */
                const float *logits,                    /* [n_rows, vocab] */
                const struct sampling *how,             /* host [n_rows] */
                int n_rows, int vocab, int site) {
    struct candidate *c = malloc(sizeof *c * (size_t)vocab);
    for (int row = 0; c && row < n_rows; row++) {
        const float *l = logits + (size_t)row * (size_t)vocab;
        bool finite = true;
        int best = 0;
        for (int i = 0; i < vocab; i++) {
            finite = finite && isfinite(l[i]);
            best = l[i] > l[best] ? i : best;
        }
        token_ids[row] = finite ? best : 0;
        if (!finite)
            ref_fault(dev, site, row);
        if (!finite || how[row].temperature <= 0)
            continue;
        uint64_t sum = 0;
        for (int i = 0; i < vocab; i++)
            c[i] = (struct candidate){l[i], i,
                                      num_sampling_weight(l[i], l[best], how[row].temperature)};
        int n = keep_likeliest(c, vocab, &how[row]);
        for (int i = 0; i < n; i++)
            sum += c[i].weight;
        uint64_t r = num_draw(how[row].seed, how[row].sample, how[row].position, sum);
        int i = 0;
        for (; r >= c[i].weight; i++)
            r -= c[i].weight;
        token_ids[row] = c[i].id;
    }
    free(c);
}
