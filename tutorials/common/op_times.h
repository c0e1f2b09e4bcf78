/*
 * op_times.h - where the time of a pass goes: every op timed by itself.
 */
#ifndef SAMEBITS_OP_TIMES_H
#define SAMEBITS_OP_TIMES_H

#include "tutorials/common/demo.h"

/* From now on the demo's device waits after every op and takes its time. */
void op_times_start(struct demo *demo);

/* Back to normal. The table "op_times": per pass, if there were n_passes. */
void op_times_show(struct demo *demo, const char *title, long n_passes);

#endif
