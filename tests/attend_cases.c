#include "tests/attend_cases.h"

#include "tests/assert_bits.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define COUNT(array) (int)(sizeof(array) / sizeof *(array))
#define ONE_OF(r, array) (array)[random_int(r, 0, COUNT(array) - 1)]

struct attend_wish attend_anything(int most_positions) {
    return (struct attend_wish){
        -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, most_positions, false};
}

/* ---- lengths, pages ---------------------------------------------------------------------------
 */

static void make_lengths(struct attend_case *c, struct random *r, const struct attend_wish *w) {
    static const int edges[] = {0, 1, 15, 16, 17, 31, 255, 256, 257, 511, 513};
    int left = w->most_positions;
    c->qo_indptr[0] = 0;
    for (int i = 0; i < c->n; i++) {
        int most = left < 700 ? left : 700;
        int length = random_int(r, 0, 1) ? ONE_OF(r, edges) : random_int(r, 0, most);
        if (i == 0 && w->kv_len >= 0)
            length = w->kv_len;
        else if (w->kv_len >= 0 && length > 300)
            length = 300;
        length = length > left && i ? left : length;
        int queries = random_int(r, 0, 2) ? 1 : random_int(r, 0, 20);
        if (!w->long_ones && !random_int(r, 0, 5)) /* more than 64 rows: the kernels for many */
            queries = 64 * c->shape.n_kv_heads / c->shape.n_heads + random_int(r, 1, 20);
        if (i == 0 && w->qo_len >= 0)
            queries = w->qo_len;
        if (w->long_ones) {
            int longest = w->most_positions / c->n > 259 ? w->most_positions / c->n : 259;
            length = w->kv_len >= 0 ? w->kv_len : random_int(r, 258, longest);
            queries = w->qo_len >= 0 ? w->qo_len : random_int(r, 0, 2) ? 1 : random_int(r, 0, 6);
        }
        c->kv_len[i] = length;
        left -= length < left ? length : left;
        c->qo_indptr[i + 1] = c->qo_indptr[i] + queries;
    }
    c->n_tokens = c->qo_indptr[c->n];
}

/* Every page has at most one owner; some have none. */
static void make_pages(struct attend_case *c, struct random *r) {
    int size = c->layout.page_size, n = 0;
    c->kv_indptr[0] = c->first_position[0] = 0;
    for (int i = 0; i < c->n; i++) {
        n += (c->kv_len[i] + size - 1) / size;
        c->kv_indptr[i + 1] = n;
        c->first_position[i + 1] = c->first_position[i] + c->kv_len[i];
        c->last_page_len[i] = c->kv_len[i] ? (c->kv_len[i] - 1) % size + 1 : 99;
    }
    c->n_positions = c->first_position[c->n];
    c->layout.n_pages = c->ragged ? (n ? n : 1) : n + random_int(r, 1, 4);
    c->pages = host_array((size_t)c->layout.n_pages, sizeof *c->pages);
    for (int i = 0; i < c->layout.n_pages; i++)
        c->pages[i] = i;
    for (int i = c->layout.n_pages; i > 1 && !c->ragged; i--) {
        int j = random_int(r, 0, i - 1);
        int32_t page = c->pages[j];
        c->pages[j] = c->pages[i - 1];
        c->pages[i - 1] = page;
    }
}

/* ---- what changes ------------------------------------------------------------------------------
 */

static void make_mask(struct attend_case *c, struct random *r, enum mask_form form) {
    struct paged_batch batch = attend_batch(c);
    struct error err;
    int64_t elements[MOST_SEQUENCES + 1];
    assert_int_equal(attention_mask_offsets(elements, &batch, MASK_BYTES, NULL, &err), 0);
    uint8_t *bytes = host_array((size_t)elements[c->n] + 1, 1);
    int density = random_int(r, 0, 3); /* none, a few, half, all but a few */
    for (int64_t i = 0; i < elements[c->n]; i++)
        bytes[i] = (uint8_t)(density == 0   ? 0
                             : density == 1 ? random_int(r, 0, 99) == 0
                             : density == 2 ? random_int(r, 0, 1) * 255
                                            : random_int(r, 0, 99) != 0);
    c->variant.mask_form = form;
    assert_int_equal(attention_mask_offsets(c->mask_offsets, &batch, form, elements, &err), 0);
    if (form == MASK_BYTES) {
        c->mask = bytes;
        return;
    }
    int64_t packed[MOST_SEQUENCES + 1];
    c->mask = host_array((size_t)c->mask_offsets[c->n] + 1, 1);
    assert_int_equal(segment_packbits(c->mask, packed, bytes, elements, c->n, BITS_LITTLE, &err),
                     0);
    assert_memory_equal(packed, c->mask_offsets, sizeof *packed * (size_t)(c->n + 1));
    free(bytes);
}

