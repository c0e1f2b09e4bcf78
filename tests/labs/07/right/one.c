/* Another right solution of lab 7: positions are stored one by one, and a victim is looked for from
 * the end. */
#include "scheduler/kv_paged.h"
#include "scheduler/scheduler.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* Given below. */
static int share(struct kv_paged *c, int32_t block, struct error *err);
static int release(struct kv_paged *c, int32_t block, struct error *err);
static void copy_block(struct kv_pool *p, int32_t to, int32_t from);
static uint64_t hash_of(const struct prefix_cache *p, uint64_t before, const int32_t *tokens);
static int32_t *bucket_of(const struct prefix_cache *p, uint64_t hash);
static int32_t *tokens_of(const struct prefix_cache *p, int32_t block);
static bool reserve(struct scheduler *s, int job, int n_positions);
static void change(struct scheduler *s, int job, enum request_state to, double now);
static void list_insert(const struct scheduler *s, int *list, int *n, int job);
static void list_remove(int *list, int *n, int job);

static int32_t to_be_copied(const struct kv_paged *c, int n_positions) {
    int entry = c->n_stored / c->pool->block_size;
    if (n_positions <= c->n_stored || entry >= c->table.n_blocks)
        return -1;
    int32_t block = c->table.blocks[entry];
    bool known = c->prefixes && prefix_cache_knows(c->prefixes, block);
    bool shared = block_references(&c->pool->blocks, block) > 1;
    return known || shared ? block : -1;
}

int kv_paged_fork(struct kv_paged *c, const struct kv_paged *from, int n_positions,
                  struct error *err) {
    while (c->table.n_blocks * c->pool->block_size < n_positions)
        if (share(c, from->table.blocks[c->table.n_blocks], err))
            return -1;
    c->base.capacity = c->table.n_blocks * c->pool->block_size;
    c->n_stored = n_positions;
    return 0;
}

int kv_paged_missing(const struct kv_paged *c, int n_positions) {
    int missing = block_table_missing(&c->table, n_positions);
    if (to_be_copied(c, n_positions) >= 0)
        missing++;
    return missing;
}

int kv_paged_reserve(struct kv_paged *c, int n_positions, struct error *err) {
    int32_t old = to_be_copied(c, n_positions);
    if (block_available(&c->pool->blocks) < kv_paged_missing(c, n_positions))
        return 1;
    if (block_table_grow(&c->table, &c->pool->blocks, n_positions, err))
        return -1;
    c->base.capacity = c->table.n_blocks * c->pool->block_size;
    if (old < 0)
        return 0;
    int32_t copy = block_allocate(&c->pool->blocks);
    copy_block(c->pool, copy, old);
    c->table.blocks[c->n_stored / c->pool->block_size] = copy;
    return release(c, old, err);
}

int32_t prefix_cache_find(const struct prefix_cache *p, int32_t before, const int32_t *tokens) {
    uint64_t serial = 0;
    if (before >= 0) {
        serial = p->entries[before].serial;
        if (!serial)
            return -1;
    }
    int32_t block = *bucket_of(p, hash_of(p, serial, tokens));
    size_t bytes = sizeof *tokens * (size_t)p->block_size;
    while (block >= 0) {
        if (p->entries[block].before == serial && !memcmp(tokens_of(p, block), tokens, bytes))
            break;
        block = p->entries[block].next;
    }
    return block;
}

void prefix_cache_add(struct prefix_cache *p, int32_t block, int32_t before,
                      const int32_t *tokens) {
    uint64_t serial = before >= 0 ? p->entries[before].serial : 0;
    if (p->entries[block].serial || (before >= 0 && !serial))
        return;
    if (prefix_cache_find(p, before, tokens) >= 0)
        return;
    size_t bytes = sizeof *tokens * (size_t)p->block_size;
    memcpy(p->tokens + (size_t)block * (size_t)p->block_size, tokens, bytes);
    p->entries[block].before = serial;
    p->entries[block].hash = hash_of(p, serial, tokens);
    p->entries[block].serial = ++p->last_serial;
    int32_t *first = bucket_of(p, p->entries[block].hash);
    p->entries[block].next = *first;
    *first = block;
}

