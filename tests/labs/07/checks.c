/* Lab 7: copy on write, the prefix cache, preemption. */
#include "ref/ref.h"
#include "scheduler/kv_paged.h"
#include "scheduler/scheduler.h"
#include "tests/labs/07/causes.h"
#include "tests/labs/lab.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { BLOCK = 4, BLOCKS = 8, MOST_JOBS = 8, MOST_STEPS = 60 };

/* ---- a small pool ---------------------------------------------------------------------------- */

struct fixture {
    struct lab_log *log;
    struct model model; /* no weights: sizes and a device */
    struct kv_pool pool;
    struct prefix_cache prefixes;
};

static void begin(struct fixture *f, struct lab_log *log, int n_blocks) {
    struct kv_pool_options o = {
        .block_size = BLOCK, .n_blocks = n_blocks, .order = BLOCKS_FIFO, .poison = true};
    struct error err;
    *f = (struct fixture){.log = log};
    f->model.config.n_layers = 2;
    f->model.config.n_kv_heads = 1;
    f->model.config.head_dim = 8;
    f->model.dev = ref_ops.open(&(struct device_options){1}, &err);
    if (!f->model.dev || kv_pool_start(&f->pool, &f->model, &o, &err) ||
        prefix_cache_start(&f->prefixes, n_blocks, BLOCK, &err))
        exit(2);
}

static void end(struct fixture *f) {
    lab_int(f->log, f->pool.blocks.stats.used, "blocks in use when all caches have ended");
    prefix_cache_end(&f->prefixes);
    kv_pool_end(&f->pool);
    f->model.dev->ops->close(f->model.dev);
}

static struct kv_paged cache_in(struct fixture *f, bool shares) {
    struct kv_paged c;
    struct error err;
    if (kv_paged_start(&c, &f->pool, shares ? &f->prefixes : NULL, &err))
        exit(2);
    return c;
}

/* A block of every layer is filled with its own byte, and noted as such. */
static void fill(struct fixture *f, int32_t block, int value) {
    for (int layer = 0; layer < f->pool.n_layers; layer++) {
        struct kv_parts b = kv_pool_block(&f->pool, layer, block);
        for (int i = 0; i < 4; i++)
            memset(b.at[i], value + layer, b.bytes[i]);
    }
}

static void note_cache(struct fixture *f, const struct kv_paged *c, const char *whose) {
    lab_int(f->log, c->n_stored, "n_stored of %s", whose);
    lab_int(f->log, c->base.capacity, "base.capacity of %s", whose);
    lab_int(f->log, c->table.n_blocks, "blocks of %s", whose);
    for (int i = 0; i < c->table.n_blocks; i++) {
        int32_t block = c->table.blocks[i];
        struct kv_parts b = kv_pool_block(&f->pool, 1, block);
        lab_int(f->log, block_references(&f->pool.blocks, block), "references to block %d of %s", i,
                whose);
        lab_int(f->log, *(unsigned char *)b.at[0], "keys of block %d of %s", i, whose);
        lab_int(f->log, *(unsigned char *)b.at[3], "value exponents of block %d of %s", i, whose);
    }
    lab_int(f->log, f->pool.blocks.stats.used, "blocks in use");
}

static void note_reserve(struct fixture *f, struct kv_paged *c, int n, const char *whose) {
    struct error err;
    lab_int(f->log, kv_paged_missing(c, n), "kv_paged_missing of %s", whose);
    lab_int(f->log, kv_paged_reserve(c, n, &err), "kv_paged_reserve of %s", whose);
    note_cache(f, c, whose);
}

/* A cache of n positions whose blocks hold 10, 20, ... */
static struct kv_paged stored_cache(struct fixture *f, int n) {
    struct kv_paged c = cache_in(f, false);
    note_reserve(f, &c, n, "a cache of its own");
    for (int i = 0; i < c.table.n_blocks; i++)
        fill(f, c.table.blocks[i], 10 * (i + 1));
    c.n_stored = n;
    return c;
}

/* ---- step 1: copy on write ------------------------------------------------------------------- */

static void run_own(struct lab_log *log, int n) {
    struct fixture f;
    begin(&f, log, BLOCKS);
    struct kv_paged c = stored_cache(&f, n);
    note_reserve(&f, &c, n, "a cache that has them");
    note_reserve(&f, &c, n + 1, "a cache that wants one more");
    note_reserve(&f, &c, BLOCKS * BLOCK + 1, "a cache that wants too many");
    kv_paged_end(&c);
    end(&f);
}

