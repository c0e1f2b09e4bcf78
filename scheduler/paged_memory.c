#include "scheduler/paged_memory.h"

#include <stdlib.h>
#include <string.h>

/* Keeps the first failure; the owner looks at it after each plan. */
static void fail(struct paged_memory *m, const struct error *why) {
    if (!m->failed)
        m->failure = *why;
    m->failed = true;
}

static struct kv_paged *cache_of(struct paged_memory *m, int job) {
    return &m->jobs[job].cache;
}

/* ---- admission --------------------------------------------------------------------------------
 */

static bool has_room(const struct paged_memory *m, const struct kv_paged *c, int n_positions) {
    return kv_paged_missing(c, n_positions) <= block_available(&m->pool->blocks);
}

/* What a job with so many tokens needs to begin: room for them, and for the next one, lest it is in
 * somebody's way at once. No more than it can ever store: whoever fits the pool alone is served. */
static int needed(const struct paged_memory *m, int job, int n_tokens) {
    return n_tokens < m->owner.most_positions(m->owner.context, job) ? n_tokens + 1 : n_tokens;
}

/* May the fork begin? Its origin should have read the prompt: then all of it is shared. */
static bool must_wait_for_origin(const struct paged_memory *m, int origin) {
    return origin >= 0 && m->scheduler->jobs[origin].state == REQUEST_PREFILLING;
}

/* Does the origin of a fork hold these tokens, and is it still here? */
static bool can_fork(const struct paged_memory *m, int origin, const int32_t *tokens,
                     int n_tokens) {
    const int32_t *others;
    return origin >= 0 && m->scheduler->jobs[origin].state == REQUEST_DECODING &&
           m->jobs[origin].cache.n_stored >= n_tokens &&
           m->owner.tokens(m->owner.context, origin, &others) >= n_tokens &&
           !memcmp(others, tokens, sizeof *tokens * (size_t)n_tokens);
}

/* Fills an empty cache with what others hold already of these tokens. */
static int take_shared(struct paged_memory *m, int job, const int32_t *tokens, int n_tokens,
                       struct error *err) {
    int origin = m->jobs[job].fork_of;
    if (can_fork(m, origin, tokens, n_tokens))
        return kv_paged_fork(cache_of(m, job), cache_of(m, origin), n_tokens - 1, err);
    return kv_paged_match(cache_of(m, job), tokens, n_tokens, err);
}

/* 0: the job has its shared or swapped blocks, and room for the rest; 1: not now; -1: err. */
static int begin(struct paged_memory *m, int job, int n_tokens, struct error *err) {
    struct paged_job *j = &m->jobs[job];
    const int32_t *tokens;
    m->owner.tokens(m->owner.context, job, &tokens);
    if (!j->cache.pool &&
        kv_paged_start(&j->cache, m->pool, m->options.share_prefixes ? &m->prefixes : NULL, err))
        return -1;
    if (j->swapped.data) {
        if (!has_room(m, &j->cache, needed(m, job, n_tokens)))
            return 1;
        return kv_paged_swap_in(&j->cache, &j->swapped, err);
    }
    if (must_wait_for_origin(m, j->fork_of))
        return 1;
    int result = take_shared(m, job, tokens, n_tokens, err);
    if (!result && !has_room(m, &j->cache, needed(m, job, n_tokens)))
        result = 1;
    struct error ignored;
    if (result) /* what was shared goes back to where it was */
        kv_paged_clear(&j->cache, result < 0 ? &ignored : err);
    return result;
}

static bool admit(void *context, int job, int n_tokens, int *n_cached) {
    struct paged_memory *m = context;
    struct error err;
    int result = begin(m, job, n_tokens, &err);
    if (result < 0)
        fail(m, &err);
    if (result)
        return false;
    *n_cached = cache_of(m, job)->n_stored;
    if (!m->scheduler->jobs[job].n_preempted) {
        m->stats.looked_up += n_tokens;
        m->stats.shared += *n_cached;
    } else if (m->options.preempt == PREEMPT_RECOMPUTE) {
        m->stats.recomputed += n_tokens - *n_cached;
    }
    return true;
}

/* ---- while they run ---------------------------------------------------------------------------
 */

static bool reserve(void *context, int job, int n_positions) {
    struct paged_memory *m = context;
    struct error err;
    int result = kv_paged_reserve(cache_of(m, job), n_positions, &err);
    if (result < 0)
        fail(m, &err);
    return !result;
}