void prefix_cache_forget(struct prefix_cache *p, int32_t block) {
    if (!p->entries[block].serial)
        return;
    int32_t *at = bucket_of(p, p->entries[block].hash);
    while (*at != block)
        at = &p->entries[*at].next;
    *at = p->entries[block].next;
    p->entries[block].serial = 0;
}

void kv_paged_stored(struct kv_paged *c, const int32_t *tokens, int n_positions) {
    int size = c->pool->block_size;
    for (; c->n_stored < n_positions; c->n_stored++) {
        int i = c->n_stored / size;
        if (c->prefixes && c->n_stored % size == size - 1)
            prefix_cache_add(c->prefixes, c->table.blocks[i], i ? c->table.blocks[i - 1] : -1,
                             tokens + i * size);
    }
}

int kv_paged_match(struct kv_paged *c, const int32_t *tokens, int n_tokens, struct error *err) {
    int size = c->pool->block_size, at = 0;
    int32_t block = -1;
    while (c->prefixes && n_tokens - at > size) {
        block = prefix_cache_find(c->prefixes, block, tokens + at);
        if (block < 0)
            break;
        if (share(c, block, err))
            return -1;
        at += size;
    }
    c->n_stored = c->base.capacity = at;
    return 0;
}

static void preempt(struct scheduler *s, int job, double now) {
    struct job *j = &s->jobs[job];
    list_remove(s->running, &s->n_running, job);
    list_insert(s, s->preempted, &s->n_preempted, job);
    s->memory->preempt(s->memory, job);
    j->n_preempted++;
    j->n_read = 0;
    j->n_to_read = j->n_prompt + j->n_new;
    change(s, job, REQUEST_PREEMPTED, now);
}

static bool make_room(struct scheduler *s, int i, int n_positions, bool any_victim, double now) {
    int job = s->running[i];
    bool has_room = reserve(s, job, n_positions);
    for (int last = s->n_running - 1; last > i && !has_room; last--) {
        int victim = s->running[last];
        if (!any_victim && s->jobs[victim].state != REQUEST_PREFILLING)
            continue;
        preempt(s, victim, now);
        has_room = reserve(s, job, n_positions);
    }
    return has_room;
}

/* ---- given: scheduler/kv_paged.c --------------------------------------------------------------
 */

static struct kv_paged *paged_of(struct kv_cache *cache) {
    return (struct kv_paged *)cache;
}

/* For the forward pass, whose caller has made room before; it only checks. */
static int reserve_for_pass(struct kv_cache *cache, int n_positions, struct error *err) {
    struct kv_paged *c = paged_of(cache);
    int result = kv_paged_reserve(c, n_positions, err);
    return result > 0 ? error_set(err,
                                  "the KV pool of %d blocks of %d positions is full: give it more "
                                  "memory, or run fewer requests at once",
                                  c->pool->blocks.stats.total, c->pool->block_size)
                      : result;
}

/* For the forward pass. It asks for all positions once per pass: then the table is checked, before
 * any kernel follows it. */
static int slots(const struct kv_cache *cache, int first, int n, int64_t *out, struct error *err) {
    const struct kv_paged *c = (const struct kv_paged *)cache;
    if (first == 0 && block_table_check(&c->table, &c->pool->blocks, err))
        return -1;
    return block_table_slots(&c->table, first, n, out, err);
}

/* For a forward pass with one attention for all its sequences: every table is checked first, too.
 */
static int page_table(struct kv_cache *const *caches, const int *kv_lens, int n,
                      struct page_table *out, struct error *err) {
    const struct block_table **tables = malloc(sizeof *tables * ((size_t)n + 1));
    int result = tables ? 0 : error_set(err, "out of memory for a page table");
    *out = (struct page_table){0};
    for (int i = 0; i < n && !result; i++) {
        const struct kv_paged *c = paged_of(caches[i]);
        tables[i] = &c->table;
        result = block_table_check(&c->table, &c->pool->blocks, err);
    }
    if (!result)
        result = page_table_fill(out, tables, kv_lens, n, err);
    if (!result && n)
        out->n_pool_pages = paged_of(caches[0])->pool->blocks.stats.total;
    free(tables);
    return result;
}