static float *random_vector(struct random *r, int n, float size) {
    float *x = host_array((size_t)n, sizeof *x);
    for (int i = 0; i < n; i++)
        x[i] = size * random_normal(r);
    return x;
}

static void make_variant(struct attend_case *c, struct random *r, const struct attend_wish *w) {
    static const int windows[] = {-1, -1, 0, 3, 33, 128}, caps[] = {0, 0, 30, 50};
    struct attention_variant *v = &c->variant;
    *v = attention_variant_causal();
    v->causal = w->causal >= 0 ? w->causal : random_int(r, 0, 2) != 0;
    v->window_left = w->window_left >= 0 ? w->window_left : ONE_OF(r, windows);
    v->soft_cap = (float)(w->cap >= 0 ? w->cap : ONE_OF(r, caps));
    v->lse_base = random_int(r, 0, 1) ? LSE_E : LSE_2;
    if (w->slopes >= 0 ? w->slopes : random_int(r, 0, 2) == 0)
        c->alibi_slopes = random_vector(r, c->shape.n_heads, 0.1f);
    if (w->sinks >= 0 ? w->sinks : random_int(r, 0, 2) == 0)
        c->sinks = random_vector(r, c->shape.n_heads, 2);
    int form = w->mask >= 0 ? w->mask : random_int(r, 0, 5);
    if (form == MASK_BYTES || form == MASK_BITS)
        make_mask(c, r, (enum mask_form)form);
}

/* ---- a case ------------------------------------------------------------------------------------
 */

void attend_case_make(struct attend_case *c, struct random *r, const struct attend_wish *w) {
    static const int sizes[] = {1, 2, 3, 5, 8, 16, 24, 32, 64, 256},
                     dims[] = {8, 20, 32, 64, 80, 96, 128};
    *c = (struct attend_case){0};
    int heads = w->kv_heads > 0 ? w->kv_heads : random_int(r, 1, 4);
    int group = w->group > 0 ? w->group : random_int(r, 1, 5);
    int dim = w->head_dim > 0 ? w->head_dim : ONE_OF(r, dims);
    c->shape = (struct attention_shape){heads * group, heads, dim, 1 / sqrt((double)dim), KV_BFP16};
    c->n = w->batch >= 0 ? w->batch : random_int(r, 0, 6);
    c->ragged = w->order < 0 && w->page_size < 0 && random_int(r, 0, 4) == 0;
    c->layout.order = w->order >= 0 ? (enum kv_order)w->order : (enum kv_order)random_int(r, 0, 2);
    c->layout.order = c->ragged ? KV_NHD : c->layout.order;
    c->layout.one_tensor = !c->ragged && c->layout.order != KV_VLLM && random_int(r, 0, 1);
    c->layout.page_size = c->ragged ? 1 : w->page_size > 0 ? w->page_size : ONE_OF(r, sizes);
    c->layout.n_kv_heads = heads;
    c->layout.head_dim = dim;
    c->layout.type = (enum kv_type)(w->type >= 0          ? w->type
                                    : random_int(r, 0, 1) ? KV_BFP16
                                                          : random_int(r, 0, N_KV_TYPES - 1));
    /* A plan may know the type, or not, or be wrong. */
    const enum kv_type planned[] = {KV_E4M3, c->layout.type, KV_BFP16};
    c->shape.kv_type = planned[c->n % 3];
    if (c->layout.type == KV_E4M3 || c->layout.type == KV_E5M2) {
        c->layout.k_scale = ldexpf(1 + random_int(r, 0, 7) / 8.0f, random_int(r, -6, 0));
        c->layout.v_scale = random_int(r, 0, 1) ? 0.017f : 0;
    }
    if (dim * kv_type_bytes(c->layout.type) % 16 && c->layout.order == KV_VLLM)
        c->layout.order = KV_HND; /* whole vectors of 16 bytes */
    make_lengths(c, r, w);
    make_pages(c, r);
    make_variant(c, r, w);
    size_t width = (size_t)heads * (size_t)dim;
    c->q = random_vector(r, c->n_tokens * c->shape.n_heads * dim, 1);
    c->k = random_vector(r, (int)((size_t)c->n_positions * width), 1);
    c->v = random_vector(r, (int)((size_t)c->n_positions * width), 1);
}

