#include "tutorials/common/group.h"

#include <stdlib.h>

void group_end(struct group *g) {
    for (int i = 0; i < g->n; i++) {
        if (g->kv_caches && g->kv_caches[i])
            g->kind->destroy(g->kv_caches[i]);
        if (g->sequences)
            sequence_end(&g->sequences[i]);
    }
    free(g->sequences);
    free(g->pointers);
    free(g->kv_caches);
    *g = (struct group){0};
}

int group_start(struct demo *demo, struct group *g, const struct request *requests, int n,
                uint32_t first_id, const struct cache_kind *kind, struct error *err) {
    size_t size = (size_t)(n ? n : 1);
    *g = (struct group){calloc(size, sizeof *g->sequences), calloc(size, sizeof *g->pointers),
                        calloc(size, sizeof *g->kv_caches), kind, n};
    if (!g->sequences || !g->pointers || !g->kv_caches)
        return error_set(err, "out of memory for a batch of %d", n);
    for (int i = 0; i < n; i++) {
        const struct request *r = &requests[i];
        g->pointers[i] = &g->sequences[i];
        if (sequence_start(&g->sequences[i], first_id + (uint32_t)i, &r->sampling, err) ||
            sequence_add_prompt(&g->sequences[i], r->prompt, r->n_prompt, r->max_new, err))
            return -1;
        g->kv_caches[i] = kind->create(&demo->model, demo->generator.context, err);
        if (!g->kv_caches[i])
            return -1;
    }
    return 0;
}

int group_answer(struct demo *demo, struct group *g, struct naive_waste *waste, struct error *err) {
    return naive_batch_generate(&demo->generator, g->pointers, g->kv_caches, g->n, waste, err);
}
