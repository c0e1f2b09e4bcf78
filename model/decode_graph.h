/*
 * decode_graph.h - a decoding pass in one go, on devices that can: as one op, or recorded once and
 * replayed. A GPU runs the kernels of a pass faster than the host can start them one by one.
 *
 * A recording is for a number of rows. So a batch is padded to one of a few sizes; a row of padding
 * has position -1, which is stored nowhere, and a sequence without pages, which sees nothing. It
 * changes no bit of the others, because no row ever does.
 *
 * CUDA graphs with batch sizes in steps: as vLLM captures them (its documentation, "CUDA Graphs").
 */
#ifndef SAMEBITS_DECODE_GRAPH_H
#define SAMEBITS_DECODE_GRAPH_H

#include "model/attention_plans.h"
#include "model/forward.h"
#include "model/parallel.h"

#include <stdbool.h>

enum { MOST_DECODE_ROWS = 256, N_DECODE_SIZES = 13, N_DECODE_FORMS = 2 * N_PASS_FORMS };

/* The two parts of a pass, as forward.c has them: both work on the whole batch. */
struct pass_parts {
    int (*prepare)(struct model *model, struct workspace *ws, const struct batch *batch,
                   struct error *err);
    void (*run)(struct model *model, struct workspace *ws, const struct batch *batch,
                const struct probe *probe);
};

/* Whether the pass has left the next tokens of its n rows in ws->drawn: so does decode_step, if
 * none is to be drawn at random. */
bool decode_has_drawn(const struct workspace *ws, const struct sampling *how, int n);

/* Runs the batch in one go where it is a decoding pass and the device can: what
 * parts do, and the same bits. Returns 1; 0 when it must be run otherwise; -1 with err set. */
int decode_at_once(struct model *model, struct workspace *ws, const struct batch *batch,
                   const struct pass_parts *parts, struct error *err);

/* ---- recordings, one for each size and form of the plans --------------------------------------
 */

struct recording {
    struct device_graph *graph;    /* NULL: not recorded */
    long memory;                   /* what memory_changes said after the last pass of this size */
    const struct kv_layer *layers; /* of its caches: another pool lies elsewhere */
    struct parallel_counts said;   /* by this rank in a replay, to other GPUs */
};

struct decode_graphs {
    /* The form: of the plans, + N_PASS_FORMS where the batch is of steps. */
    struct recording recordings[N_DECODE_SIZES][N_DECODE_FORMS];
    /* The batch with its padding. */
    struct batch batch;
    struct paged_batch pages;
    int32_t token_ids[MOST_DECODE_ROWS], positions[MOST_DECODE_ROWS], logit_rows[MOST_DECODE_ROWS];
    int32_t qo_indptr[MOST_DECODE_ROWS + 1], kv_indptr[MOST_DECODE_ROWS + 1];
    int32_t kv_last_page_len[MOST_DECODE_ROWS];
    struct kv_cache *caches[MOST_DECODE_ROWS]; /* NULL: padding */
};

/* Which size fits the batch; -1: it is not one that could be replayed: not paged, not one token of
 * each sequence, not all their logits wanted, or too many. */
int decode_size_of(const struct batch *batch);

/* Copies the batch into g->batch, padded to the size. */
void decode_pad(struct decode_graphs *g, const struct batch *batch, int size);

/* Runs g->batch, which is prepared: by parts->run, or by replaying it. What run does must depend on
 * nothing but the size, the form of the plans of attention and device memory. Returns 0, or -1 with
 * err set. */
int decode_run(struct decode_graphs *g, int size, int form, struct model *model,
               struct workspace *ws, const struct pass_parts *parts, struct error *err);

/* Frees the recordings. NULL is fine. */
void decode_graphs_free(struct decode_graphs *g, struct device *dev);

#endif