void attend_set_type(struct attend_case *c, enum kv_type type, float scale) {
    c->layout.type = type;
    c->layout.k_scale = c->layout.v_scale = scale;
}

void attend_case_free(struct attend_case *c) {
    free(c->pages);
    free(c->q);
    free(c->k);
    free(c->v);
    free(c->mask);
    free(c->alibi_slopes);
    free(c->sinks);
}

struct paged_batch attend_batch(const struct attend_case *c) {
    return (struct paged_batch){
        c->n,     c->layout.page_size, c->layout.n_pages, c->qo_indptr, c->kv_indptr,
        c->pages, c->last_page_len};
}

/* ---- on a device -------------------------------------------------------------------------------
 */

static void *device_full_of(struct test_device *t, size_t bytes, int byte) {
    void *host = host_array(bytes + 1, 1), *on_device;
    memset(host, byte, bytes);
    on_device = device_put(t, host, bytes);
    free(host);
    return on_device;
}

/* Poison of elements: in bytes that of device_poisoned would be mantissas like others. */
static void *poisoned_elements(struct test_device *t, const struct kv_layout *l) {
    size_t bytes = (size_t)kv_type_bytes(l->type) * (size_t)kv_layout_elements(l);
    return l->type == KV_BFP8 ? device_full_of(t, bytes, INT8_MIN) : device_poisoned(t, bytes);
}

struct kv_views attend_empty_cache(struct test_device *t, const struct kv_layout *l) {
    struct error err = {""};
    struct kv_views kv;
    size_t exponents = (size_t)kv_layout_exponents(l);
    void *k = poisoned_elements(t, l), *v = l->one_tensor ? NULL : poisoned_elements(t, l);
    int8_t *k_exponents = device_full_of(t, exponents, INT8_MAX);
    int8_t *v_exponents = l->one_tensor ? NULL : device_full_of(t, exponents, INT8_MAX);
    if (kv_views_of(&kv, l, k, v, k_exponents, v_exponents, &err))
        fail_msg("%s", err.text);
    return kv;
}

static void spoil(struct test_device *t, const struct attend_case *c, const struct kv_views *kv) {
    const struct attend_spoilt *s = &c->spoilt;
    const struct kv_view *v = s->of_values ? &kv->v : &kv->k;
    int size = c->layout.page_size, bytes = kv_type_bytes(v->type);
    int64_t row = kv_view_row(v, c->pages[s->position / size], s->position % size, s->head);
    uint16_t element = 0;
    kv_store_bits(&element, v->type, 0, s->bits);
    t->ops->upload(t->dev, (char *)v->data + (row + kv_view_element(v, s->d)) * bytes, &element,
                   (size_t)bytes);
}

