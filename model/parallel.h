/*
 * parallel.h - phase 14: one model on several ranks, processes that each have a part of its weights
 * and of its caches, and what they say to each other.
 *
 * Tensor parallelism (Shoeybi et al., "Megatron-LM", 2019): a rank has some heads, some columns of
 * the FFN and some of the vocabulary. Of q, k, v, gate, up and the output matrix it has the rows
 * that make its outputs, of o and down the columns that take its inputs. All ranks run all ops, on
 * their parts; four steps of a pass are of all of them (forward_parallel.h).
 *
 * Whatever ranks add are integers, so no result depends on how many there are, nor on the order in
 * which a network adds.
 *
 * All ranks run the whole engine, not only the model. Scheduler, allocator and sampling are
 * deterministic, so that the same requests make the same plans everywhere; only what is not is
 * told: rank 0's clock and its signals. (If rank 0 planned alone, it would have to
 * tell the others each batch, and each copy, swap and fork of blocks between two.) That they are
 * alike is checked at the end of each pass, before a token is given to anybody:
 * parallel_check_pass.
 *
 * model/parallel/mpi.h makes a struct parallel. Errors are sticky, as a device's are: the first one
 * is kept, later calls do nothing, and parallel_check reports it.
 */
#ifndef SAMEBITS_PARALLEL_H
#define SAMEBITS_PARALLEL_H

#include "model/config.h"
#include "model/error.h"
#include "model/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Numbers first ... first + n - 1 of a whole. */
struct span {
    int first, n;
};

/* Which part of a model is a rank's. */
struct model_part {
    struct span heads, kv_heads, ffn, vocab;
};

/* What a rank has said so far. */
struct parallel_counts {
    long calls;
    int64_t bytes;  /* that it handed over: a network may carry each several times */
    double seconds; /* until all had the result: waiting is in it */
};

struct parallel;

/* What ranks whose devices talk to each other have in place of max, sum and gather
 * (model/parallel/nccl.h): the calls below over device memory, in the order of the device's ops,
 * running when they return. */
struct parallel_device {
    int (*max)(struct parallel *p, struct device *dev, uint32_t *x, size_t n, struct error *err);
    int (*sum)(struct parallel *p, struct device *dev, int64_t *x, size_t n, struct error *err);
    int (*gather)(struct parallel *p, struct device *dev, float *y, int whole, const float *x,
                  int x_cols, int n_rows, struct error *err);
    int (*gather_parts)(struct parallel *p, struct device *dev, float *all, const float *mine,
                        const int *n, struct error *err);
    /* Waits for them as long as ranks are waited for. */
    int (*wait)(struct parallel *p, struct device *dev, struct error *err);
    void (*end)(struct parallel *p, struct device *dev);
};

struct parallel {
    int rank, n_ranks;
    int neighbour, n_neighbours; /* which of how many ranks on this host: they share its cores */
    int n_sharing;               /* how many of them share this rank's device, and its memory */
    bool by_position; /* positions are shared, not heads (context_parallel.h): before loading */
    double limit;     /* seconds that a rank may keep the others waiting; may be changed. Who has
                         nothing to tell for a quarter of them tells that */
    bool failed;
    struct error why;
    /* How the pass is checked at its end: a hash of all results so far; and, since sums are of
     * integers, what a rank gave to all sums, and what came out: over all ranks the two are equal,
     * modulo 2^64. */
    uint64_t heard, given, taken;
    struct parallel_counts counts;
    struct parallel_device *on_device; /* NULL: what is said goes through the host */
    void *host;                        /* [host_bytes] where device memory is on its way there */
    size_t host_bytes;

    /* ---- what a maker of ranks gives, over host memory. All ranks make the same calls in the same
     * order. Each waits for the others, for some seconds, and returns 0, or -1 with err set to who
     * did not come. */

    /* x [n] becomes the largest, or the sum, of all ranks' x. */
    int (*max)(struct parallel *p, uint32_t *x, size_t n, struct error *err);
    int (*sum)(struct parallel *p, int64_t *x, size_t n, struct error *err);
    /* all: what each rank has in mine, one behind the other; rank r has n[r] numbers. */
    int (*gather)(struct parallel *p, uint32_t *all, const uint32_t *mine, const int *n,
                  struct error *err);
    /* x [bytes] becomes rank 0's. */
    int (*broadcast)(struct parallel *p, void *x, size_t bytes, struct error *err);
    /* Frees it when all ranks have come; with a failure says it on stderr, and ends all of them. */
    void (*end)(struct parallel *p, const struct error *failure);
};

/* Part r of n_ranks nearly equal ones of 0 ... whole - 1. */
struct span parallel_span(int whole, int r, int n_ranks);

/*
 * What rank r has of a model: whole kv heads with their query heads; where there are fewer than
 * ranks, several have the same kv head, and its query heads are dealt out among them. by_position:
 * all heads. Returns 0, or -1 with err set: more ranks than heads, columns of the FFN or words.
 */
int parallel_part(struct model_part *out, const struct model_config *c, int r, int n_ranks,
                  bool by_position, struct error *err);

/* ---- over device memory; p == NULL: one rank, nothing to do -----------------------------------
 */

/* x [n] becomes the largest of all ranks', where numbers are taken as unsigned bits. Of numbers of
 * which all ranks but one have zero bits, it is those of that one. */
void parallel_max(struct parallel *p, struct device *dev, void *x, size_t n);

/* x [n] becomes the sum of all ranks'. */
void parallel_sum(struct parallel *p, struct device *dev, int64_t *x, size_t n);

/* y [n_rows, whole] gets the columns of all ranks' x [n_rows, x_cols], of which the first
 * parallel_span(whole, ...).n are a rank's part. */
void parallel_gather(struct parallel *p, struct device *dev, float *y, int whole, const float *x,
                     int x_cols, int n_rows);

/* all: what each rank has in mine, one behind the other; rank r has n[r] numbers (n: host). */
void parallel_gather_parts(struct parallel *p, struct device *dev, float *all, const float *mine,
                           const int *n);

/* Waits for what was said over device memory; before a sync, which would wait for ever. */
void parallel_wait(struct parallel *p, struct device *dev);

/* ---- in host memory ---------------------------------------------------------------------------
 */

/* x [bytes] becomes rank 0's. */
void parallel_broadcast(struct parallel *p, void *x, size_t bytes);

/* The least of all ranks' x. Nobody has it before all have come. */
int parallel_least(struct parallel *p, int x);

/*
 * The end of a pass: fault becomes the first of all ranks', and whoever had another pass is found:
 * what all ranks were given (a hash of it: pass) and what each heard from the others must be the
 * same, and sums must be of what was given. A message that was damaged on its way to some ranks, or
 * to a sum, is found. Returns 0, or -1 with err set: that, or an earlier failure. (Sums that check
 * themselves: Huang and Abraham, "Algorithm-Based Fault Tolerance for Matrix Operations", 1984.)
 */
int parallel_check_pass(struct parallel *p, uint64_t pass, struct fault *fault, struct error *err);

/* 0, or -1 with err set: a rank did not answer, or has another `value` than rank 0: "rank 2 has
 * another `what` than rank 0". */
int parallel_check_same(struct parallel *p, uint64_t value, const char *what, struct error *err);

/* 0, or -1 with err set to the first failure. */
int parallel_check(const struct parallel *p, struct error *err);

#ifdef __cplusplus
}
#endif

#endif
