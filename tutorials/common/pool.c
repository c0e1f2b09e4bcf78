#include "tutorials/common/pool.h"

#include "tutorials/common/serve.h"

#include <stdlib.h>

int demo_pool_start(const struct demo *demo, struct kv_pool *p, int n_blocks, struct error *err) {
    const struct options *o = &demo->options;
    struct kv_pool_options options = {.block_size = o->block_size,
                                      .n_blocks = o->kv_blocks,
                                      .bytes = o->kv_memory,
                                      .type = o->kv_type};
    if (!o->kv_blocks && !o->kv_memory)
        options.n_blocks = n_blocks;
    return kv_pool_start(p, &demo->model, &options, err);
}

struct request_length *demo_request_lengths(struct demo *demo, const char *path, struct workload *w,
                                            struct error *err) {
    struct engine e = {0};
    struct request_length *lengths = NULL;
    struct serving serving = serving_of(demo);
    bool any = false;
    serving.fused = true; /* only lengths are wanted: one pass for all is fastest */
    if (!demo_read_requests(demo, path, w, err) && !serve_run(demo, w, &serving, &e, NULL, err)) {
        lengths = calloc((size_t)w->n + 1, sizeof *lengths);
        if (!lengths)
            error_set(err, "out of memory for the lengths of %d requests", w->n);
    }
    for (int i = 0; lengths && i < w->n; i++) {
        const struct sequence *s = &e.answers[i].sequence;
        if (s->finish == FINISH_ERROR) {
            demo_request_failed(demo, i, &e.answers[i].error);
            continue;
        }
        lengths[i] = (struct request_length){w->requests[i].n_prompt, s->n_cached};
        any = true;
    }
    if (lengths && !any) {
        error_set(err, "%s: no request could be answered. The first: %s", path,
                  w->n ? e.answers[0].error.text : "there is none");
        free(lengths);
        lengths = NULL;
    }
    engine_end(&e);
    return lengths;
}
