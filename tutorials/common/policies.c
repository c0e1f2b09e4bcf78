#include "tutorials/common/policies.h"

#include "tutorials/common/group.h"

#include <stdio.h>
#include <stdlib.h>

/* Naive batches of max_running requests, one after the other: every answer of a batch is there when
 * its longest one is. ends [n]: seconds after the start; tokens: of all answers. */
static int run_static(struct demo *demo, const struct workload *w, const struct serving *serving,
                      double *ends, int64_t *tokens, struct fingerprint *bits, struct error *err) {
    double start = clock_now();
    *tokens = 0;
    for (int first = 0; first < w->n; first += serving->max_running) {
        int n = w->n - first < serving->max_running ? w->n - first : serving->max_running;
        struct group g = {0};
        struct naive_waste waste;
        int result =
            group_start(demo, &g, w->requests + first, n, (uint32_t)first, serving->cache, err) ||
            group_answer(demo, &g, &waste, err);
        for (int i = 0; !result && i < n; i++) {
            ends[first + i] = clock_now() - start;
            *tokens += sequence_new_tokens(&g.sequences[i]);
            fingerprint_add_sequence(bits, fingerprint_value(&g.sequences[i].fingerprint));
        }
        group_end(&g);
        if (result)
            return -1;
        if (demo_interrupted(demo))
            break;
    }
    return 0;
}

static json_t *latency_rows(const struct workload *w, const double *ends, const struct engine *e) {
    json_t *rows = json_array();
    for (int i = 0; i < w->n; i++) {
        const struct job *j = &e->scheduler.jobs[i];
        double latency = j->done - j->arrival;
        json_array_append_new(rows,
                              json_pack("[isiifff]", i, w->requests[i].title, j->n_new, j->steps,
                                        ends[i] * 1e3, latency * 1e3, ends[i] / latency));
    }
    return rows;
}

static int show_latencies(struct demo *demo, const struct workload *w, const double *ends,
                          int64_t tokens, const struct engine *e, int max_running,
                          struct error *err) {
    static const struct column columns[] = {
        {"request", "#", 0, 0},           {"prompt", "prompt", -1, 0},
        {"new", "new tokens", 0, 0},      {"steps", "steps", 0, 0},
        {"static_ms", "static ms", 1, 0}, {"continuous_ms", "continuous ms", 1, 0},
        {"speedup", "speed-up", 2, 0}};
    struct engine_metrics m;
    double last = 0, mean = 0;
    char title[200];
    if (engine_measure(e, &m, err))
        return -1;
    for (int i = 0; i < w->n; i++) {
        last = ends[i] > last ? ends[i] : last;
        mean += ends[i] / w->n;
    }
    snprintf(title, sizeof title,
             "Latency of %d requests, %d at once. Static: %.1f tok/s, %.0f ms on average; "
             "continuous: %.1f tok/s, %.0f ms",
             w->n, max_running, (double)tokens / last, mean * 1e3, m.tokens_per_second,
             m.latency.mean * 1e3);
    demo_table(demo, "latency", title, columns, 7, latency_rows(w, ends, e));
    return 0;
}

int demo_compare_policies(struct demo *demo, const struct workload *w,
                          const struct serving *serving, struct error *err) {
    struct engine e = {0};
    struct fingerprint bits = {0};
    double *ends = calloc((size_t)w->n + 1, sizeof *ends);
    uint64_t continuous;
    int64_t tokens;
    if (!ends)
        return error_set(err, "out of memory");
    int result = fingerprint_start(&bits, err) ||
                 run_static(demo, w, serving, ends, &tokens, &bits, err) ||
                 serve_all(demo, w, serving, &e, err) || engine_fingerprint(&e, &continuous, err);
    bool complete = !result && !demo_interrupted(demo);
    if (complete && fingerprint_value(&bits) != continuous)
        result = demo_other_bits("the static batches", fingerprint_value(&bits),
                                 "the continuous ones", continuous, err);
    if (complete && !result)
        result = show_latencies(demo, w, ends, tokens, &e, serving->max_running, err);
    fingerprint_end(&bits);
    engine_end(&e);
    free(ends);
    return result ? -1 : 0;
}
