#include "tests/pair.h"

#include "tests/assert_bits.h"

#include <stdlib.h>
#include <string.h>

/* Behind inputs and in-place arrays, and behind outputs. As floats they are finite: of two NaNs, a
 * sum keeps the first, and what was written there would look unharmed. */
enum { INPUT_GUARD = 0x4b, OUTPUT_GUARD = 0xd2 };

int pair_group_open(void **state) {
    static struct pair p;
    static struct ops oracle;
    const struct ops *ops = device_under_test();
    oracle = oracle_ops();
    memset(&p, 0, sizeof p);
    device_open(&p.side[0], &ref_ops, 2);
    if (ops == &ref_ops)
        p.side[0].ops = &oracle;
    device_open(&p.side[1], ops, 2);
    p.is_small = ops == &ref_ops || device_is_emulated();
    *state = &p;
    return 0;
}

int pair_group_close(void **state) {
    struct pair *p = *state;
    for (int s = 0; s < N_SIDES; s++)
        device_close(&p->side[s]);
    return 0;
}

void pair_begin(struct pair *p, const char *op, uint64_t seed) {
    if (kernel_under_test() > p->side[1].ops->versions(op))
        skip();
    p->op = op;
    p->random.state = seed;
    const char *most = getenv("SAMEBITS_SHAPES"); /* the last ones: for tools that make all slow */
    p->n_shapes = p->first_shape = most && atoi(most) < N_SHAPES ? N_SHAPES - atoi(most) : 0;
}

void pair_next(struct pair *p) {
    for (int s = 0; s < N_SIDES; s++) {
        device_expect_fault(&p->side[s], -1, 0);
        device_clear(&p->side[s]);
    }
    while (p->n_host)
        free(p->host[--p->n_host]);
    p->n_shapes++;
}

void pair_report(const struct pair *p) {
    print_message("%s: %d shapes, %s against %s, 0 bits differ\n", p->op,
                  p->n_shapes - p->first_shape, p->side[1].ops->name, p->side[0].ops->name);
}

/* ---- sizes and data ---------------------------------------------------------------------------
 */

int random_size(struct random *r, int max) {
    static const int sizes[] = {1,    2,    3,    7,    15,   16,   17,   31,   32,   33,
                                61,   63,   64,   65,   97,   127,  128,  129,  251,  255,
                                256,  257,  509,  511,  512,  513,  1021, 1023, 1024, 1025,
                                2047, 2048, 2049, 4095, 4096, 4097, 8191, 8192, 8193};
    int n = (int)(sizeof sizes / sizeof *sizes);
    while (sizes[n - 1] > max && n > 1)
        n--;
    if (random_int(r, 0, 1))
        return sizes[random_int(r, 0, n - 1)];
    for (int halvings = random_int(r, 0, 3); halvings && max > 3; halvings--)
        max /= 2;
    return random_int(r, 1, max);
}

void *pair_array(struct pair *p, size_t n, size_t element_size) {
    assert_true(p->n_host < MAX_HOST_ARRAYS);
    unsigned char *data = host_array(n * element_size + GUARD, 1);
    memset(data + n * element_size, INPUT_GUARD, GUARD);
    return p->host[p->n_host++] = data;
}

static float random_sign(struct random *r, float x) {
    return random_int(r, 0, 1) ? -x : x;
}

static void fill_row(struct random *r, float *x, int n, int limit) {
    int kind = random_int(r, 0, N_DISTRIBUTIONS + 4);
    float equal = random_value(r, NORMAL);
    for (int i = 0; i < n; i++)
        switch (kind - N_DISTRIBUTIONS) {
        case 0:
            x[i] = random_sign(r, 0);
            break;
        case 1:
            x[i] = equal;
            break;
        case 2:
            x[i] = random_sign(r, ldexpf((float)random_int(r, 0, 1 << 23), -149));
            break;
        case 3:
            x[i] = random_normal(r);
            break;
        case 4:
            x[i] = -0.0f;
            break;
        default:
            x[i] = random_value(r, kind == HUGE_VALUES ? NORMAL : (enum distribution)kind);
            x[i] = kind == HUGE_VALUES ? ldexpf(x[i], limit) : x[i];
        }
    if (kind == N_DISTRIBUTIONS + 3)
        x[random_int(r, 0, n - 1)] = random_sign(r, ldexpf(1.5f, limit));
}

float *pair_floats(struct pair *p, int n_rows, int n_cols, int limit) {
    float *x = pair_array(p, (size_t)n_rows * (size_t)n_cols, sizeof *x);
    for (int row = 0; row < n_rows; row++)
        fill_row(&p->random, x + (size_t)row * (size_t)n_cols, n_cols, limit);
    return x;
}

