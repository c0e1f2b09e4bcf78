/*
 * Phase 3: the scheduler. Requests wait in a queue, are admitted in batches, read their prompts in
 * pieces, draw their tokens and end, each for its own reason. The tables show the state of every
 * request in every step that changed one, and what each had to wait for.
 */
#include "tutorials/common/contiguous.h"
#include "tutorials/common/serve.h"

static int serve_in_batches(struct demo *demo, const char *path, struct error *err) {
    struct serving serving = serving_of(demo);
    serving.continuous = false;
    return serve_requests(demo, path, &serving, err);
}

static int tables(struct demo *demo, struct error *err) {
    return serve_in_batches(demo, demo_requests_file(demo), err);
}

static int run_prompts(struct demo *demo, struct error *err) {
    return serve_in_batches(demo, demo->options.prompts, err);
}

int main(int argc, char **argv) {
    static const struct phase phase = {
        .number = 3,
        .title = "scheduler",
        .about = "Requests wait, read their prompts in pieces, decode and end, in batches.",
        .caches = contiguous_caches,
        .tables = tables,
        .prompts = run_prompts,
        .fingerprint = 0x1693d29f628f8640,
    };
    return demo_main(argc, argv, &phase);
}
