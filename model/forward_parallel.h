/*
 * forward_parallel.h - phase 14: the four steps of a pass in which ranks meet (parallel.h). With
 * one rank each is the plain op. shared_branch has the second and the third.
 *
 *     embed        the rank that has a word's row gives it, the others zeros: the largest bits
 *     snap_rows    a row is snapped with the exponent of all of it, of which each has some columns
 *     linear       each multiplies its columns: exact integers, added over ranks, rounded once
 *     logits       each has those of its words; all get all, since all draw the next token alike
 */
#ifndef SAMEBITS_FORWARD_PARALLEL_H
#define SAMEBITS_FORWARD_PARALLEL_H

#include "model/workspace.h"

/* ids, host [n]: where the words lie in this rank's part of the embedding matrix: the row of zeros
 * behind it for the words of others. out may be ids. */
void shared_token_ids(const struct model *m, int32_t *out, const int32_t *ids, int n);

/* ws->x = the embeddings of ws->token_ids. */
void shared_embed(struct model *m, struct workspace *ws, int n_tokens);

/* ws->branch = x W^T, where ranks share the columns of x [n_rows, w->k] and of W; whole: where each
 * has all of them. */
void shared_branch(struct model *m, struct workspace *ws, const float *x, const struct matrix *w,
                   int n_rows, bool whole, int site);

/* ws->logits = ws->snapped W^T, W the output matrix. */
void shared_logits(struct model *m, struct workspace *ws, int n_rows);

/* The hash of what a pass was given and what it has drawn: for parallel_check_pass. */
uint64_t shared_pass_hash(const struct batch *batch, const int32_t *drawn);

#endif
