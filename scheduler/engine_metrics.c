/* What a run of the engine measured: means and percentiles over its requests. */
#include "scheduler/engine.h"

#include <stdlib.h>

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The nearest-rank percentile of sorted values. */
static double percentile(const double *sorted, int n, int percent) {
    int rank = (n * percent + 99) / 100;
    return sorted[rank > 0 ? rank - 1 : 0];
}

struct spread spread_of(double *values, int n) {
    struct spread s = {0};
    if (!n)
        return s;
    qsort(values, (size_t)n, sizeof *values, compare);
    for (int i = 0; i < n; i++)
        s.mean += values[i] / n;
    s.p50 = percentile(values, n, 50);
    s.p95 = percentile(values, n, 95);
    s.p99 = percentile(values, n, 99);
    return s;
}

int engine_measure(const struct engine *e, struct engine_metrics *out, struct error *err) {
    size_t most = (size_t)e->n + 1;
    double *queue = malloc(4 * most * sizeof *queue), end = 0;
    int64_t tokens = 0;
    int n = 0, n_several = 0; /* requests with a token, and with more than one */
    *out = (struct engine_metrics){0};
    if (!queue)
        return error_set(err, "out of memory for the metrics of %d requests", e->n);
    double *ttft = queue + most, *latency = ttft + most, *ms_per_token = latency + most;
    for (int i = 0; i < e->n; i++) {
        const struct job *j = &e->scheduler.jobs[i];
        if (j->admitted >= 0 && j->done > end) /* others may end before they arrive: cancelled */
            end = j->done;
        if (!j->n_new)
            continue;
        tokens += j->n_new;
        queue[n] = j->admitted - j->arrival;
        ttft[n] = j->first - j->arrival;
        latency[n++] = j->done - j->arrival;
        if (j->n_new > 1)
            ms_per_token[n_several++] = (j->done - j->first) * 1e3 / (j->n_new - 1);
    }
    out->n = n;
    out->seconds = e->n ? end - e->scheduler.jobs[0].arrival : 0;
    out->tokens_per_second = out->seconds > 0 ? (double)tokens / out->seconds : 0;
    out->queue = spread_of(queue, n);
    out->ttft = spread_of(ttft, n);
    out->latency = spread_of(latency, n);
    out->ms_per_token = spread_of(ms_per_token, n_several);
    free(queue);
    return 0;
}
