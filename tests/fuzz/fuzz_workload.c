/*
 * fuzz_workload.c - any bytes as a file of requests: refused with a message that names the file, or
 * every promise of workload.h holds for what was read.
 */
#include "scheduler/workload.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void must(bool holds) {
    if (!holds)
        abort();
}

/* One token for each byte. */
static int encode_prompt(void *context, const char *text, int32_t **ids, size_t *n,
                         struct error *err) {
    (void)context;
    *n = strlen(text);
    *ids = calloc(*n + 1, sizeof **ids);
    return *ids ? 0 : error_set(err, "out of memory");
}

/* Refuses every other list. */
static int encode_messages(void *context, const json_t *line, const char *where, int32_t **ids,
                           size_t *n, struct error *err) {
    const json_t *messages = json_object_get(line, "messages");
    (void)context;
    *n = json_array_size(messages);
    if (*n % 2 == 0)
        return error_set(err, "%s: messages: an odd number of them", where);
    *ids = calloc(*n, sizeof **ids);
    return *ids ? 0 : error_set(err, "out of memory");
}

static void check_request(const struct request *r, const char *title) {
    const struct sampling_options *s = &r->sampling;
    must(r->arrival >= 0 && r->arrival <= 1e9);
    must(r->max_new >= 1 && r->n_prompt >= 0 && r->prompt);
    must(isfinite(s->temperature) && s->temperature >= 0);
    must(s->top_k >= 0 && s->top_p >= 0 && s->top_p <= 1);
    for (int i = 0; i < r->n_stops; i++)
        must(r->stops[i] && *r->stops[i]);
    must(title && strlen(title) <= 27);
    for (const unsigned char *c = (const unsigned char *)title; *c; c++)
        must(*c >= ' ' && *c != 127 && !(c[0] == 0xc2 && c[1] >= 0x80 && c[1] < 0xa0));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    static const struct workload_encoder encoder = {encode_prompt, encode_messages, NULL};
    static const struct request defaults = {.max_new = 512, .sampling = {.top_p = 1}};
    struct workload w = {0};
    struct error err = {""};
    char path[64];
    int file = memfd_create("fuzz", 0);
    must(file >= 0 && write(file, data, n) == (ssize_t)n);
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    if (workload_read(&w, path, &defaults, &encoder, &err)) {
        must(!strncmp(err.text, path, strlen(path)));
    } else {
        must(w.n > 0);
        for (int i = 0; i < w.n; i++) {
            check_request(&w.requests[i], w.requests[i].title);
            must(i == 0 || w.requests[i].arrival >= w.requests[i - 1].arrival);
        }
    }
    workload_free(&w);
    close(file);
    return 0;
}
