/*
 * deployment.h - a server with all that it stands on: a pool, the engine in its thread, HTTP before
 * it.
 */
#ifndef SAMEBITS_DEPLOYMENT_H
#define SAMEBITS_DEPLOYMENT_H

#include "tutorials/12-server/server.h"

struct deployment {
    struct kv_pool pool;
    struct paged_memory memory;
    struct service *service;
    struct server server;
};

/* What the demo's options say, on any free port of this machine. */
struct server_options deployment_limits(const struct demo *demo);

/* Opens it on the model of a demo, which stays where it is and whose context becomes at most what
 * the pool has room for. Returns 0, or -1 with err set; deployment_close in either case. */
int deployment_open(struct deployment *h, struct demo *demo, const struct server_options *options,
                    struct error *err);

/* Requests that still run have `patience` seconds. Returns 0, or -1 with err set: the engine has
 * failed. */
int deployment_close(struct deployment *h, double patience, struct error *err);

/* For struct phase: serves at the options' --serve until a signal ends it. */
int deployment_run(struct demo *demo, struct error *err);

#endif
