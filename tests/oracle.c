#include "tests/oracle.h"

#include "model/attention/numerics.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* ---- rounding -------------------------------------------------------------------------------- */

/* n / 2^shift to the nearest integer, ties to even. */
static uint64_t divide_by_power(uint64_t n, int shift) {
    if (shift <= 0)
        return n << -shift;
    if (shift > 64)
        return 0;
    unsigned __int128 wide = n, unit = (unsigned __int128)1 << shift;
    uint64_t quotient = (uint64_t)(wide / unit);
    unsigned __int128 twice = wide % unit * 2;
    if (twice > unit || (twice == unit && quotient % 2 == 1))
        quotient++;
    return quotient;
}

float oracle_round(int64_t n, int exponent) {
    uint64_t magnitude = n < 0 ? -(uint64_t)n : (uint64_t)n, sign = n < 0 ? 1 : 0;
    int length = 0; /* 2^(length-1) <= magnitude < 2^length */
    while (length < 64 && magnitude >> length)
        length++;
    uint64_t bits = 0;
    if (magnitude && length + exponent > 128) {
        bits = 0x7f800000; /* infinity */
    } else if (magnitude) {
        int unit = length + exponent - 24; /* exponent of the last place of the result */
        if (unit < -149)
            unit = -149;
        /* A carry out of the 24 bits arrives in the exponent field, where it belongs: the next
         * power of two, up to infinity. */
        uint64_t mantissa = divide_by_power(magnitude, unit - exponent);
        bits = mantissa + ((uint64_t)(unit + 149) << 23);
    }
    uint32_t word = (uint32_t)(sign << 31 | bits);
    float y;
    memcpy(&y, &word, sizeof y);
    return y;
}

/* |y - exact| in units of the last place of a float of the size of `exact`, which libm's double
 * gives to within 2^-28 of that unit. */
static double error_in_ulp(float y, double exact) {
    double size = fabs(exact);
    uint64_t bits;
    memcpy(&bits, &size, sizeof bits);
    int exponent = (int)(bits >> 52) - 1023;
    if (exponent > 127)
        exponent = 127;
    if (exponent < -126)
        exponent = -126;
    double value = isinf(y) ? copysign(0x1p128, (double)y) : (double)y;
    return fabs(value - exact) * num_pow2(23 - exponent);
}

double oracle_exp_error(float x, float y) {
    double exact = x > 88.8f ? 0x1p128 : x < -200 ? 0 : fmin(exp((double)x), 0x1p128);
    return error_in_ulp(y, exact);
}

double oracle_tanh_error(float x, float y) {
    return error_in_ulp(y, tanh((double)x));
}

double oracle_log_error(float x, float y) {
    return error_in_ulp(y, log((double)x));
}

