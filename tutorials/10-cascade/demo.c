/*
 * Phase 10: what many sequences share is read once for all of them. All requests begin with the
 * same document and go on with a question of their own. The prefix cache of phase 7 keeps the
 * document once; here attention also reads it once a step. The first table makes the document
 * longer, the second adds readers.
 */
#include "tutorials/common/paged.h"
#include "tutorials/common/pool.h"
#include "tutorials/common/serve.h"
#include "tutorials/common/terminal.h"

#include <stdlib.h>
#include <string.h>

static const char shared_prompts[] = "data/prompts/shared.jsonl";

enum { NEW_TOKENS = 24, QUESTION = 12, MOST_READERS = 64, SOME_READERS = 16, SOME_TOKENS = 2048 };

/* ---- the requests ------------------------------------------------------------------------------
 */

/* n requests: a document of n_shared tokens, the text of the first prompt of the file over and
 * over, and the end of another prompt each. The first wants one token only. */
static int make_requests(const struct demo *demo, struct workload *out, int n, int n_shared,
                         struct error *err) {
    struct workload from;
    *out = (struct workload){0};
    if (demo_read_requests(demo, shared_prompts, &from, err))
        return -1;
    out->requests = calloc((size_t)n, sizeof *out->requests);
    out->titles = calloc((size_t)n, sizeof *out->titles);
    const struct request *text = &from.requests[0];
    for (; out->requests && out->titles && out->n < n; out->n++) {
        const struct request *other = &from.requests[out->n % from.n];
        int question = other->n_prompt < QUESTION ? other->n_prompt : QUESTION;
        int32_t *ids = malloc(sizeof *ids * (size_t)(n_shared + question + 1));
        if (!ids)
            break;
        for (int i = 0; i < n_shared; i++)
            ids[i] = text->prompt[i % text->n_prompt];
        ids[n_shared] = out->n + 10; /* from here on, none is like another */
        memcpy(ids + n_shared + 1, other->prompt + other->n_prompt - question,
               sizeof *ids * (size_t)question);
        out->requests[out->n] = (struct request){.prompt = ids,
                                                 .n_prompt = n_shared + 1 + question,
                                                 .max_new = out->n ? NEW_TOKENS : 1,
                                                 .sampling = demo->options.sampling};
    }
    workload_free(&from);
    return out->n == n ? 0 : error_set(err, "out of memory for %d requests", n);
}

/* ---- a measurement -----------------------------------------------------------------------------
 */

/* What a run was like. */
struct reading {
    double seconds;           /* of all of it */
    double tokens_per_second; /* from when all readers have their first token */
    int found;                /* prompt tokens that were in the cache already */
    uint64_t fingerprint;     /* of all readers */
};

/* Serves the workload, with a version of the plan. */
static int read_all(struct demo *demo, const struct workload *w, enum plan_version version,
                    struct reading *out, struct error *err) {
    struct paged_options options = {PREEMPT_RECOMPUTE, true};
    struct kv_pool pool;
    struct paged_memory paged;
    struct engine e = {0};
    struct error ignored;
    if (demo->dev->ops->set_version(demo->dev, "attention_plan", (int)version, err) ||
        demo_pool_start(demo, &pool, paged_enough_blocks(demo, w), err))
        return -1;
    paged_memory_start(&paged, &pool, &options);
    demo->memory = &paged.base;
    int result = serve_all(demo, w, &e, err);
    double first = 0, done = 0;
    for (int i = 0; !result && i < w->n; i++) {
        const struct job *j = &e.scheduler.jobs[i];
        first = j->first > first ? j->first : first;
        done = j->done > done ? j->done : done;
    }
    out->seconds = done;
    out->tokens_per_second = (double)(w->n - 1) * (NEW_TOKENS - 1) / (done - first);
    out->found = (int)paged.stats.shared;
    result = result || engine_fingerprint(&e, &out->fingerprint, err);
    demo->memory = NULL;
    engine_end(&e);
    paged_memory_end(&paged);
    kv_pool_end(&pool);
    demo->dev->ops->set_version(demo->dev, "attention_plan", PLAN_BEST, &ignored);
    return result ? -1 : 0;
}

