#include "scheduler/trace.h"

#include <errno.h>
#include <jansson.h>
#include <string.h>

/* Times in a trace are microseconds. */
static double microseconds(double seconds) {
    return seconds * 1e6;
}

int trace_start(struct trace *t, struct error *err) {
    t->events = json_array();
    return t->events ? 0 : error_set(err, "out of memory for a trace");
}

static void add(struct trace *t, json_t *event) {
    json_array_append_new(t->events, event);
}

void trace_name(struct trace *t, int request, const char *name) {
    add(t, json_pack("{ss ss si si s{ss}}", "name", "thread_name", "ph", "M", "pid", 1, "tid",
                     request + 1, "args", "name", name));
}

void trace_span(struct trace *t, int request, enum request_state state, double begin, double end) {
    add(t,
        json_pack("{ss ss si si sf sf}", "name", request_state_name(state), "ph", "X", "pid", 1,
                  "tid", request + 1, "ts", microseconds(begin), "dur", microseconds(end - begin)));
}

void trace_done(struct trace *t, int request, const char *why, double time) {
    add(t, json_pack("{ss ss ss si si sf}", "name", why, "ph", "i", "s", "t", "pid", 1, "tid",
                     request + 1, "ts", microseconds(time)));
}

void trace_counter(struct trace *t, const char *name, double value, double time) {
    add(t, json_pack("{ss ss si sf s{sf}}", "name", name, "ph", "C", "pid", 1, "ts",
                     microseconds(time), "args", name, value));
}

int trace_write(struct trace *t, FILE *file, const char *path, struct error *err) {
    json_t *root = json_pack("{sO ss}", "traceEvents", t->events, "displayTimeUnit", "ms");
    int result = 0;
    errno = 0;
    if (!root || json_dumpf(root, file, JSON_COMPACT | JSON_REAL_PRECISION(12)) || fflush(file))
        result =
            error_set(err, "%s: cannot write: %s", path, errno ? strerror(errno) : "out of memory");
    json_decref(root);
    trace_end(t);
    return result;
}

void trace_end(struct trace *t) {
    json_decref(t->events);
    t->events = NULL;
}
