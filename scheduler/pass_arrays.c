#include "scheduler/pass_arrays.h"

#include <stdlib.h>

void pass_arrays_free(struct pass_arrays *a) {
    free(a->token_ids);
    free(a->caches);
    free(a->how);
    page_table_end(&a->table);
}

int pass_arrays_get(struct pass_arrays *a, size_t n_tokens, size_t n, size_t n_draws,
                    struct error *err) {
    a->token_ids = malloc(sizeof *a->token_ids * (2 * n_tokens + 2 * n + 2 * n_draws + 1));
    a->caches = malloc((sizeof *a->caches + sizeof *a->first_draws) * n);
    a->how = malloc(sizeof *a->how * (n_draws + 1));
    if (!a->token_ids || !a->caches || !a->how)
        return error_set(err, "out of memory for a pass of %zu tokens", n_tokens);
    a->positions = a->token_ids + n_tokens;
    a->qo_indptr = a->positions + n_tokens;
    a->logit_rows = a->qo_indptr + n + 1;
    a->drawn = a->logit_rows + n_draws;
    a->kv_lens = a->drawn + n_draws;
    a->first_draws = (size_t *)(a->caches + n);
    return 0;
}

int pass_arrays_add_page_table(struct pass_arrays *a, struct batch *batch, struct error *err) {
    const struct page_table *t = &a->table;
    int n = batch->n_sequences;
    if (a->caches[0]->page_table(a->caches, a->kv_lens, n, &a->table, err))
        return -1;
    a->paged = (struct paged_batch){n,
                                    t->page_size,
                                    t->n_pool_pages,
                                    a->qo_indptr,
                                    t->kv_indptr,
                                    t->kv_page_indices,
                                    t->kv_last_page_len};
    batch->pages = &a->paged;
    return 0;
}
