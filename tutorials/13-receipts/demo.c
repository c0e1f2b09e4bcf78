/*
 * Phase 13: what only equal bits can do. An answer comes with a receipt that anybody can check, on
 * other hardware and in less time than it took; the scores of texts are the numbers that sampling
 * has; and drafts of an answer cost or gain time, but change no bit of it.
 */
#include "scheduler/draft.h"
#include "tutorials/12-server/house.h"
#include "tutorials/13-receipts/score.h"
#include "tutorials/13-receipts/verify.h"
#include "tutorials/common/paged.h"

#include <stdio.h>

static int speculate(struct demo *demo, struct error *err) {
    const struct options *o = &demo->options;
    struct drafter **drafter = &demo->generator.drafter;
    if (o->speculate)
        *drafter = ngram_drafter_new(err);
    else if (!o->draft)
        return 0;
    else if (!model_load(&demo->draft_model, demo->dev, o->draft, NULL, err))
        *drafter = model_drafter_new(&demo->draft_model, demo->model.config.vocab_size,
                                     o->max_running, err);
    return *drafter ? 0 : -1;
}

static void end_speculation(struct demo *demo) {
    drafter_free(demo->generator.drafter);
    model_free(&demo->draft_model);
}

static int tables(struct demo *demo, struct error *err) {
    (void)demo, (void)err;
    return 0;
}

int main(int argc, char **argv) {
    static const struct phase phase = {
        .number = 13,
        .title = "receipts",
        .about = "Answers that anybody can check, exact scores, and drafts that change no bit.",
        .caches = paged_caches,
        .fused = true,
        .tables = tables,
        .prompts = paged_prompts,
        .serve = house_serve,
        .score = score_file,
        .verify_receipts = verify_receipts,
        .receipt = receipt_of_answer,
        .begin = paged_begin,
        .speculate = speculate,
        .end_speculation = end_speculation,
    };
    return demo_main(argc, argv, &phase);
}
