#include "model/attention/variant.h"

struct attention_variant attention_variant_causal(void) {
    return (struct attention_variant){.causal = true, .window_left = -1};
}

int attention_variant_check(const struct attention_variant *v, struct error *err) {
    if (!(v->soft_cap >= 0) || isinf(v->soft_cap))
        return error_set(err, "a soft cap of %g: it must be a positive number, or 0 for none",
                         (double)v->soft_cap);
    if (v->mask_form && (!v->mask || !v->mask_offsets))
        return error_set(err, "a mask needs its elements and their offsets");
    if (!v->m != !v->l)
        return error_set(err, "the state of attention has two parts beside y: m and l, or neither");
    if (v->m && v->sinks)
        return error_set(err, "m and l are there, and sinks, too, which would count again in every "
                              "state that is merged: leave sinks out, and merge a state of theirs "
                              "last (m = the sink, l = 1, o = 0)");
    if (!v->mask_form && (v->mask || v->mask_offsets))
        return error_set(err, "a mask is there, but mask_form says that there is none");
    return 0;
}

int attention_mask_offsets(int64_t *offsets, const struct paged_batch *b, enum mask_form form,
                           const int64_t *mask_indptr, struct error *err) {
    int64_t elements = 0;
    offsets[0] = 0;
    for (int i = 0; i <= b->n_sequences; i++) {
        if (mask_indptr && mask_indptr[i] != elements)
            return error_set(
                err,
                "sequence %d: its mask %s at element %lld, not at %lld (mask_indptr is "
                "the running sum of qo_len * kv_len)",
                i ? i - 1 : 0, i ? "ends" : "begins", (long long)mask_indptr[i],
                (long long)elements);
        if (i == b->n_sequences)
            break;
        int64_t n = (int64_t)(b->qo_indptr[i + 1] - b->qo_indptr[i]) * paged_batch_kv_len(b, i);
        elements += n;
        offsets[i + 1] = offsets[i] + (form == MASK_BITS ? (n + 7) / 8 : n);
    }
    return 0;
}

void packbits(uint8_t *out, const uint8_t *x, size_t n, enum bit_order order) {
    for (size_t i = 0; i < (n + 7) / 8; i++) {
        unsigned byte = 0;
        for (size_t bit = 0; bit < 8 && 8 * i + bit < n; bit++)
            byte |= (unsigned)(x[8 * i + bit] != 0) << (order == BITS_LITTLE ? bit : 7 - bit);
        out[i] = (uint8_t)byte;
    }
}

int segment_packbits(uint8_t *out, int64_t *out_indptr, const uint8_t *x, const int64_t *indptr,
                     int n, enum bit_order order, struct error *err) {
    if (n && indptr[0] != 0)
        return error_set(err, "indptr begins at %lld, not at 0", (long long)indptr[0]);
    for (int i = 0; i < n; i++)
        if (indptr[i + 1] < indptr[i])
            return error_set(err, "segment %d: indptr falls from %lld to %lld", i,
                             (long long)indptr[i], (long long)indptr[i + 1]);
    out_indptr[0] = 0;
    for (int i = 0; i < n; i++) {
        int64_t length = indptr[i + 1] - indptr[i];
        packbits(out + out_indptr[i], x + indptr[i], (size_t)length, order);
        out_indptr[i + 1] = out_indptr[i] + (length + 7) / 8;
    }
    return 0;
}