int kv_paged_start(struct kv_paged *c, struct kv_pool *pool, struct prefix_cache *prefixes,
                   struct error *err) {
    *c = (struct kv_paged){.base = {.layers = pool->layers,
                                    .type = pool->type,
                                    .n_layers = pool->n_layers,
                                    .n_kv_heads = pool->n_kv_heads,
                                    .head_dim = pool->head_dim,
                                    .dev = pool->dev,
                                    .reserve = reserve_for_pass,
                                    .slots = slots,
                                    .page_table = page_table},
                           .pool = pool,
                           .prefixes = prefixes};
    return block_table_start(&c->table, pool->block_size, err);
}

static int release(struct kv_paged *c, int32_t block, struct error *err) {
    bool keep = c->prefixes && prefix_cache_knows(c->prefixes, block);
    return kv_pool_release(c->pool, block, keep, err) < 0 ? -1 : 0;
}

int kv_paged_clear(struct kv_paged *c, struct error *err) {
    int result = 0;
    /* The last first: of cached blocks the end of a text is given out anew before its beginning,
     * which more texts share. */
    while (c->table.n_blocks)
        if (release(c, c->table.blocks[--c->table.n_blocks], err))
            result = -1;
    c->n_stored = c->base.capacity = 0;
    return result;
}

void kv_paged_end(struct kv_paged *c) {
    struct error err;
    if (c->pool)
        kv_paged_clear(c, &err);
    block_table_end(&c->table);
    *c = (struct kv_paged){0};
}

/* Copies the keys and values of a whole block, in all layers. */
static void copy_block(struct kv_pool *p, int32_t to, int32_t from) {
    for (int i = 0; i < p->n_layers; i++) {
        struct kv_parts t = kv_pool_block(p, i, to), f = kv_pool_block(p, i, from);
        for (int part = 0; part < 4; part++)
            p->dev->ops->copy(p->dev, t.at[part], f.at[part], t.bytes[part]);
    }
}

/* Takes a reference to a block and appends it to the table. */
static int share(struct kv_paged *c, int32_t block, struct error *err) {
    if (block_share(&c->pool->blocks, block, err))
        return -1;
    if (!block_table_append(&c->table, block, err))
        return 0;
    struct error ignored;
    release(c, block, &ignored);
    return -1;
}

int kv_paged_shrink(struct kv_paged *c, struct error *err) {
    int n = blocks_for(c->n_stored, c->pool->block_size), result = 0;
    while (c->table.n_blocks > n)
        if (release(c, c->table.blocks[--c->table.n_blocks], err))
            result = -1;
    c->base.capacity = c->table.n_blocks * c->pool->block_size;
    return result;
}

/* Copies a block from the pool to host memory, or from there into the pool. */
static void transfer_block(struct kv_pool *p, int32_t block, unsigned char *host, bool out) {
    for (int i = 0; i < p->n_layers; i++) {
        struct kv_parts b = kv_pool_block(p, i, block);
        for (int part = 0; part < 4; part++) {
            if (out)
                p->dev->ops->download(p->dev, host, b.at[part], b.bytes[part]);
            else
                p->dev->ops->upload(p->dev, b.at[part], host, b.bytes[part]);
            host += b.bytes[part];
        }
    }
}

int kv_paged_swap_out(struct kv_paged *c, struct kv_swapped *out, struct error *err) {
    int n = blocks_for(c->n_stored, c->pool->block_size);
    size_t bytes = c->pool->bytes_per_block;
    *out = (struct kv_swapped){malloc(bytes * (size_t)n + 1), n, c->n_stored};
    if (!out->data)
        return error_set(err, "out of host memory for %d blocks of keys and values", n);
    for (int i = 0; i < n; i++)
        transfer_block(c->pool, c->table.blocks[i], out->data + bytes * (size_t)i, true);
    return kv_paged_clear(c, err);
}

int kv_paged_swap_in(struct kv_paged *c, struct kv_swapped *in, struct error *err) {
    int result = block_table_grow(&c->table, &c->pool->blocks, in->n_stored, err);
    if (result)
        return result;
    for (int i = 0; i < in->n_blocks; i++)
        transfer_block(c->pool, c->table.blocks[i], in->data + c->pool->bytes_per_block * (size_t)i,
                       false);
    c->n_stored = in->n_stored;
    c->base.capacity = c->table.n_blocks * c->pool->block_size;
    kv_swapped_free(in);
    return 0;
}

void kv_swapped_free(struct kv_swapped *s) {
    free(s->data);
    *s = (struct kv_swapped){0};
}

/* ---- given: scheduler/prefix_cache.c ----------------------------------------------------------
 */

