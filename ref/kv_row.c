/* A row of keys or values is stored in a cache of any layout and type, and loaded as integers:
 * model/attention/kv_type.h has the arithmetic, kv_view.h the places. */
#include "ref/ref.h"

static bool is_in_one_piece(const struct kv_view *view) {
    return view->element_step == 1 && view->group_step == view->x;
}

void ref_store_row(struct device *dev, const struct kv_view *to, const float *x, int64_t page,
                   int64_t position, int head, int head_dim, int site, int token) {
    int64_t row = kv_view_row(to, page, position, head);
    if (to->type == KV_BFP16 && is_in_one_piece(to)) {
        int8_t e = ref_snap_or_fault(dev, (int16_t *)to->data + row, x, head_dim, site, token);
        to->exponents[kv_view_exponent(to, page, position, head)] = e;
        return;
    }
    uint32_t largest = 0;
    for (int d = 0; d < head_dim; d++)
        largest = num_magnitude(x[d]) > largest ? num_magnitude(x[d]) : largest;
    int e = kv_stored_exponent(to->type, largest);
    bool bad = e > BFP_MAX_EXPONENT; /* it becomes a row of zeros */
    if (bad)
        ref_fault(dev, site, token);
    for (int d = 0; d < head_dim; d++)
        kv_store_bits(to->data, to->type, row + kv_view_element(to, d),
                      bad ? 0 : kv_bits(to->type, x[d], e, to->scale));
    if (kv_type_has_exponents(to->type))
        to->exponents[kv_view_exponent(to, page, position, head)] =
            (int8_t)(bad ? BFP_MIN_EXPONENT : e);
}

int ref_load_row(int16_t *out, const struct kv_view *view, int64_t page, int position, int head,
                 int head_dim) {
    enum kv_type t = view->type;
    int64_t row = kv_view_row(view, page, position, head);
    int e = 0;
    if (kv_type_has_exponents(t))
        e = view->exponents[kv_view_exponent(view, page, position, head)];
    if (t == KV_BFP16 && is_in_one_piece(view)) {
        memcpy(out, (const int16_t *)view->data + row, sizeof *out * (size_t)head_dim);
        return e;
    }
    uint32_t largest = 0;
    for (int d = 0; d < head_dim && !kv_type_has_exponents(t); d++) {
        uint32_t bits = kv_load_bits(view->data, t, row + kv_view_element(view, d));
        uint32_t magnitude = kv_magnitude(t, bits);
        largest = magnitude > largest ? magnitude : largest;
    }
    e = kv_type_has_exponents(t) ? e : kv_read_exponent(t, largest);
    float scale = e > BFP_MAX_EXPONENT ? 0 : num_pow2f(15 - e);
    for (int d = 0; d < head_dim; d++) {
        uint32_t bits = kv_load_bits(view->data, t, row + kv_view_element(view, d));
        out[d] = (int16_t)(e > BFP_MAX_EXPONENT ? 0 : kv_integer(t, bits, scale));
    }
    return e;
}
