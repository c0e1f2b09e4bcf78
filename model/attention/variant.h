/*
 * variant.h - what may change in attention beside the lengths: which positions a query
 * sees, and what happens to a score before the softmax.
 *
 * Query i of a sequence with qo_len queries and kv_len positions has the absolute position
 * kv_len - qo_len + i: the queries are the newest positions, whatever the masks say. It sees
 * position j when all of these hold:
 *
 *     causal     j <= kv_len - qo_len + i
 *     window     j >= kv_len - qo_len + i - window_left
 *     mask       mask[i][j] is true; a mask takes the place of causal
 *
 * Its score s, after scaling, becomes
 *
 *     soft cap   cap * tanh(s / cap)                     (Gemma 2, 2024)
 *     ALiBi      s + slope * (j - (kv_len - qo_len + i)) (Press et al., 2022)
 *
 * in this order, each operation rounded to float32. A sink is one more logit for each head, in the
 * denominator only (Xiao et al., 2024): merged last, as a tile with m = sink, l = 1, o = 0.
 *
 * A masked score is not set to minus infinity: the position does not take part.
 */
#ifndef SAMEBITS_MODEL_ATTENTION_VARIANT_H
#define SAMEBITS_MODEL_ATTENTION_VARIANT_H

#include "model/attention/numerics.h"
#include "model/attention/paged_batch.h"
#include "model/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum mask_form {
    MASK_NONE,
    MASK_BYTES, /* a byte for each pair, 0: hidden */
    MASK_BITS   /* a bit for each pair, the lowest of a byte first; a sequence begins a byte */
};

enum lse_base { LSE_E, LSE_2 };

/* What attention knows of rows before the division: the result is o / l times the scale of the
 * values, and l * e^m the sum of all e^score. A row that has seen nothing has o = 0, m = -infinity
 * and l = 0. A sink is a state, too: o = 0, m = the sink, l = 1, to be merged last, once. Device
 * memory. */
struct attention_state {
    float *o;     /* [n_rows, head_dim] */
    float *m, *l; /* [n_rows] */
};

/* Arrays are device memory. */
struct attention_variant {
    bool causal;
    int window_left; /* a query sees itself and so many before it; negative: all */
    float soft_cap;  /* 0: none */
    enum mask_form mask_form;
    const uint8_t *mask;         /* the sequences' matrices [qo_len, kv_len], one after the other */
    const int64_t *mask_offsets; /* [n_sequences]: where each begins, in bytes */
    const float *alibi_slopes;   /* [n_heads] or NULL; what is not finite is a fault, */
    const float *sinks;          /* [n_heads] or NULL; here, too */
    float *lse; /* [n_tokens, n_heads] or NULL: log of the sum of exp of all scores,
                   sinks included; of a row that sees nothing -infinity */
    enum lse_base lse_base;
    float *m, *l; /* [n_tokens, n_heads] or NULL, both or neither: y is then the o of an
                     attention_state, and these are the rest of it; not with sinks, which would
                     count again in every state that is merged */
};

/* Causal, and nothing else: what attention does. */
struct attention_variant attention_variant_causal(void);

/* Is the variant in range? Returns 0, or -1 with err set: a soft cap that is negative or not
 * finite, a mask without offsets or the other way round, m without l, m with sinks. */
int attention_variant_check(const struct attention_variant *v, struct error *err);

/*
 * Where the masks of a batch begin. mask_indptr, host [n_sequences + 1] or NULL: what the caller
 * takes them to be, counted in elements. offsets, host [n_sequences + 1], is in bytes of the form;
 * the last is the size of all. Returns 0, or -1 with err set: mask_indptr is not the running sum of
 * qo_len * kv_len, with the number of the sequence whose mask it makes too long or too short. The
 * batch has passed paged_batch_check.
 */
int attention_mask_offsets(int64_t *offsets, const struct paged_batch *b, enum mask_form form,
                           const int64_t *mask_indptr, struct error *err);

/* Which bit of a byte is first: the lowest, the highest. */
enum bit_order { BITS_LITTLE, BITS_BIG };

/* Packs n bytes (0 or not) into ceil(n / 8); bits behind the end are 0. Host memory. */
void packbits(uint8_t *out, const uint8_t *x, size_t n, enum bit_order order);

