/*
 * Phase 13: what only equal bits can do. An answer comes with a receipt that anybody can check, on
 * other hardware and in less time than it took; the scores of texts are the numbers that sampling
 * has; and drafts of an answer cost or gain time, but change no bit of it.
 */
#include "tutorials/12-server/house.h"
#include "tutorials/13-receipts/score.h"
#include "tutorials/13-receipts/verify.h"
#include "tutorials/common/paged.h"

#include <stdio.h>

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
    };
    return demo_main(argc, argv, &phase);
}
