/*
 * Phase 2: naive batching. Several sequences share every forward pass, padded to one length; the
 * batch runs until its longest answer is done. The first table shows what sharing gains, the second
 * what padding and waiting waste.
 */
#include "tutorials/common/contiguous.h"
#include "tutorials/common/group.h"
#include "tutorials/common/requests.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- the sweep ------------------------------------------------------------------------------- */

static json_t *sweep_row(struct demo *demo, const struct group *g) {
    double first = 0, last = 0, asked = g->sequences[0].asked, ms = 0;
    int64_t tokens = 0;
    char fingerprint[17];
    for (int i = 0; i < g->n; i++) {
        const struct sequence *s = &g->sequences[i];
        first = s->first > first ? s->first : first;
        last = s->last > last ? s->last : last;
        ms += sequence_ms_per_token(s) / g->n;
        tokens += sequence_new_tokens(s);
    }
    fingerprint_text(fingerprint, fingerprint_value(&g->sequences[0].fingerprint));
    return json_pack("[iffffs]", g->n, (double)tokens / (last - asked), ms, (first - asked) * 1e3,
                     (double)demo->dev->peak_bytes / 1e6, fingerprint);
}

/* n equal prompts: the first of them has the bits that it has alone. */
static int measure_batch(struct demo *demo, const struct request *request, int n, bool show,
                         struct error *err) {
    struct request requests[16];
    struct group g;
    struct naive_waste waste;
    for (int i = 0; i < n; i++)
        requests[i] = *request;
    demo->dev->peak_bytes = demo->dev->bytes;
    demo->generator.ignore_stop = true;
    int result = group_start(demo, &g, requests, n, 0, demo->cache, err) ||
                 group_answer(demo, &g, &waste, err);
    demo->generator.ignore_stop = false;
    if (!result && !demo_interrupted(demo)) {
        if (show)
            demo_table_row(demo, sweep_row(demo, &g));
        fingerprint_add_sequence(&demo->run, fingerprint_value(&g.sequences[0].fingerprint));
    }
    group_end(&g);
    return result ? -1 : 0;
}

static int sweep(struct demo *demo, struct error *err) {
    static const int sizes[] = {1, 2, 4, 8, 16};
    static const struct column columns[] = {
        {"batch", "batch", 0, 0},           {"tok_s", "total tok/s", 1, 0},
        {"ms_tok", "ms/tok of each", 2, 0}, {"ttft_ms", "TTFT ms", 1, 0},
        {"peak_mb", "peak MB", 1, 0},       {"fingerprint", "fingerprint", -1, 16}};
    int32_t *ids;
    size_t n;
    char title[80];
    if (demo_encode_prompt(demo, demo_prompt, &ids, &n, err))
        return -1;
    struct request request = {.prompt = ids,
                              .n_prompt = (int)n,
                              .max_new = demo->options.quick ? 16 : 128,
                              .sampling = demo->options.sampling};
    snprintf(title, sizeof title, "Phase 2: equal prompts, %d new tokens each", request.max_new);
    demo_table_begin(demo, "batch_sweep", title, columns, 6);
    int result = measure_batch(demo, &request, 1, false, err); /* warms up */
    for (int i = 0; !result && i < 5 && !demo_interrupted(demo); i++)
        result = measure_batch(demo, &request, sizes[i], true, err);
    free(ids);
    return demo_table_end(demo, result);
}

/* ---- the waste ------------------------------------------------------------------------------- */

static json_t *waste_rows(const struct workload *w, const struct group *g, int steps, int longest) {
    json_t *rows = json_array();
    for (int i = 0; i < g->n; i++) {
        const struct sequence *s = &g->sequences[i];
        int needed = sequence_new_tokens(s), padding = longest - s->n_prompt;
        int computed = longest + steps - 1, useful = s->n_prompt + needed - 1;
        json_array_append_new(rows, json_pack("[siiiif]", w->requests[i].title, s->n_prompt,
                                              padding, needed, steps - needed,
                                              100.0 * (computed - useful) / computed));
    }
    return rows;
}

/* All prompts of a batch must fit. */
static int check_prompts(const struct demo *demo, const struct workload *w, const char *path,
                         struct error *err) {
    for (int i = 0; i < w->n; i++)
        if (w->requests[i].n_prompt >= demo->generator.context)
            return error_set(
                err, "%s: \"%s\" has %d tokens and needs one more, but the context is %d", path,
                w->requests[i].title, w->requests[i].n_prompt, demo->generator.context);
    return 0;
}

static int show_waste(struct demo *demo, const char *path, struct error *err) {
    static const struct column columns[] = {
        {"prompt", "prompt", -1, 0},      {"tokens", "prompt tokens", 0, 0},
        {"padding", "padding", 0, 0},     {"needed", "steps needed", 0, 0},
        {"wasted", "steps wasted", 0, 0}, {"waste", "rows wasted %", 1, 0}};
    struct workload w = {0};
    struct group g = {0};
    struct naive_waste waste;
    int longest = 0;
    int result = demo_read_requests(demo, path, &w, err) || demo_check_untimed(&w, path, err) ||
                 check_prompts(demo, &w, path, err) ||
                 group_start(demo, &g, w.requests, w.n, 0, demo->cache, err) ||
                 group_answer(demo, &g, &waste, err);
    for (int i = 0; !result && i < g.n; i++) {
        longest = g.sequences[i].n_prompt > longest ? g.sequences[i].n_prompt : longest;
        fingerprint_add_sequence(&demo->run, fingerprint_value(&g.sequences[i].fingerprint));
    }
    if (!result) {
        int64_t rows = waste.prompt_rows + waste.answer_rows;
        int64_t lost = waste.padding_rows + waste.idle_rows;
        char title[200];
        snprintf(title, sizeof title,
                 "%s in one batch: %d steps; %" PRId64 " of %" PRId64 " rows are waste (%.0f %%)",
                 path, waste.steps, lost, rows, rows ? 100.0 * (double)lost / (double)rows : 0.0);
        demo_table(demo, "waste", title, columns, 6, waste_rows(&w, &g, waste.steps, longest));
    }
    group_end(&g);
    workload_free(&w);
    return result ? -1 : 0;
}

static int tables(struct demo *demo, struct error *err) {
    if (sweep(demo, err))
        return -1;
    return demo_interrupted(demo) ? 0 : show_waste(demo, demo_requests_file(demo), err);
}

/* --prompts: all of the file in one batch. */
static int run_prompts(struct demo *demo, struct error *err) {
    return show_waste(demo, demo->options.prompts, err);
}

int main(int argc, char **argv) {
    static const struct phase phase = {
        .number = 2,
        .title = "naive batching",
        .about = "Several sequences in one padded batch, which runs until the longest is done.",
        .caches = contiguous_caches,
        .tables = tables,
        .prompts = run_prompts,
        .fingerprint = 0xe98b5012d281464c,
    };
    return demo_main(argc, argv, &phase);
}