int prefix_cache_start(struct prefix_cache *p, int n_blocks, int block_size, struct error *err) {
    size_t n = (size_t)n_blocks + 1; /* no array is empty */
    *p = (struct prefix_cache){.n_blocks = n_blocks, .block_size = block_size, .n_buckets = 1};
    while (p->n_buckets < n_blocks)
        p->n_buckets *= 2;
    p->tokens = malloc(sizeof *p->tokens * n * (size_t)block_size);
    p->entries = calloc(n, sizeof *p->entries);
    p->buckets = malloc(sizeof *p->buckets * (size_t)p->n_buckets);
    if (!p->tokens || !p->entries || !p->buckets) {
        prefix_cache_end(p);
        return error_set(err, "out of memory for a prefix cache of %d blocks", n_blocks);
    }
    memset(p->buckets, 0xff, sizeof *p->buckets * (size_t)p->n_buckets);
    return 0;
}

void prefix_cache_end(struct prefix_cache *p) {
    free(p->tokens);
    free(p->entries);
    free(p->buckets);
    *p = (struct prefix_cache){0};
}

/* The serial number is the seed: it stands for all tokens before the block. */
static uint64_t hash_of(const struct prefix_cache *p, uint64_t before, const int32_t *tokens) {
    return XXH3_64bits_withSeed(tokens, sizeof *tokens * (size_t)p->block_size, before);
}

static int32_t *bucket_of(const struct prefix_cache *p, uint64_t hash) {
    return &p->buckets[hash & (uint64_t)(p->n_buckets - 1)];
}

static int32_t *tokens_of(const struct prefix_cache *p, int32_t block) {
    return p->tokens + (size_t)block * (size_t)p->block_size;
}

bool prefix_cache_knows(const struct prefix_cache *p, int32_t block) {
    return p->entries[block].serial != 0;
}

/* ---- given: scheduler/scheduler.c -------------------------------------------------------------
 */

const char *request_state_name(enum request_state state) {
    static const char *const names[] = {"waiting", "prefilling", "decoding", "preempted", "done"};
    return names[state];
}

int scheduler_start(struct scheduler *s, const struct scheduler_options *options,
                    struct error *err) {
    *s = (struct scheduler){.options = *options};
    if (options->max_running < 1)
        return error_set(err, "%d running requests: at least 1 must be allowed",
                         options->max_running);
    if (options->token_budget < options->max_running)
        return error_set(err,
                         "a budget of %d tokens per step is too small for %d running requests: "
                         "each draws one",
                         options->token_budget, options->max_running);
    if (options->chunk < 1)
        return error_set(err, "prompt pieces of %d tokens: at least 1", options->chunk);
    s->running = malloc(sizeof *s->running * (size_t)options->max_running);
    s->preempted = malloc(sizeof *s->preempted * (size_t)options->max_running);
    return s->running && s->preempted ? 0 : error_set(err, "out of memory");
}

void scheduler_end(struct scheduler *s) {
    free(s->jobs);
    free(s->queue);
    free(s->forgotten);
    free(s->running);
    free(s->preempted);
    *s = (struct scheduler){0};
}

/* Room for one job more, and for its number in each list. */
static int grow(struct scheduler *s, struct error *err) {
    size_t capacity = s->capacity ? 2 * (size_t)s->capacity : 64;
    struct job *jobs = realloc(s->jobs, sizeof *jobs * capacity);
    s->jobs = jobs ? jobs : s->jobs;
    int *queue = realloc(s->queue, sizeof *queue * capacity);
    s->queue = queue ? queue : s->queue;
    int *forgotten = realloc(s->forgotten, sizeof *forgotten * capacity);
    s->forgotten = forgotten ? forgotten : s->forgotten;
    if (!jobs || !queue || !forgotten)
        return error_set(err, "out of memory for %zu requests", capacity);
    s->capacity = (int)capacity;
    return 0;
}

static void queue_push(struct scheduler *s, int job) {
    if (s->queue_end == s->capacity) { /* those in front have left */
        s->queue_end -= s->queue_first;
        memmove(s->queue, s->queue + s->queue_first, sizeof *s->queue * (size_t)s->queue_end);
        s->queue_first = 0;
    }
    s->queue[s->queue_end++] = job;
}

