/* The oracle behind the op table: what the reference must equal. */
#include "tests/device.h"
#include "tests/oracle.h"
#include "tests/pair.h"

/* The reference's matrix. */
static struct bfp_rows rows_of(const struct matrix *w) {
    return (struct bfp_rows){w->mantissas, w->exponents};
}

static void embed(struct device *dev, float *y, const int32_t *token_ids, const struct matrix *w,
                  int n_tokens) {
    (void)dev;
    oracle_embed(y, token_ids, rows_of(w), n_tokens, w->k);
}

static void take_rows(struct device *dev, float *y, const float *x, const int32_t *rows, int n_rows,
                      int n_cols) {
    (void)dev;
    for (int i = 0; i < n_rows * n_cols; i++)
        y[i] = x[rows[i / n_cols] * n_cols + i % n_cols];
}

static void snap_rows(struct device *dev, struct bfp_rows y, const float *x, int n_rows, int n_cols,
                      int site) {
    (void)dev, (void)site;
    oracle_snap_rows(y, x, n_rows, n_cols);
}

static void linear(struct device *dev, float *y, struct bfp_rows x, const struct matrix *w,
                   int n_tokens) {
    (void)dev;
    oracle_linear(y, x, rows_of(w), n_tokens, w->n, w->k);
}

static void linear_parts(struct device *dev, const struct linear_part *parts, int n_parts,
                         struct bfp_rows x, int n_tokens) {
    for (int i = 0; i < n_parts; i++)
        linear(dev, parts[i].y, x, parts[i].w, n_tokens);
}

static void add_bias(struct device *dev, float *y, const float *bias, int n_tokens, int n) {
    (void)dev;
    for (int i = 0; i < n_tokens * n; i++)
        y[i] = y[i] + bias[i % n];
}

static void rmsnorm(struct device *dev, float *y, const float *x, const float *gain, int n_rows,
                    int n_cols, int rows_per_token, double eps, int site) {
    (void)dev, (void)rows_per_token, (void)site;
    oracle_rmsnorm(y, x, gain, n_rows, n_cols, eps);
}

static void add_rmsnorm(struct device *dev, float *y, struct bfp_rows snapped, float *x,
                        const float *branch, const float *gain, int n_rows, int n_cols, double eps,
                        int site_x, int site_y) {
    (void)dev, (void)site_x, (void)site_y;
    for (int i = 0; i < n_rows * n_cols; i++)
        x[i] = x[i] + branch[i];
    oracle_rmsnorm(y, x, gain, n_rows, n_cols, eps);
    oracle_snap_rows(snapped, y, n_rows, n_cols);
}

static void rope(struct device *dev, float *x, const int32_t *positions, const float *cos_table,
                 const float *sin_table, int n_tokens, int n_heads, int head_dim) {
    (void)dev;
    oracle_rope(x, positions, cos_table, sin_table, n_tokens, n_heads, head_dim);
}

/* For a contiguous bfp16 cache. */
static void kv_append(struct device *dev, const struct kv_views *kv, const float *k, const float *v,
                      const int64_t *slots, int n_tokens, int page_size, int n_kv_heads,
                      int head_dim, int site_k, int site_v) {
    (void)dev, (void)page_size, (void)site_k, (void)site_v;
    int16_t *keys = kv->k.data, *values = kv->v.data;
    for (int t = 0; t < n_tokens; t++) {
        int64_t row = slots[t] * n_kv_heads;
        int from = t * n_kv_heads * head_dim;
        if (slots[t] < 0)
            continue;
        oracle_snap_rows((struct bfp_rows){keys + row * head_dim, kv->k.exponents + row}, k + from,
                         n_kv_heads, head_dim);
        oracle_snap_rows((struct bfp_rows){values + row * head_dim, kv->v.exponents + row},
                         v + from, n_kv_heads, head_dim);
    }
}

static void norm_rope(struct device *dev, const struct head_rows *q, const struct head_rows *k,
                      const float *v, const struct kv_target *to, const int32_t *positions,
                      const float *cos_table, const float *sin_table, int n_tokens, int head_dim,
                      double eps) {
    const struct head_rows *const both[2] = {q, k};
    (void)dev;
    for (int i = 0; i < 2; i++) {
        int n = n_tokens * both[i]->n_heads;
        if (both[i]->gain)
            oracle_rmsnorm(both[i]->x, both[i]->x, both[i]->gain, n, head_dim, eps);
        oracle_rope(both[i]->x, positions, cos_table, sin_table, n_tokens, both[i]->n_heads,
                    head_dim);
    }
    if (to)
        kv_append(dev, &to->kv, k->x, v, to->slots, n_tokens, to->page_size, k->n_heads, head_dim,
                  to->site_k, to->site_v);
}

static void attention(struct device *dev, float *y, const float *q, const struct kv_layer *kv,
                      int n_tokens, int kv_len, const struct attention_shape *shape, int site) {
    (void)dev, (void)site;
    oracle_attention(y, q, kv, n_tokens, kv_len, shape);
}

static void silu_mul(struct device *dev, float *y, const float *gate, const float *up,
                     size_t count) {
    (void)dev;
    oracle_silu_mul(y, gate, up, count);
}

static void silu_mul_snap(struct device *dev, struct bfp_rows y, float *gate, const float *up,
                          int n_rows, int n_cols, int site) {
    (void)dev, (void)site;
    oracle_silu_mul(gate, gate, up, (size_t)n_rows * (size_t)n_cols);
    oracle_snap_rows(y, gate, n_rows, n_cols);
}

static void add(struct device *dev, float *y, const float *x, const float *z, size_t count) {
    (void)dev;
    for (size_t i = 0; i < count; i++)
        y[i] = x[i] + z[i];
}

static void sample(struct device *dev, int32_t *token_ids, const float *logits,
                   const struct sampling *how, int n_rows, int vocab, int site) {
    (void)dev, (void)site;
    for (int row = 0; row < n_rows; row++)
        token_ids[row] = oracle_sample(logits + (size_t)row * (size_t)vocab, &how[row], vocab);
}

struct ops oracle_ops(void) {
    struct ops table = ref_ops;
    table.name = "the oracle";
    table.embed = embed;
    table.take_rows = take_rows;
    table.snap_rows = snap_rows;
    table.linear = linear;
    table.linear_parts = linear_parts;
    table.add_bias = add_bias;
    table.rmsnorm = rmsnorm;
    table.add_rmsnorm = add_rmsnorm;
    table.rope = rope;
    table.norm_rope = norm_rope;
    table.kv_append = kv_append;
    table.attention = attention;
    table.silu_mul = silu_mul;
    table.silu_mul_snap = silu_mul_snap;
    table.add = add;
    table.sample = sample;
    return table;
}
