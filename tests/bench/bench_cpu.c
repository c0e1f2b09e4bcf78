/*
 * bench_cpu - the reference on this CPU, beside its limit: OpenBLAS alone.
 *
 * The limit is the time of the matrix products of the same pass, the same calls with the same
 * shapes and the same weights in memory, and nothing else: dgemv or dgemm of every linear layer,
 * and the two dgemm per tile and kv head of attention. Engine and limit are timed alternately and
 * the medians compared. The first lines give loading time and peak memory.
 */
#include "model/forward.h"
#include "model/numerics.h"
#include "scheduler/kv_contiguous.h"
#include "scheduler/sequence.h"

#include <cblas.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum { PREFILL = 512, CHUNK = 128, DECODE = 64, REPEATS = 9, ATTENTION_BLOCK = 256 };

/* Doubles that the matrix products read and write; large enough for every shape. */
struct limit {
    const struct model *model;
    double *x, *y, *tile;
    int n_threads;
};

/* OpenBLAS's own threads, for the limit only: the engine calls it from threads of its own. */
static double limit_begins(const struct limit *l) {
    openblas_set_num_threads(l->n_threads);
    return clock_now();
}

static double limit_ends(void) {
    double now = clock_now();
    openblas_set_num_threads(1);
    return now;
}

static void product(const struct limit *l, const struct matrix *w, int n_rows) {
    if (n_rows == 1)
        cblas_dgemv(CblasRowMajor, CblasNoTrans, w->n, w->k, 1, w->mantissas, w->k, l->x, 1, 0,
                    l->y, 1);
    else
        cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasTrans, n_rows, w->n, w->k, 1, l->x, w->k,
                    w->mantissas, w->k, 0, l->y, w->n);
}

static void linear_products(const struct limit *l, int n_rows) {
    for (int i = 0; i < l->model->config.n_layers; i++) {
        const struct layer_weights *w = &l->model->layers[i];
        const struct matrix *all[] = {&w->q, &w->k, &w->v, &w->o, &w->gate, &w->up, &w->down};
        for (int m = 0; m < 7; m++)
            product(l, all[m], n_rows);
    }
    product(l, model_output(l->model), 1);
}

/* The products of attention for the last n_tokens of kv_len positions, in all layers. */
static void attention_products(const struct limit *l, int n_tokens, int kv_len) {
    const struct model_config *c = &l->model->config;
    int group = c->n_heads / c->n_kv_heads, dim = c->head_dim;
    for (int head = 0; head < c->n_layers * c->n_kv_heads; head++)
        for (int tile = 0; tile < kv_len; tile += ATTENTION_TILE) {
            int n = kv_len - tile < ATTENTION_TILE ? kv_len - tile : ATTENTION_TILE;
            int blind = tile - (kv_len - n_tokens), first = blind > 0 ? blind * group : 0;
            for (; first < n_tokens * group; first += ATTENTION_BLOCK) {
                int rows = n_tokens * group - first;
                rows = rows < ATTENTION_BLOCK ? rows : ATTENTION_BLOCK;
                int sees = kv_len - n_tokens + (first + rows - 1) / group + 1 - tile;
                n = sees < n ? sees : n;
                cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasTrans, rows, n, dim, 1, l->x, dim,
                            l->tile, dim, 0, l->y, ATTENTION_TILE);
                cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, rows, dim, n, 1, l->y,
                            ATTENTION_TILE, l->tile, dim, 0, l->x, dim);
            }
        }
}

static void fail(const struct error *err) {
    fprintf(stderr, "bench_cpu: %s\n", err->text);
    exit(2);
}

/* One pass over tokens first ... first + n - 1, and the choice of the next token. */
static void pass(struct model *model, struct workspace *ws, struct kv_cache *cache, int first,
                 int n) {
    struct error err;
    int32_t ids[CHUNK], positions[CHUNK], drawn, last = n - 1;
    for (int i = 0; i < n; i++) {
        positions[i] = first + i;
        ids[i] = (int32_t)((unsigned)(first + i) * 2654435761u % 4000u);
    }
    struct batch batch = {n, 1, 1, ids, positions, (int32_t[]){0, n}, &last, &cache, NULL};
    struct sampling greedy = {0};
    if (!forward(model, ws, &batch, NULL, &err) ||
        forward_finish(model, ws, &batch, &greedy, &drawn, &err))
        fail(&err);
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *seconds) {
    qsort(seconds, REPEATS, sizeof *seconds, by_value);
    return seconds[REPEATS / 2];
}