void attend_fill_cache(struct test_device *t, const struct attend_case *c,
                       const struct kv_views *kv) {
    struct error err = {""};
    struct paged_batch batch = attend_batch(c);
    if (!c->n_positions)
        return;
    size_t n = (size_t)c->n_positions,
           width = (size_t)c->shape.n_kv_heads * (size_t)c->shape.head_dim;
    int32_t *sequences = host_array(n, sizeof *sequences),
            *positions = host_array(n, sizeof *positions);
    int64_t *slots = host_array(n, sizeof *slots);
    for (int i = 0; i < c->n; i++)
        for (int j = 0; j < c->kv_len[i]; j++) {
            sequences[c->first_position[i] + j] = i;
            positions[c->first_position[i] + j] = j;
        }
    if (paged_batch_slots(&batch, slots, sequences, positions, c->n_positions, &err))
        fail_msg("%s", err.text);
    t->ops->kv_append(t->dev, kv, device_put(t, c->k, sizeof *c->k * n * width),
                     device_put(t, c->v, sizeof *c->v * n * width),
                     device_put(t, slots, sizeof *slots * n), c->n_positions, c->layout.page_size,
                     c->shape.n_kv_heads, c->shape.head_dim, ATTEND_SITE, ATTEND_SITE);
    if (c->spoilt.exists)
        spoil(t, c, kv);
    free(sequences);
    free(positions);
    free(slots);
}

struct kv_views attend_cache(struct test_device *t, const struct attend_case *c) {
    struct kv_views kv = attend_empty_cache(t, &c->layout);
    attend_fill_cache(t, c, &kv);
    return kv;
}

struct attention_variant attend_variant_on(struct test_device *t, const struct attend_case *c,
                                           float *lse) {
    struct attention_variant v = c->variant;
    size_t heads = sizeof(float) * (size_t)c->shape.n_heads;
    if (v.mask_form) {
        v.mask = device_put(t, c->mask, (size_t)c->mask_offsets[c->n] + 1);
        v.mask_offsets =
            device_put(t, c->mask_offsets, sizeof *c->mask_offsets * (size_t)(c->n + 1));
    }
    v.alibi_slopes = c->alibi_slopes ? device_put(t, c->alibi_slopes, heads) : NULL;
    v.sinks = c->sinks ? device_put(t, c->sinks, heads) : NULL;
    v.lse = lse;
    return v;
}

struct attention_state attend_state_of_sinks(struct test_device *t, const struct attend_case *c) {
    size_t rows = (size_t)(c->n_tokens * c->shape.n_heads), dim = (size_t)c->shape.head_dim;
    float *o = host_array(rows * dim, sizeof *o), *m = host_array(2 * rows, sizeof *m);
    memset(o, 0, sizeof *o * rows * dim);
    for (size_t i = 0; i < rows; i++) {
        m[i] = c->sinks[i % (size_t)c->shape.n_heads];
        m[rows + i] = 1;
    }
    struct attention_state s = {device_put(t, o, sizeof *o * rows * dim),
                                device_put(t, m, sizeof *m * rows),
                                device_put(t, m + rows, sizeof *m * rows)};
    free(o);
    free(m);
    return s;
}

float attend_v_scale(const struct attend_case *c) {
    return c->layout.v_scale == 0 ? 1 : c->layout.v_scale;
}

/* Fails unless o, m and l, with the sinks merged to them, make the same y and lse, host memory. */
static void expect_same_in_parts(struct test_device *t, const struct attend_case *c,
                                 const struct kv_views *kv, const struct attention_plan *plan,
                                 struct attention_variant v, const float *q, const float *y,
                                 const float *lse) {
    int rows = c->n_tokens * c->shape.n_heads, dim = c->shape.head_dim;
    size_t bytes = sizeof(float) * (size_t)rows;
    struct attention_state s = {device_poisoned(t, bytes * (size_t)dim), device_poisoned(t, bytes),
                                device_poisoned(t, bytes)};
    float *on_lse = device_poisoned(t, bytes);
    v.sinks = NULL;
    v.lse = NULL;
    v.m = s.m;
    v.l = s.l;
    t->ops->attend(t->dev, s.o, q, kv, plan, &v, ATTEND_SITE);
    if (c->sinks) {
        struct attention_state sinks = attend_state_of_sinks(t, c);
        t->ops->merge_states(t->dev, &s, &sinks, rows, dim);
    }
    t->ops->finish_states(t->dev, s.o, on_lse, v.lse_base, &s, attend_v_scale(c), rows, dim);
    device_expect_fault(t, -1, 0);
    device_expect_floats(t, "o, m and l, finished", y, s.o, rows, dim);
    device_expect_floats(t, "the logarithm of m and l", lse, on_lse, rows, 1);
}

