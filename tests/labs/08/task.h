/* task.h - a batch that the learner's kernel attends to, and what is noted of it. */
#ifndef SAMEBITS_TESTS_LABS_08_TASK_H
#define SAMEBITS_TESTS_LABS_08_TASK_H

#include "tests/labs/lab.h"

enum { BY_ROW = 2, SPLIT = 3, MOST_SEQUENCES = 3 };

struct task {
    int version; /* BY_ROW or SPLIT */
    int page_size, heads, kv_heads;
    int n, kv_lens[MOST_SEQUENCES], queries[MOST_SEQUENCES];
    int window;             /* -1: none */
    int hide_from, hide_to; /* a mask hides these positions from all; none: no mask */
    bool shows_weights;     /* pages in order, and y shows the weights of sequence 0 */
};

/* Attends on the check's device and notes y, or the weights. */
void run_task(struct lab_log *log, const struct task *task);

#endif
