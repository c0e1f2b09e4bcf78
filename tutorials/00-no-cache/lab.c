/*
 * Lab 0: rmsnorm, attention over tiles of 256 positions, and the draw of a token. Your file takes
 * the place of ref/rmsnorm.c, ref/attention.c and ref/sample.c; the task is in the section "Lab" of
 * this chapter. `make lab0` builds and grades it. Functions whose names begin with num_ are in
 * model/numerics.h or model/attention/numerics.h, those with kv_ in model/attention/kv_type.h,
 * those with ref_ in ref/ref.h. The structs are in model/ops.h, those of step 2, with TILE, in
 * ref/attention.h. The sums have to be exact, so use integers, or doubles that hold integers.
 * Memory for a row is of any kind that you give back: ref_scratch needs no free.
 */
#include "ref/attention.h"
#include "tests/labs/not_written.h"

#include <stdlib.h>

/* ---- step 1: rmsnorm ------------------------------------------------------------------------- */

/* y = x / sqrt(mean(x^2) + eps) * gain for each row; y may be x. The mean is that of the row
 * snapped to integers: ref_snap_or_fault(dev, q, row, n_cols, site, token) gives them and their
 * exponent, where token = row / rows_per_token; num_rms_factor makes the factor of their exact sum
 * of squares. The product is (x * factor) * gain, of x as it was before snapping. */
void ref_rmsnorm(struct device *dev, float *y, /* [n_rows, n_cols] */
                 const float *x,               /* [n_rows, n_cols] */
                 const float *gain,            /* [n_cols] */
                 int n_rows, int n_cols, int rows_per_token, double eps, int site) {
    (void)dev, (void)y, (void)x, (void)gain, (void)n_rows, (void)n_cols, (void)rows_per_token,
        (void)eps, (void)site;
    not_written("snap each row, sum the squares of its integers in an int64_t, multiply the "
                "row by the factor and the gain");
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

/* The softmax of one row over n <= TILE positions of a tile. s [n]: what num_score gives; unit
 * makes scores of them; v_units [n]: 2^exponent of each value row. Dev, site and token of a fault
 * are those of `name`. In this order:
 *
 *     m = num_tile_max(the largest s that is no NaN, unit); ref_fault if m is not finite
 *     p[j] = num_probability(s[j], num_window_of(the largest s, unit.binary))
 *     l = the sum of num_probability_units(p[j]), a uint32_t, times 2^-23
 *     w[j] = num_weight_in_units(p[j], v_units[j]); ref_snap_or_fault makes the weights of this
 *            row, and returns the exponent
 */
struct tile_result ref_tile_softmax(int16_t *weights, const float *s, const double *v_units, int n,
                                    struct num_score_unit unit, struct row_name name) {
    (void)weights, (void)s, (void)v_units, (void)n, (void)unit, (void)name;
    not_written("the largest score, the probabilities, their sum in units, the weights "
                "snapped as one row");
}

/* Merges a tile into what a row has so far: its values o [head_dim], not divided yet, its maximum m
 * and sum l. sums [head_dim] are the tile's weighted sums of value mantissas, in integers.
 * attention_merge_sums (model/attention/variant.h) updates m and l and says what the values so far
 * and the tile's count for; num_weighted_value makes a number of a sum, num_merge adds the two. */
void ref_merge_tile(float *o, float *m, float *l, const struct tile_result *tile, const float *sums,
                    int head_dim) {
    (void)o, (void)m, (void)l, (void)tile, (void)sums, (void)head_dim;
    not_written("update m and l with attention_merge_sums, then num_merge each value with "
                "what the two count for");
}

/* Causal attention of one sequence: the queries are the last n_tokens of kv_len positions. Head h
 * reads kv head h / (n_heads / n_kv_heads); the query of position i sees positions 0 ... i. Each
 * query is snapped, also one that sees nothing. The token of its faults is its number in q, from 0.
 * For each query and head, from m = -INFINITY, l = 0, o = 0: tile by tile, TILE positions each,
 * from position 0 on,
 *
 *     s[j] = num_score(num_floor_256(the dot product of the integers), kv_score_unit(key exponent))
 *     ref_tile_softmax with num_score_unit_of(query exponent, scale) and num_pow2(value exponent)
 *     sums[d] = num_floor_256(the sum over j of weights[j] * v[j][d], exact in a double), a float
 *     ref_merge_tile
 *
 * and at the end y = o / l, or 0 where l is 0: for a query that sees nothing (n_tokens > kv_len),
 * and where a fault has made it 0. */
void ref_attention(struct device *dev, float *y, /* [n_tokens, n_heads, head_dim] */
                   const float *q,               /* [n_tokens, n_heads, head_dim] */
                   const struct kv_layer *kv, int n_tokens, int kv_len,
                   const struct attention_shape *shape, int site) {
    (void)dev, (void)y, (void)q, (void)kv, (void)n_tokens, (void)kv_len, (void)shape, (void)site;
    not_written("for each token and head: snap the query, go over the tiles of 256 positions, "
                "merge, divide by l");
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

/* The next token of each row of logits. A logit that is not finite is a fault of the row, which
 * gets token 0. Temperature 0: the largest logit, of equal ones the lowest id. Else each token gets
 * the weight num_sampling_weight(logit, largest logit, temperature), keep_likeliest leaves some,
 * and r = num_draw(seed, sample, position, the sum of their weights) draws one: in order of id, the
 * first at which the sum of the weights so far exceeds r. */
void ref_sample(struct device *dev, int32_t *token_ids, /* [n_rows] */
                const float *logits,                    /* [n_rows, vocab] */
                const struct sampling *how,             /* host [n_rows] */
                int n_rows, int vocab, int site) {
    (void)dev, (void)token_ids, (void)logits, (void)how, (void)n_rows, (void)vocab, (void)site,
        (void)keep_likeliest;
    not_written("the largest logit; with a temperature, weights, keep_likeliest, num_draw, "
                "and the walk to the token");
}
