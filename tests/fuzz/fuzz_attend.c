/*
 * fuzz_attend.c - any page table, any mask table: refused with a message, or nothing that follows
 * it leaves the pool, the masks or the arrays. The bytes are small numbers; 0x80 begins one of four
 * bytes.
 */
#include "model/attention_variant.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

enum { MOST_SEQUENCES = 9, MOST_PAGES = 64, MOST_TOKENS = 8 };

static void must(bool holds) {
    if (!holds)
        abort();
}

struct input {
    const uint8_t *data;
    size_t n;
};

static int32_t next(struct input *in) {
    if (!in->n)
        return 0;
    uint8_t byte = *in->data++;
    in->n--;
    if (byte != 0x80 || in->n < 4)
        return (int8_t)byte;
    int32_t x;
    memcpy(&x, in->data, sizeof x);
    in->data += sizeof x;
    in->n -= sizeof x;
    return x;
}

/* Memory of exactly n numbers, so that a sanitizer sees one too many; each is the sum of those
 * before it where `sums` says so, as in tables that are right. */
static int32_t *numbers(struct input *in, int n, bool sums) {
    int32_t *x = malloc(sizeof *x * (size_t)(n > 0 ? n : 0) + (n <= 0));
    must(x != NULL);
    for (int i = 0; i < n; i++) {
        int64_t value = next(in);
        if (sums)
            value = i ? value + x[i - 1] : 0;
        x[i] = (int32_t)(value > INT32_MAX ? INT32_MAX : value);
    }
    return x;
}

static void check_slots(const struct paged_batch *b, struct input *in) {
    struct error err = {""};
    int32_t *sequences = numbers(in, MOST_TOKENS, false),
            *positions = numbers(in, MOST_TOKENS, false);
    int64_t slots[MOST_TOKENS];
    if (paged_batch_slots(b, slots, sequences, positions, MOST_TOKENS, &err))
        must(err.text[0] != 0);
    else
        for (int i = 0; i < MOST_TOKENS; i++)
            must(sequences[i] == -1
                     ? slots[i] == -1
                     : slots[i] >= 0 && slots[i] < (int64_t)b->n_pages * b->page_size);
    free(sequences);
    free(positions);
}

static void check_masks(const struct paged_batch *b, struct input *in) {
    struct error err = {""};
    size_t n = (size_t)b->n_sequences;
    int64_t *offsets = malloc(sizeof *offsets * (n + 1)),
            *indptr = malloc(sizeof *indptr * (n + 1));
    must(offsets && indptr);
    must(!attention_mask_offsets(indptr, b, MASK_BYTES, NULL, &err));
    if (next(in) & 1)
        indptr[n] += next(in);
    if (attention_mask_offsets(offsets, b, MASK_BITS, indptr, &err))
        must(err.text[0] != 0);
    else
        for (size_t i = 0; i < n; i++) {
            int64_t bits =
                (int64_t)(b->qo_indptr[i + 1] - b->qo_indptr[i]) * paged_batch_kv_len(b, (int)i);
            must(offsets[i + 1] - offsets[i] == (bits + 7) / 8);
        }
    free(offsets);
    free(indptr);
}

static void check_packing(struct input *in) {
    struct error err = {""};
    int n = 1 + (next(in) & 7);
    int32_t *sums = numbers(in, n + 1, true);
    int64_t indptr[9], out_indptr[9];
    uint8_t x[512] = {0}, out[512 / 8 + 9];
    for (int i = 0; i <= n; i++)
        indptr[i] = sums[i];
    for (size_t i = 0; i < sizeof x; i++)
        x[i] = i < in->n ? in->data[i] & 1 : 0;
    bool in_x = true;
    for (int i = 0; i <= n; i++)
        in_x = in_x && indptr[i] >= 0 && indptr[i] <= (int64_t)sizeof x;
    if (in_x && !segment_packbits(out, out_indptr, x, indptr, n, BITS_LITTLE, &err))
        for (int i = 0; i < n; i++)
            for (int64_t j = 0; j < indptr[i + 1] - indptr[i]; j++)
                must((out[out_indptr[i] + j / 8] >> j % 8 & 1) == x[indptr[i] + j]);
    free(sums);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct input in = {data, size};
    struct error err = {""};
    int n = next(&in) % MOST_SEQUENCES;
    struct paged_batch b = {.n_sequences = n, .page_size = next(&in), .n_pages = next(&in)};
    int32_t *qo = numbers(&in, n + 1, true), *kv = numbers(&in, n + 1, true);
    int n_pages = n >= 0 ? kv[n] : 0;
    if (n_pages <= MOST_PAGES) {
        int32_t *pages = numbers(&in, n_pages, false), *last = numbers(&in, n, false);
        b.qo_indptr = qo;
        b.kv_indptr = kv;
        b.kv_page_indices = pages;
        b.kv_last_page_len = last;
        if (paged_batch_check(&b, &err)) {
            must(err.text[0] != 0);
        } else {
            for (int i = 0; i < n; i++)
                must(paged_batch_kv_len(&b, i) >= 0);
            check_slots(&b, &in);
            check_masks(&b, &in);
        }
        free(pages);
        free(last);
    }
    free(qo);
    free(kv);
    check_packing(&in);
    return 0;
}
