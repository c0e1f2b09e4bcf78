/* What a service counts: times, in buckets. */
#include "scheduler/service.h"

/* Bucket bounds in seconds, as vLLM exports them. */
static const double first_token_bounds[] = {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75,
                                            1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640};
static const double token_bounds[] = {.01, .025, .05, .075, .1,  .15, .2, .3, .4, .5,
                                      .75, 1,    2.5, 5,    7.5, 10,  20, 40, 80};
static const double request_bounds[] = {.3, .5, .8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                        30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};
#define HISTOGRAM(bounds)                                                                          \
    { bounds, sizeof bounds / sizeof *bounds, {0}, 0 }

void histogram_add(struct histogram *h, double value) {
    int i = 0;
    while (i < h->n_bounds && value > h->bounds[i])
        i++;
    h->counts[i]++;
    h->sum += value;
}

void service_metrics_start(struct service_metrics *m) {
    m->ttft = (struct histogram)HISTOGRAM(first_token_bounds);
    m->inter_token = (struct histogram)HISTOGRAM(token_bounds);
    m->latency = (struct histogram)HISTOGRAM(request_bounds);
    m->queue = (struct histogram)HISTOGRAM(request_bounds);
}
