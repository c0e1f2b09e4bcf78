/*
 * Lab 7: copy on write, the prefix cache, preemption. Your file takes the place of three modules:
 * scheduler/kv_paged.c, scheduler/prefix_cache.c and scheduler/scheduler.c; the task is in the
 * section "Lab" of this chapter. `make lab7` builds and grades it. What you write comes first; the
 * rest of the three modules is given below it. The functions called in step 1 are those of
 * scheduler/block_allocator.h and scheduler/block_table.h, and those given below.
 */
#include "scheduler/kv_paged.h"
#include "scheduler/scheduler.h"
#include "tests/labs/not_written.h"

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

/* ---- step 1: copy on write ------------------------------------------------------------------- */

/* c is empty. It shares (share) the blocks of the first n_positions of `from`, which has them, also
 * the last one if it is not full. Returns 0 with n_stored and base.capacity (positions that fit
 * into the table's blocks) set, or -1 with err set (share does it); then the caller clears c. */
int kv_paged_fork(struct kv_paged *c, const struct kv_paged *from, int n_positions,
                  struct error *err) {
    (void)c, (void)from, (void)n_positions, (void)err, (void)share;
    not_written("share the blocks that hold n_positions, set n_stored and base.capacity");
}

/* Blocks that kv_paged_reserve would take for n_positions: those that the table lacks
 * (block_table_missing), and one for a copy. A copy is due if a position will be written
 * (n_positions > n_stored) and the block that position n_stored goes to is in the table already,
 * but is not this cache's alone: it has another reference (block_references), or the prefix cache
 * knows it (prefix_cache_knows; c->prefixes may be NULL). */
int kv_paged_missing(const struct kv_paged *c, int n_positions) {
    (void)c, (void)n_positions;
    not_written("the blocks that the table lacks, and one if the next position's must be copied");
}

/* Makes room for positions n_stored ... n_positions - 1, where only this cache writes: the table
 * grows (block_table_grow), and then a block that must be copied gives its entry to a new one,
 * which gets its contents (copy_block), and loses a reference (release). Returns 0 with
 * base.capacity set; 1 when the pool has too few blocks for both, and then nothing has changed; -1
 * with err set. */
int kv_paged_reserve(struct kv_paged *c, int n_positions, struct error *err) {
    (void)c, (void)n_positions, (void)err, (void)copy_block;
    not_written("if all that is missing is available: grow, then copy the shared block");
}

/* ---- step 2: the prefix cache ---------------------------------------------------------------- */

/* The block that holds tokens [block_size] behind block `before` (-1: at the beginning of a text),
 * or -1; behind a block that is not known, nothing is. It is in the list that begins at
 * *bucket_of(hash_of(serial of `before`, tokens)) and goes on over p->entries[b].next to -1; a
 * known block has a serial number, and a first one has 0 before it. Hashes can be equal: what is
 * before and the tokens themselves are compared. */
int32_t prefix_cache_find(const struct prefix_cache *p, int32_t before, const int32_t *tokens) {
    (void)p, (void)before, (void)tokens, (void)hash_of, (void)bucket_of, (void)tokens_of;
    not_written("walk through the bucket; compare hash, what is before, and the tokens");
}

/* Notes that a block holds tokens [block_size] behind `before` (-1: at the beginning). It gets the
 * next serial number (p->last_serial), and before, hash and next in p->entries, and its tokens; it
 * becomes the first of its bucket. Nothing happens when the block is known already, when another
 * one holds the same, or when `before` is not known. */
void prefix_cache_add(struct prefix_cache *p, int32_t block, int32_t before,
                      const int32_t *tokens) {
    (void)p, (void)block, (void)before, (void)tokens;
    not_written("a serial number, what is before, hash, tokens, and the first place in its bucket");
}

/* The block gets new contents, or none: it leaves its bucket, and its serial number becomes 0.
 * Nothing happens when it was not known. */
void prefix_cache_forget(struct prefix_cache *p, int32_t block) {
    (void)p, (void)block;
    not_written("out of the list of its bucket; serial 0");
}

/* The positions up to n_positions are there now, and hold tokens [n_positions]: the blocks that
 * have become full since n_stored become known (prefix_cache_add), and n_stored follows.
 * c->prefixes may be NULL. */
void kv_paged_stored(struct kv_paged *c, const int32_t *tokens, int n_positions) {
    (void)c, (void)tokens, (void)n_positions;
    not_written("add each block that is full now, then set n_stored");
}

/* c is empty. It shares the known blocks that hold the beginning of tokens [n_tokens], but never
 * all of it, because the last token must be read to know what follows it. Returns 0 with
 * n_stored and base.capacity set, or -1 with err set (share does it); then the caller clears c.
 * c->prefixes may be NULL: nothing is found. */
int kv_paged_match(struct kv_paged *c, const int32_t *tokens, int n_tokens, struct error *err) {
    (void)c, (void)tokens, (void)n_tokens, (void)err;
    not_written("find and share block after block; at least one token is left to be read");
}

/* ---- step 3: preemption ---------------------------------------------------------------------- */

/* A running job gives way: memory takes back all that it holds (s->memory->preempt); it leaves
 * s->running and joins s->preempted (both in order of arrival), counts in n_preempted, and becomes
 * REQUEST_PREEMPTED (change). All its tokens are to be read again, prompt and answer. */
static void preempt(struct scheduler *s, int job, double now) {
    (void)s, (void)job, (void)now;
    not_written("give the memory back, change the list, read everything again, change the state");
}

/* Room (reserve) for n_positions of running[i], if need be from those behind it in s->running, the
 * one that arrived last first: with any_victim from any of them, else only from those that are
 * prefilling. Returns false when nobody is left who could give way. */
static bool make_room(struct scheduler *s, int i, int n_positions, bool any_victim, double now) {
    (void)s, (void)i, (void)n_positions, (void)any_victim, (void)now, (void)preempt;
    not_written("as long as there is no room, preempt the last one that may be, behind running[i]");
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