void attend_run_planned(struct test_device *t, const struct attend_case *c,
                        const struct kv_views *kv, struct attention_plan *plan, float **y,
                        float **lse) {
    struct error err = {""};
    struct paged_batch batch = attend_batch(c);
    size_t rows = (size_t)c->n_tokens * (size_t)c->shape.n_heads;
    size_t bytes = sizeof(float) * rows * (size_t)c->shape.head_dim;
    float *on_y = device_poisoned(t, bytes), *on_lse = device_poisoned(t, sizeof(float) * rows);
    struct attention_variant v = attend_variant_on(t, c, on_lse), planned = v;
    if (c->other_plan)
        planned.window_left = 0;
    if (t->ops->attention_plan(t->dev, plan, &batch, &c->shape, &planned, &err))
        fail_msg("%s", err.text);
    const float *q = device_put(t, c->q, bytes);
    t->ops->attend(t->dev, on_y, q, kv, plan, &v, ATTEND_SITE);
    device_expect_fault(t, -1, 0);
    *y = device_get(t, on_y, bytes);
    *lse = device_get(t, on_lse, sizeof(float) * rows);
    if (c->n_tokens % 2)
        expect_same_in_parts(t, c, kv, plan, v, q, *y, *lse);
    device_clear(t);
}

void attend_run_over(struct test_device *t, const struct attend_case *c, const struct kv_views *kv,
                     float **y, float **lse) {
    struct error err = {""};
    struct attention_plan *plan = t->ops->attention_plan_new(t->dev, &err);
    if (!plan)
        fail_msg("%s", err.text);
    attend_run_planned(t, c, kv, plan, y, lse);
    t->ops->attention_plan_free(t->dev, plan);
}

float *attend_run_without_lse(struct test_device *t, const struct attend_case *c) {
    struct error err = {""};
    struct attention_plan *plan = t->ops->attention_plan_new(t->dev, &err);
    struct kv_views kv = attend_cache(t, c);
    struct paged_batch batch = attend_batch(c);
    size_t bytes =
        sizeof(float) * (size_t)c->n_tokens * (size_t)c->shape.n_heads * (size_t)c->shape.head_dim;
    struct attention_variant v = attend_variant_on(t, c, NULL);
    if (!plan || t->ops->attention_plan(t->dev, plan, &batch, &c->shape, &v, &err))
        fail_msg("%s", err.text);
    float *on_y = device_poisoned(t, bytes);
    t->ops->attend(t->dev, on_y, device_put(t, c->q, bytes), &kv, plan, &v, ATTEND_SITE);
    device_expect_fault(t, -1, 0);
    float *y = device_get(t, on_y, bytes);
    device_clear(t);
    t->ops->attention_plan_free(t->dev, plan);
    return y;
}

void attend_run(struct test_device *t, const struct attend_case *c, float **y, float **lse) {
    struct kv_views kv = attend_cache(t, c);
    attend_run_over(t, c, &kv, y, lse);
}

/* ---- float64 -----------------------------------------------------------------------------------
 */

static bool sees(const struct attend_case *c, int sequence, int query, int position) {
    int qo_len = c->qo_indptr[sequence + 1] - c->qo_indptr[sequence], kv_len = c->kv_len[sequence];
    const struct attention_variant *v = &c->variant;
    if (v->window_left >= 0 && (int64_t)position + qo_len + v->window_left < kv_len + query)
        return false;
    if (!v->mask_form)
        return !v->causal || position + qo_len <= kv_len + query;
    int64_t at = (int64_t)query * kv_len + position;
    const uint8_t *mask = c->mask + c->mask_offsets[sequence];
    return v->mask_form == MASK_BYTES ? mask[at] != 0 : (mask[at / 8] & 1 << at % 8) != 0;
}

/* A row of keys or values in float64: as the cache holds it, or as it was before. scale: of the
 * tensor. */
