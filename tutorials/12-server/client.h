/*
 * client.h - the other end of server.h, as small as it can be: many clients in one thread, each
 * with a connection for each request.
 */
#ifndef SAMEBITS_CLIENT_H
#define SAMEBITS_CLIENT_H

#include "scheduler/workload.h"
#include "tutorials/common/demo.h"

/* What a client saw of its request. Times in seconds since all began. */
struct call {
    double sent, first, last; /* the first and the last event */
    int n_events;             /* one for each token */
    char fingerprint[17];
};

/* Sends the requests of w, as streams, to the server on a port of this machine: each when it
 * arrives, but at most n_clients at once. calls [w->n]. Ends early, with 0, when the demo is
 * interrupted. Returns 0, or -1 with err set: a request that was not answered to its end. */
int client_call_all(const struct demo *demo, const struct workload *w, int port, int n_clients,
                    struct call *calls, struct error *err);

#endif
