/*
 * trace.h - a run as a file of Chrome trace events, which Perfetto (ui.perfetto.dev) and
 * chrome://tracing open: a row for each request with a span for each state, and counters.
 *
 * The format: "Trace Event Format", Google, the JSON object form.
 */
#ifndef SAMEBITS_TRACE_H
#define SAMEBITS_TRACE_H

#include "scheduler/request.h"

#include <stdio.h>

struct trace {
    void *events; /* a JSON list; NULL before trace_start */
};

/* Returns 0, or -1 with err set (no memory). */
int trace_start(struct trace *t, struct error *err);

/* Names the row of a request. */
void trace_name(struct trace *t, int request, const char *name);

/* A request was in `state` from `begin` to `end`, in seconds of the run. */
void trace_span(struct trace *t, int request, enum request_state state, double begin, double end);

/* A request ended; why is shown with the event. */
void trace_done(struct trace *t, int request, const char *why, double time);

/* The value of a counter from this time on. */
void trace_counter(struct trace *t, const char *name, double value, double time);

/* Writes an open file and frees the events. path: for messages. Returns 0, or -1 with err set: the
 * file cannot be written. */
int trace_write(struct trace *t, FILE *file, const char *path, struct error *err);

/* Frees the events without writing; a zeroed trace is fine. */
void trace_end(struct trace *t);

#endif