int scheduler_add(struct scheduler *s, double arrival, int n_prompt, struct error *err) {
    if (n_prompt < 1)
        return error_set(err, "the prompt is empty: there is nothing to continue");
    if (!(arrival >= 0) || isinf(arrival))
        return error_set(err, "arrival %g: must be 0 or later", arrival);
    if (arrival < s->last_arrival)
        return error_set(err, "arrival %g comes after one at %g: sort them", arrival,
                         s->last_arrival);
    if (!s->n_forgotten && s->n_jobs == s->capacity && grow(s, err))
        return -1;
    int job = s->n_forgotten ? s->forgotten[--s->n_forgotten] : s->n_jobs++;
    s->jobs[job] = (struct job){.order = s->n_added++,
                                .arrival = arrival,
                                .n_prompt = n_prompt,
                                .n_to_read = n_prompt,
                                .admitted = -1,
                                .first = -1,
                                .done = -1};
    s->last_arrival = arrival;
    queue_push(s, job);
    return job;
}

void scheduler_forget(struct scheduler *s, int job) {
    s->forgotten[s->n_forgotten++] = job;
}

/* The one place where a state changes. */
static void change(struct scheduler *s, int job, enum request_state to, double now) {
    struct job *j = &s->jobs[job];
    enum request_state from = j->state;
    j->state = to;
    if (to == REQUEST_PREFILLING && from == REQUEST_WAITING)
        j->admitted = now;
    if (to == REQUEST_DONE) {
        j->done = now;
        s->n_done++;
    }
    if (s->changed)
        s->changed(s->context, job, from, now);
}

/* ---- lists of jobs --------------------------------------------------------------------------- */

static void list_remove(int *list, int *n, int job) {
    int i = 0;
    while (i < *n && list[i] != job)
        i++;
    if (i == *n)
        return;
    memmove(list + i, list + i + 1, sizeof *list * (size_t)(*n - i - 1));
    --*n;
}

/* Lists are in order of arrival. */
static void list_insert(const struct scheduler *s, int *list, int *n, int job) {
    int i = *n;
    for (; i > 0 && s->jobs[list[i - 1]].order > s->jobs[job].order; i--)
        list[i] = list[i - 1];
    list[i] = job;
    ++*n;
}

