/*
 * page.h - the page that shows a run: live, at the server's `/` (phase 12), or one that is over, in
 * a file of its own (--html). It is one file, page.html, and loads nothing from anywhere.
 *
 * Between its tags <script id="record"> stands null; a file of --html has its run there.
 */
#ifndef SAMEBITS_PAGE_H
#define SAMEBITS_PAGE_H

#include "scheduler/history.h"

struct demo;

/* The page, up to page_end. */
extern const char page_text[], page_end[];

/* A run that is being written down. */
struct record {
    struct history history;
    json_t *changes; /* NULL: no run is written down */
    bool cut;        /* it had more steps than a file takes */
};

/* Returns 0, or -1 with err set: no memory. memory: of the run that begins now, and that outlives
 * record_write. */
int record_start(struct record *r, const struct request_memory *memory, struct error *err);

/* After each step, and at the end: writes down what is new. Does nothing before record_start. */
void record_step(struct record *r, const struct engine *e, double now);

/* Writes the page with the run to path, as output.h does. Returns 0, or -1 with err set: it cannot
 * be written, no memory. */
int record_write(struct record *r, const struct demo *demo, const char *path, struct error *err);

/* A zeroed one is fine. */
void record_end(struct record *r);

#endif
