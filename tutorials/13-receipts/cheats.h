/*
 * cheats.h - phase 13's first table: an honest answer, and answers that were made otherwise than
 * their receipts say; which of them are caught, and where.
 */
#ifndef SAMEBITS_CHEATS_H
#define SAMEBITS_CHEATS_H

#include "tutorials/common/demo.h"

/* Makes the answers, verifies all of them in one batch and shows the table. Returns 0, or -1 with
 * err set: no memory, a device that failed, or a verdict that is not the right one. */
int show_cheats(struct demo *demo, struct error *err);

#endif
