/*
 * other_types.h - given in lab 11: rows of all types but bfp8, which is the learner's. Here and not
 * in the starter, because a learner's file may not name functions that know bfp8, too (lab.mk).
 */
#ifndef SAMEBITS_TESTS_LABS_11_OTHER_TYPES_H
#define SAMEBITS_TESTS_LABS_11_OTHER_TYPES_H

#include "ref/ref.h"
#include "tests/labs/not_written.h"

/* What ref_store_row does, for these types. */
static inline void store_other(struct device *dev, const struct kv_view *to, const float *x,
                               int64_t page, int64_t position, int head, int head_dim, int site,
                               int token) {
    if (to->type == KV_BFP8)
        not_written("rows of bfp8 are stored by store_bfp8");
    int64_t row = kv_view_row(to, page, position, head);
    uint32_t largest = 0;
    for (int d = 0; d < head_dim; d++)
        largest = num_magnitude(x[d]) > largest ? num_magnitude(x[d]) : largest;
    int e = kv_stored_exponent(to->type, largest);
    bool bad = e > BFP_MAX_EXPONENT;
    if (bad)
        ref_fault(dev, site, token);
    for (int d = 0; d < head_dim; d++)
        kv_store_bits(to->data, to->type, row + kv_view_element(to, d),
                      bad ? 0 : kv_bits(to->type, x[d], e, to->scale));
    if (to->type == KV_BFP16)
        to->exponents[kv_view_exponent(to, page, position, head)] =
            (int8_t)(bad ? BFP_MIN_EXPONENT : e);
}

/* What ref_load_row does, for these types. */
static inline int load_other(int16_t *out, const struct kv_view *from, int64_t page, int position,
                             int head, int head_dim) {
    enum kv_type t = from->type;
    if (t == KV_BFP8)
        not_written("rows of bfp8 are loaded by load_bfp8");
    int64_t row = kv_view_row(from, page, position, head);
    uint32_t largest = 0;
    for (int d = 0; d < head_dim; d++) {
        uint32_t magnitude =
            kv_magnitude(t, kv_load_bits(from->data, t, row + kv_view_element(from, d)));
        largest = magnitude > largest ? magnitude : largest;
    }
    int e = t == KV_BFP16 ? from->exponents[kv_view_exponent(from, page, position, head)]
                          : kv_read_exponent(t, largest);
    float scale = e > BFP_MAX_EXPONENT ? 0 : num_pow2f(15 - e);
    for (int d = 0; d < head_dim; d++) {
        uint32_t bits = kv_load_bits(from->data, t, row + kv_view_element(from, d));
        out[d] = (int16_t)(e > BFP_MAX_EXPONENT ? 0 : kv_integer(t, bits, scale));
    }
    return e;
}

#endif
