/*
 * ref.h - what the reference's files share: the device and its scratch memory.
 *
 * The reference is plain C. In version 1, the definition, every matrix product is a cblas_dgemm or
 * cblas_dgemv on doubles that hold integers, so any OpenBLAS kernel and any number of threads gives
 * the same bits; version 2 sums integers (ref/integer). The threads are the device's own
 * (threads.h): an op shares out its rows, heads or outputs.
 */
#ifndef SAMEBITS_REF_H
#define SAMEBITS_REF_H

#include "model/numerics.h"
#include "model/ops.h"
#include "ref/threads.h"

#include <pthread.h>

/* Scratch areas: all ops share the two, because one op runs at a time and none needs more. Each
 * grows to the largest size ever asked for. */
enum ref_scratch { SCRATCH_X, SCRATCH_Y, N_SCRATCH };

struct ref_device {
    struct device base;
    struct ref_threads *threads;
    int plan_version, linear_version, attention_version; /* 0: the best */
    const struct integer_kernels *kernels;
    pthread_mutex_t fault_lock;
    struct fault fault;
    const char *out_of_memory; /* the op that could not get scratch memory, or NULL */
    struct {
        void *data;
        size_t bytes;
    } scratch[N_SCRATCH];
};

/* Scratch memory of at least this size, contents undefined; NULL when there is none: the op then
 * returns at once and the next sync reports it under the name `op`. */
void *ref_scratch(struct device *dev, enum ref_scratch which, size_t bytes, const char *op);

/* ref_threads_run and ref_threads_count of the device's threads. Within a loop no item may ask for
 * scratch memory, but any may report a fault. */
void ref_parallel(struct device *dev, int n_items, void (*run)(void *context, int item, int worker),
                  void *context);
int ref_n_threads(struct device *dev);

/* Shares out n_rows rows of n_cols numbers, for ops that do little with each number: run gets the
 * rows first ... end - 1, as many as are worth a thread's turn. */
void ref_parallel_rows(struct device *dev, int n_rows, int n_cols,
                       void (*run)(void *context, int first, int end, int worker), void *context);

/* Remembers the fault if it comes before the one already known. */
void ref_fault(struct device *dev, int site, int token);

/* num_snap_row that reports a bad row as a fault and gives it the exponent of a row of zeros. */
int8_t ref_snap_or_fault(struct device *dev, int16_t *q, const float *x, int n, int site,
                         int token);

/* A row of head_dim keys or values of a cache, at a position of a page. ref_store_row makes x what
 * the type holds; a row that cannot be stored is a fault of the token, and becomes zeros.
 * ref_load_row gives integers and returns the exponent: they stand for integer * 2^(exponent - 15).
 * One that cannot be read becomes zeros, for the queries that do not see it, and the exponent is
 * more than BFP_MAX_EXPONENT. */
void ref_store_row(struct device *dev, const struct kv_view *to, const float *x, int64_t page,
                   int64_t position, int head, int head_dim, int site, int token);
int ref_load_row(int16_t *out, const struct kv_view *view, int64_t page, int position, int head,
                 int head_dim);

/* What `available` says, from the files in root/proc and root/sys: "" for this machine. */
size_t ref_host_available(const char *root);

/* The part of it that RLIMIT_AS (ulimit -v) sets: bytes that the process may still map, SIZE_MAX
 * without a limit. */
size_t ref_address_space_left(const char *root);

/* How many threads the device takes when nobody says: OPENBLAS_NUM_THREADS or OMP_NUM_THREADS, at
 * most one a core, fewer where a limited address space has no room for their buffers (blas.c). */
int ref_blas_default_threads(void);

/* Maps the buffers that n_threads need to call OpenBLAS at the same time; without them a product
 * would wait for memory for ever. Returns 0, or -1 with err set when they do not fit. */
int ref_blas_reserve(int n_threads, struct error *err);

/* linear_parts, version 2; and linear_sums, with one part, where sums is not NULL. */
void integer_linear(struct device *dev, const struct linear_part *parts, int n_parts, int64_t *sums,
                    struct bfp_rows x, int n_tokens);

/* The entries of ref_ops: model/ops.h has their types and contracts. */
/* clang-format off */
#define REF_OPS(X) \
    X(available) \
    X(embed) X(take_rows) X(snap_rows) X(linear) X(linear_parts) X(add_bias) \
    X(row_largest) X(snap_part) X(linear_sums) X(round_sums) \
    X(rmsnorm) X(add_rmsnorm) X(rope) X(norm_rope) X(silu_mul) X(add) X(sample) X(hash_rows) \
    X(kv_append) X(kv_gather) X(kv_convert) X(attention) X(attend) \
    X(attention_plan_new) X(attention_plan_free) X(attention_plan) X(attention_plan_form) \
    X(merge_states) X(finish_states)
/* clang-format on */
#define REF_DECLARE(name) __typeof__(*((struct ops *)0)->name) ref_##name;
REF_OPS(REF_DECLARE)
#undef REF_DECLARE

#endif