static void run_fork(struct lab_log *log, int n) {
    struct fixture f;
    struct error err;
    begin(&f, log, BLOCKS);
    struct kv_paged a = stored_cache(&f, n), b = cache_in(&f, false);
    lab_int(log, kv_paged_fork(&b, &a, n, &err), "kv_paged_fork");
    note_cache(&f, &b, "the fork");
    note_cache(&f, &a, "the origin");
    kv_paged_end(&a);
    note_cache(&f, &b, "the fork, when the origin has ended");
    kv_paged_end(&b);
    end(&f);
}

static void run_write(struct lab_log *log, int n) {
    struct fixture f;
    struct error err;
    begin(&f, log, BLOCKS);
    struct kv_paged a = stored_cache(&f, n), b = cache_in(&f, false);
    lab_int(log, kv_paged_fork(&b, &a, n, &err), "kv_paged_fork");
    note_reserve(&f, &b, n, "the fork, which writes nothing");
    note_reserve(&f, &a, n + 1, "the origin, which writes first");
    note_reserve(&f, &b, n + 1, "the fork, which writes second");
    lab_int(log, a.table.blocks[n / BLOCK] != b.table.blocks[n / BLOCK],
            "the two write into different blocks");
    kv_paged_end(&a);
    kv_paged_end(&b);
    end(&f);
}

/* The pool has a block too few for the copy, or for the copy and what follows. */
static void run_full(struct lab_log *log, int n) {
    struct fixture f;
    struct error err;
    begin(&f, log, 2);
    struct kv_paged a = stored_cache(&f, 3), b = cache_in(&f, false);
    lab_int(log, kv_paged_fork(&b, &a, 3, &err), "kv_paged_fork");
    note_reserve(&f, &b, n, "the fork in a small pool");
    note_cache(&f, &a, "the origin in a small pool");
    kv_paged_end(&a);
    kv_paged_end(&b);
    end(&f);
}

/* ---- step 2: the prefix cache ---------------------------------------------------------------- */

static const int32_t text[] = {1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 9, 9, 9, 9};

/* One bucket or several: blocks 0, 1, ... hold the text, and are forgotten one by one. */
static void run_find(struct lab_log *log, int n) {
    struct prefix_cache p;
    struct error err;
    if (prefix_cache_start(&p, BLOCKS, BLOCK, &err))
        exit(2);
    p.n_buckets = 1; /* all in one list */
    for (int i = 0; i < n; i++) {
        lab_int(log, prefix_cache_find(&p, i - 1, text + i * BLOCK), "find block %d: not there", i);
        prefix_cache_add(&p, i, i - 1, text + i * BLOCK);
        lab_int(log, prefix_cache_find(&p, i - 1, text + i * BLOCK), "find block %d: there", i);
    }
    prefix_cache_add(&p, n, -1, text);
    lab_int(log, prefix_cache_knows(&p, n), "a second block with the same tokens is known");
    prefix_cache_add(&p, n + 1, n, text);
    lab_int(log, prefix_cache_knows(&p, n + 1), "a block behind an unknown one is known");
    lab_int(log, prefix_cache_find(&p, -1, text + BLOCK), "find tokens without what is before");
    prefix_cache_forget(&p, n + 2);
    for (int i = n - 1; i >= 0; i--) {
        prefix_cache_forget(&p, i);
        for (int k = 0; k < n; k++)
            lab_int(log, prefix_cache_find(&p, k - 1, text + k * BLOCK),
                    "find block %d after block %d was forgotten", k, i);
    }
    prefix_cache_end(&p);
}

/* A first block is forgotten and holds other tokens: what stood behind it is not behind it now. */
static void run_serial(struct lab_log *log, int n) {
    static const int32_t other[] = {8, 8, 8, 8};
    struct prefix_cache p;
    struct error err;
    if (prefix_cache_start(&p, BLOCKS, BLOCK, &err))
        exit(2);
    for (int i = 0; i < n; i++)
        prefix_cache_add(&p, i, i - 1, text + i * BLOCK);
    prefix_cache_forget(&p, 0);
    prefix_cache_add(&p, 0, -1, other);
    lab_int(log, prefix_cache_find(&p, 0, text + BLOCK), "find behind a block with new contents");
    prefix_cache_end(&p);
}

