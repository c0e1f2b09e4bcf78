/*
 * group.h - the sequences and caches of a naive batch, for the demos.
 */
#ifndef SAMEBITS_GROUP_H
#define SAMEBITS_GROUP_H

#include "scheduler/naive_batch.h"
#include "scheduler/request.h"
#include "tutorials/common/demo.h"

struct group {
    struct sequence *sequences;  /* [n] */
    struct sequence **pointers;  /* [n] */
    struct kv_cache **kv_caches; /* [n] */
    const struct cache_kind *kind;
    int n;
};

/* Asks n requests, with ids first_id, first_id + 1, ..., each with a cache of the kind. Returns 0,
 * or -1 with err set; group_end in either case. */
int group_start(struct demo *demo, struct group *g, const struct request *requests, int n,
                uint32_t first_id, const struct cache_kind *kind, struct error *err);

/* Answers all in one naive batch. Returns 0, or -1 with err set. */
int group_answer(struct demo *demo, struct group *g, struct naive_waste *waste, struct error *err);

/* A zeroed group is fine. */
void group_end(struct group *g);

#endif
