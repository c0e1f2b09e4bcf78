/*
 * Phase 10: what many sequences share is read once for all of them. All requests begin with the
 * same document and go on with a question of their own. The prefix cache of phase 7 keeps the
 * document once; here attention also reads it once a step. The first table makes the document
 * longer, the second adds readers.
 */
#include "tutorials/common/paged.h"
#include "tutorials/common/pool.h"

#include <stdlib.h>
#include <string.h>

static const char shared_prompts[] = "data/prompts/shared.jsonl";

enum { NEW_TOKENS = 24, QUESTION = 12, MOST_READERS = 64, SOME_READERS = 16, SOME_TOKENS = 2048 };

/* ---- the requests ---------------------------------------------------------------------------- */

/* n requests: a document of n_shared tokens, the text of the first prompt of the file over and
 * over, and the end of another prompt each. The first wants one token only. */
static int make_requests(const struct demo *demo, struct workload *out, int n, int n_shared,
                         struct error *err) {
    struct workload from = {0};
    int result = demo_read_requests(demo, shared_prompts, &from, err);
    for (int k = 0; k < n && !result; k++) {
        const struct request *text = &from.requests[0], *other = &from.requests[k % from.n];
        int question = other->n_prompt < QUESTION ? other->n_prompt : QUESTION;
        struct request *r = workload_add(out, err);
        size_t n_prompt = (size_t)(n_shared + 1 + question);
        if (!r || !(r->prompt = malloc(sizeof *r->prompt * n_prompt))) {
            result = error_set(err, "out of memory for %d requests", n);
            break;
        }
        for (int i = 0; i < n_shared; i++)
            r->prompt[i] = text->prompt[i % text->n_prompt];
        r->prompt[n_shared] = k + 10; /* from here on, none is like another */
        memcpy(r->prompt + n_shared + 1, other->prompt + other->n_prompt - question,
               sizeof *r->prompt * (size_t)question);
        r->n_prompt = (int)n_prompt;
        r->max_new = k ? NEW_TOKENS : 1;
        r->sampling = demo->options.sampling;
    }
    workload_free(&from);
    return result;
}

/* ---- a measurement --------------------------------------------------------------------------- */

/* Serves the workload, with a version of the plan. */
static int read_all(struct demo *demo, const struct workload *w, enum plan_version version,
                    struct paged_run *run, struct error *err) {
    const struct ops *ops = demo->dev->ops;
    struct paged_options options = {PREEMPT_RECOMPUTE, true};
    struct serving serving = serving_of(demo);
    struct error ignored;
    serving.max_running = w->n > 1 ? w->n - 1 : 1; /* all readers */
    if (ops->set_version(demo->dev, "attention_plan", (int)version, err))
        return -1;
    int result = paged_run_pool(demo, w, paged_table_blocks(demo, w), &options, &serving, run, err);
    ops->set_version(demo->dev, "attention_plan", PLAN_BEST, &ignored);
    return result;
}

/* Tokens per second of n readers, from when all have their first token. */
static double speed_of(const struct paged_run *run, int n) {
    return (double)n * (NEW_TOKENS - 1) / (run->all_done - run->all_first);
}

/* The readers come when the document has been read, which the first request does. */
static int let_readers_come(struct demo *demo, struct workload *w, struct error *err) {
    struct workload alone = {.requests = w->requests, .n = 1};
    struct paged_run document;
    if (read_all(demo, &alone, PLAN_BEST, &document, err))
        return -1;
    for (int i = 1; i < w->n; i++)
        w->requests[i].arrival = 1.5 * document.all_done + 0.05;
    return 0;
}

/* A row: n readers of a document of n_shared tokens. */
static int measure(struct demo *demo, int n, int n_shared, struct error *err) {
    struct workload w = {0};
    struct paged_run single = {0}, shared = {0};
    demo->generator.ignore_stop = true;
    int result = make_requests(demo, &w, n + 1, n_shared, err) || let_readers_come(demo, &w, err) ||
                 read_all(demo, &w, PLAN_SINGLE, &single, err) ||
                 read_all(demo, &w, PLAN_BEST, &shared, err);
    demo->generator.ignore_stop = false;
    workload_free(&w);
    if (result || demo_interrupted(demo))
        return result ? -1 : 0;
    bool same = single.fingerprint == shared.fingerprint;
    double alone = speed_of(&single, n), together = speed_of(&shared, n);
    demo_table_row(demo, json_pack("[iiifffs]", n, n_shared, (int)shared.stats.shared, alone,
                                   together, together / alone, same ? "the same" : "others"));
    return same ? 0
                : demo_other_bits("each alone", single.fingerprint, "together", shared.fingerprint,
                                  err);
}

static int table(struct demo *demo, const char *key, const char *title, const int (*cases)[2],
                 int n_cases, struct error *err) {
    static const struct column columns[] = {{"readers", "readers", 0, 0},
                                            {"tokens", "document", 0, 0},
                                            {"found", "tokens not read", 0, 0},
                                            {"alone", "each alone tok/s", 1, 0},
                                            {"together", "together tok/s", 1, 0},
                                            {"times", "times", 2, 0},
                                            {"bits", "bits", -1, 8}};
    int result = 0;
    demo_table_begin(demo, key, title, columns, 7);
    for (int i = 0; i < n_cases && !result && !demo_interrupted(demo); i++)
        if (cases[i][1] + QUESTION + NEW_TOKENS + 1 < demo->generator.context)
            result = measure(demo, cases[i][0], cases[i][1], err);
    return demo_table_end(demo, result);
}

static int tables(struct demo *demo, struct error *err) {
    static const int documents[][2] = {{SOME_READERS, 256},
                                       {SOME_READERS, 512},
                                       {SOME_READERS, 1024},
                                       {SOME_READERS, SOME_TOKENS},
                                       {SOME_READERS, 3072}};
    static const int readers[][2] = {{2, SOME_TOKENS},  {4, SOME_TOKENS},
                                     {8, SOME_TOKENS},  {16, SOME_TOKENS},
                                     {32, SOME_TOKENS}, {MOST_READERS, SOME_TOKENS}};
    static const int quick_documents[][2] = {{SOME_READERS, 64}, {SOME_READERS, 128}};
    static const int quick_readers[][2] = {{2, 128}, {4, 128}, {8, 128}};
    bool quick = demo->options.quick;
    if (table(demo, "documents", "Phase 10: sixteen readers of one document",
              quick ? quick_documents : documents, quick ? 2 : 5, err))
        return -1;
    return demo_interrupted(demo) ? 0
                                  : table(demo, "readers", "More readers",
                                          quick ? quick_readers : readers, quick ? 3 : 6, err);
}

int main(int argc, char **argv) {
    static const struct phase phase = {
        .number = 10,
        .title = "cascade",
        .about = "What sequences share is read once a step for all of them.",
        .caches = paged_caches,
        .fused = true,
        .tables = tables,
        .prompts = paged_prompts,
        .begin = paged_begin,
        .fingerprint = 0x43a9b15de98ff52f,
    };
    return demo_main(argc, argv, &phase);
}