struct bfp_rows pair_rows(struct pair *p, int n_rows, int n_cols, int spread) {
    struct random *r = &p->random;
    struct bfp_rows rows = {pair_array(p, (size_t)n_rows * (size_t)n_cols, sizeof *rows.mantissas),
                            pair_array(p, (size_t)n_rows, 1)};
    int16_t *q = rows.mantissas;
    for (int row = 0; row < n_rows; row++, q += n_cols) {
        int low = spread > 100 ? -100 : -spread, high = spread > 127 ? 127 : spread;
        rows.exponents[row] = (int8_t)random_int(r, low, high);
        int kind = random_int(r, 0, 7); /* 0: zeros; 1: the largest mantissa; 2: its negative */
        for (int i = 0; i < n_cols; i++) {
            int any = random_int(r, -32639, 32639);
            q[i] = (int16_t)(kind == 0 ? 0 : kind < 3 ? 32639 : any >> (kind - 3));
            q[i] = (int16_t)(kind == 2 ? -q[i] : q[i]);
        }
    }
    return rows;
}

int32_t *pair_ids(struct pair *p, int n, int end) {
    int32_t *ids = pair_array(p, (size_t)n, sizeof *ids);
    for (int i = 0; i < n; i++)
        ids[i] = random_int(&p->random, 0, end - 1);
    ids[n - 1] = 0;
    ids[n / 2] = end - 1;
    return ids;
}

/* ---- devices ----------------------------------------------------------------------------------
 */

void *pair_put(struct test_device *t, const void *host, size_t n, size_t element_size) {
    return device_put(t, host, n * element_size + GUARD);
}

struct bfp_rows pair_put_rows(struct test_device *t, struct bfp_rows host, int n_rows, int n_cols) {
    size_t n = (size_t)n_rows * (size_t)n_cols;
    return (struct bfp_rows){pair_put(t, host.mantissas, n, sizeof *host.mantissas),
                             pair_put(t, host.exponents, (size_t)n_rows, 1)};
}

struct matrix pair_put_matrix(struct test_device *t, struct bfp_rows w, int n, int k, int split) {
    struct matrix matrix;
    struct error err = {""};
    if (t->ops->matrix_create(t->dev, &matrix, n, k, &err))
        fail_msg("%s", err.text);
    t->ops->matrix_put(t->dev, &matrix, 0, split, w.mantissas, w.exponents);
    t->ops->matrix_put(t->dev, &matrix, split, n - split, w.mantissas + (size_t)split * (size_t)k,
                       w.exponents + split);
    return matrix;
}

void *pair_output(struct test_device *t, size_t n, size_t element_size) {
    unsigned char *host = host_array(n * element_size + GUARD, 1);
    memset(host + n * element_size, OUTPUT_GUARD, GUARD);
    void *data = device_put(t, host, n * element_size + GUARD);
    free(host);
    return data;
}

static size_t size_of(enum element type) {
    return type == ELEMENT_INT8 ? 1 : type == ELEMENT_INT16 ? 2 : 4; /* doubles are no output */
}

/* The bytes behind an output are all of its kind. */
static void expect_guard(const char *name, const unsigned char *guard) {
    bool whole = guard[0] == INPUT_GUARD || guard[0] == OUTPUT_GUARD;
    for (int i = 1; i < GUARD; i++)
        whole = whole && guard[i] == guard[0];
    if (!whole)
        fail_msg("%s: written behind the end of the output", name);
}

void pair_expect(struct pair *p, const char *name, void *const y[N_SIDES], int n_rows, int n_cols,
                 enum element type) {
    size_t bytes = size_of(type) * (size_t)n_rows * (size_t)n_cols;
    struct tensor_view view[N_SIDES];
    void *host[N_SIDES];
    for (int s = 0; s < N_SIDES; s++) {
        host[s] = device_get(&p->side[s], y[s], bytes + GUARD);
        expect_guard(name, (unsigned char *)host[s] + bytes);
        view[s] = (struct tensor_view){name, -1, (size_t)n_rows, (size_t)n_cols, type, host[s]};
    }
    char report[512];
    if (compare_bits(&view[0], &view[1], report, sizeof report))
        fail_msg("shape %d, %d x %d: %s", p->n_shapes + 1, n_rows, n_cols, report);
    free(host[0]);
    free(host[1]);
}

void pair_expect_floats(struct pair *p, const char *name, float *const y[N_SIDES], int n_rows,
                        int n_cols) {
    void *const data[N_SIDES] = {y[0], y[1]};
    pair_expect(p, name, data, n_rows, n_cols, ELEMENT_FLOAT);
}

void pair_expect_rows(struct pair *p, const char *name, const struct bfp_rows y[N_SIDES],
                      int n_rows, int n_cols) {
    void *const exponents[N_SIDES] = {y[0].exponents, y[1].exponents};
    void *const mantissas[N_SIDES] = {y[0].mantissas, y[1].mantissas};
    pair_expect(p, name, exponents, n_rows, 1, ELEMENT_INT8);
    pair_expect(p, name, mantissas, n_rows, n_cols, ELEMENT_INT16);
}
