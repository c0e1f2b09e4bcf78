/*
 * terminal.h - what only a person at a terminal sees: progress bars on stderr.
 */
#ifndef SAMEBITS_TERMINAL_H
#define SAMEBITS_TERMINAL_H

#include "model/model.h"

struct progress_bar {
    const char *label;
    int drawn; /* last percentage drawn, -1: none */
    bool on;   /* stderr is a terminal and there is enough to do */
};

/* A bar that shows itself only if stderr is a terminal. */
struct progress_bar progress_bar_start(const char *label);

/* done of total; draws when the percentage changes. */
void progress_bar_update(struct progress_bar *bar, size_t done, size_t total);

/* Wipes the bar. */
void progress_bar_end(struct progress_bar *bar);

/* The callback form for model_load; shows itself from 64 MB on. bar must outlive it. */
struct progress progress_of_loading(struct progress_bar *bar);

#endif
