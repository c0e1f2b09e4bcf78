/* functions.jsonl: exp, silu, tanh, log and probability. Computed on the host, from the source that
 * every device shares. */
#include "tests/vectors.h"

#include "model/attention/numerics.h"

#include <math.h>

enum { N_RANDOM = 60 };

/* Ends of ranges, and where a function is cut off or changes its way. */
static const float edges[] = {0.0f,
                              -0.0f,
                              0x1p-149f,
                              -0x1p-149f,
                              0x1.8p-127f,
                              0x1p-126f,
                              -0x1p-126f,
                              1e-30f,
                              -1e-30f,
                              0x1p-24f,
                              -0x1p-24f,
                              0.34657359f,
                              0.3465736f,
                              -0.34657359f,
                              -0.3465736f,
                              0.5f,
                              -0.5f,
                              0.6666667f,
                              0.6666666f,
                              1.0f,
                              0x1.fffffep-1f,
                              0x1.000002p0f,
                              -1.0f,
                              1.3333334f,
                              1.3333333f,
                              2.0f,
                              -2.0f,
                              8.5f,
                              9.0f,
                              9.02f,
                              9.25f,
                              0x1.27fffep3f,
                              -9.25f,
                              88.0f,
                              88.72283f,
                              88.72284f,
                              89.0f,
                              89.5f,
                              -87.0f,
                              -87.336544f,
                              -88.0f,
                              -100.0f,
                              -103.9f,
                              -103.97f,
                              -104.0f,
                              -105.0f,
                              -106.0f,
                              1e10f,
                              -1e10f,
                              0x1.fffffep127f,
                              -0x1.fffffep127f,
                              INFINITY,
                              -INFINITY,
                              NAN};
enum { N_EDGES = sizeof edges / sizeof *edges, N_ARGUMENTS = N_EDGES + N_RANDOM };

static void function(struct vectors *v, const char *op, float (*f)(float), bool positive) {
    float x[N_ARGUMENTS], y[N_ARGUMENTS];
    memcpy(x, edges, sizeof edges);
    for (int i = N_EDGES; i < N_ARGUMENTS; i++) {
        float at = random_normal(&v->random);
        x[i] = ldexpf(positive ? fabsf(at) : at, random_int(&v->random, -6, positive ? 60 : 6));
    }
    for (int i = 0; i < N_ARGUMENTS; i++)
        y[i] = f(x[i]);
    vector_begin(v, op);
    vector_floats(v, "x", x, N_ARGUMENTS);
    vector_floats(v, "y", y, N_ARGUMENTS);
    vector_end(v);
}

static float exponential(float x) {
    return num_exp(x);
}

static float silu(float x) {
    return num_silu(x);
}

static float hyperbolic_tangent(float x) {
    return num_tanh(x);
}

static float logarithm(float x) {
    return num_log(x);
}

/* One largest score, and scores from it down past where the probability is 0. */
static void probabilities(struct vectors *v, float largest, float binary) {
    float u[N_RANDOM], p[N_RANDOM];
    struct num_window w = num_window_of(largest, binary);
    for (int i = 0; i < N_RANDOM; i++) {
        float below = (float)i * 0.03f + random_up_to_1(&v->random) * 0x1p-6f;
        u[i] = i ? largest - (i < 40 ? below * below : below) / binary : largest;
    }
    u[1] = largest - 0.9921875f / binary; /* 2^-127, and its neighbours */
    u[2] = nextafterf(u[1], INFINITY);
    u[3] = nextafterf(u[1], -INFINITY);
    u[4] = -INFINITY;
    for (int i = 0; i < N_RANDOM; i++)
        p[i] = num_probability(u[i], w);
    vector_begin(v, "probability");
    vector_floats(v, "u", u, N_RANDOM);
    vector_float(v, "largest", largest);
    vector_float(v, "binary", binary);
    vector_floats(v, "p", p, N_RANDOM);
    vector_end(v);
}

void vectors_functions(struct vectors *v, const char *folder) {
    (void)folder;
    function(v, "exp", exponential, false);
    function(v, "silu", silu, false);
    function(v, "tanh", hyperbolic_tangent, false);
    function(v, "log", logarithm, true);
    probabilities(v, 0, 0x1p-7f);
    probabilities(v, 3.25f, 0x1.715476p-7f);
    probabilities(v, 170.0f, 0x1.715476p-7f); /* base near -1 */
    probabilities(v, 177.0f, 0x1.715476p-7f); /* and below: M is taken off first */
    probabilities(v, -0.5f, 0x1.715476p-7f);  /* base still below 1 */
    probabilities(v, -40.0f, 0x1.715476p-7f); /* and above */
    probabilities(v, 0x1.234568p30f, 0x1.23p-20f);
    probabilities(v, 1.5f, 0x1.abcdeep-30f);
}