/* The readers come when the document has been read, which the first request does. */
static int let_readers_come(struct demo *demo, struct workload *w, struct error *err) {
    struct workload alone = {.requests = w->requests, .n = 1};
    struct reading document;
    if (read_all(demo, &alone, PLAN_BEST, &document, err))
        return -1;
    for (int i = 1; i < w->n; i++)
        w->requests[i].arrival = 1.5 * document.seconds + 0.05;
    return 0;
}

/* A row: n readers of a document of n_shared tokens. */
static int measure(struct demo *demo, int n, int n_shared, json_t *rows, struct error *err) {
    struct workload w;
    struct reading single = {0}, shared = {0};
    int chosen = demo->options.max_running;
    if (make_requests(demo, &w, n + 1, n_shared, err)) {
        workload_free(&w);
        return -1;
    }
    demo->options.max_running = n;
    demo->generator.ignore_stop = true;
    int result = let_readers_come(demo, &w, err) || read_all(demo, &w, PLAN_SINGLE, &single, err) ||
                 read_all(demo, &w, PLAN_BEST, &shared, err);
    demo->generator.ignore_stop = false;
    demo->options.max_running = chosen;
    workload_free(&w);
    if (result || demo_interrupted(demo))
        return result ? -1 : 0;
    json_array_append_new(
        rows,
        json_pack("{si si si sf sf sf ss}", "readers", n, "tokens", n_shared, "found", shared.found,
                  "alone", single.tokens_per_second, "together", shared.tokens_per_second, "times",
                  shared.tokens_per_second / single.tokens_per_second, "bits",
                  single.fingerprint == shared.fingerprint ? "the same" : "OTHERS"));
    struct paged_run runs[] = {{.fingerprint = single.fingerprint},
                               {.fingerprint = shared.fingerprint}};
    return paged_same_bits(&runs[0], &runs[1], err);
}

static int table(struct demo *demo, const char *key, const char *title, const int (*cases)[2],
                 int n_cases, struct error *err) {
    static const struct column columns[] = {{"readers", "readers", 0},
                                            {"tokens", "document", 0},
                                            {"found", "tokens not read", 0},
                                            {"alone", "each alone tok/s", 1},
                                            {"together", "together tok/s", 1},
                                            {"times", "times", 2},
                                            {"bits", "bits", -1}};
    json_t *rows = json_array();
    struct progress_bar bar = progress_bar_start("measuring");
    int result = 0;
    for (int i = 0; i < n_cases && !result && !demo_interrupted(demo); i++) {
        if (cases[i][1] + QUESTION + NEW_TOKENS + 1 < demo->generator.context)
            result = measure(demo, cases[i][0], cases[i][1], rows, err);
        progress_bar_update(&bar, (size_t)i + 1, (size_t)n_cases);
    }
    progress_bar_end(&bar);
    if (result) {
        json_decref(rows);
        return -1;
    }
    demo_table(demo, key, title, columns, 7, rows);
    return 0;
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
    if (table(demo, "documents", "Phase 10: sixteen readers of one document", documents, 5, err) ||
        demo_interrupted(demo))
        return demo_interrupted(demo) ? 0 : -1;
    return table(demo, "readers", "More readers", readers, 6, err);
}

int main(int argc, char **argv) {
    static const struct phase phase = {
        .number = 10,
        .title = "cascade",
        .about = "What sequences share is read once a step for all of them.",
        .caches = paged_caches,
        .n_caches = 1,
        .fused = true,
        .tables = tables,
        .prompts = paged_prompts,
        .begin = paged_begin,
    };
    return demo_main(argc, argv, &phase);
}
