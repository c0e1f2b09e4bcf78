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
enum { N_EDGES = sizeof edges / sizeof *edges, MOST_CRITICAL = 24 };
enum { N_ARGUMENTS = N_EDGES + MOST_CRITICAL + N_RANDOM };

/* Arguments at which the result tells a constant of the function from its two neighbours, each
 * constant in turn; for tanh also, at the end, one way of rounding from another. */
static const float critical_exp[] = {-0x1.4e18d2p+6f, -0x1.127c7cp+5f, -0x1.df3b1ap+4f,
                                     -0x1.f4bd98p+5f, -0x1.cbdfb4p+4f, 0x1.20e06p+2f,
                                     0x1.02d11cp+0f,  -0x1.562a06p+6f, 0x1.41e6ecp+2f,
                                     -0x1.2c9d1ap+1f, 0x1.013058p-1f,  -0x1.413a1p+3f,
                                     0x1.8a1b16p+1f,

                                     -0x1.3b4b66p-3f, 0x1.f50c1p+3f,   0};
static const float critical_tanh[] = {-0x1.34c156p-3f, -0x1.802758p-3f, 0x1.facb6ap-4f,
                                      -0x1.b803cep-3f, 0x1.33b5dcp-3f,  -0x1.b87276p-4f,
                                      -0x1.429442p-3f, 0x1.af7e36p-3f,  0x1.f6f4a8p-4f,
                                      0x1.e9cc42p-6f,  -0x1.2fb01ap-6f, -0x1.4e0c62p-3f,
                                      0x1.f83654p-9f,  -0x1.178eb8p+3f, 0x1.9ba098p+0f,
                                      -0x1.f78818p-3f, 0x1.790842p-3f,  0};
static const float critical_log[] = {
    0x1.624a28p+37f, 0x1.8581a8p+14f, 0x1.6375fap+3f,  0x1.54eadep+0f,
    0x1.5aa47p-7f,   0x1.60ebcep+6f,  0x1.7c308ep-1f,  0x1.50e02ep-16f,
    0x1.5a4d5p-8f,   0x1.67747ep-28f, 0x1.71c21cp-13f, 0x1.559a6p+2f,
    0x1.3f4862p+1f,  0x1.8018d8p-26f, 0x1.23ddcp+6f,   0x1.584c34p+3f,
    0x1.6640ep+9f,   0x1.612b46p-6f,  0x1.fc99a2p-12f, 0x1.2707dp-10f,
    0x1.4304fep+5f,  0x1.1171p+29f,   0x1.7884dcp+9f,  0};
/* Those of probability, for a largest score of 0 and 1 as the unit. */
static const float critical_scores[] = {
    -0x1.e2487p-2f,  -0x1.b3a89ep-2f, -0x1.8da82ep+0f, -0x1.26adf4p-2f, -0x1.ba88f8p+0f,
    -0x1.ba9974p-2f, -0x1.5e530ep-2f, -0x1.46b334p-3f, -0x1.638eb4p+3f, -0x1.997632p-1f};
enum { N_CRITICAL_SCORES = sizeof critical_scores / sizeof *critical_scores };

/* critical: ends with 0. */
static void function(struct vectors *v, const char *op, float (*f)(float), const float *critical,
                     bool positive) {
    float x[N_ARGUMENTS], y[N_ARGUMENTS];
    int n = N_EDGES;
    memcpy(x, edges, sizeof edges);
    for (int i = 0; critical[i] != 0; i++)
        x[n++] = critical[i];
    for (int i = 0; i < N_RANDOM; i++) {
        float at = random_normal(&v->random);
        x[n++] = ldexpf(positive ? fabsf(at) : at, random_int(&v->random, -6, positive ? 60 : 6));
    }
    for (int i = 0; i < n; i++)
        y[i] = f(x[i]);
    vector_begin(v, op);
    vector_floats(v, "x", x, (size_t)n);
    vector_floats(v, "y", y, (size_t)n);
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
    for (int i = 0; i < N_CRITICAL_SCORES; i++)
        u[5 + i] = largest + critical_scores[i] * (0x1p-7f / binary);
    for (int i = 0; i < N_RANDOM; i++)
        p[i] = num_probability(u[i], w);
    vector_begin(v, "probability");
    vector_floats(v, "u", u, N_RANDOM);
    vector_float(v, "largest", largest);
    vector_float(v, "binary", binary);
    vector_floats(v, "p", p, N_RANDOM);
    vector_end(v);
}

/* The factors of a query's scores. */
static void unit(struct vectors *v, int e, double scale) {
    struct num_score_unit u = num_score_unit_of(e, scale);
    vector_begin(v, "unit");
    vector_int(v, "e", e);
    vector_double(v, "scale", scale);
    vector_double(v, "natural", u.natural);
    vector_float(v, "binary", u.binary);
    vector_end(v);
}

void vectors_functions(struct vectors *v, const char *folder) {
    (void)folder;
    function(v, "exp", exponential, critical_exp, false);
    function(v, "silu", silu, critical_exp, false);
    function(v, "tanh", hyperbolic_tangent, critical_tanh, false);
    function(v, "log", logarithm, critical_log, true);
    probabilities(v, 0, 0x1p-7f);
    probabilities(v, 3.25f, 0x1.715476p-7f);
    probabilities(v, 170.0f, 0x1.715476p-7f); /* base near -1 */
    probabilities(v, 177.0f, 0x1.715476p-7f); /* and below: M is taken off first */
    probabilities(v, -0.5f, 0x1.715476p-7f);  /* base still below 1 */
    probabilities(v, -40.0f, 0x1.715476p-7f); /* and above */
    probabilities(v, 0x1.234568p30f, 0x1.23p-20f);
    probabilities(v, 1.5f, 0x1.abcdeep-30f);
    for (int k = 0; k < 16; k++)
        unit(v, 3 * k - 20, 1.0 / (2 * k + 1));
    unit(v, -100, 0x1.23456789abcdep-40);
    unit(v, 127, 0x1.23456789abcdep10);
}
