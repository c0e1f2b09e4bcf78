/* NCCL in the device's stream: each call stands behind the kernels before it. */
#include "model/parallel/nccl.h"

#include "gpu/gpu.h"

#include <nccl.h>
#include <stdio.h>
#include <time.h>

struct nccl {
    struct parallel_device calls; /* first */
    ncclComm_t comm;
    cudaStream_t stream;
    float *all; /* [n_all] the logits of ranks, one behind the other */
    size_t n_all;
    int *counts; /* [n_ranks] of a gathering */
};

static struct nccl *nccl_of(struct parallel *p) {
    return (struct nccl *)p->on_device;
}

static int check(ncclResult_t result, const char *what, struct error *err) {
    return result == ncclSuccess
               ? 0
               : error_set(err, "NCCL failed in a %s: %s", what, ncclGetErrorString(result));
}

static int find_max(struct parallel *p, struct device *, uint32_t *x, size_t n, struct error *err) {
    struct nccl *c = nccl_of(p);
    return check(ncclAllReduce(x, x, n, ncclUint32, ncclMax, c->comm, c->stream), "maximum", err);
}

static int find_sum(struct parallel *p, struct device *, int64_t *x, size_t n, struct error *err) {
    struct nccl *c = nccl_of(p);
    return check(ncclAllReduce(x, x, n, ncclInt64, ncclSum, c->comm, c->stream), "sum", err);
}

/* Parts have different lengths, so each rank broadcasts its own. */
static int gather_parts(struct parallel *p, struct device *, float *all, const float *mine,
                        const int *n, struct error *err) {
    struct nccl *c = nccl_of(p);
    ncclResult_t result = ncclGroupStart();
    for (int r = 0; r < p->n_ranks && result == ncclSuccess; all += n[r++])
        if (n[r])
            result = ncclBroadcast(mine, all, (size_t)n[r], ncclFloat, r, c->comm, c->stream);
    return check(result, "gathering", err) || check(ncclGroupEnd(), "gathering", err) ? -1 : 0;
}

/* The parts, then the columns of each go to the rows. */
static int gather(struct parallel *p, struct device *dev, float *y, int whole, const float *x,
                  int x_cols, int n_rows, struct error *err) {
    struct nccl *c = nccl_of(p);
    int extra = x_cols - parallel_span(whole, p->rank, p->n_ranks).n; /* as wide for all */
    size_t n = (size_t)n_rows * (size_t)(whole + extra * p->n_ranks);
    if (n > c->n_all) {
        dev->ops->free(dev, c->all, sizeof *c->all * c->n_all);
        c->all = (float *)dev->ops->alloc(dev, sizeof *c->all * n, "gathered logits", err);
        c->n_all = c->all ? n : 0;
    }
    for (int r = 0; r < p->n_ranks; r++)
        c->counts[r] = n_rows * (parallel_span(whole, r, p->n_ranks).n + extra);
    if (!c->all || gather_parts(p, dev, c->all, x, c->counts, err))
        return -1;
    const float *part = c->all;
    for (int r = 0; r < p->n_ranks; part += c->counts[r++]) {
        struct span s = parallel_span(whole, r, p->n_ranks);
        cudaMemcpy2DAsync(y + s.first, sizeof *y * (size_t)whole, part,
                          sizeof *y * (size_t)(s.n + extra), sizeof *y * (size_t)s.n,
                          (size_t)n_rows, cudaMemcpyDeviceToDevice, c->stream);
    }
    return gpu_ok(gpu_of(dev), cudaGetLastError(), "gathering logits") ? 0 : -1;
}

/* A stream waits for ever for a rank that hangs: so its end is asked for, with a clock beside. */
static int wait(struct parallel *p, struct device *, struct error *err) {
    struct nccl *c = nccl_of(p);
    struct timespec began, now;
    clock_gettime(CLOCK_MONOTONIC, &began);
    while (cudaStreamQuery(c->stream) == cudaErrorNotReady) {
        ncclResult_t state = ncclSuccess;
        clock_gettime(CLOCK_MONOTONIC, &now);
        double waited =
            (double)(now.tv_sec - began.tv_sec) + (double)(now.tv_nsec - began.tv_nsec) * 1e-9;
        if (ncclCommGetAsyncError(c->comm, &state) != ncclSuccess || state != ncclSuccess)
            return error_set(err, "NCCL failed: %s", ncclGetErrorString(state));
        if (waited > p->limit) {
            uint32_t here = 0;
            if (!p->max(p, &here, 1, err)) /* it names who does not come here, either */
                error_set(err, "GPUs did not come to a sum for %g seconds", p->limit);
            p->end(p, err); /* here: while a GPU waits for another, nothing of it can be freed */
        }
    }
    return 0;
}

static void end(struct parallel *p, struct device *dev) {
    struct nccl *c = nccl_of(p);
    dev->ops->free(dev, c->all, sizeof *c->all * c->n_all);
    ncclCommDestroy(c->comm);
    free(c->counts);
    free(c);
    p->on_device = NULL;
}

int nccl_join(struct parallel *p, struct device *dev, struct error *err) {
    ncclUniqueId id;
    struct nccl *c = (struct nccl *)calloc(1, sizeof *c);
    if (!c || !(c->counts = (int *)calloc((size_t)p->n_ranks, sizeof(int))))
        return error_set(err, "out of memory for NCCL");
    if (!p->rank)
        ncclGetUniqueId(&id);
    parallel_broadcast(p, &id, sizeof id);
    c->stream = gpu_of(dev)->stream;
    if (parallel_check(p, err) ||
        check(ncclCommInitRank(&c->comm, p->n_ranks, id, p->rank), "first meeting", err)) {
        free(c->counts);
        free(c);
        return -1;
    }
    c->calls = {find_max, find_sum, gather, gather_parts, wait, end};
    p->on_device = &c->calls;
    return 0;
}
