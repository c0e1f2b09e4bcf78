/* pool_waste.h - how much of a pool is reserved and holds nothing. */
#ifndef SAMEBITS_POOL_WASTE_H
#define SAMEBITS_POOL_WASTE_H

#include "scheduler/paged_memory.h"
#include "scheduler/scheduler.h"

/* Slots in blocks of running jobs that hold nothing, in positions. */
static inline int64_t pool_waste(const struct paged_memory *m) {
    int64_t waste = 0;
    for (int i = 0; i < m->scheduler->n_running; i++) {
        const struct kv_paged *c = &m->jobs[m->scheduler->running[i]].cache;
        waste += (int64_t)c->table.n_blocks * m->pool->block_size - c->n_stored;
    }
    return waste;
}

#endif
