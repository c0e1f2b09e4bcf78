/*
 * serve.h - a list of requests through the engine, for the demos from phase 3 on: the log of its
 * steps, the metrics of each request and of all, and the trace file.
 */
#ifndef SAMEBITS_SERVE_H
#define SAMEBITS_SERVE_H

#include "scheduler/engine.h"
#include "tutorials/common/requests.h"

/* How requests are served. */
struct serving {
    const struct cache_kind *cache; /* of each request by itself; not used with a memory */
    struct request_memory *memory;  /* NULL: each request has a cache of its own */
    int max_running;
    bool continuous; /* or in batches, as phase 3 does */
    bool fused;      /* one attention for all sequences of a pass (phase 8) */
};

/* As the options and the phase say: continuously, with caches of their own. */
struct serving serving_of(const struct demo *demo);

/*
 * Runs all requests with the options' --token-budget and --chunk. steps, if not NULL, gets a JSON
 * list with a row for each step in which a state changed: [step, ms, running, waiting, states], the
 * last a letter for each request. The fingerprint goes into the demo's run. Writes --trace if asked
 * for; a failure of that goes into demo->late. Returns 0, or -1 with err set; the engine must be
 * ended in either case.
 */
int serve_run(struct demo *demo, const struct workload *w, const struct serving *serving,
              struct engine *engine, json_t **steps, struct error *err);

/* serve_run without steps, for a table of speeds: also -1 when a request could not be answered,
 * since what is measured then is something else. What is interrupted is no failure. */
int serve_all(struct demo *demo, const struct workload *w, const struct serving *serving,
              struct engine *engine, struct error *err);

/* Runs a file (NULL: the requests of --random, to their full lengths, whatever the model makes of
 * random tokens) and shows the tables "steps", "requests" and "totals". Requests that could not be
 * answered are listed below the second, and counted with demo_request_failed. The steps are left
 * out when there are more than a hundred requests. Returns 0, or -1 with err set. */
int serve_requests(struct demo *demo, const char *path, const struct serving *serving,
                   struct error *err);

/* For struct phase: serves the options' --prompts or --random, continuously. */
int serve_prompts(struct demo *demo, struct error *err);

#endif
