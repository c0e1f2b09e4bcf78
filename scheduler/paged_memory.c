#include "scheduler/paged_memory.h"

#include "scheduler/scheduler.h"

#include <stdlib.h>
#include <string.h>

static struct paged_memory *paged(struct request_memory *m) {
    return (struct paged_memory *)m;
}

static struct kv_paged *cache_of(struct paged_memory *m, int job) {
    return &m->jobs[job].cache;
}

/* Something other than a lack of blocks: the first of it stays, and ends the run. */
static void fail(struct paged_memory *m, const struct error *why) {
    if (!m->base.failed)
        m->base.why = *why;
    m->base.failed = true;
}

/* Every operation that takes or gives back blocks ends with this. */
static void count_bytes(struct paged_memory *m) {
    m->base.bytes = m->pool->blocks.stats.used * m->base.block_bytes;
}

/* ---- room ------------------------------------------------------------------------------------ */

/* What a job with so many tokens needs to begin: room for them, and for the next one, lest it is in
 * somebody's way at once. No more than it can ever store: whoever fits the pool alone is served. */
static int needed(const struct paged_memory *m, int job, int n_tokens) {
    return n_tokens < m->requests[job].max_positions ? n_tokens + 1 : n_tokens;
}

static bool has_room(struct paged_memory *m, int job, int n_tokens) {
    return kv_paged_missing(cache_of(m, job), needed(m, job, n_tokens)) <=
           block_available(&m->pool->blocks);
}

/* The answer of admit and reserve: a result of 0 is yes, 1 is a lack of blocks, -1 a failure. */
static bool answer(struct paged_memory *m, int job, int result, const struct error *err) {
    int n = m->requests[job].sequence->n_tokens;
    count_bytes(m);
    if (result < 0)
        fail(m, err);
    else if (result && !m->base.failed)
        error_set(&m->base.why,
                  "%d tokens%s do not fit into the KV pool of %d blocks of %d positions: give it "
                  "more memory",
                  n, needed(m, job, n) > n ? " and one more" : "", m->pool->blocks.stats.total,
                  m->pool->block_size);
    return !result;
}

/* ---- admission ------------------------------------------------------------------------------- */

/* Does the origin of a fork hold these tokens, and is it still here? */
static bool can_fork(const struct paged_memory *m, int origin, const int32_t *tokens,
                     int n_tokens) {
    const struct sequence *s = origin >= 0 ? m->requests[origin].sequence : NULL;
    return s && m->scheduler->jobs[origin].state == REQUEST_DECODING &&
           m->jobs[origin].cache.n_stored >= n_tokens && s->n_tokens >= n_tokens &&
           !memcmp(s->tokens, tokens, sizeof *tokens * (size_t)n_tokens);
}

/* Fills an empty cache with what others hold already of the job's first n_tokens tokens. */
static int take_shared(struct paged_memory *m, int job, int n_tokens, struct error *err) {
    const int32_t *tokens = m->requests[job].sequence->tokens;
    int origin = m->requests[job].fork_of;
    if (can_fork(m, origin, tokens, n_tokens))
        return kv_paged_fork(cache_of(m, job), cache_of(m, origin), n_tokens - 1, err);
    return kv_paged_match(cache_of(m, job), tokens, n_tokens, err);
}

/* 0: the job has its shared or swapped blocks, and room for the rest; 1: not now; -1: err. */
static int begin(struct paged_memory *m, int job, int n_tokens, struct error *err) {
    struct paged_job *j = &m->jobs[job];
    int origin = m->requests[job].fork_of;
    if (!j->cache.pool &&
        kv_paged_start(&j->cache, m->pool, m->options.share_prefixes ? &m->prefixes : NULL, err))
        return -1;
    if (j->swapped.data)
        return has_room(m, job, n_tokens) ? kv_paged_swap_in(&j->cache, &j->swapped, err) : 1;
    /* A fork waits until its origin has read the prompt: then all of it is shared. */
    if (origin >= 0 && m->scheduler->jobs[origin].state == REQUEST_PREFILLING)
        return 1;
    int result = take_shared(m, job, n_tokens, err);
    if (!result && !has_room(m, job, n_tokens))
        result = 1;
    struct error ignored;
    if (result) /* what was shared goes back to where it was */
        kv_paged_clear(&j->cache, result < 0 ? &ignored : err);
    return result;
}

