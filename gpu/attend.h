/*
 * attend.h - what the kernels of the op attend share: the row that a thread block works on, its
 * query, the softmax of a tile, the merge of tiles, and the end of a row.
 *
 *     attend.cu           version 1, and the choice between all
 *     attention_paged.cu  versions 2 and 3
 *
 * A block has a thread for each position of a tile, and works on one query token and head.
 */
#ifndef SAMEBITS_ATTEND_H
#define SAMEBITS_ATTEND_H

#include "gpu/fast/plan/plan.h"

enum { TILE = ATTENTION_TILE, WARPS = TILE / 32 };

/* The arguments of the op, as the kernel gets them. */
struct attend_arguments {
    float *y;       /* [n_tokens, n_heads, head_dim] */
    const float *q; /* [n_tokens, n_heads, head_dim] */
    struct kv_views kv;
    struct attention_variant variant;
    struct attention_shape shape;
    int site;
    unsigned long long *fault;
};

/* Version 2 or 3 (0: the better one) for the sequences of at most most_tokens. Returns false, with
 * nothing done, when a head dimension is too large for shared memory, keys and values have two
 * types, or theirs has no such kernels yet. */
bool gpu_attend_tiles(struct gpu_device *gpu, const struct attend_arguments *a,
                      const struct attention_plan *plan, int version, int most_tokens);

/* Their launch, as gpu_attend_tiles calls it, for other types than bfp16: from phase 11 on. */
void gpu_attend_tiles_of_type(struct gpu_device *gpu, const struct attend_arguments *a,
                              const struct attention_plan *plan, int version,
                              int most_tokens) LINKED_LATER;

/* ---- for kernels ---------------------------------------------------------------------------- */

/* Shared memory for row_max and row_sum. */
struct row_parts {
    float floats[WARPS];
    uint32_t words[WARPS];
};

/* One query token and head. */
struct query_row {
    int token, head, kv_head; /* token: of the batch */
    int i, at, kv_len;        /* number among the sequence's queries; its position */
    int first, end;           /* positions that it may see */
    size_t row;               /* its number in q and y */
    const int32_t *pages;
    const uint8_t *mask;
    float slope;
    int exponent; /* of the query */
    bool bad;     /* it cannot be snapped */
};

/* Returns false: its sequence has more than most_tokens, and is somebody else's. */
static __device__ __forceinline__ bool find_query(struct query_row *r,
                                                  const struct attend_arguments *a,
                                                  const struct plan_arrays *plan, int token,
                                                  int most_tokens) {
    const struct attention_variant *v = &a->variant;
    r->token = token;
    r->head = (int)blockIdx.y;
    r->kv_head = r->head / (a->shape.n_heads / a->shape.n_kv_heads);
    r->row = (size_t)token * (size_t)a->shape.n_heads + (size_t)r->head;
    int sequence = plan->token_sequence[r->token], qo_begin = plan->qo_indptr[sequence];
    int n_tokens = plan->qo_indptr[sequence + 1] - qo_begin;
    int before = plan->kv_lens[sequence] - n_tokens;
    r->i = r->token - qo_begin;
    r->at = before + r->i;
    r->kv_len = plan->kv_lens[sequence];
    r->first = attention_first(v, before, r->i);
    r->end = attention_end(v, before, r->i, r->kv_len);
    r->pages = plan->pages + plan->kv_indptr[sequence];
    r->mask = v->mask_form ? v->mask + v->mask_offsets[sequence] : NULL;
    r->slope = v->alibi_slopes ? v->alibi_slopes[r->head] : 0;
    return n_tokens <= most_tokens;
}

/* Snaps the block's query to shared memory. */
static __device__ __forceinline__ void load_query(struct query_row *r, int16_t *mantissas,
                                                  const struct attend_arguments *a,
                                                  struct row_parts *part) {
    uint32_t largest = 0;
    int dim = a->shape.head_dim;
    const float *q = a->q + r->row * (size_t)dim;
    for (int d = (int)threadIdx.x; d < dim; d += TILE)
        largest = max(largest, num_magnitude(q[d]));
    int e = num_row_exponent(row_max<WARPS>(largest, part->words));
    r->bad = e > BFP_MAX_EXPONENT;
    if (r->bad && threadIdx.x == 0)
        gpu_fault(a->fault, a->site, r->token);
    e = r->bad ? BFP_MIN_EXPONENT : e;
    for (int d = (int)threadIdx.x; d < dim; d += TILE)
        mantissas[d] = r->bad ? (int16_t)0 : num_mantissa(q[d], num_pow2f(15 - e));
    r->exponent = e;
} /* the next barrier is in row_max, before anybody reads the query */

