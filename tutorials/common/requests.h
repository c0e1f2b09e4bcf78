/*
 * requests.h - --prompts and --random as requests: one reader for all phases.
 */
#ifndef SAMEBITS_REQUESTS_H
#define SAMEBITS_REQUESTS_H

#include "scheduler/workload.h"
#include "tutorials/common/demo.h"

/* Adds the requests of a file, as the demo's model wants them, to w: as chat messages unless --raw;
 * what a line does not say, the options say; with --quick, answers are short. Returns 0, or -1 with
 * err set; workload_free in either case. */
int demo_read_requests(const struct demo *demo, const char *path, struct workload *w,
                       struct error *err);

/* 0, or -1 with err set when a request has a stop string or an arrival: before phase 3 nothing
 * looks at texts or waits. */
int demo_check_untimed(const struct workload *w, const char *path, struct error *err);

/* Draws the requests of --random. They have the model's whole vocabulary and fit in its context: a
 * prompt in half of it, and an answer in what is left. Returns as demo_read_requests. */
int demo_draw_requests(const struct demo *demo, struct workload *w, struct error *err);

#endif
