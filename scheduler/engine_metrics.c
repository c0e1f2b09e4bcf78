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

static struct spread spread_of(double *values, int n) {
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

enum quantity { QUEUE, TTFT, LATENCY, MS_PER_TOKEN };

/* Collects a quantity of all requests that have it; returns how many. */
static int collect(const struct engine *e, enum quantity which, double *out) {
    int n = 0;
    for (int i = 0; i < e->n; i++) {
        const struct job *j = &e->scheduler.jobs[i];
        if (!j->n_new)
            continue;
        if (which == QUEUE)
            out[n++] = j->admitted - j->arrival;
        else if (which == TTFT)
            out[n++] = j->first - j->arrival;
        else if (which == LATENCY)
            out[n++] = j->done - j->arrival;
        else if (j->n_new > 1)
            out[n++] = (j->done - j->first) * 1e3 / (j->n_new - 1);
    }
    return n;
}

int engine_measure(const struct engine *e, struct engine_metrics *out, struct error *err) {
    double *values = malloc(sizeof *values * ((size_t)e->n + 1));
    double end = 0;
    int64_t tokens = 0;
    *out = (struct engine_metrics){0};
    if (!values)
        return error_set(err, "out of memory for the metrics of %d requests", e->n);
    for (int i = 0; i < e->n; i++) {
        const struct job *j = &e->scheduler.jobs[i];
        tokens += j->n_new;
        if (j->admitted >= 0) /* others may end before they arrive: cancelled */
            end = j->done > end ? j->done : end;
    }
    out->seconds = e->n ? end - e->scheduler.jobs[0].arrival : 0;
    out->tokens_per_second = out->seconds > 0 ? (double)tokens / out->seconds : 0;
    out->n = collect(e, QUEUE, values);
    out->queue = spread_of(values, out->n);
    out->ttft = spread_of(values, collect(e, TTFT, values));
    out->latency = spread_of(values, collect(e, LATENCY, values));
    out->ms_per_token = spread_of(values, collect(e, MS_PER_TOKEN, values));
    free(values);
    return 0;
}
