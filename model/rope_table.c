#include "model/rope_table.h"

#include "model/numerics.h"

/* Natural logarithm of a normal x > 0: x = 2^k * m with m near 1, then the series of
 * 2 * atanh((m-1) / (m+1)). */
static double log_of(double x) {
    int k;
    double m = frexp(x, &k);
    if (m < 0.70710678118654752) {
        m *= 2;
        k--;
    }
    double s = (m - 1) / (m + 1), s2 = s * s, sum = 0;
    for (int i = 25; i >= 1; i -= 2)
        sum = sum * s2 + 1.0 / i;
    return fma(k, 0x1.62e42fefa39efp-1, fma(k, 0x1.abc9e3b39803fp-56, 2 * s * sum));
}

/* e^y for |y| < 700. */
static double exp_of(double y) {
    double n = rint(y * 0x1.71547652b82fep+0);
    double r = fma(n, -0x1.abc9e3b39803fp-56, fma(n, -0x1.62e42fefa39efp-1, y));
    double sum = 1;
    for (int i = 16; i >= 1; i--)
        sum = 1 + sum * r / i;
    return sum * num_pow2((int)n);
}

/* Cosine and sine of |x| < 2^25: x minus a multiple of pi/2 (in three pieces, so that the remainder
 * keeps its digits), Taylor series, then the quadrant. */
static void cos_sin_of(double x, double *c, double *s) {
    double n = rint(x * 0x1.45f306dc9c883p-1);
    double r = fma(n, -0x1.921fb54442d18p+0, x);
    r = fma(n, -0x1.1a62633145c07p-54, r);
    r = fma(n, 0x1.f1976b7ed8fbcp-110, r);
    double r2 = r * r, cosine = 1, sine = 1;
    for (int i = 18; i >= 2; i -= 2) {
        cosine = 1 - cosine * r2 / (i * (i - 1));
        sine = 1 - sine * r2 / (i * (i + 1));
    }
    sine *= r;
    switch ((int64_t)n & 3) {
    case 0:
        *c = cosine, *s = sine;
        break;
    case 1:
        *c = -sine, *s = cosine;
        break;
    case 2:
        *c = -cosine, *s = -sine;
        break;
    default:
        *c = sine, *s = -cosine;
        break;
    }
}

/* Llama 3 stretches the waves longer than its original context by `factor`, keeps the short ones
 * and blends between; float32 throughout, as in the implementation that its users compare with. */
static float llama3_frequency(float inverse, const struct rope_config *rope) {
    float factor = (float)rope->factor, low = (float)rope->low_freq_factor,
          high = (float)rope->high_freq_factor, context = (float)rope->original_max_positions;
    float wave = (float)6.283185307179586 / inverse;
    if (wave > (float)(rope->original_max_positions / rope->low_freq_factor))
        return inverse / factor;
    if (wave < (float)(rope->original_max_positions / rope->high_freq_factor))
        return inverse;
    float smooth = (context / wave - low) / (high - low);
    return (1.0f - smooth) * inverse / factor + smooth * inverse;
}

void rope_inverse_frequencies(float *out, const struct rope_config *rope, int head_dim) {
    double log_theta = log_of(rope->theta);
    for (int i = 0; i < head_dim / 2; i++) {
        float power = (float)exp_of(log_theta * (double)((float)(2 * i) / (float)head_dim));
        out[i] = 1.0f / power;
        if (rope->scaling == ROPE_LINEAR)
            out[i] = out[i] / (float)rope->factor;
        else if (rope->scaling == ROPE_LLAMA3)
            out[i] = llama3_frequency(out[i], rope);
    }
}

void rope_fill(float *cos_out, float *sin_out, const float *inverse, int half, int n_positions) {
    for (int position = 0; position < n_positions; position++)
        for (int i = 0; i < half; i++) {
            float angle = (float)position * inverse[i];
            double c, s;
            cos_sin_of(angle, &c, &s);
            cos_out[(size_t)position * (size_t)half + (size_t)i] = (float)c;
            sin_out[(size_t)position * (size_t)half + (size_t)i] = (float)s;
        }
}
