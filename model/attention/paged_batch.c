#include "model/attention/paged_batch.h"

#include "model/attention/numerics.h"

#include <stdbool.h>

/* Attention rounds lengths up to whole tiles: a length and a tile must be a number. */
enum { MOST_POSITIONS = INT32_MAX - ATTENTION_TILE };

int paged_batch_kv_len(const struct paged_batch *b, int i) {
    int pages = b->kv_indptr[i + 1] - b->kv_indptr[i];
    return pages ? (pages - 1) * b->page_size + b->kv_last_page_len[i] : 0;
}

static int check_indptr(const int32_t *indptr, int n, const char *name, struct error *err) {
    if (indptr[0] != 0)
        return error_set(err, "%s begins at %d, not at 0", name, indptr[0]);
    for (int i = 0; i < n; i++)
        if (indptr[i + 1] < indptr[i])
            return error_set(err, "sequence %d: %s falls from %d to %d", i, name, indptr[i],
                             indptr[i + 1]);
    return 0;
}

static int check_sequence(const struct paged_batch *b, int i, struct error *err) {
    int first = b->kv_indptr[i], end = b->kv_indptr[i + 1], last = b->kv_last_page_len[i];
    if (first == end)
        return 0;
    if (last < 1 || last > b->page_size)
        return error_set(err, "sequence %d: its last page has %d positions, not 1 to %d", i, last,
                         b->page_size);
    int64_t kv_len = (int64_t)(end - first - 1) * b->page_size + last; /* a page may come twice */
    if (kv_len > MOST_POSITIONS)
        return error_set(err,
                         "sequence %d: %d pages of %d have %lld positions, and attention counts to "
                         "%d: cut the sequence",
                         i, end - first, b->page_size, (long long)kv_len, (int)MOST_POSITIONS);
    uint32_t bad = 0; /* whether there is one: a loop without an end of its own, many at once */
    for (int j = first; j < end; j++)
        bad |= (uint32_t)b->kv_page_indices[j] >= (uint32_t)b->n_pages;
    for (int j = first; bad && j < end; j++)
        if (b->kv_page_indices[j] < 0 || b->kv_page_indices[j] >= b->n_pages)
            return error_set(err, "sequence %d: its page number %d is %d, outside the pool of %d",
                             i, j - first, b->kv_page_indices[j], b->n_pages);
    return 0;
}

/* All but the queries. */
static int check_page_table(const struct paged_batch *b, struct error *err) {
    if (b->n_sequences < 0 || b->n_pages < 0 || b->page_size < 1)
        return error_set(err, "a batch of %d sequences over %d pages of %d positions",
                         b->n_sequences, b->n_pages, b->page_size);
    if ((int64_t)b->n_pages * b->page_size > INT32_MAX)
        return error_set(err, "a pool of %d pages of %d is more than 2^31 - 1 positions",
                         b->n_pages, b->page_size);
    if (check_indptr(b->kv_indptr, b->n_sequences, "kv_indptr", err))
        return -1;
    for (int i = 0; i < b->n_sequences; i++)
        if (check_sequence(b, i, err))
            return -1;
    return 0;
}

int paged_batch_check(const struct paged_batch *b, struct error *err) {
    return check_page_table(b, err) ? -1
                                    : check_indptr(b->qo_indptr, b->n_sequences, "qo_indptr", err);
}

struct paged_batch paged_batch_of_ragged(int n_sequences, const int32_t *qo_indptr,
                                         const int32_t *kv_indptr, int32_t *indices,
                                         int32_t *ones) {
    int32_t n_rows = kv_indptr[n_sequences];
    for (int32_t i = 0; i < n_rows; i++)
        indices[i] = i;
    for (int i = 0; i < n_sequences; i++)
        ones[i] = 1;
    return (struct paged_batch){.n_sequences = n_sequences,
                                .page_size = 1,
                                .n_pages = n_rows,
                                .qo_indptr = qo_indptr,
                                .kv_indptr = kv_indptr,
                                .kv_page_indices = indices,
                                .kv_last_page_len = ones};
}

void paged_batch_new_tokens(const struct paged_batch *b, int32_t *sequences, int32_t *positions) {
    for (int i = 0; i < b->n_sequences; i++) {
        int end = b->qo_indptr[i + 1], kv_len = paged_batch_kv_len(b, i);
        for (int t = b->qo_indptr[i]; t < end; t++) {
            bool exists = end - t <= kv_len;
            sequences[t] = exists ? i : -1;
            positions[t] = exists ? kv_len - (end - t) : 0;
        }
    }
}

int paged_batch_slots(const struct paged_batch *b, int64_t *slots, const int32_t *sequences,
                      const int32_t *positions, int n, struct error *err) {
    if (check_page_table(b, err))
        return -1;
    for (int t = 0; t < n; t++) {
        int i = sequences[t];
        if (i < -1 || i >= b->n_sequences)
            return error_set(err, "token %d: there is no sequence %d, only 0 to %d (-1: skipped)",
                             t, i, b->n_sequences - 1);
        int kv_len = i < 0 ? 0 : paged_batch_kv_len(b, i);
        if (i >= 0 && (positions[t] < 0 || positions[t] >= kv_len))
            return error_set(err, "token %d: sequence %d has %d positions, and none is %d", t, i,
                             kv_len, positions[t]);
        slots[t] = -1;
        if (i >= 0)
            slots[t] = (int64_t)b->kv_page_indices[b->kv_indptr[i] + positions[t] / b->page_size] *
                           b->page_size +
                       positions[t] % b->page_size;
    }
    return 0;
}
