#include "model/parallel.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <xxhash.h>

/* ---- who has what ---------------------------------------------------------------------------- */

static int share(int64_t whole, int r, int n) {
    return (int)(whole * r / n);
}

struct span parallel_span(int whole, int r, int n_ranks) {
    int first = share(whole, r, n_ranks);
    return (struct span){first, share(whole, r + 1, n_ranks) - first};
}

/* The first rank that has kv head h, where there are more ranks than kv heads. */
static int first_rank_of(int h, int n_kv_heads, int n_ranks) {
    return (int)(((int64_t)h * n_ranks + n_kv_heads - 1) / n_kv_heads);
}

int parallel_part(struct model_part *out, const struct model_config *c, int r, int n_ranks,
                  bool by_position, struct error *err) {
    int most = by_position || c->ffn < c->n_heads ? c->ffn : c->n_heads;
    int group = c->n_heads / c->n_kv_heads;
    most = most < c->vocab_size ? most : c->vocab_size;
    if (n_ranks > most)
        return error_set(err, "%d ranks: this model can be shared by %d at most, one for each head",
                         n_ranks, most);
    *out = (struct model_part){.ffn = parallel_span(c->ffn, r, n_ranks),
                               .vocab = parallel_span(c->vocab_size, r, n_ranks)};
    if (by_position) /* heads as of one rank */
        r = 0, n_ranks = 1;
    out->kv_heads = parallel_span(c->n_kv_heads, r, n_ranks);
    if (n_ranks <= c->n_kv_heads) {
        out->heads = (struct span){out->kv_heads.first * group, out->kv_heads.n * group};
        return 0;
    }
    int h = share(c->n_kv_heads, r, n_ranks), first = first_rank_of(h, c->n_kv_heads, n_ranks);
    int n = first_rank_of(h + 1, c->n_kv_heads, n_ranks) - first;
    out->kv_heads = (struct span){h, 1};
    out->heads = parallel_span(group, r - first, n);
    out->heads.first += h * group;
    return 0;
}

/* ---- a call ---------------------------------------------------------------------------------- */

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* The host's copy of device memory; the memory itself where that is the host's. */
static void *to_host(struct parallel *p, struct device *dev, void *x, size_t bytes) {
    if (ops_share_memory(dev->ops))
        return x;
    if (bytes > p->host_bytes) {
        free(p->host);
        p->host = malloc(bytes);
        p->host_bytes = p->host ? bytes : 0;
    }
    if (p->host)
        dev->ops->download(dev, p->host, x, bytes);
    else
        p->failed = error_set(&p->why, "out of memory for what ranks say to each other");
    return p->host;
}

static void to_device(struct device *dev, void *x, const void *host, size_t bytes) {
    if (host != x)
        dev->ops->upload(dev, x, host, bytes);
}

static void begin(struct parallel *p, size_t bytes) {
    p->counts.calls++;
    p->counts.bytes += (int64_t)bytes;
    p->counts.seconds -= now();
}

/* x: what all ranks must have heard alike; NULL: it stays on the GPU. */
static void end(struct parallel *p, int result, const void *x, size_t bytes) {
    p->counts.seconds += now();
    p->failed = p->failed || result;
    if (x)
        p->heard = XXH3_64bits_withSeed(x, bytes, p->heard);
}

void parallel_max(struct parallel *p, struct device *dev, void *x, size_t n) {
    size_t bytes = sizeof(uint32_t) * n;
    if (p && p->on_device && !p->failed) {
        begin(p, bytes);
        end(p, p->on_device->max(p, dev, x, n, &p->why), NULL, 0);
        return;
    }
    uint32_t *host = p && !p->failed ? to_host(p, dev, x, bytes) : NULL;
    if (!host)
        return;
    begin(p, bytes);
    end(p, p->max(p, host, n, &p->why), host, bytes);
    to_device(dev, x, host, bytes);
}

