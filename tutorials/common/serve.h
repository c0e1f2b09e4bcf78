/*
 * serve.h - a list of requests through the engine, for the demos from phase 3 on: the log of its
 * steps, the metrics of each request and of all, and the trace file.
 */
#ifndef SAMEBITS_SERVE_H
#define SAMEBITS_SERVE_H

#include "scheduler/engine.h"
#include "tutorials/common/requests.h"

/*
 * Runs all requests with the options' --max-running, --token-budget, --chunk and --cache. steps, if
 * not NULL, gets a JSON list with a row for each step in which a state changed (keys step, ms,
 * running, waiting, states: a letter for each request). The fingerprint goes into the demo's run.
 * Writes --trace if asked for; a failure of that goes into demo->late. Returns 0, or -1 with err
 * set; the engine must be ended in either case.
 */
int serve_run(struct demo *demo, const struct workload *w, bool continuous, struct engine *engine,
              json_t **steps, struct error *err);

/* The same, continuously and without steps, for a table of speeds: also -1 when a request could not
 * be answered, since what is measured then is something else. What is interrupted is no failure. */
int serve_all(struct demo *demo, const struct workload *w, struct engine *engine,
              struct error *err);

/* The tables "steps" (takes over the rows), "requests" and "totals". Requests that could not be
 * answered are told of below the second, and counted with demo_request_failed. */
void serve_show_steps(struct demo *demo, json_t *steps);
void serve_show_requests(struct demo *demo, const struct workload *w, const struct engine *engine);
int serve_show_totals(struct demo *demo, const struct engine *engine, struct error *err);

/* --prompts from phase 3 on: runs the file (NULL: the requests of --random, to their full lengths,
 * whatever the model makes of random tokens) and shows all three. The steps are left out when there
 * are more than a hundred requests. */
int serve_prompts(struct demo *demo, const char *path, bool continuous, struct error *err);

#endif