static void exact_row(double *out, const struct attend_case *c, bool stored, const float *row,
                      float scale) {
    enum kv_type t = c->layout.type;
    uint32_t largest = 0;
    for (int d = 0; d < c->shape.head_dim; d++)
        largest = num_magnitude(row[d]) > largest ? num_magnitude(row[d]) : largest;
    int e = kv_stored_exponent(t, largest);
    scale = scale == 0 ? 1 : scale;
    for (int d = 0; d < c->shape.head_dim; d++) {
        uint32_t bits = kv_bits(t, row[d], e, scale);
        if (!stored)
            out[d] = row[d];
        else if (kv_type_has_exponents(t))
            out[d] = ldexp(kv_integer(t, bits, 1), e - 15);
        else
            out[d] = (double)kv_float(t, bits) * scale;
    }
}

double attend_exact(const struct attend_case *c, bool stored, int sequence, int query, int head,
                    double *y, double *whole) {
    int dim = c->shape.head_dim, heads = c->shape.n_kv_heads, kv_len = c->kv_len[sequence];
    int kv_head = head / (c->shape.n_heads / heads);
    int qo_len = c->qo_indptr[sequence + 1] - c->qo_indptr[sequence];
    size_t token = (size_t)(c->qo_indptr[sequence] + query);
    const float *q = c->q + (token * (size_t)c->shape.n_heads + (size_t)head) * (size_t)dim;
    double *scores = host_array((size_t)kv_len + 1, sizeof *scores), max = -INFINITY, sum = 0;
    double *x = host_array((size_t)dim, sizeof *x); /* a key, or a value */
    for (int j = 0; j < kv_len; j++) {
        size_t row = ((size_t)(c->first_position[sequence] + j) * (size_t)heads + (size_t)kv_head) *
                     (size_t)dim;
        double s = 0, cap = c->variant.soft_cap;
        exact_row(x, c, stored, c->k + row, c->layout.k_scale);
        for (int d = 0; d < dim; d++)
            s += q[d] * x[d];
        s *= c->shape.scale;
        s = cap > 0 ? cap * tanh(s / cap) : s;
        s += c->alibi_slopes ? (double)c->alibi_slopes[head] * (j - (kv_len - qo_len + query)) : 0;
        scores[j] = sees(c, sequence, query, j) ? s : -INFINITY;
        max = scores[j] > max ? scores[j] : max;
    }
    if (c->sinks)
        max = c->sinks[head] > max ? c->sinks[head] : max;
    memset(y, 0, sizeof *y * (size_t)dim);
    memset(whole, 0, sizeof *whole * (size_t)dim);
    for (int j = 0; j < kv_len; j++) {
        size_t row = ((size_t)(c->first_position[sequence] + j) * (size_t)heads + (size_t)kv_head) *
                     (size_t)dim;
        double p = scores[j] > -INFINITY ? exp(scores[j] - max) : 0;
        sum += p;
        exact_row(x, c, stored, c->v + row, c->layout.v_scale);
        for (int d = 0; d < dim; d++) {
            y[d] += p * x[d];
            whole[d] += p * fabs(x[d]);
        }
    }
    sum += c->sinks ? exp((double)c->sinks[head] - max) : 0;
    for (int d = 0; d < dim && sum > 0; d++) {
        y[d] /= sum;
        whole[d] /= sum;
    }
    free(scores);
    free(x);
    return sum > 0 ? max + log(sum) : -INFINITY;
}

