#include "model/forward_parallel.h"

#include <xxhash.h>

void shared_token_ids(const struct model *m, int32_t *out, const int32_t *ids, int n) {
    struct span mine = m->part.vocab;
    for (int i = 0; i < n; i++) {
        int at = ids[i] - mine.first;
        out[i] = m->parallel && (at < 0 || at >= mine.n) ? mine.n : at;
    }
}

void shared_embed(struct model *m, struct workspace *ws, int n_tokens) {
    m->dev->ops->embed(m->dev, ws->x, ws->token_ids, &m->embedding, n_tokens);
    parallel_max(m->parallel, m->dev, ws->x, (size_t)n_tokens * (size_t)m->config.hidden);
}

void shared_branch(struct model *m, struct workspace *ws, const float *x, const struct matrix *w,
                   int n_rows, bool whole, int site) {
    const struct ops *ops = m->dev->ops;
    if (!m->parallel || whole) {
        ops->snap_rows(m->dev, ws->snapped, x, n_rows, w->k, site);
        ops->linear(m->dev, ws->branch, ws->snapped, w, n_rows);
        return;
    }
    ops->row_largest(m->dev, ws->largest, x, n_rows, w->k);
    parallel_max(m->parallel, m->dev, ws->largest, (size_t)n_rows);
    ops->snap_part(m->dev, ws->snapped, x, ws->largest, n_rows, w->k, site);
    ops->linear_sums(m->dev, ws->sums, ws->snapped, w, n_rows);
    parallel_sum(m->parallel, m->dev, ws->sums, (size_t)n_rows * (size_t)w->n);
    ops->round_sums(m->dev, ws->branch, ws->sums, ws->snapped.exponents, w->exponents, n_rows,
                    w->n);
}

void shared_logits(struct model *m, struct workspace *ws, int n_rows) {
    const struct matrix *w = model_output(m);
    float *mine = m->parallel ? ws->my_logits : ws->logits;
    m->dev->ops->linear(m->dev, mine, ws->snapped, w, n_rows);
    if (m->parallel)
        parallel_gather(m->parallel, m->dev, ws->logits, m->config.vocab_size, mine, w->n, n_rows);
}

uint64_t shared_pass_hash(const struct batch *b, const int32_t *drawn) {
    const struct {
        const int32_t *data;
        int n;
    } all[] = {{b->token_ids, b->n_tokens},
               {b->positions, b->n_tokens},
               {b->qo_indptr, b->n_sequences + 1},
               {b->logit_rows, b->n_logits},
               {drawn, b->n_logits},
               {b->pages ? b->pages->kv_page_indices : NULL,
                b->pages ? b->pages->kv_indptr[b->n_sequences] : 0}};
    uint64_t hash = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        hash = XXH3_64bits_withSeed(all[i].data, sizeof(int32_t) * (size_t)all[i].n, hash);
    return hash;
}