/*
 * packbits for n segments x[indptr[i]] ... x[indptr[i + 1] - 1], each of which begins a new byte:
 * out_indptr [n + 1] says which. All of it host memory; out has room for the sum of ceil(length /
 * 8) over all segments. Returns 0, or -1 with err set: indptr does not begin at 0, or falls.
 */
int segment_packbits(uint8_t *out, int64_t *out_indptr, const uint8_t *x, const int64_t *indptr,
                     int n, enum bit_order order, struct error *err);

/* ---- what every device computes -------------------------------------------------------------- */

/* The first position, and the end of the positions, that query i may see, masks aside. */
NUM_FN int attention_first(const struct attention_variant *v, int before, int i) {
    int at = before + i; /* negative, where there are more queries than positions */
    return v->window_left < 0 || v->window_left >= at ? 0 : at - v->window_left;
}
NUM_FN int attention_end(const struct attention_variant *v, int before, int i, int kv_len) {
    int end = before + i + 1;
    return !v->causal || v->mask_form ? kv_len : end < 0 ? 0 : end < kv_len ? end : kv_len;
}

/* Whether the mask of a sequence, at `mask`, shows position j to query i. */
NUM_FN bool attention_shows(const struct attention_variant *v, const uint8_t *mask, int i, int j,
                            int kv_len) {
    int64_t at = (int64_t)i * kv_len + j;
    return v->mask_form == MASK_NONE ||
           (v->mask_form == MASK_BYTES ? mask[at] != 0 : (mask[at / 8] >> at % 8 & 1) != 0);
}

/* The score of query position i (absolute) and position j. One of -infinity, which is what a sum
 * too low for float32 becomes, is a score like others: its probability is 0. But a row that sees
 * nothing else of a tile has no softmax there: that is a fault of the row, as are infinity and NaN.
 */
NUM_FN float attention_score(const struct attention_variant *v, float s, int i, int j,
                             float slope) {
    if (v->soft_cap > 0)
        s = v->soft_cap * num_tanh(s / v->soft_cap);
    return v->alibi_slopes ? s + slope * (float)(j - i) : s;
}

/* Whether it changes a score at all: num_score must then be made a score first. */
NUM_FN bool attention_changes_scores(const struct attention_variant *v) {
    return v->soft_cap > 0 || v->alibi_slopes;
}

/* The unit of what goes into the softmax; unit: of the query. */
NUM_FN struct num_score_unit attention_score_unit(const struct attention_variant *v,
                                                  struct num_score_unit unit) {
    return attention_changes_scores(v) ? num_score_unit_natural() : unit;
}

/* A sink that is not finite is a fault of every row of its head, like a score that is not. */
NUM_FN bool attention_sink_is_finite(float sink) {
    return num_magnitude(sink) < 0x7f800000u;
}

/* Merges sums behind m and l; the values so far then count for *old, those that come for *fresh. */
NUM_FN void attention_merge_sums(float *m, float *l, float with_m, float with_l, float *old,
                                 float *fresh) {
    bool stays = *m > with_m;
    float max = stays ? *m : with_m, less = num_exp((stays ? with_m : *m) - max);
    *old = stays ? 1 : less; /* e^0 */
    *fresh = stays ? less : 1;
    *l = num_merge(*l, *old, with_l, *fresh);
    *m = max;
}

/* A sink is a tile with l = 1 whose values are 0. */
NUM_FN void attention_merge_sink(float sink, float *m, float *l, float *old, float *fresh) {
    attention_merge_sums(m, l, sink, 1, old, fresh);
}

/* The log of what l * e^m stands for. */
NUM_FN float attention_lse(enum lse_base base, float m, float l) {
    float lse = l > 0 ? m + num_log(l) : -INFINITY;
    return base == LSE_2 ? lse * 0x1.715476p+0f : lse;
}

/* Writes what is asked for of a row's sums, after its sink. row: token * n_heads + head. */
NUM_FN void attention_note_sums(const struct attention_variant *v, size_t row, float m, float l) {
    if (v->lse)
        v->lse[row] = attention_lse(v->lse_base, m, l);
    if (v->m) {
        v->m[row] = m;
        v->l[row] = l;
    }
}

#ifdef __cplusplus
}
#endif

#endif