static void print_row(const char *what, int n_threads, int n, double engine, double linear,
                      double products, double target) {
    double share = products / engine * 100;
    printf("%-18s %7d %9.1f %9.3f %12.3f %14.3f %7.0f %% %s\n", what, n_threads, n / engine,
           engine * 1e3 / n, linear * 1e3 / n, products * 1e3 / n, share,
           share >= target ? "" : "(below the target)");
}

static void bench_prefill(struct model *model, struct workspace *ws, struct kv_cache *cache,
                          const struct limit *l, int n_threads) {
    double engine[REPEATS], linear[REPEATS], products[REPEATS];
    for (int r = -1; r < REPEATS; r++) {
        double t0 = clock_now();
        for (int first = 0; first < PREFILL; first += CHUNK)
            pass(model, ws, cache, first, CHUNK);
        double t1 = clock_now(), begin = limit_begins(l);
        for (int first = 0; first < PREFILL; first += CHUNK)
            linear_products(l, CHUNK);
        double middle = clock_now();
        for (int first = 0; first < PREFILL; first += CHUNK)
            attention_products(l, CHUNK, first + CHUNK);
        double end = limit_ends();
        if (r >= 0) {
            engine[r] = t1 - t0;
            linear[r] = middle - begin;
            products[r] = end - begin;
        }
    }
    print_row("prefill of 512", n_threads, PREFILL, median(engine), median(linear),
              median(products), 60);
}

/* Tokens 256 ... 319: the second tile has begun. */
static void bench_decode(struct model *model, struct workspace *ws, struct kv_cache *cache,
                         const struct limit *l, int n_threads) {
    double engine[REPEATS], linear[REPEATS], products[REPEATS];
    int first = PREFILL / 2;
    for (int r = -1; r < REPEATS; r++) {
        double e = 0, p = 0, a = 0;
        for (int i = 0; i < DECODE; i++) {
            double t0 = clock_now();
            pass(model, ws, cache, first + i, 1);
            double t1 = clock_now(), begin = limit_begins(l);
            linear_products(l, 1);
            double middle = clock_now();
            attention_products(l, 1, first + i + 1);
            double end = limit_ends();
            e += t1 - t0;
            p += middle - begin;
            a += end - begin;
        }
        if (r >= 0) {
            engine[r] = e;
            linear[r] = p;
            products[r] = a;
        }
    }
    print_row("decode at 256+", n_threads, DECODE, median(engine), median(linear), median(products),
              70);
}

/* Both rows with n threads. The model is loaded again, into the memory of its device. */
static void bench(int n_threads) {
    struct error err;
    struct device_options options = {.n_threads = n_threads};
    struct device *dev = ref_ops.open(&options, &err);
    struct model model;
    double t0 = clock_now();
    if (!dev || model_load(&model, dev, "data/model", NULL, &err))
        fail(&err);
    double loading = clock_now() - t0;
    struct workspace *ws = workspace_new(&model, &err);
    struct kv_cache *cache = kv_static_new(&model, PREFILL, &err);
    struct limit limit = {&model, calloc(1 << 20, sizeof(double)), calloc(1 << 20, sizeof(double)),
                          calloc(1 << 20, sizeof(double)), n_threads};
    if (!ws || !cache || !limit.x || !limit.y || !limit.tile)
        fail(&err);
    for (int first = 0; first < PREFILL; first += CHUNK)
        pass(&model, ws, cache, first, CHUNK);
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    double peak = (double)usage.ru_maxrss * 1024 - (double)cache->bytes;
    if (n_threads == 1)
        printf("loading: %.3f s. Peak memory up to a prefill of 512, without the KV cache of %.1f "
               "MB: %.1f MB,\n%.1f bytes a parameter (%zu parameters)\n\n%-18s %7s %9s %9s %12s "
               "%14s %9s\n",
               loading, (double)cache->bytes / 1e6, peak / 1e6, peak / (double)model.n_parameters,
               model.n_parameters, "", "threads", "tok/s", "ms/tok", "linear only", "all products",
               "of limit");
    bench_prefill(&model, ws, cache, &limit, n_threads);
    bench_decode(&model, ws, cache, &limit, n_threads);
    free(limit.x);
    free(limit.y);
    free(limit.tile);
    kv_cache_free(cache);
    workspace_free(ws);
    model_free(&model);
    dev->ops->close(dev);
}

int main(void) {
    printf("%s, OpenBLAS core %s, shipped model. Milliseconds per token; the limit is the\n"
           "matrix products alone. Targets: decode 70 %%, prefill 60 %% of the limit.\n\n",
           openblas_get_config(), openblas_get_corename());
    for (int n = 1; n <= 2; n++)
        bench(n);
    return 0;
}
