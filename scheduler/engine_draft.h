/*
 * engine_draft.h - for engine.c: drafts (draft.h, phase 13) on their way through a step. Without a
 * drafter, and for requests that come with no draft, every draft has length 0.
 */
#ifndef SAMEBITS_ENGINE_DRAFT_H
#define SAMEBITS_ENGINE_DRAFT_H

#include "scheduler/engine.h"

/* Before a step: the drafter proposes to the requests that decode, and the scheduler is told how
 * long each draft is. Returns 0, or -1 with err set: no memory, what the drafter reports. */
int engine_draft(struct engine *e, struct error *err);

/* Tells the scheduler how long the draft of a request is, no longer than the memory has room for.
 */
void engine_count_draft(struct engine *e, int request);

/* After a pass, before scheduler_ran: counts what was proposed and accepted for an entry that ran,
 * and tells the scheduler how much of the draft was accepted. */
void engine_count_accepted(struct engine *e, const struct plan_entry *ran);

#endif
