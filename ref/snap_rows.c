/* snap_rows: float32 rows to BFP16, the step that makes every later sum exact. */
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
