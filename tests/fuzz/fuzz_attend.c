/*
 * fuzz_attend.c - any page table, any mask table, any levels: refused with a message, or nothing
 * that follows them leaves the pool, the masks or the arrays; and tiles that are found to be shared
 * are. The bytes are small numbers; 0x80 begins one of four bytes.
 */
#include "model/attention/variant.h"
#include "model/attention/cascade.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

enum { MOST_SEQUENCES = 9, MOST_PAGES = 64, MOST_TOKENS = 8, MOST_LEVELS = 3 };

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

/* The newest tokens have slots. */
static void check_new_tokens(const struct paged_batch *b) {
    struct error err = {""};
    int n = b->qo_indptr[b->n_sequences];
    if (n > MOST_TOKENS)
        return;
    int32_t sequences[MOST_TOKENS], positions[MOST_TOKENS];
    int64_t slots[MOST_TOKENS];
    paged_batch_new_tokens(b, sequences, positions);
    must(!paged_batch_slots(b, slots, sequences, positions, n, &err));
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

/* A stretch: whole tiles, in front of each member's last position, in the same pages. */
static void check_stretch(const struct cascade *c, const struct paged_batch *b,
                          const struct shared_stretch *s) {
    const int32_t *members = c->members + s->first_member;
    int64_t first = (int64_t)s->first_tile * ATTENTION_TILE, end;
    end = first + (int64_t)s->n_tiles * ATTENTION_TILE;
    must(s->n_members >= 2 && s->n_tiles >= 1 && s->first_tile >= 0);
    for (int k = 0; k < s->n_members; k++) {
        must(members[k] >= 0 && members[k] < b->n_sequences);
        must(end < paged_batch_kv_len(b, members[k]));
        must((int64_t)c->own_tile[members[k]] * ATTENTION_TILE >= end);
        for (int64_t page = first / b->page_size; page * b->page_size < end; page++)
            must(b->kv_page_indices[b->kv_indptr[members[k]] + page] ==
                 b->kv_page_indices[b->kv_indptr[members[0]] + page]);
        for (int other = 0; other < k; other++)
            must(members[k] != members[other]);
    }
}

static void check_cascade(const struct paged_batch *b, struct input *in) {
    struct error err = {""};
    struct cascade c = {0};
    struct attention_variant v = attention_variant_causal();
    v.causal = next(in) & 1;
    v.window_left = next(in);
    struct cascade_rule rule = {next(in) & 127, next(in)};
    for (int again = 0; again < 2; again++) { /* in the memory of before, too */
        must(!cascade_find(&c, b, &v, &rule, &err));
        must(c.n_stretches == 0 || c.n_stretches < b->n_sequences);
        for (int i = 0; i < c.n_stretches; i++)
            check_stretch(&c, b, &c.stretches[i]);
    }
    cascade_end(&c);
}

/* Positions of a level's group. */
static int64_t length_of(const struct cascade_level *l, int page_size, int group) {
    int pages = l->kv_indptr[group + 1] - l->kv_indptr[group];
    return pages ? (int64_t)(pages - 1) * page_size + l->kv_last_page_len[group] : 0;
}

/* The group of a level that the queries from `first` on are in; those that are none, somewhere. */
static int group_of(const struct cascade_level *l, int first) {
    int group = 0;
    while (group + 1 < l->n_groups && l->qo_indptr[group + 1] <= first)
        group++;
    return group;
}

/* Levels that were flattened: nobody's length changes. */
static void check_flat(const struct paged_batch *b, const struct cascade_level *levels,
                       int n_levels, const struct kv_layout *cache) {
    bool linear = cache->order == KV_NHD && !cache->one_tensor;
    struct error err = {""};
    must(!paged_batch_check(b, &err));
    must(b->page_size >= 1 && cache->page_size % b->page_size == 0);
    must(linear || b->page_size == cache->page_size);
    must((int64_t)b->n_pages * b->page_size == (int64_t)cache->n_pages * cache->page_size);
    for (int s = 0; s < b->n_sequences; s++) {
        int64_t length = length_of(&levels[n_levels - 1], cache->page_size, s);
        if (b->qo_indptr[s] == b->qo_indptr[s + 1])
            continue;
        for (int i = 0; i < n_levels - 1; i++)
            length +=
                length_of(&levels[i], cache->page_size, group_of(&levels[i], b->qo_indptr[s]));
        must(length == paged_batch_kv_len(b, s));
    }
}

static void check_levels(struct input *in) {
    struct error err = {""};
    struct cascade_level levels[MOST_LEVELS];
    struct paged_batch b;
    int n_levels = next(in) & MOST_LEVELS, kind = next(in), own = 0;
    struct kv_layout cache =
        kv_layout_of((enum kv_order)((kind & 7) % 3), kind & 8, next(in), next(in), 1, 8);
    bool small = true;
    for (int i = 0; i < n_levels; i++) {
        int n = next(in) % MOST_SEQUENCES;
        int32_t *kv = numbers(in, n + 1 > 1 ? n + 1 : 1, true);
        int n_pages = kv[n > 0 ? n : 0];
        small = small && n_pages <= MOST_PAGES;
        levels[i] =
            (struct cascade_level){n, numbers(in, n + 1 > 1 ? n + 1 : 1, true), kv,
                                   numbers(in, small ? n_pages : 0, false), numbers(in, n, false)};
        own = n > 0 ? n : 0;
    }
    int most = next(in) & 127;
    int32_t *indptr = numbers(in, own + 1, false), *last = numbers(in, own, false),
            *pages = numbers(in, most, false);
    if (small &&
        paged_batch_of_levels(&b, levels, n_levels, &cache, indptr, last, pages, most, &err))
        must(err.text[0] != 0);
    else if (small)
        check_flat(&b, levels, n_levels, &cache);
    for (int i = 0; i < n_levels; i++) {
        free((void *)levels[i].qo_indptr);
        free((void *)levels[i].kv_indptr);
        free((void *)levels[i].kv_page_indices);
        free((void *)levels[i].kv_last_page_len);
    }
    free(indptr);
    free(last);
    free(pages);
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
        check_slots(&b, &in);
        if (paged_batch_check(&b, &err)) {
            must(err.text[0] != 0);
        } else {
            for (int i = 0; i < n; i++)
                must(paged_batch_kv_len(&b, i) >= 0);
            check_new_tokens(&b);
            check_masks(&b, &in);
            check_cascade(&b, &in);
        }
        free(pages);
        free(last);
    }
    free(qo);
    free(kv);
    check_packing(&in);
    check_levels(&in);
    return 0;
}
