#include "tests/paged_problem.h"

#include "tests/compare.h"
#include "tests/oracle.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

size_t problem_q_size(const struct problem *p) {
    return (size_t)p->shape.n_heads * (size_t)p->shape.head_dim;
}

void problem_lay_out(struct random *r, struct problem *p) {
    int n = 0;
    p->qo_indptr[0] = p->kv_indptr[0] = 0;
    for (int i = 0; i < p->n; i++) {
        n += (p->kv_len[i] + p->page_size - 1) / p->page_size;
        p->kv_indptr[i + 1] = n;
        p->qo_indptr[i + 1] = p->qo_indptr[i] + p->qo_len[i];
        p->last_page_len[i] = p->kv_len[i] ? (p->kv_len[i] - 1) % p->page_size + 1 : -3;
    }
    p->n_tokens = p->qo_indptr[p->n];
    p->n_pages = n + random_int(r, 0, 5);
    p->pages = host_array((size_t)p->n_pages + 1, sizeof *p->pages);
    for (int i = 0; i < p->n_pages; i++)
        p->pages[i] = i;
    for (int i = p->n_pages; i > 1; i--) {
        int j = random_int(r, 0, i - 1);
        int32_t page = p->pages[j];
        p->pages[j] = p->pages[i - 1];
        p->pages[i - 1] = page;
    }
}

size_t problem_row(const struct problem *p, int sequence, int position, int head) {
    size_t page = (size_t)p->pages[p->kv_indptr[sequence] + position / p->page_size];
    size_t slot = page * (size_t)p->page_size + (size_t)(position % p->page_size);
    return slot * (size_t)p->shape.n_kv_heads + (size_t)head;
}

void problem_fill(struct random *r, struct problem *p, enum kind kind) {
    int dim = p->shape.head_dim;
    size_t rows = (size_t)p->n_pages * (size_t)p->page_size * (size_t)p->shape.n_kv_heads;
    float *x = host_array((size_t)dim, sizeof *x);
    p->k = host_rows((int)rows + 1, dim);
    p->v = host_rows((int)rows + 1, dim);
    poison(p->k.mantissas, sizeof(int16_t) * rows * (size_t)dim);
    poison(p->v.mantissas, sizeof(int16_t) * rows * (size_t)dim);
    poison(p->k.exponents, rows);
    poison(p->v.exponents, rows);
    for (int i = 0; i < p->n; i++)
        for (int j = 0; j < p->kv_len[i] * p->shape.n_kv_heads; j++) {
            size_t at = problem_row(p, i, j / p->shape.n_kv_heads, j % p->shape.n_kv_heads);
            random_fill(r, x, (size_t)dim, NORMAL);
            for (int d = 0; kind == ONE_SIGN && d < dim; d++)
                x[d] = fabsf(x[d]);
            p->k.exponents[at] = (int8_t)oracle_snap(p->k.mantissas + at * (size_t)dim, x, dim);
            int e = kind == WILD_VALUES ? random_int(r, -90, 90) : 0;
            for (int d = 0; d < dim; d++)
                x[d] = kind != FAR_VALUES ? ldexpf(random_normal(r), e)
                       : i % 2            ? 0x1p125f
                                          : copysignf(0x1p-115f, random_normal(r));
            p->v.exponents[at] = (int8_t)oracle_snap(p->v.mantissas + at * (size_t)dim, x, dim);
        }
    p->q = host_array((size_t)p->n_tokens * problem_q_size(p) + 1, sizeof *p->q);
    for (size_t i = 0; i < (size_t)p->n_tokens * problem_q_size(p); i++)
        p->q[i] = ldexpf(random_normal(r), kind == ONE_WINNER ? 30 : 0);
    for (size_t i = 0; kind == ONE_SIGN && i < (size_t)p->n_tokens * problem_q_size(p); i++)
        p->q[i] = i / (size_t)dim % 2 ? -fabsf(p->q[i]) : fabsf(p->q[i]);
    free(x);
}

void problem_free(struct problem *p) {
    free(p->pages);
    free(p->q);
    free_host_rows(p->k);
    free_host_rows(p->v);
}

struct paged_batch problem_batch(const struct problem *p) {
    return (struct paged_batch){p->n,         p->page_size, p->n_pages,      p->qo_indptr,
                                p->kv_indptr, p->pages,     p->last_page_len};
}

struct kv_views problem_views(const struct problem *p, struct bfp_rows k, struct bfp_rows v) {
    struct kv_layer layer = {k.mantissas, v.mantissas, k.exponents, v.exponents};
    return kv_layer_views(&layer, KV_BFP16, p->page_size, p->shape.n_kv_heads, p->shape.head_dim);
}

static const int boundaries[] = {0,   1,   2,   15,  16,  17,  63,  64,  65, 127,
                                 128, 129, 255, 256, 257, 511, 512, 513, 700};

int problem_length(struct random *r, int most) {
    int n = random_int(r, 0, 1) ? ONE_OF(r, boundaries) : random_int(r, 0, most);
    return n < most ? n : most;
}
