/*
 * paged_batch.h - where the sequences of a batch lie in a paged KV cache.
 *
 * The page table is in CSR form (compressed sparse rows), with the names that FlashInfer gives its
 * parts: sequence i has the pages kv_page_indices[kv_indptr[i]] ... kv_page_indices[kv_indptr[i+1]
 * - 1], in the order of its positions, and page p of the pool has the slots p * page_size ...
 * (p + 1) * page_size - 1. Its queries, rows qo_indptr[i] ... qo_indptr[i+1] - 1, are the newest of
 * its positions; rows that are more than the positions come first and see nothing.
 */
#ifndef SAMEBITS_MODEL_ATTENTION_PAGED_BATCH_H
#define SAMEBITS_MODEL_ATTENTION_PAGED_BATCH_H

#include "model/error.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* All arrays on the host. */
struct paged_batch {
    int n_sequences;
    int page_size;                   /* positions per page, at least 1 */
    int n_pages;                     /* of the pool: page numbers are below */
    const int32_t *qo_indptr;        /* [n_sequences + 1], from 0, never falls */
    const int32_t *kv_indptr;        /* [n_sequences + 1], from 0, never falls */
    const int32_t *kv_page_indices;  /* [kv_indptr[n_sequences]] */
    const int32_t *kv_last_page_len; /* [n_sequences]: positions in the last page, 1 ... page_size;
                                        of a sequence without pages it means nothing */
};

/* Positions of sequence i: 0 without pages. */
int paged_batch_kv_len(const struct paged_batch *b, int i);

/* Can the batch be followed without leaving its arrays or the pool? Returns 0, or -1 with err set
 * to what is wrong, with the sequence's number: a page size or a count out of range, an indptr that
 * does not begin at 0 or that falls, a page outside the pool, a last page that is empty or too
 * full, a pool of more than 2^31 - 1 positions, a sequence of more than that less a tile (256), up
 * to which lengths are rounded. */
int paged_batch_check(const struct paged_batch *b, struct error *err);

/*
 * Sequences whose keys lie one after the other, as rows kv_indptr[i] ... kv_indptr[i + 1] - 1 of
 * one array: pages of one position, page = row. indices, host [kv_indptr[n]], and ones, host [n],
 * become part of the batch and live as long as it does.
 */
struct paged_batch paged_batch_of_ragged(int n_sequences, const int32_t *qo_indptr,
                                         const int32_t *kv_indptr, int32_t *indices, int32_t *ones);

/*
 * Which sequence each query of the batch is of, and its position there, host [qo_indptr[n]]: token
 * i of n_new has kv_len - n_new + i, since queries are the newest tokens, whose pages are there
 * already. One that comes before its sequence's first position has sequence -1, position 0.
 * FlashInfer's get_batch_indices_positions. The batch has passed paged_batch_check.
 */
void paged_batch_new_tokens(const struct paged_batch *b, int32_t *sequences, int32_t *positions);

/*
 * The slots of n tokens of which the sequence and the position in it are known, host [n]: with
 * kv_append, FlashInfer's append. A sequence number of -1: slot -1, to be skipped. qo_indptr is not
 * looked at. Returns 0, or -1 with err set: what paged_batch_check refuses of page tables, or a
 * sequence or a position that the batch does not have, with the token's number.
 */
int paged_batch_slots(const struct paged_batch *b, int64_t *slots, const int32_t *sequences,
                      const int32_t *positions, int n, struct error *err);

#ifdef __cplusplus
}
#endif

#endif
