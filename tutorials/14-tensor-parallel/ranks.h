/*
 * ranks.h - phase 14's demo: what ranks compare before they begin, what each has, and what more of
 * them would take.
 */
#ifndef SAMEBITS_RANKS_H
#define SAMEBITS_RANKS_H

#include "tutorials/common/demo.h"

/* For struct phase: joins the ranks, if mpirun has started this process. */
int ranks_join(struct demo *demo, struct error *err);

/*
 * For struct phase: starts mpirun in place of this process if --ranks asks for it. Else compares
 * program, options and the files of the model with those of the other ranks. Returns 0, or -1 with
 * err set to the first rank that has others than rank 0.
 */
int ranks_agree(struct demo *demo, char **argv, struct error *err);

/* Counts who shares the device's memory. Returns whether each rank of this host has a GPU of its
 * own. */
bool ranks_have_gpus(const struct demo *demo);

/* --plan: table "plan" of step times. Returns 0, or -1 with err set: no config.json. */
int ranks_plan(struct demo *demo, struct error *err);

#endif