static bool admit(struct request_memory *base, int job, int n_tokens, int *n_cached) {
    struct paged_memory *m = paged(base);
    struct error err;
    if (!answer(m, job, begin(m, job, n_tokens, &err), &err))
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

/* ---- while they run -------------------------------------------------------------------------- */

static bool reserve(struct request_memory *base, int job, int n_positions) {
    struct paged_memory *m = paged(base);
    struct error err;
    return answer(m, job, kv_paged_reserve(cache_of(m, job), n_positions, &err), &err);
}

static void preempt(struct request_memory *base, int job) {
    struct paged_memory *m = paged(base);
    struct kv_paged *c = cache_of(m, job);
    bool swaps = m->options.preempt == PREEMPT_SWAP && c->n_stored;
    struct error err;
    m->stats.preemptions++;
    m->stats.swapped += swaps ? c->n_stored : 0;
    if (swaps ? kv_paged_swap_out(c, &m->jobs[job].swapped, &err) : kv_paged_clear(c, &err))
        fail(m, &err);
    count_bytes(m);
}

static struct kv_cache *cache(struct request_memory *base, int job) {
    return &cache_of(paged(base), job)->base;
}

static void stored(struct request_memory *base, int job, int n_positions) {
    struct paged_memory *m = paged(base);
    struct error err;
    kv_paged_stored(cache_of(m, job), m->requests[job].sequence->tokens, n_positions);
    if (kv_paged_shrink(cache_of(m, job), &err)) /* what drafts had that were not drawn */
        fail(m, &err);
    count_bytes(m);
}

static void release(struct request_memory *base, int job) {
    struct paged_memory *m = paged(base);
    struct error err;
    if (cache_of(m, job)->pool && kv_paged_clear(cache_of(m, job), &err))
        fail(m, &err);
    kv_swapped_free(&m->jobs[job].swapped);
    count_bytes(m);
}

/* ---- the whole ------------------------------------------------------------------------------- */

/* A cached block is given out anew. */
static void evicted(void *context, int32_t block) {
    struct paged_memory *m = context;
    prefix_cache_forget(&m->prefixes, block);
    kv_pool_poison(m->pool, block);
}

static int start(struct request_memory *base, const struct scheduler *s,
                 const struct memory_request *requests, int n, struct error *err) {
    struct paged_memory *m = paged(base);
    struct block_allocator *blocks = &m->pool->blocks;
    m->scheduler = s;
    m->requests = requests;
    m->jobs = calloc((size_t)n + 1, sizeof *m->jobs);
    if (!m->jobs)
        return error_set(err, "out of memory for %d requests", n);
    m->n_jobs = n;
    if (m->options.share_prefixes &&
        prefix_cache_start(&m->prefixes, blocks->stats.total, m->pool->block_size, err))
        return -1;
    blocks->evicted = m->options.share_prefixes ? evicted : NULL;
    blocks->context = m;
    return 0;
}

void paged_memory_start(struct paged_memory *m, struct kv_pool *pool,
                        const struct paged_options *options) {
    *m = (struct paged_memory){.base = {.start = start,
                                        .admit = admit,
                                        .reserve = reserve,
                                        .preempt = preempt,
                                        .cache = cache,
                                        .stored = stored,
                                        .release = release,
                                        .block_bytes = (int64_t)pool->bytes_per_block},
                               .pool = pool,
                               .options = *options};
}

void paged_memory_end(struct paged_memory *m) {
    struct error err;
    for (int i = 0; i < m->n_jobs; i++) {
        kv_paged_end(&m->jobs[i].cache);
        kv_swapped_free(&m->jobs[i].swapped);
    }
    for (int32_t b = 0; m->prefixes.entries && b < m->prefixes.n_blocks; b++)
        if (prefix_cache_knows(&m->prefixes, b) && !block_forget(&m->pool->blocks, b, &err))
            kv_pool_poison(m->pool, b);
    if (m->pool)
        m->pool->blocks.evicted = NULL;
    prefix_cache_end(&m->prefixes);
    free(m->jobs);
    *m = (struct paged_memory){0};
}