static uint64_t total(const int64_t *x, size_t n) {
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += (uint64_t)x[i];
    return sum;
}

void parallel_sum(struct parallel *p, struct device *dev, int64_t *x, size_t n) {
    size_t bytes = sizeof *x * n;
    if (p && p->on_device && !p->failed) {
        begin(p, bytes);
        end(p, p->on_device->sum(p, dev, x, n, &p->why), NULL, 0);
        return;
    }
    int64_t *host = p && !p->failed ? to_host(p, dev, x, bytes) : NULL;
    if (!host)
        return;
    p->given += total(host, n);
    begin(p, bytes);
    end(p, p->sum(p, host, n, &p->why), host, bytes);
    p->taken += total(host, n);
    to_device(dev, x, host, bytes);
}

/* The columns of each rank, one behind the other, become rows. */
static void put_columns(const struct parallel *p, uint32_t *rows, int whole, const uint32_t *parts,
                        int n_rows) {
    for (int r = 0; r < p->n_ranks; r++) {
        struct span s = parallel_span(whole, r, p->n_ranks);
        for (int row = 0; row < n_rows; row++, parts += s.n)
            memcpy(rows + (size_t)row * (size_t)whole + s.first, parts, sizeof *rows * (size_t)s.n);
    }
}

/* Host memory: mine [n_rows, n] and all parts, then the rows. */
static void gather(struct parallel *p, struct device *dev, float *y, int whole, uint32_t *mine,
                   int *counts, int n_rows) {
    size_t n_mine = (size_t)counts[p->rank], n = (size_t)n_rows * (size_t)whole;
    uint32_t *parts = mine + n_mine, *rows = parts + n;
    begin(p, sizeof *mine * n_mine);
    end(p, p->gather(p, parts, mine, counts, &p->why), parts, sizeof *parts * n);
    put_columns(p, rows, whole, parts, n_rows);
    dev->ops->upload(dev, y, rows, sizeof *rows * n);
}

void parallel_gather(struct parallel *p, struct device *dev, float *y, int whole, const float *x,
                     int x_cols, int n_rows) {
    size_t n = (size_t)n_rows * (size_t)whole, n_mine = (size_t)n_rows * (size_t)x_cols;
    if (p->failed)
        return;
    if (p->on_device) {
        begin(p, sizeof *x * n_mine);
        end(p, p->on_device->gather(p, dev, y, whole, x, x_cols, n_rows, &p->why), NULL, 0);
        return;
    }
    uint32_t *mine = malloc(sizeof *mine * (n_mine + 2 * n));
    int *counts = malloc(sizeof *counts * (size_t)p->n_ranks);
    if (mine && counts) {
        int n_cols = parallel_span(whole, p->rank, p->n_ranks).n;
        dev->ops->download(dev, mine, x, sizeof *mine * n_mine);
        for (int row = 1; row < n_rows; row++)
            memmove(mine + (size_t)row * (size_t)n_cols, mine + (size_t)row * (size_t)x_cols,
                    sizeof *mine * (size_t)n_cols);
        for (int r = 0; r < p->n_ranks; r++)
            counts[r] = n_rows * parallel_span(whole, r, p->n_ranks).n;
        gather(p, dev, y, whole, mine, counts, n_rows);
    } else {
        p->failed = error_set(&p->why, "out of memory for the logits of %d rows", n_rows);
    }
    free(counts);
    free(mine);
}

