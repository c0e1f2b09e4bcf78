/*
 * Phase 13: what only equal bits can do. An answer comes with a receipt that anybody can check, on
 * other hardware and in less time than it took; the scores of texts are the numbers that sampling
 * has; and drafts of an answer cost or gain time, but change no bit of it.
 */
#include "scheduler/draft.h"
#include "tutorials/12-server/deployment.h"
#include "tutorials/13-receipts/cheats.h"
#include "tutorials/13-receipts/score.h"
#include "tutorials/13-receipts/verify.h"
#include "tutorials/common/paged.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int speculate(struct demo *demo, struct error *err) {
    const struct options *o = &demo->options;
    struct drafter **drafter = &demo->generator.drafter;
    if (o->speculate)
        *drafter = ngram_drafter_new(&demo->model.config, err);
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

/* ---- what drafts save ------------------------------------------------------------------------ */

/* A prompt, answered with or without drafts. */
static int answer(struct demo *demo, const char *prompt, struct drafter *drafter, long *passes,
                  struct sequence *s, struct error *err) {
    const struct options *o = &demo->options;
    struct sampling_options sampling = o->sampling;
    struct generator generator = demo->generator;
    struct kv_cache *cache = NULL;
    int32_t *ids;
    size_t n;
    generator.drafter = drafter;
    if (demo_encode_prompt(demo, prompt, &ids, &n, err))
        return -1;
    int result = sequence_start(s, 0, &sampling, err) ||
                 sequence_add_prompt(s, ids, (int)n, o->quick ? 24 : 200, err) ||
                 !(cache = demo->cache->create(&demo->model, generator.context, err)) ||
                 generate(&generator, s, cache, err);
    *passes = sequence_new_tokens(s) - s->drafting.accepted;
    if (cache)
        demo->cache->destroy(cache);
    free(ids);
    return result ? -1 : 0;
}

static int compare(struct demo *demo, const char *prompt, struct drafter *drafter,
                   struct error *err) {
    struct sequence with = {0}, without = {0};
    long passes, passes_without;
    int result = answer(demo, prompt, NULL, &passes_without, &without, err) ||
                 answer(demo, prompt, drafter, &passes, &with, err);
    uint64_t bits = fingerprint_value(&with.fingerprint);
    uint64_t bits_without = fingerprint_value(&without.fingerprint);
    if (!result && bits != bits_without)
        result = demo_other_bits("with drafts", bits, "without", bits_without, err);
    if (!result) {
        char title[32];
        snprintf(title, sizeof title, "%.24s%s", prompt, strlen(prompt) > 24 ? "..." : "");
        fingerprint_add_sequence(&demo->run, bits);
        demo_table_row(demo,
                       json_pack("[siiiiff]", title, sequence_new_tokens(&with), (int)passes,
                                 (int)with.drafting.proposed, (int)with.drafting.accepted,
                                 sequence_ms_per_token(&without), sequence_ms_per_token(&with)));
    }
    sequence_end(&with);
    sequence_end(&without);
    return result;
}

static int show_drafts(struct demo *demo, struct error *err) {
    static const struct column columns[] = {
        {"prompt", "prompt", -1, 27},   {"tokens", "tokens", 0, 0},
        {"passes", "passes", 0, 0},     {"proposed", "proposed", 0, 0},
        {"accepted", "accepted", 0, 0}, {"without", "ms/tok without", 2, 0},
        {"with", "ms/tok with", 2, 0}};
    static const char *const prompts[] = {
        ("Repeat after me: Anton repairs the clocks, and Felix sells the tickets and tells the "
         "stories."), /* one string */
        "Repeat after me: one two three four five six seven eight nine ten.",
        "Write a short story about a robot who learns to paint.", "What is the capital of France?"};
    int result = 0;
    struct drafter *drafter = ngram_drafter_new(&demo->model.config, err);
    if (!drafter)
        return -1;
    drafter->fixed_cost = 0.3; /* the same drafts in every run */
    demo_table_begin(demo, "drafts", "Drafts of n-grams, greedy", columns, 7);
    for (int i = 0; i < 4 && !result && !demo_interrupted(demo); i++)
        result = compare(demo, prompts[i], drafter, err);
    drafter_free(drafter);
    return demo_table_end(demo, result);
}

static int tables(struct demo *demo, struct error *err) {
    return show_cheats(demo, err) || show_drafts(demo, err) ? -1 : 0;
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
        .serve = deployment_run,
        .score = score_file,
        .verify_receipts = verify_receipts,
        .receipt = receipt_of_answer,
        .begin = paged_begin,
        .speculate = speculate,
        .end_speculation = end_speculation,
        .fingerprint = 0x55a2d61f97f185e6,
    };
    return demo_main(argc, argv, &phase);
}