/* The sum of the products of mantissas of a query, or of weights, with a row's integers, as the
 * softmax and the results have it. */
static __device__ __forceinline__ float rounded_sum(long long sum) {
    return (float)(sum & -256);
}

/* What makes scores of the row's sums. */
static __device__ __forceinline__ struct num_score_unit unit_of(const struct query_row *r,
                                                                const struct attend_arguments *a) {
    return num_score_unit_of(r->exponent, a->shape.scale * (double)a->kv.k.scale);
}

/* What goes into the softmax for position p, which the row sees: the score but for the query's
 * unit, unless the variant changes scores. sum: rounded_sum; exponent: of the key. A NaN, of a key
 * that cannot be read, say, becomes infinity, a fault. */
static __device__ __forceinline__ float softmax_score(const struct query_row *r,
                                                      const struct attend_arguments *a, float sum,
                                                      int exponent, int p) {
    const struct attention_variant *v = &a->variant;
    float s = num_score(sum, kv_score_unit(exponent));
    if (attention_changes_scores(v))
        s = attention_score(v, (float)(s * unit_of(r, a).natural), r->at, p, r->slope);
    return s == s ? s : INFINITY;
}

/* What a tile gives beside the weights of its positions. */
struct tile_softmax {
    float m, l;
    int exponent; /* of the weights */
};

/* The softmax over a tile, of which the row sees something: this thread's position has the
 * softmax_score s if the row sees it, and its value has that exponent. Returns its weight. */
static __device__ __forceinline__ int16_t softmax_tile(struct tile_softmax *t, float s, bool sees,
                                                       int v_exponent, const struct query_row *r,
                                                       const struct attend_arguments *a,
                                                       struct row_parts *part) {
    struct num_score_unit unit = attention_score_unit(&a->variant, unit_of(r, a));
    float largest = row_max<WARPS>(sees ? s : -INFINITY, part->floats);
    t->m = num_tile_max(largest, unit);
    float p = sees ? num_probability(s, num_window_of(largest, unit.binary)) : 0;
    t->l = (float)row_sum<WARPS>(sees ? num_probability_units(p) : 0, part->words) * 0x1p-23f;
    float w = sees ? num_weight_in_units(p, kv_unit(v_exponent)) : 0;
    int e = num_row_exponent(row_max<WARPS>(num_magnitude(w), part->words));
    bool bad = num_magnitude(t->m) >= 0x7f800000u || e > BFP_MAX_EXPONENT;
    if (bad && threadIdx.x == 0)
        gpu_fault(a->fault, a->site, r->token);
    t->exponent = bad ? BFP_MIN_EXPONENT : e;
    return bad ? (int16_t)0 : num_mantissa(w, num_pow2f(15 - e));
}

/* What values are multiplied by where two results become one: those so far, and the tile's. */
struct merge_factors {
    float before, tile;
};

/* Merges a tile into the m and l of a row. */
static __device__ __forceinline__ struct merge_factors merge_tile(float *m, float *l, float tile_m,
                                                                  float tile_l) {
    struct merge_factors factor;
    attention_merge_sums(m, l, tile_m, tile_l, &factor.before, &factor.tile);
    return factor;
}

/* The end of a row whose tiles are merged: its sink, its sum's logarithm, the division. A thread
 * takes element threadIdx.x of y and every TILE-th from there: it wrote them itself, or a barrier
 * ago another did. */
static __device__ __forceinline__ void finish_row(const struct attend_arguments *a,
                                                  const struct query_row *r, float *y, float m,
                                                  float l) {
    const struct attention_variant *v = &a->variant;
    int j = (int)threadIdx.x, dim = a->shape.head_dim;
    if (v->sinks) { /* a tile of values that are 0 */
        float sink = v->sinks[r->head];
        struct merge_factors factor;
        attention_merge_sink(sink, &m, &l, &factor.before, &factor.tile);
        if (!attention_sink_is_finite(sink) && j == 0)
            gpu_fault(a->fault, a->site, r->token);
        for (int d = j; d < dim; d += TILE)
            y[d] = num_merge(y[d], factor.before, 0, factor.tile);
    }
    if (j == 0)
        attention_note_sums(v, r->row, m, l);
    for (int d = j; d < dim; d += TILE)
        if (l > 0 && !v->m)
            y[d] /= l;
    for (int d = j; d < dim && a->kv.v.scale != 1; d += TILE)
        y[d] *= a->kv.v.scale;
}

#endif
