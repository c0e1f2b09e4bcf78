/* snap_rows: float32 rows to BFP16, the step that makes every later sum exact. row_largest and
 * snap_part: its two halves, between which ranks that share a row agree on its largest number. */
#include "ref/ref.h"

int8_t ref_snap_or_fault(struct device *dev, int16_t *q, const float *x, int n, int site,
                         int token) {
    int e = num_snap_row(q, x, n);
    if (e <= BFP_MAX_EXPONENT)
        return (int8_t)e;
    ref_fault(dev, site, token);
    return BFP_MIN_EXPONENT;
}

void ref_snap_rows(struct device *dev, struct bfp_rows y, /* [n_rows, n_cols] */
                   const float *x,                        /* [n_rows, n_cols] */
                   int n_rows, int n_cols, int site) {
    for (int row = 0; row < n_rows; row++) {
        size_t at = (size_t)row * (size_t)n_cols;
        y.exponents[row] = ref_snap_or_fault(dev, y.mantissas + at, x + at, n_cols, site, row);
    }
}

void ref_row_largest(struct device *dev, uint32_t *largest, /* [n_rows] */
                     const float *x,                        /* [n_rows, n_cols] */
                     int n_rows, int n_cols) {
    (void)dev;
    for (int row = 0; row < n_rows; row++, x += n_cols) {
        largest[row] = 0;
        for (int i = 0; i < n_cols; i++) {
            uint32_t m = num_magnitude(x[i]);
            largest[row] = m > largest[row] ? m : largest[row];
        }
    }
}

void ref_snap_part(struct device *dev, struct bfp_rows y, /* [n_rows, n_cols] */
                   const float *x,                        /* [n_rows, n_cols] */
                   const uint32_t *largest,               /* [n_rows] */
                   int n_rows, int n_cols, int site) {
    for (int row = 0; row < n_rows; row++) {
        int16_t *q = y.mantissas + (size_t)row * (size_t)n_cols;
        const float *from = x + (size_t)row * (size_t)n_cols;
        int e = num_row_exponent(largest[row]);
        bool bad = e > BFP_MAX_EXPONENT;
        if (bad)
            ref_fault(dev, site, row);
        y.exponents[row] = (int8_t)(bad ? BFP_MIN_EXPONENT : e);
        for (int i = 0; i < n_cols; i++)
            q[i] = bad ? 0 : num_mantissa(from[i], num_pow2f(15 - e));
    }
}