/* The hash of block 0 is made that of other tokens. */
static void run_collision(struct lab_log *log, int n) {
    struct prefix_cache p;
    struct error err;
    if (prefix_cache_start(&p, BLOCKS, BLOCK, &err))
        exit(2);
    p.n_buckets = 1;
    prefix_cache_add(&p, 0, -1, text);
    int32_t other[BLOCK] = {n, n, n, n};
    p.entries[0].hash = XXH3_64bits_withSeed(other, sizeof other, 0);
    lab_int(log, prefix_cache_find(&p, -1, other), "find other tokens with an equal hash");
    prefix_cache_end(&p);
}

static void run_match(struct lab_log *log, int n) {
    struct fixture f;
    struct error err;
    begin(&f, log, BLOCKS);
    struct kv_paged a = cache_in(&f, true), b = cache_in(&f, true);
    lab_int(log, kv_paged_reserve(&a, n, &err), "kv_paged_reserve");
    kv_paged_stored(&a, text, n / 2); /* in two pieces */
    kv_paged_stored(&a, text, n);
    lab_int(log, a.n_stored, "n_stored after kv_paged_stored");
    for (int i = 0; i < a.table.n_blocks; i++)
        lab_int(log, prefix_cache_knows(&f.prefixes, a.table.blocks[i]), "block %d of %d is known",
                i, a.table.n_blocks);
    lab_int(log, kv_paged_match(&b, text, n, &err), "kv_paged_match of %d tokens", n);
    note_cache(&f, &b, "the cache that matches");
    note_reserve(&f, &b, n, "the cache that matches");
    kv_paged_end(&a);
    kv_paged_end(&b);
    end(&f);
}

/* Without a prefix cache nothing is found, and nothing becomes known. */
static void run_unknowing(struct lab_log *log, int n) {
    struct fixture f;
    struct error err;
    begin(&f, log, BLOCKS);
    struct kv_paged c = cache_in(&f, false);
    lab_int(log, kv_paged_match(&c, text, n, &err), "kv_paged_match without a prefix cache");
    note_cache(&f, &c, "a cache without a prefix cache");
    note_reserve(&f, &c, n, "a cache without a prefix cache");
    kv_paged_stored(&c, text, n);
    note_cache(&f, &c, "a cache that has stored");
    kv_paged_end(&c);
    end(&f);
}

/* Only the prefix cache knows a block that was written last: it must not be written again. */
static void run_known(struct lab_log *log, int n) {
    struct fixture f;
    struct error err;
    begin(&f, log, BLOCKS);
    struct kv_paged a = cache_in(&f, true);
    lab_int(log, kv_paged_reserve(&a, BLOCK, &err), "kv_paged_reserve");
    kv_paged_stored(&a, text, BLOCK);
    a.n_stored = n; /* as if the rest were written again */
    note_reserve(&f, &a, BLOCK, "a cache whose block is known");
    kv_paged_end(&a);
    end(&f);
}

/* ---- step 3: preemption ---------------------------------------------------------------------- */

/* A memory that counts positions. */
struct counted {
    struct request_memory base; /* first */
    int capacity, held[MOST_JOBS];
    struct lab_log *log;
};

static int free_positions(const struct counted *m) {
    int n = m->capacity;
    for (int i = 0; i < MOST_JOBS; i++)
        n -= m->held[i];
    return n;
}

static bool counted_admit(struct request_memory *base, int job, int n_tokens, int *n_cached) {
    (void)job, (void)n_cached;
    return n_tokens <= free_positions((struct counted *)base);
}

static bool counted_reserve(struct request_memory *base, int job, int n_positions) {
    struct counted *m = (struct counted *)base;
    if (n_positions - m->held[job] > free_positions(m))
        return false;
    m->held[job] = n_positions;
    return true;
}

static void counted_preempt(struct request_memory *base, int job) {
    struct counted *m = (struct counted *)base;
    m->held[job] = 0;
    lab_int(m->log, job, "memory is taken back from request");
}

static void give_back(void *context, int job, enum request_state from, double now) {
    (void)from, (void)now;
    struct scheduler *s = context;
    if (s->jobs[job].state == REQUEST_DONE)
        ((struct counted *)s->memory)->held[job] = 0;
}

