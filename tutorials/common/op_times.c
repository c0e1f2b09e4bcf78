#include "tutorials/common/op_times.h"

#include <stdlib.h>

/* The ops of a forward pass, and their arguments. */
#define OPS(X)                                                                                     \
    X(embed, (struct device * d, float *y, const int32_t *ids, const struct matrix *w, int n),     \
      (d, y, ids, w, n))                                                                           \
    X(take_rows, (struct device * d, float *y, const float *x, const int32_t *rows, int n, int m), \
      (d, y, x, rows, n, m))                                                                       \
    X(snap_rows, (struct device * d, struct bfp_rows y, const float *x, int n, int m, int site),   \
      (d, y, x, n, m, site))                                                                       \
    X(linear, (struct device * d, float *y, struct bfp_rows x, const struct matrix *w, int n),     \
      (d, y, x, w, n))                                                                             \
    X(linear_parts,                                                                                \
      (struct device * d, const struct linear_part *parts, int n_parts, struct bfp_rows x, int n), \
      (d, parts, n_parts, x, n))                                                                   \
    X(add_bias, (struct device * d, float *y, const float *b, int n, int m), (d, y, b, n, m))      \
    X(rmsnorm,                                                                                     \
      (struct device * d, float *y, const float *x, const float *g, int n, int m, int per,         \
       double eps, int site),                                                                      \
      (d, y, x, g, n, m, per, eps, site))                                                          \
    X(add_rmsnorm,                                                                                 \
      (struct device * d, float *y, struct bfp_rows q, float *x, const float *b, const float *g,   \
       int n, int m, double eps, int site_x, int site_y),                                          \
      (d, y, q, x, b, g, n, m, eps, site_x, site_y))                                               \
    X(rope,                                                                                        \
      (struct device * d, float *x, const int32_t *at, const float *c, const float *s, int n,      \
       int heads, int dim),                                                                        \
      (d, x, at, c, s, n, heads, dim))                                                             \
    X(norm_rope,                                                                                   \
      (struct device * d, const struct head_rows *q, const struct head_rows *k, const float *v,    \
       const struct kv_target *to, const int32_t *at, const float *c, const float *s, int n,       \
       int dim, double eps),                                                                       \
      (d, q, k, v, to, at, c, s, n, dim, eps))                                                     \
    X(kv_append,                                                                                   \
      (struct device * d, const struct kv_views *kv, const float *k, const float *v,               \
       const int64_t *slots, int n, int page, int heads, int dim, int site_k, int site_v),         \
      (d, kv, k, v, slots, n, page, heads, dim, site_k, site_v))                                   \
    X(attend,                                                                                      \
      (struct device * d, float *y, const float *q, const struct kv_views *kv,                     \
       const struct attention_plan *plan, const struct attention_variant *variant, int site),      \
      (d, y, q, kv, plan, variant, site))                                                          \
    X(silu_mul, (struct device * d, float *y, const float *gate, const float *up, size_t n),       \
      (d, y, gate, up, n))                                                                         \
    X(silu_mul_snap,                                                                               \
      (struct device * d, struct bfp_rows y, float *gate, const float *up, int n, int m,           \
       int site),                                                                                  \
      (d, y, gate, up, n, m, site))                                                                \
    X(add, (struct device * d, float *y, const float *x, const float *z, size_t n),                \
      (d, y, x, z, n))                                                                             \
    X(sample,                                                                                      \
      (struct device * d, int32_t * ids, const float *l, const struct sampling *how, int n,        \
       int vocab, int site),                                                                       \
      (d, ids, l, how, n, vocab, site))

enum op {
#define NUMBER(name, parameters, arguments) OP_##name,
    OPS(NUMBER)
#undef NUMBER
        N_OPS
};

static const char *const names[N_OPS] = {
#define NAME(name, parameters, arguments) #name,
    OPS(NAME)
#undef NAME
};

static const struct ops *inner; /* the device's own */
static struct {
    long calls;
    double seconds;
} times[N_OPS];

/* Waits for the device, whatever it is: reading nothing does. */
static double wait(struct device *dev) {
    char nothing;
    inner->download(dev, &nothing, NULL, 0);
    return clock_now();
}

#define TIMED(name, parameters, arguments)                                                         \
    static void timed_##name parameters {                                                          \
        double start = wait(d);                                                                    \
        inner->name arguments;                                                                     \
        times[OP_##name].seconds += wait(d) - start;                                               \
        times[OP_##name].calls++;                                                                  \
    }
OPS(TIMED)
#undef TIMED

void op_times_start(struct demo *demo) {
    static struct ops timed;
    inner = demo->dev->ops;
    timed = *inner;
#define REPLACE(name, parameters, arguments) timed.name = timed_##name;
    OPS(REPLACE)
#undef REPLACE
    for (int i = 0; i < N_OPS; i++) {
        times[i].calls = 0;
        times[i].seconds = 0;
    }
    demo->dev->ops = &timed;
    workspace_use_graphs(demo->generator.ws, false); /* a recording cannot wait */
}

void op_times_show(struct demo *demo, const char *title, long n_passes) {
    static const struct column columns[] = {{"op", "op", -1, 0},
                                            {"calls", "calls a pass", 1, 0},
                                            {"ms", "ms a pass", 3, 0},
                                            {"share", "of all %", 1, 0}};
    double all = 0;
    demo->dev->ops = inner;
    workspace_use_graphs(demo->generator.ws, true);
    for (int i = 0; i < N_OPS; i++)
        all += times[i].seconds;
    json_t *rows = json_array();
    for (int i = 0; i < N_OPS; i++)
        if (times[i].calls && n_passes)
            json_array_append_new(rows, json_pack("[sfff]", names[i],
                                                  (double)times[i].calls / (double)n_passes,
                                                  times[i].seconds * 1e3 / (double)n_passes,
                                                  times[i].seconds / all * 100));
    demo_table(demo, "op_times", title, columns, 4, rows);
}
