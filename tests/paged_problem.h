/*
 * paged_problem.h - batches over a paged bfp16 cache, on the host: sequences of any lengths, pages
 * in random order, slots that belong to nobody full of poison. For the tests of attend over what
 * is stored (test_attention_paged) and over what is stored on the way (test_new_tokens).
 */
#ifndef SAMEBITS_TESTS_PAGED_PROBLEM_H
#define SAMEBITS_TESTS_PAGED_PROBLEM_H

#include "tests/device.h"
#include "tests/random.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))
/* Any of the values of an array. */
#define ONE_OF(r, array) ((array)[random_int(r, 0, (int)COUNT(array) - 1)])

enum { PROBLEM_SEQUENCES = 256 };

/* The caller sets the shape, n, page_size, and the lengths of the n sequences: the tokens that
 * attend, and the positions in the cache. */
struct problem {
    struct attention_shape shape;
    int n, page_size, n_pages, n_tokens;
    int qo_len[PROBLEM_SEQUENCES], kv_len[PROBLEM_SEQUENCES];
    int32_t qo_indptr[PROBLEM_SEQUENCES + 1], kv_indptr[PROBLEM_SEQUENCES + 1];
    int32_t last_page_len[PROBLEM_SEQUENCES];
    int32_t *pages;
    float *q;             /* [n_tokens, n_heads, head_dim] */
    struct bfp_rows k, v; /* [n_pages * page_size * n_kv_heads, head_dim] */
};

/* A length up to `most`, every other one at a boundary of something. */
int problem_length(struct random *r, int most);

/* Sets the page tables: every page of the pool has at most one owner; some have none. */
void problem_lay_out(struct random *r, struct problem *p);

/* How hard it is: ordinary texts; queries so large that one key gets everything; values whose
 * exponents differ, so that weights are flushed; values whose sums float cannot hold, or results
 * only below its normal numbers; scores that are all negative, or all positive. */
enum kind { ORDINARY, ONE_WINNER, WILD_VALUES, FAR_VALUES, ONE_SIGN, N_KINDS };

/* Makes queries, keys and values, once the pages are laid out. */
void problem_fill(struct random *r, struct problem *p, enum kind kind);
void problem_free(struct problem *p);

/* Floats of a token's queries. */
size_t problem_q_size(const struct problem *p);

/* The row of k and v that a position has. */
size_t problem_row(const struct problem *p, int sequence, int position, int head);

/* The page tables as attention_plan takes them. */
struct paged_batch problem_batch(const struct problem *p);

/* A device's copies of k and v as attend takes them. */
struct kv_views problem_views(const struct problem *p, struct bfp_rows k, struct bfp_rows v);

#endif
