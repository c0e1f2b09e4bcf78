/*
 * attend_cases.h - random problems for the op attend: batches over caches of every layout, with any
 * masks and scores, and what each must give.
 */
#ifndef SAMEBITS_TESTS_ATTEND_CASES_H
#define SAMEBITS_TESTS_ATTEND_CASES_H

#include "tests/device.h"
#include "tests/random.h"

enum { MOST_SEQUENCES = 128, ATTEND_SITE = 7 };

/* Bits that kv_append did not write: of an element of a key or a value of the first sequence. */
struct attend_spoilt {
    bool exists, of_values;
    int position, head, d;
    uint32_t bits;
};

/* All on the host. Pages of the cache that belong to nobody, and slots behind the end of a
 * sequence, hold poison. */
struct attend_case {
    struct attention_shape shape;
    struct kv_layout layout;
    bool other_plan; /* the plan is made for a window of one position */
    bool ragged;     /* NHD, pages of one position, in order */
    int n, n_tokens, n_positions;
    int32_t qo_indptr[MOST_SEQUENCES + 1], kv_indptr[MOST_SEQUENCES + 1];
    int32_t last_page_len[MOST_SEQUENCES];
    int kv_len[MOST_SEQUENCES];
    int first_position[MOST_SEQUENCES + 1]; /* of a sequence, in k and v */
    int32_t *pages;
    float *q;                         /* [n_tokens, n_heads, head_dim] */
    float *k, *v;                     /* [n_positions, n_kv_heads, head_dim] */
    struct attention_variant variant; /* its arrays are the ones below, on the host */
    uint8_t *mask;                    /* [mask_bytes] in the form of the variant */
    int64_t mask_offsets[MOST_SEQUENCES + 1];
    float *alibi_slopes, *sinks; /* [n_heads] or NULL */
    struct attend_spoilt spoilt;
};

/* What is fixed of a case; -1: random. */
struct attend_wish {
    int batch, kv_len, qo_len, page_size, kv_heads, group,
        head_dim; /* one sequence has the lengths */
    int order, type, window_left, cap, causal, mask, sinks, slopes;
    int most_positions; /* of all sequences */
    bool long_ones;     /* all have more than a tile, and few queries; the lengths above, if they
                           are there, are those of all */
};
struct attend_wish attend_anything(int most_positions);

void attend_case_make(struct attend_case *c, struct random *r, const struct attend_wish *wish);
void attend_case_free(struct attend_case *c);

/* Makes the cache's type this one, with this scale of keys and values: 1, but for fp8. */
void attend_set_type(struct attend_case *c, enum kv_type type, float scale);

/* The page table: the case's own, or that of sequence i alone. */
struct paged_batch attend_batch(const struct attend_case *c);

/* A cache of that layout on a device, all poison. */
struct kv_views attend_empty_cache(struct test_device *t, const struct kv_layout *l);

/* Writes the case's keys and values to a cache of its layout with kv_append, and spoils it. */
void attend_fill_cache(struct test_device *t, const struct attend_case *c,
                       const struct kv_views *kv);

/* A cache of the case's layout on a device, filled. */
struct kv_views attend_cache(struct test_device *t, const struct attend_case *c);

/* The variant with its arrays on the device; lse: device [n_tokens, n_heads]. */
struct attention_variant attend_variant_on(struct test_device *t, const struct attend_case *c,
                                           float *lse);

/* The sinks of a case as a state, which is merged last; the scale that finish_states must know. */
struct attention_state attend_state_of_sinks(struct test_device *t, const struct attend_case *c);
float attend_v_scale(const struct attend_case *c);

/* Result of the whole batch on a device, host memory: y [n_tokens, n_heads, head_dim], lse
 * [n_tokens, n_heads]. The caller frees both. Of half of the cases it is also made of o, m and l,
 * which must give the same. attend_run_over: with a cache that is there; attend_run_planned: and
 * with a plan made for the batch. */
void attend_run(struct test_device *t, const struct attend_case *c, float **y, float **lse);
void attend_run_over(struct test_device *t, const struct attend_case *c, const struct kv_views *kv,
                     float **y, float **lse);
void attend_run_planned(struct test_device *t, const struct attend_case *c,
                        const struct kv_views *kv, struct attention_plan *plan, float **y,
                        float **lse);

/* y alone, for which kernels may be others. */
float *attend_run_without_lse(struct test_device *t, const struct attend_case *c);

/* One query row in float64, from the formulas, without any snapping; which positions it sees is
 * worked out here once more. stored: over keys and values as the cache holds them, else as they
 * were before. y [head_dim]; whole [head_dim]: the same of the values' magnitudes, y if nothing
 * cancelled. Returns the natural log of the sum. */
double attend_exact(const struct attend_case *c, bool stored, int sequence, int query, int head,
                    double *y, double *whole);

/* How far one row of a result, y and lse in host memory, is from that: y relative to the norm of
 * the row, and to that of `whole`; lse. Negative: there is nothing to be far from. Fails where it
 * is a mistake. all: with what storing keys and values has cost; own: what attention adds. */
struct attend_error {
    double row, lse, whole;
};
struct attend_errors {
    struct attend_error all, own;
};
struct attend_errors attend_expect_close(const struct attend_case *c, int token, int head,
                                         const float *y, const float *lse);

/* "what of 3 sequences, HND, pages of 16, ...": for messages. */
void attend_describe(char *out, size_t size, const struct attend_case *c, const char *what);

/* Fails unless two results [n_tokens, n_heads, cols] in host memory have the same bits. */
void attend_expect_same(const struct attend_case *c, const char *what, const float *want,
                        const float *got, int cols);

/* Fails unless two cases of the same queries have the same result on a device. why: what b has, for
 * the message. */
void attend_expect_equal(struct test_device *t, const struct attend_case *a,
                         const struct attend_case *b, const char *why);

/* Fails unless this result of the case has the bits of the reference's. */
void attend_expect_as_reference(const struct attend_case *c, const float *y, const float *lse);

#endif