/* far: relative to the row's norm, and of the logarithm; beyond it is a mistake. */
static struct attend_error expect_near(const struct attend_case *c, bool stored, int token,
                                       int head, const float *y, const float *lse,
                                       struct attend_error far) {
    int dim = c->shape.head_dim, i = 0;
    while (c->qo_indptr[i + 1] <= token)
        i++;
    double *exact = host_array(2 * (size_t)dim, sizeof *exact), *whole = exact + dim;
    double norm = 0, whole_norm = 0, error = 0;
    double want_lse = attend_exact(c, stored, i, token - c->qo_indptr[i], head, exact, whole);
    size_t row = (size_t)token * (size_t)c->shape.n_heads + (size_t)head;
    double got_lse = lse[row] / (c->variant.lse_base == LSE_2 ? 1 / log(2) : 1);
    for (int d = 0; d < dim; d++) {
        norm += exact[d] * exact[d];
        whole_norm += whole[d] * whole[d];
        error += pow(y[row * (size_t)dim + (size_t)d] - exact[d], 2);
    }
    free(exact);
    char name[256];
    attend_describe(name, sizeof name, c, "attention");
    if (norm == 0 ? error > 0 : !(error <= norm * far.row * far.row))
        fail_msg("%s: sequence %d, query %d, head %d: error %g, norm %g", name, i,
                 token - c->qo_indptr[i], head, sqrt(error), sqrt(norm));
    if (isinf(want_lse) ? lse[row] != want_lse : !(fabs(got_lse - want_lse) <= far.lse))
        fail_msg("%s: sequence %d, query %d, head %d: lse %g, want %g", name, i,
                 token - c->qo_indptr[i], head, got_lse, want_lse);
    return (struct attend_error){norm > 0 ? sqrt(error / norm) : -1,
                                 isinf(want_lse) ? -1 : fabs(got_lse - want_lse),
                                 norm > 0 ? sqrt(error / whole_norm) : -1};
}

struct attend_errors attend_expect_close(const struct attend_case *c, int token, int head,
                                         const float *y, const float *lse) {
    const struct attend_error near = {1e-2, 1e-2, 1e-2}, of_few_bits = {2, 2, 2};
    return (struct attend_errors){
        expect_near(c, false, token, head, y, lse, c->layout.type ? of_few_bits : near),
        expect_near(c, true, token, head, y, lse, near)};
}

/* ---- comparing ---------------------------------------------------------------------------------
 */

void attend_describe(char *out, size_t size, const struct attend_case *c, const char *what) {
    static const char *const orders[] = {"NHD", "HND", "vLLM's layout"};
    const struct attention_variant *v = &c->variant;
    snprintf(
        out, size,
        "%s of %d sequences, %s, %s%s%s, pages of %d, %d/%d heads of %d%s, window %d, cap %g, mask "
        "%d%s%s",
        what, c->n, kv_type_name(c->layout.type), orders[c->layout.order],
        c->layout.one_tensor ? " in one tensor" : "", c->ragged ? ", ragged" : "",
        c->layout.page_size, c->shape.n_heads, c->shape.n_kv_heads, c->shape.head_dim,
        v->causal ? ", causal" : "", v->window_left, (double)v->soft_cap, (int)v->mask_form,
        c->alibi_slopes ? ", ALiBi" : "", c->sinks ? ", sinks" : "");
}

void attend_expect_same(const struct attend_case *c, const char *what, const float *want,
                        const float *got, int cols) {
    char name[256];
    attend_describe(name, sizeof name, c, what);
    size_t n_cols = (size_t)c->shape.n_heads * (size_t)cols;
    struct tensor_view w = {name, -1, (size_t)c->n_tokens, n_cols, ELEMENT_FLOAT, want}, g = w;
    g.data = got;
    assert_same_bits(&w, &g);
}

void attend_expect_as_reference(const struct attend_case *c, const float *y, const float *lse) {
    float *want, *want_lse;
    attend_run(device_reference(), c, &want, &want_lse);
    attend_expect_same(c, "attention", want, y, c->shape.head_dim);
    attend_expect_same(c, "log of the sum", want_lse, lse, 1);
    free(want);
    free(want_lse);
}

void attend_expect_equal(struct test_device *t, const struct attend_case *a,
                         const struct attend_case *b, const char *why) {
    float *want, *want_lse, *y, *lse;
    char what[64];
    attend_run(t, a, &want, &want_lse);
    attend_run(t, b, &y, &lse);
    snprintf(what, sizeof what, "attention with %s", why);
    attend_expect_same(b, what, want, y, a->shape.head_dim);
    snprintf(what, sizeof what, "log of the sum with %s", why);
    attend_expect_same(b, what, want_lse, lse, 1);
    free(want);
    free(want_lse);
    free(y);
    free(lse);
}