double oracle_probability_error(float t, float p) {
    if (!(t > -127))
        return p == 0 && !signbit(p) ? 0 : INFINITY;
    if (!(p > 0 && p <= 1))
        return INFINITY;
    if (t < -126)
        return p < 0x1p-125f ? 0 : INFINITY;
    long double exact = exp2l((long double)t);
    return (double)(fabsl(p - exact) / exact);
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* x * 2^shift to the nearest integer, ties to even; exact in double because |x| is a float. */
static int64_t scaled_integer(float x, int shift) {
    return llrint(ldexp((double)x, shift));
}

int oracle_snap(int16_t *q, const float *x, int n) {
    float largest = 0;
    bool finite = true;
    for (int i = 0; i < n; i++) {
        finite = finite && isfinite(x[i]);
        largest = fmaxf(largest, fabsf(x[i]));
        q[i] = 0;
    }
    if (!finite)
        return ORACLE_NO_EXPONENT;
    int e = -100;
    while (e <= 127 && ldexp((double)largest, 15 - e) > 40000)
        e++; /* far too large for llrint, too */
    while (e <= 127 && scaled_integer(largest, 15 - e) > 32639)
        e++;
    if (e > 127)
        return ORACLE_NO_EXPONENT;
    for (int i = 0; i < n; i++)
        q[i] = (int16_t)scaled_integer(x[i], 15 - e);
    return e;
}

void oracle_snap_rows(struct bfp_rows y, const float *x, int n_rows, int n_cols) {
    for (int row = 0; row < n_rows; row++) {
        size_t at = (size_t)row * (size_t)n_cols;
        y.exponents[row] = (int8_t)oracle_snap(y.mantissas + at, x + at, n_cols);
    }
}

int64_t oracle_floor_256(int64_t sum) {
    int64_t rest = sum % 256; /* the sign of sum */
    return sum - rest - (rest < 0 ? 256 : 0);
}

static int64_t dot(const int16_t *a, const int16_t *b, int n) {
    int64_t sum = 0;
    for (int i = 0; i < n; i++)
        sum += (int64_t)a[i] * b[i];
    return sum;
}

void oracle_linear(float *y, struct bfp_rows x, struct bfp_rows w, int n_tokens, int n, int k) {
    for (int t = 0; t < n_tokens; t++)
        for (int i = 0; i < n; i++)
            y[(size_t)t * (size_t)n + (size_t)i] = oracle_round(
                dot(x.mantissas + (size_t)t * (size_t)k, w.mantissas + (size_t)i * (size_t)k, k),
                x.exponents[t] + w.exponents[i] - 30);
}

void oracle_embed(float *y, const int32_t *ids, struct bfp_rows w, int n_ids, int k) {
    for (int t = 0; t < n_ids; t++)
        for (int i = 0; i < k; i++)
            y[(size_t)t * (size_t)k + (size_t)i] = oracle_round(
                w.mantissas[(size_t)ids[t] * (size_t)k + (size_t)i], w.exponents[ids[t]] - 15);
}

void oracle_rmsnorm(float *y, const float *x, const float *gain, int n_rows, int n_cols,
                    double eps) {
    int16_t *q = malloc(sizeof *q * (size_t)n_cols);
    for (int row = 0; row < n_rows; row++) {
        const float *from = x + (size_t)row * (size_t)n_cols;
        int e = oracle_snap(q, from, n_cols);
        double ms = ldexp((double)dot(q, q, n_cols), 2 * (e - 15)) / n_cols;
        double r = 1 / sqrt(ms + eps);
        for (int i = 0; i < n_cols; i++) {
            volatile float product = from[i] * (float)r; /* the first of the two roundings */
            y[(size_t)row * (size_t)n_cols + (size_t)i] = product * gain[i];
        }
    }
    free(q);
}

void oracle_rope(float *x, const int32_t *positions, const float *cos_table, const float *sin_table,
                 int n_tokens, int n_heads, int head_dim) {
    int half = head_dim / 2;
    for (int t = 0; t < n_tokens; t++)
        for (int h = 0; h < n_heads; h++)
            for (int d = 0; d < half; d++) {
                size_t low =
                    ((size_t)t * (size_t)n_heads + (size_t)h) * (size_t)head_dim + (size_t)d;
                size_t high = low + (size_t)half;
                size_t angle = (size_t)positions[t] * (size_t)half + (size_t)d;
                volatile float a = x[low] * cos_table[angle], b = x[high] * sin_table[angle];
                volatile float c = x[high] * cos_table[angle], s = x[low] * sin_table[angle];
                x[low] = a - b;
                x[high] = c + s;
            }
}

void oracle_silu_mul(float *y, const float *gate, const float *up, size_t count) {
    for (size_t i = 0; i < count; i++) {
        volatile float below = 1.0f + num_exp(-gate[i]);
        volatile float silu = gate[i] / below;
        y[i] = silu * up[i];
    }
}

/* ---- attention ------------------------------------------------------------------------------- */

/* One query row of one head: its snapped query and the running (m, l, o). The merge starts from
 * the state of a query that has seen nothing: m = -inf, l = 0, o = 0. */
struct query {
    const int16_t *q;
    int exponent, kv_head;
    float m, l, *o;
};

/* An exact sum of products of mantissas, floored, and then scaled: each of the two steps to float32
 * rounds once. */
static float scaled_sum(int64_t sum, int exponent) {
    return (float)ldexp((double)oracle_round(oracle_floor_256(sum), 0), exponent);
}

/* The tile's weights, snapped; its m and l. */
static int tile_weights(int16_t *weights, float *m, float *l, const struct query *query,
                        const struct kv_layer *kv, const struct attention_shape *shape, int first,
                        int n) {
    double natural = ldexp(shape->scale, query->exponent + 8);
    float binary = (float)(natural * 1.4426950408889634 / 128);
    float u[256], w[256], largest = -INFINITY;
    for (int j = 0; j < n; j++) {
        size_t row = (size_t)(first + j) * (size_t)shape->n_kv_heads + (size_t)query->kv_head;
        int64_t product = dot(query->q, kv->k + row * (size_t)shape->head_dim, shape->head_dim);
        u[j] = scaled_sum(product, kv->k_exponents[row] - 38);
        largest = fmaxf(largest, u[j]);
    }
    *m = (float)(largest * natural);
    int64_t units = 0;
    for (int j = 0; j < n; j++) {
        size_t row = (size_t)(first + j) * (size_t)shape->n_kv_heads + (size_t)query->kv_head;
        float p = num_probability(u[j], num_window_of(largest, binary));
        units += scaled_integer(p, 23);
        double weight = ldexp((double)p, kv->v_exponents[row]);
        w[j] = weight < 0x1p-126 ? 0 : (float)weight;
    }
    *l = oracle_round(units, -23);
    return oracle_snap(weights, w, n);
}

static void add_tile(struct query *query, const struct kv_layer *kv,
                     const struct attention_shape *shape, int first, int n) {
    int16_t weights[256];
    float tile_m, tile_l;
    int e = tile_weights(weights, &tile_m, &tile_l, query, kv, shape, first, n);
    float m = fmaxf(query->m, tile_m);
    float a = num_exp(query->m - m), b = num_exp(tile_m - m);
    volatile float old = query->l * a;
    query->l = fmaf(tile_l, b, old);
    query->m = m;
    for (int d = 0; d < shape->head_dim; d++) {
        int64_t sum = 0;
        for (int j = 0; j < n; j++) {
            size_t row = (size_t)(first + j) * (size_t)shape->n_kv_heads + (size_t)query->kv_head;
            sum += (int64_t)weights[j] * kv->v[row * (size_t)shape->head_dim + (size_t)d];
        }
        old = query->o[d] * a;
        query->o[d] = fmaf(scaled_sum(sum, e - 30), b, old);
    }
}

void oracle_attention(float *y, const float *q, const struct kv_layer *kv, int n_tokens, int kv_len,
                      const struct attention_shape *shape) {
    int16_t *mantissas = malloc(sizeof *mantissas * (size_t)shape->head_dim);
    for (int row = 0; row < n_tokens * shape->n_heads; row++) {
        int token = row / shape->n_heads, head = row % shape->n_heads;
        int sees = kv_len - n_tokens + token + 1;
        size_t at = (size_t)row * (size_t)shape->head_dim;
        struct query query = {.q = mantissas,
                              .kv_head = head / (shape->n_heads / shape->n_kv_heads),
                              .m = -INFINITY,
                              .o = y + at};
        query.exponent = oracle_snap(mantissas, q + at, shape->head_dim);
        for (int d = 0; d < shape->head_dim; d++)
            query.o[d] = 0;
        for (int first = 0; first < sees; first += 256)
            add_tile(&query, kv, shape, first, sees - first < 256 ? sees - first : 256);
        for (int d = 0; sees > 0 && d < shape->head_dim; d++)
            query.o[d] /= query.l;
    }
    free(mantissas);
}

/* ---- sampling -------------------------------------------------------------------------------- */

uint32_t oracle_sampling_weight(float logit, float max, float temperature) {
    volatile float below = logit - max;
    return (uint32_t)scaled_integer(num_exp(below / temperature), 30);
}

/* Sorting these ascending sorts tokens by (logit descending, id ascending). */
static uint64_t sort_key(float logit, int id) {
    float x = logit + 0.0f; /* -0 and +0 are a tie */
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    uint32_t ascending = bits >> 31 ? ~bits : bits | 0x80000000u;
    return (uint64_t)~ascending << 32 | (uint32_t)id;
}

static int ascending(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Whether sum >= share * total, exactly; 0 <= share, sum and total below 2^63. */
static bool reaches(uint64_t sum, float share, uint64_t total) {
    int exponent;
    int64_t mantissa = (int64_t)ldexp(frexp(share, &exponent), 24);
    int shift = 24 - exponent; /* share = mantissa / 2^shift */
    if (shift > 64)
        return sum > 0 || mantissa == 0;
    unsigned __int128 right = (unsigned __int128)(uint64_t)mantissa * total;
    return shift < 0 ? false : (unsigned __int128)sum << shift >= right;
}

int oracle_kept(unsigned char *kept, const float *logits, const struct sampling *how, int vocab) {
    uint64_t *order = malloc(sizeof *order * (size_t)vocab);
    for (int i = 0; i < vocab; i++) {
        order[i] = sort_key(logits[i], i);
        kept[i] = 0;
    }
    qsort(order, (size_t)vocab, sizeof *order, ascending);
    float max = logits[(uint32_t)order[0]];
    int n = how->top_k > 0 && how->top_k < vocab ? how->top_k : vocab;
    uint64_t total = 0, sum = 0;
    for (int i = 0; i < n; i++)
        total += oracle_sampling_weight(logits[(uint32_t)order[i]], max, how->temperature);
    int n_kept = 0;
    while (n_kept < n) {
        uint32_t id = (uint32_t)order[n_kept++];
        kept[id] = 1;
        sum += oracle_sampling_weight(logits[id], max, how->temperature);
        if (how->top_p < 1 && reaches(sum, how->top_p, total))
            break;
    }
    free(order);
    return n_kept;
}

int32_t oracle_sample(const float *logits, const struct sampling *how, int vocab) {
    int32_t best = 0;
    for (int i = vocab - 1; i >= 0; i--)
        best = logits[i] >= logits[best] ? i : best;
    if (!(how->temperature > 0))
        return best;
    size_t n = (unsigned)vocab; /* so that GCC 13 does not think of negative ones */
    unsigned char *kept = malloc(n);
    uint64_t *until = malloc(sizeof *until * n), total = 0;
    oracle_kept(kept, logits, how, vocab);
    for (int i = 0; i < vocab; i++)
        until[i] = total +=
            kept[i] ? oracle_sampling_weight(logits[i], logits[best], how->temperature) : 0;
    struct philox_key key = {{(uint32_t)how->seed, how->sample}};
    struct philox_block block =
        num_philox(key, (struct philox_block){{how->position, (uint32_t)(how->seed >> 32), 0, 0}});
    uint64_t random = ((uint64_t)block.word[1] << 32) + block.word[0];
    uint64_t r = (uint64_t)((unsigned __int128)random * total >> 64);
    int32_t id = 0;
    while (until[id] <= r)
        id++;
    free(until);
    free(kept);
    return id;
}