static void queue_remove(struct scheduler *s, int job) {
    int n = s->queue_end - s->queue_first;
    if (n && s->queue[s->queue_first] == job) {
        s->queue_first++;
        return;
    }
    list_remove(s->queue + s->queue_first, &n, job);
    s->queue_end = s->queue_first + n;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static bool reserve(struct scheduler *s, int job, int n_positions) {
    return !s->memory || s->memory->reserve(s->memory, job, n_positions);
}

/* ---- the plan of a step ---------------------------------------------------------------------- */

struct step_plan {
    struct plan_entry *entries;
    int n, budget;
    bool short_of_memory; /* somebody lacked room: nobody new may come */
};

static void add_entry(struct step_plan *p, int job, int first, int n_tokens, bool draws) {
    p->entries[p->n++] = (struct plan_entry){job, first, n_tokens, draws};
    p->budget -= n_tokens;
}

static void plan_decodes(struct scheduler *s, struct step_plan *p, double now) {
    for (int i = 0; i < s->n_running; i++) {
        int job = s->running[i];
        const struct job *j = &s->jobs[job];
        if (j->state != REQUEST_DECODING)
            continue;
        int last = j->n_prompt + j->n_new - 1;
        if (make_room(s, i, last + 1, true, now)) {
            add_entry(p, job, last, 1, true);
            continue;
        }
        p->short_of_memory = true;
        if (s->n_running > 1)
            preempt(s, job, now); /* it arrived last; it was running[n_running - 1] */
        else
            scheduler_stop(s, job, FINISH_ERROR, now);
        return;
    }
}

static int min_int(int a, int b) {
    return a < b ? a : b;
}

/* A piece of the prompt of running[i]. Returns false when it lacks room: those behind it wait, too.
 */
static bool plan_prefill(struct scheduler *s, struct step_plan *p, int i, double now) {
    int job = s->running[i];
    const struct job *j = &s->jobs[job];
    int left = j->n_to_read - j->n_read;
    int n_tokens = min_int(min_int(left, s->options.chunk), p->budget);
    if (make_room(s, i, j->n_read + n_tokens, false, now)) {
        add_entry(p, job, j->n_read, n_tokens, n_tokens == left);
        return true;
    }
    p->short_of_memory = true;
    if (s->n_running == 1)
        scheduler_stop(s, job, FINISH_ERROR, now);
    return false;
}

/* Also when a decode has given way: what it gave back is theirs. */
static void plan_prefills(struct scheduler *s, struct step_plan *p, double now) {
    for (int i = 0; i < s->n_running && p->budget; i++)
        if (s->jobs[s->running[i]].state == REQUEST_PREFILLING && !plan_prefill(s, p, i, now))
            return;
}

/* The job begins, or goes on, if there is room. */
static bool start(struct scheduler *s, struct step_plan *p, int job, double now) {
    struct job *j = &s->jobs[job];
    int n_cached = 0;
    if (s->memory && !s->memory->admit(s->memory, job, j->n_to_read, &n_cached)) {
        if (!s->n_running) /* all memory is free, and it is not enough */
            scheduler_stop(s, job, FINISH_ERROR, now);
        return false;
    }
    j->n_read = n_cached;
    if (j->state == REQUEST_WAITING)
        queue_remove(s, job);
    list_remove(s->preempted, &s->n_preempted, job);
    list_insert(s, s->running, &s->n_running, job);
    change(s, job, REQUEST_PREFILLING, now);
    int left = j->n_to_read - j->n_read;
    int n_tokens = min_int(min_int(left, s->options.chunk), p->budget);
    /* Others are planned already: it takes nothing from them. */
    if (n_tokens && reserve(s, job, j->n_read + n_tokens))
        add_entry(p, job, j->n_read, n_tokens, n_tokens == left);
    return true;
}

/* Those that were preempted first, then the queue, in order of arrival: nobody is passed over. */
static void admit(struct scheduler *s, struct step_plan *p, double now) {
    bool batch_runs = !s->options.continuous && s->n_running;
    while (s->n_preempted && s->n_running < s->options.max_running) {
        int job = s->preempted[0];
        if (!start(s, p, job, now) && s->jobs[job].state != REQUEST_DONE)
            return;
    }
    while (!s->n_preempted && !batch_runs && s->n_running < s->options.max_running &&
           scheduler_next_arrival(s) <= now) {
        int job = s->queue[s->queue_first];
        if (!start(s, p, job, now) && s->jobs[job].state != REQUEST_DONE)
            return;
    }
}

int scheduler_plan(struct scheduler *s, double now, struct plan_entry *entries) {
    struct step_plan p = {entries, 0, s->options.token_budget, false};
    plan_decodes(s, &p, now);
    plan_prefills(s, &p, now);
    if (!p.short_of_memory)
        admit(s, &p, now);
    return p.n;
}

void scheduler_ran(struct scheduler *s, const struct plan_entry *entry, enum finish finish,
                   double now) {
    struct job *j = &s->jobs[entry->job];
    if (j->state == REQUEST_DONE)
        return; /* stopped meanwhile */
    j->steps++;
    if (j->state == REQUEST_PREFILLING)
        j->n_read += entry->n_tokens;
    if (!entry->draws)
        return;
    if (!j->n_new++)
        j->first = now;
    if (j->state == REQUEST_PREFILLING)
        change(s, entry->job, REQUEST_DECODING, now);
    if (finish != FINISH_NOT_YET)
        scheduler_stop(s, entry->job, finish, now);
}

void scheduler_stop(struct scheduler *s, int job, enum finish finish, double now) {
    struct job *j = &s->jobs[job];
    if (j->state == REQUEST_DONE)
        return;
    if (now < j->arrival)
        now = j->arrival; /* it ends the moment it arrives */
    if (j->state == REQUEST_WAITING)
        queue_remove(s, job);
    list_remove(s->running, &s->n_running, job);
    list_remove(s->preempted, &s->n_preempted, job);
    j->finish = finish;
    change(s, job, REQUEST_DONE, now);
}

double scheduler_next_arrival(const struct scheduler *s) {
    return s->queue_first < s->queue_end ? s->jobs[s->queue[s->queue_first]].arrival : INFINITY;
}

int scheduler_waiting(const struct scheduler *s, double now) {
    int n = 0;
    for (int i = s->queue_first; i < s->queue_end && s->jobs[s->queue[i]].arrival <= now; i++)
        n++;
    return n;
}