static void preempt(void *context, int job) {
    struct paged_memory *m = context;
    struct kv_paged *c = cache_of(m, job);
    struct error err;
    int result = 0;
    m->stats.preemptions++;
    if (m->options.preempt == PREEMPT_SWAP && c->n_stored) {
        m->stats.swapped += c->n_stored;
        result = kv_paged_swap_out(c, &m->jobs[job].swapped, &err);
    } else {
        result = kv_paged_clear(c, &err);
    }
    if (result)
        fail(m, &err);
}

static void refuse(void *context, int job, double now) {
    struct paged_memory *m = context;
    const int32_t *tokens;
    int n = m->owner.tokens(m->owner.context, job, &tokens);
    struct error why;
    error_set(&why,
              "%d tokens%s do not fit into the KV pool of %d blocks of %d positions: give it more "
              "memory",
              n, needed(m, job, n) > n ? " and one more" : "", m->pool->blocks.stats.total,
              m->pool->block_size);
    m->owner.refuse(m->owner.context, job, &why, now);
}

struct kv_cache *paged_memory_cache(struct paged_memory *m, int job) {
    return &cache_of(m, job)->base;
}

int paged_memory_positions(const struct paged_memory *m, int job) {
    return m->jobs[job].cache.n_stored;
}

void paged_memory_stored(struct paged_memory *m, int job, int n_positions) {
    const int32_t *tokens;
    m->owner.tokens(m->owner.context, job, &tokens);
    kv_paged_stored(cache_of(m, job), tokens, n_positions);
}

void paged_memory_release(struct paged_memory *m, int job) {
    struct error err;
    if (cache_of(m, job)->pool && kv_paged_clear(cache_of(m, job), &err))
        fail(m, &err);
    kv_swapped_free(&m->jobs[job].swapped);
}

int64_t paged_memory_waste(const struct paged_memory *m) {
    int64_t waste = 0;
    for (int i = 0; i < m->scheduler->n_running; i++) {
        const struct kv_paged *c = &m->jobs[m->scheduler->running[i]].cache;
        waste += (int64_t)c->table.n_blocks * m->pool->block_size - c->n_stored;
    }
    return waste;
}

/* ---- the whole --------------------------------------------------------------------------------
 */

/* A cached block is given out anew. */
static void evicted(void *context, int32_t block) {
    struct paged_memory *m = context;
    prefix_cache_forget(&m->prefixes, block);
    kv_pool_poison(m->pool, block);
}

int paged_memory_start(struct paged_memory *m, struct kv_pool *pool, struct scheduler *s,
                       int n_jobs, const int *fork_of, const struct paged_options *options,
                       const struct paged_owner *owner, struct error *err) {
    *m = (struct paged_memory){.pool = pool, .options = *options, .owner = *owner, .scheduler = s};
    m->jobs = calloc((size_t)n_jobs + 1, sizeof *m->jobs);
    if (!m->jobs)
        return error_set(err, "out of memory for %d requests", n_jobs);
    if (options->share_prefixes &&
        prefix_cache_start(&m->prefixes, pool->blocks.stats.total, pool->block_size, err))
        return -1;
    m->n_jobs = n_jobs;
    for (int i = 0; i < n_jobs; i++)
        m->jobs[i].fork_of = fork_of ? fork_of[i] : -1;
    pool->blocks.evicted = options->share_prefixes ? evicted : NULL;
    pool->blocks.context = m;
    s->memory = (struct scheduler_memory){admit, reserve, preempt, refuse, m};
    return 0;
}

void paged_memory_end(struct paged_memory *m) {
    struct error err;
    for (int i = 0; i < m->n_jobs; i++) {
        kv_paged_end(&m->jobs[i].cache);
        kv_swapped_free(&m->jobs[i].swapped);
    }
    for (int32_t b = 0; m->prefixes.serial && b < m->prefixes.n_blocks; b++)
        if (prefix_cache_knows(&m->prefixes, b) && !block_forget(&m->pool->blocks, b, &err))
            kv_pool_poison(m->pool, b);
    if (m->pool)
        m->pool->blocks.evicted = NULL;
    prefix_cache_end(&m->prefixes);
    free(m->jobs);
    *m = (struct paged_memory){0};
}