static void note_step(struct lab_log *log, const struct scheduler *s, int step) {
    char states[MOST_JOBS + 1] = "";
    for (int i = 0; i < s->n_jobs; i++)
        states[i] = "WPDp."[s->jobs[i].state];
    lab_text(log, states, "step %d, the states of the requests after the plan", step);
    for (int i = 0; i < s->n_jobs; i++) {
        lab_int(log, s->jobs[i].n_to_read, "step %d, tokens that request %d has to read", step, i);
        lab_int(log, s->jobs[i].n_read, "step %d, tokens that request %d has read", step, i);
        lab_int(log, s->jobs[i].n_preempted, "step %d, how often request %d was preempted", step,
                i);
    }
    lab_int(log, s->n_running, "step %d, running requests", step);
    lab_ints(log, s->preempted, s->n_preempted, "entry", 0, "step %d, the preempted", step);
}

/* n requests in a memory of `capacity`; prompts of n_prompt tokens and more, in pieces. */
static void run_preemption(struct lab_log *log, int n, int n_prompt, int capacity, int chunk) {
    struct counted m = {
        .base = {.admit = counted_admit, .reserve = counted_reserve, .preempt = counted_preempt},
        .capacity = capacity,
        .log = log};
    struct scheduler s;
    struct scheduler_options o = {n, 100, chunk, true};
    struct plan_entry entries[MOST_JOBS];
    struct error err;
    if (scheduler_start(&s, &o, &err))
        exit(2);
    for (int i = 0; i < n; i++)
        if (scheduler_add(&s, 0, n_prompt + i % 3, &err) < 0)
            exit(2);
    s.memory = &m.base;
    s.changed = give_back;
    s.context = &s;
    for (int step = 1; step <= MOST_STEPS && s.n_done < n; step++) {
        int n_entries = scheduler_plan(&s, step, entries);
        note_step(log, &s, step);
        for (int i = 0; i < n_entries; i++)
            scheduler_ran(&s, &entries[i],
                          s.jobs[entries[i].job].n_new == 5 ? FINISH_LENGTH : FINISH_NOT_YET, step);
    }
    lab_int(log, s.n_done, "requests that were done");
    scheduler_end(&s);
}

static void run_decodes(struct lab_log *log, int n) {
    run_preemption(log, n, 2, 2 * n + 4, 100);
}

static void run_prompts(struct lab_log *log, int n) {
    run_preemption(log, n, 7, 12 + n, 2);
}

static void run_serve(struct lab_log *log, int n) {
    lab_serve(log, n, LAB_PAGED, 6, NULL);
}

/* ---- the lab --------------------------------------------------------------------------------- */

static const struct lab_check checks[] = {
    {"own", 1, "a cache that shares nothing", "positions", LAB_SIZES(1, 3, 4, 5, 8), run_own, 0},
    {"fork", 1, "a fork has all blocks of its origin", "positions", LAB_SIZES(1, 4, 5, 8, 9),
     run_fork, 0},
    {"write", 1, "the first that writes makes a copy", "positions", LAB_SIZES(1, 3, 4, 5, 8, 9),
     run_write, 0},
    {"full", 1, "no block for the copy: nothing has changed", "positions of the fork",
     LAB_SIZES(4, 5), run_full, 0},
    {"find", 2, "blocks are found, and forgotten", "known blocks", LAB_SIZES(1, 2, 3), run_find, 0},
    {"new contents", 2, "what stood behind other tokens is not found", "known blocks",
     LAB_SIZES(2, 3), run_serial, 0},
    {"collision", 2, "an equal hash is not enough", "a token", LAB_SIZES(7, 8), run_collision, 0},
    {"match", 2, "full blocks are shared, but not the last token", "tokens",
     LAB_SIZES(1, 3, 4, 5, 8, 9, 12), run_match, 0},
    {"unknowing", 2, "a cache without a prefix cache", "tokens", LAB_SIZES(1, 4, 9), run_unknowing,
     0},
    {"known", 2, "a known block is not written in place", "positions that stay", LAB_SIZES(1, 3),
     run_known, 0},
    {"decodes", 3, "who writes takes memory from the one that arrived last", "requests",
     LAB_SIZES(2, 3, 4), run_decodes, 0},
    {"prompts", 3, "who reads takes memory only from those that read", "requests",
     LAB_SIZES(2, 3, 4), run_prompts, 0},
    {"serve", 3, "the model's requests in a pool that is too small", "requests", LAB_SIZES(16),
     run_serve, 10},
};

const struct lab lab = {
    .number = 7,
    .title = "the paged cache",
    .served = "your paged cache",
    .checks = checks,
    .n_checks = sizeof checks / sizeof *checks,
    .causes = lab_7_causes,
    .n_causes = N_LAB_7_CAUSES,
};