void parallel_gather_parts(struct parallel *p, struct device *dev, float *all, const float *mine,
                           const int *n) {
    size_t bytes = sizeof *mine * (size_t)n[p->rank], n_all = 0;
    for (int r = 0; r < p->n_ranks; r++)
        n_all += (size_t)n[r];
    if (p->failed)
        return;
    if (p->on_device) {
        begin(p, bytes);
        end(p, p->on_device->gather_parts(p, dev, all, mine, n, &p->why), NULL, 0);
        return;
    }
    uint32_t *mine_here = malloc(bytes + sizeof *all * n_all), *parts = mine_here + n[p->rank];
    if (mine_here) {
        if (bytes)
            dev->ops->download(dev, mine_here, mine, bytes);
        begin(p, bytes);
        end(p, p->gather(p, parts, mine_here, n, &p->why), parts, sizeof *parts * n_all);
        dev->ops->upload(dev, all, parts, sizeof *parts * n_all);
    } else {
        p->failed = error_set(&p->why, "out of memory for what ranks say to each other");
    }
    free(mine_here);
}

void parallel_wait(struct parallel *p, struct device *dev) {
    if (p && p->on_device && !p->failed)
        p->failed = p->on_device->wait(p, dev, &p->why);
}

/* ---- what all must have alike ---------------------------------------------------------------- */

void parallel_broadcast(struct parallel *p, void *x, size_t bytes) {
    if (p && !p->failed)
        p->failed = p->broadcast(p, x, bytes, &p->why);
}

int parallel_least(struct parallel *p, int x) {
    uint32_t most = (uint32_t)INT32_MAX - (uint32_t)x;
    if (!p || p->failed)
        return x;
    p->failed = p->max(p, &most, 1, &p->why);
    return (int)((uint32_t)INT32_MAX - most);
}

/* What n words [n] are on each rank: [n_ranks, n], malloc'ed; NULL with err set. */
static void *all_words(struct parallel *p, const void *words, int n, struct error *err) {
    uint32_t *all = malloc(sizeof *all * (size_t)p->n_ranks * (size_t)n);
    int *counts = malloc(sizeof *counts * (size_t)p->n_ranks);
    int result = all && counts ? 0 : error_set(err, "out of memory for %d ranks", p->n_ranks);
    for (int r = 0; r < p->n_ranks && !result; r++)
        counts[r] = n;
    if (!result)
        result = p->gather(p, all, words, counts, err);
    free(counts);
    if (!result)
        return all;
    free(all);
    return NULL;
}

/* How a pass was for a rank. */
struct pass_end {
    uint64_t hash, given;
    struct fault fault;
};

static bool comes_first(struct fault a, struct fault b) {
    return a.site >= 0 &&
           (b.site < 0 || a.site < b.site || (a.site == b.site && a.token < b.token));
}

int parallel_check_pass(struct parallel *p, uint64_t pass, struct fault *fault, struct error *err) {
    struct pass_end mine = {XXH3_64bits_withSeed(&pass, sizeof pass, p->heard), p->given, *fault};
    uint64_t given = 0, taken = p->taken;
    if (parallel_check(p, err))
        return -1;
    p->heard = p->given = p->taken = 0;
    struct pass_end *all = all_words(p, &mine, sizeof mine / sizeof(uint32_t), err);
    if (!all)
        return -1;
    int result = 0;
    for (int r = 0; r < p->n_ranks; r++) {
        given += all[r].given;
        if (comes_first(all[r].fault, *fault))
            *fault = all[r].fault;
        if (!result && all[r].hash != all[0].hash)
            result = error_set(err,
                               "rank %d was in another pass than rank 0, or heard something else: "
                               "nothing of this pass is used",
                               r);
    }
    free(all);
    if (!result && given != taken)
        result = error_set(err, "a sum is not that of what the ranks gave: a message was damaged");
    return result;
}

int parallel_check_same(struct parallel *p, uint64_t value, const char *what, struct error *err) {
    uint64_t *all = all_words(p, &value, sizeof value / sizeof(uint32_t), err);
    int result = all ? 0 : -1;
    for (int r = 0; r < p->n_ranks && !result; r++)
        if (all[r] != all[0])
            result = error_set(err, "rank %d has %s than rank 0", r, what);
    free(all);
    return result;
}

int parallel_check(const struct parallel *p, struct error *err) {
    return p && p->failed ? error_set(err, "%s", p->why.text) : 0;
}
