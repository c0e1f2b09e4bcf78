/*
 * The memory of many requests in one pool, without a model: scheduler, paged memory and pool run
 * random requests, and instead of a forward pass the test writes into each position what its text
 * up to there gives, and looks before each step whether all of it still is where the block table
 * says. So a block that two write, or that is given away too soon, shows at once.
 */
#include "scheduler/paged_memory.h"
#include "scheduler/scheduler.h"
#include "tests/device.h"
#include "tests/pool_waste.h"
#include "tests/random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_JOBS = 48, MAX_TOKENS = 400 };

#ifdef __SANITIZE_ADDRESS__
enum { OPERATIONS = 2000000 };
#else
enum { OPERATIONS = 10000000 };
#endif

struct text {
    int32_t tokens[MAX_TOKENS];
    int n, n_prompt, n_new;   /* n_new: how many it will draw */
    struct sequence sequence; /* the text, as the memory sees it */
    bool stopped, refused;
};

struct simulation {
    struct model model; /* of its config and its device */
    struct kv_pool pool;
    struct scheduler scheduler;
    struct paged_memory memory;
    struct random *random;
    struct text texts[MAX_JOBS];
    struct memory_request requests[MAX_JOBS];
    int n;
    int held[2048]; /* of each block: tables that hold it, as of the last step */
    /* References taken or given back (as far as they differ from step to step), pieces planned, and
     * positions written or looked up. */
    long references, pieces, lookups;
};

/* What position p of a text holds: something of all tokens up to there. */
static int16_t mark(const struct text *t, int p) {
    uint32_t x = 17;
    for (int i = p > 7 ? p - 7 : 0; i <= p; i++)
        x = x * 31 + (uint32_t)t->tokens[i];
    return (int16_t)((x ^ (uint32_t)p * 97) & 0x7fff);
}

static void on_change(void *context, int job, enum request_state from, double now) {
    struct simulation *sim = context;
    struct request_memory *memory = &sim->memory.base;
    (void)from;
    (void)now;
    if (sim->scheduler.jobs[job].state != REQUEST_DONE)
        return;
    sim->texts[job].refused = sim->scheduler.jobs[job].finish == FINISH_ERROR;
    if (sim->texts[job].refused)
        assert_non_null(strstr(memory->why.text, "do not fit into the KV pool"));
    memory->release(memory, job);
}

/* ---- the rules --------------------------------------------------------------------------------
 */

/* Everything that a job has is where its table says. */
static void check_text(struct simulation *sim, int job) {
    const struct kv_paged *c = &sim->memory.jobs[job].cache;
    const struct kv_layer *layer = &sim->pool.layers[0];
    for (int p = 0; p < c->n_stored; p++) {
        int64_t slot = block_table_slot(&c->table, p);
        assert_true(slot >= 0);
        assert_int_equal(layer->k[2 * slot], mark(&sim->texts[job], p));
        assert_int_equal(layer->v_exponents[slot], p % 100);
    }
    sim->lookups += c->n_stored;
}

/* References are the tables that hold a block; waste is less than a block per table. */
static void check_blocks(struct simulation *sim) {
    struct error err = {""};
    const struct block_stats *stats = &sim->pool.blocks.stats;
    int held[2048] = {0};
    if (block_allocator_check(&sim->pool.blocks, &err))
        fail_msg("%s", err.text);
    assert_int_equal(stats->used + stats->free + stats->cached, stats->total);
    for (int i = 0; i < sim->n; i++)
        for (int j = 0; j < sim->memory.jobs[i].cache.table.n_blocks; j++)
            held[sim->memory.jobs[i].cache.table.blocks[j]]++;
    for (int32_t b = 0; b < stats->total; b++) {
        assert_int_equal(held[b], block_references(&sim->pool.blocks, b));
        sim->references += abs(held[b] - sim->held[b]);
        sim->held[b] = held[b];
    }
    assert_true(pool_waste(&sim->memory) <=
                (int64_t)sim->scheduler.n_running * (sim->pool.block_size - 1));
}

/* ---- steps ------------------------------------------------------------------------------------
 */

/* Reads positions first ... end - 1 of a job, and draws if the entry says so. */
static void run_entry(struct simulation *sim, const struct plan_entry *e, double now) {
    struct text *t = &sim->texts[e->job];
    struct kv_paged *c = &sim->memory.jobs[e->job].cache;
    const struct kv_layer *layer = &sim->pool.layers[0];
    int64_t slots[MAX_TOKENS];
    struct error err = {""};
    if (t->stopped) {
        scheduler_ran(&sim->scheduler, e, FINISH_NOT_YET, now);
        return;
    }
    int first = c->n_stored, end = first + e->n_tokens;
    assert_int_equal(e->first, first);
    assert_ptr_equal(sim->memory.base.cache(&sim->memory.base, e->job), c);
    check_text(sim, e->job);
    assert_int_equal(c->base.reserve(&c->base, end, &err), 0);
    assert_int_equal(c->base.slots(&c->base, first, e->n_tokens, slots, &err), 0);
    for (int p = first; p < end; p++) {
        int64_t slot = slots[p - first];
        assert_int_equal(
            block_references(&sim->pool.blocks, (int32_t)(slot / sim->pool.block_size)),
            1); /* nobody else reads where this one writes */
        layer->k[2 * slot] = mark(t, p);
        layer->v_exponents[slot] = (int8_t)(p % 100);
    }
    sim->lookups += e->n_tokens;
    sim->memory.base.stored(&sim->memory.base, e->job, end);
    enum finish finish = FINISH_NOT_YET;
    if (e->draws) {
        assert_int_equal(end, t->n); /* all that is known was read */
        t->tokens[t->n++] = random_int(sim->random, 0, 3);
        t->sequence.n_tokens = t->n;
        finish = t->n - t->n_prompt == t->n_new ? FINISH_LENGTH : FINISH_NOT_YET;
    }
    scheduler_ran(&sim->scheduler, e, finish, now);
}

static void stop_one(struct simulation *sim, int job, double now) {
    if (sim->scheduler.jobs[job].state != REQUEST_DONE)
        sim->texts[job].stopped = true;
    scheduler_stop(&sim->scheduler, job, FINISH_CANCELLED, now);
}

static void run_all(struct simulation *sim, int cancel_one_in) {
    struct plan_entry entries[MAX_JOBS];
    double now = 0;
    int idle = 0;
    while (sim->scheduler.n_done < sim->n) {
        int n_done = sim->scheduler.n_done, n = scheduler_plan(&sim->scheduler, now, entries);
        assert_false(sim->memory.base.failed);
        /* Who runs gets on, unless the last one was refused. */
        assert_true(n || !sim->scheduler.n_running || sim->scheduler.n_done > n_done);
        idle = n ? 0 : idle + 1;
        assert_true(idle < 30); /* it goes on: only waiting requests can be cancelled in between */
        if (!n && scheduler_next_arrival(&sim->scheduler) < 1e9)
            now = scheduler_next_arrival(&sim->scheduler);
        now += 0.01;
        if (random_int(sim->random, 1, cancel_one_in) == 1)
            stop_one(sim, random_int(sim->random, 0, sim->n - 1), now);
        for (int i = 0; i < n; i++)
            run_entry(sim, &entries[i], now);
        check_blocks(sim);
        sim->pieces += n;
    }
}

/* ---- a run ------------------------------------------------------------------------------------
 */

static void start(struct simulation *sim, struct random *r, const struct kv_pool_options *pool,
                  const struct paged_options *paged, const struct scheduler_options *scheduler) {
    struct error err = {""};
    struct request_memory *memory = &sim->memory.base;
    struct device_options options = {.n_threads = 1};
    sim->random = r;
    sim->model = (struct model){.config = {.n_layers = 1, .n_kv_heads = 1, .head_dim = 2},
                                .dev = ref_ops.open(&options, &err)};
    if (!sim->model.dev || kv_pool_start(&sim->pool, &sim->model, pool, &err) ||
        scheduler_start(&sim->scheduler, scheduler, &err))
        fail_msg("%s", err.text);
    paged_memory_start(&sim->memory, &sim->pool, paged);
    if (memory->start(memory, &sim->scheduler, sim->requests, sim->n, &err))
        fail_msg("%s", err.text);
    sim->scheduler.memory = memory;
    sim->scheduler.changed = on_change;
    sim->scheduler.context = sim;
}

static void end(struct simulation *sim) {
    struct error err = {""};
    assert_int_equal(sim->scheduler.n_running, 0);
    assert_int_equal(sim->pool.blocks.stats.used, 0);
    paged_memory_end(&sim->memory);
    assert_int_equal(sim->pool.blocks.stats.free, sim->pool.blocks.stats.total);
    if (block_allocator_check(&sim->pool.blocks, &err))
        fail_msg("%s", err.text);
    scheduler_end(&sim->scheduler);
    kv_pool_end(&sim->pool);
    sim->model.dev->ops->close(sim->model.dev);
}

static void add(struct simulation *sim, int job, double arrival) {
    struct error err = {""};
    struct text *t = &sim->texts[job];
    t->sequence = (struct sequence){.tokens = t->tokens, .n_tokens = t->n};
    sim->requests[job].sequence = &t->sequence;
    sim->requests[job].max_positions = t->n_prompt + t->n_new - 1;
    assert_int_equal(scheduler_add(&sim->scheduler, arrival, sim->texts[job].n_prompt, &err), job);
}

/* Prompts over a small alphabet, that often begin alike; forks have the prompt of the one before.
 */
static void make_text(struct simulation *sim, int job) {
    struct random *r = sim->random;
    struct text *t = &sim->texts[job];
    const struct text *other = job ? &sim->texts[random_int(r, 0, job - 1)] : NULL;
    *t = (struct text){.n_prompt = random_int(r, 1, random_int(r, 0, 2) ? 40 : 250),
                       .n_new = random_int(r, 1, random_int(r, 0, 2) ? 20 : 140)};
    sim->requests[job].fork_of = job && random_int(r, 0, 3) == 0 ? job - 1 : -1;
    for (int i = 0; i < t->n_prompt; i++)
        t->tokens[i] = random_int(r, 0, 3);
    if (sim->requests[job].fork_of >= 0) {
        other = &sim->texts[job - 1];
        t->n_prompt = other->n_prompt;
        memcpy(t->tokens, other->tokens, sizeof *t->tokens * (size_t)t->n_prompt);
    } else if (other && random_int(r, 0, 1)) {
        int n = random_int(r, 1, other->n_prompt < t->n_prompt ? other->n_prompt : t->n_prompt);
        memcpy(t->tokens, other->tokens, sizeof *t->tokens * (size_t)n);
    }
    t->n = t->n_prompt;
}

static void simulate(struct random *r, long counts[3], struct paged_stats *stats) {
    static const int sizes[] = {1, 2, 4, 16, 64, 256};
    struct simulation *sim = calloc(1, sizeof *sim);
    int size = sizes[random_int(r, 0, 5)], longest = 0, all = 0, running = random_int(r, 1, 12);
    assert_non_null(sim);
    sim->random = r;
    sim->n = random_int(r, 1, MAX_JOBS);
    for (int i = 0; i < sim->n; i++) {
        make_text(sim, i);
        int n = blocks_for(sim->texts[i].n_prompt + sim->texts[i].n_new - 1, size);
        longest = n > longest ? n : longest;
        all += n;
    }
    all = all < 2000 ? all : 2000;
    struct kv_pool_options pool = {.block_size = size,
                                   .n_blocks =
                                       random_int(r, 0, 1) ? longest : random_int(r, longest, all),
                                   .order = random_int(r, 0, 1) ? BLOCKS_LIFO : BLOCKS_FIFO,
                                   .poison = true};
    struct paged_options paged = {random_int(r, 0, 1) ? PREEMPT_SWAP : PREEMPT_RECOMPUTE,
                                  random_int(r, 0, 2) > 0};
    struct scheduler_options scheduler = {running, running + random_int(r, 0, 100),
                                          random_int(r, 1, 128), random_int(r, 0, 3) > 0};
    double arrival = 0;
    start(sim, r, &pool, &paged, &scheduler);
    for (int i = 0; i < sim->n; i++) {
        arrival +=
            sim->requests[i].fork_of >= 0 || random_int(r, 0, 1) ? 0 : 0.01 * random_int(r, 0, 40);
        add(sim, i, arrival);
    }
    run_all(sim, random_int(r, 0, 1) ? 20 : 1000000);
    for (int i = 0; i < sim->n; i++) {
        const struct text *t = &sim->texts[i];
        assert_false(t->refused); /* each fits alone */
        if (!t->stopped)
            assert_int_equal(t->n - t->n_prompt, t->n_new);
    }
    counts[0] += sim->references;
    counts[1] += sim->pieces;
    counts[2] += sim->lookups;
    stats->preemptions += sim->memory.stats.preemptions;
    stats->shared += sim->memory.stats.shared;
    stats->recomputed += sim->memory.stats.recomputed;
    stats->swapped += sim->memory.stats.swapped;
    end(sim);
    free(sim);
}

static void test_random_requests(void **state) {
    (void)state;
    struct random r = {101};
    struct paged_stats stats = {0};
    long counts[3] = {0};
    while (counts[0] + counts[1] < OPERATIONS / (few_cases_do() ? 4 : 1))
        simulate(&r, counts, &stats);
    print_message("%ld references taken or given back, %ld pieces planned, %ld positions looked "
                  "up; %ld preemptions; tokens: %ld shared, %ld recomputed, %ld swapped\n",
                  counts[0], counts[1], counts[2], stats.preemptions, stats.shared,
                  stats.recomputed, stats.swapped);
    assert_true(stats.preemptions && stats.shared && stats.recomputed && stats.swapped);
}

/* ---- the corners ------------------------------------------------------------------------------
 */

static struct simulation *corner(struct random *r, int n, int n_blocks, int block_size,
                                 enum preempt_mode how, bool share) {
    struct simulation *sim = calloc(1, sizeof *sim);
    struct kv_pool_options pool = {.block_size = block_size, .n_blocks = n_blocks, .poison = true};
    struct paged_options paged = {how, share};
    struct scheduler_options scheduler = {8, 256, 128, true};
    assert_non_null(sim);
    sim->n = n;
    for (int i = 0; i < n; i++)
        sim->requests[i].fork_of = -1;
    start(sim, r, &pool, &paged, &scheduler);
    return sim;
}

/* A prompt of n_prompt tokens that are all `token`. */
static void ask(struct simulation *sim, int job, int n_prompt, int32_t token, int n_new) {
    struct text *t = &sim->texts[job];
    *t = (struct text){.n = n_prompt, .n_prompt = n_prompt, .n_new = n_new};
    for (int i = 0; i < n_prompt; i++)
        t->tokens[i] = token;
    add(sim, job, 0);
}

static void finish(struct simulation *sim) {
    end(sim);
    free(sim);
}

/* One step; returns how many entries it had. */
static int one_step(struct simulation *sim, double now) {
    struct plan_entry entries[MAX_JOBS];
    int n = scheduler_plan(&sim->scheduler, now, entries);
    for (int i = 0; i < n; i++)
        run_entry(sim, &entries[i], now);
    check_blocks(sim);
    return n;
}

static void test_multiples_of_the_block_size(void **state) {
    (void)state;
    struct random r = {102};
    for (int n_prompt = 15; n_prompt <= 33; n_prompt++) {
        struct simulation *sim = corner(&r, 2, 20, 16, PREEMPT_RECOMPUTE, true);
        ask(sim, 0, n_prompt, 1, 16);
        ask(sim, 1, n_prompt, 1, 17);
        one_step(sim, 0);
        assert_int_equal(sim->memory.jobs[0].cache.table.n_blocks, blocks_for(n_prompt, 16));
        run_all(sim, 1000000);
        finish(sim);
    }
}

/* The whole prompt is known, in full blocks: all but the last of them are shared, for the last
 * token must be read. */
static void test_hit_on_a_full_last_block(void **state) {
    (void)state;
    struct random r = {103};
    struct simulation *sim = corner(&r, 2, 20, 4, PREEMPT_RECOMPUTE, true);
    ask(sim, 0, 12, 1, 30);
    one_step(sim, 0);
    ask(sim, 1, 12, 1, 3);
    one_step(sim, 0);
    assert_int_equal(sim->memory.stats.shared, 8);
    const struct block_table *a = &sim->memory.jobs[0].cache.table;
    const struct block_table *b = &sim->memory.jobs[1].cache.table;
    assert_memory_equal(a->blocks, b->blocks, 2 * sizeof *a->blocks);
    assert_true(a->blocks[2] != b->blocks[2]);
    run_all(sim, 1000000);
    finish(sim);
}

/* The later of two gives way, and what it shares stays with the other. */
static void test_preempt_one_with_shared_blocks(void **state) {
    (void)state;
    struct random r = {104};
    for (int how = 0; how < 2; how++) {
        struct simulation *sim = corner(&r, 2, 8, 4, how ? PREEMPT_SWAP : PREEMPT_RECOMPUTE, true);
        ask(sim, 0, 9, 1, 22);
        one_step(sim, 0);
        ask(sim, 1, 9, 1, 22);
        one_step(sim, 0);
        int32_t shared = sim->memory.jobs[1].cache.table.blocks[0];
        assert_int_equal(block_references(&sim->pool.blocks, shared), 2);
        while (!sim->scheduler.jobs[1].n_preempted)
            one_step(sim, 0);
        assert_int_equal(block_references(&sim->pool.blocks, shared), 1);
        assert_int_equal(sim->scheduler.jobs[0].state, REQUEST_DECODING);
        run_all(sim, 1000000);
        assert_int_equal(sim->texts[1].n, 31);
        finish(sim);
    }
}

static void test_a_pool_of_one_block(void **state) {
    (void)state;
    struct random r = {105};
    struct simulation *sim = corner(&r, 3, 1, 16, PREEMPT_RECOMPUTE, true);
    ask(sim, 0, 10, 1, 6);
    ask(sim, 1, 20, 1, 1); /* never fits */
    ask(sim, 2, 16, 1, 1); /* the token that it draws is never stored */
    run_all(sim, 1000000);
    assert_int_equal(sim->texts[0].n, 16);
    assert_true(sim->texts[1].refused && !sim->texts[0].refused && !sim->texts[2].refused);
    finish(sim);
}

/* The oldest needs more than the last one gives back: in one step everybody else gives way. */
static void test_all_but_the_oldest_give_way(void **state) {
    (void)state;
    static const int lengths[] = {20, 10, 4};
    struct random r = {106};
    struct simulation *sim = corner(&r, 3, 21, 1, PREEMPT_SWAP, false);
    sim->scheduler.options.token_budget = 18;
    sim->scheduler.options.chunk = 8;
    for (int i = 0; i < 3; i++)
        ask(sim, i, lengths[i], 1, 2);
    one_step(sim, 0); /* 8, 8 and 2 positions: 3 blocks are left */
    assert_int_equal(sim->scheduler.n_running, 3);
    assert_int_equal(block_available(&sim->pool.blocks), 3);
    one_step(sim, 0); /* 8 more for the first: 3 and the last one's 2 are too few */
    assert_int_equal(sim->scheduler.n_running, 1);
    assert_int_equal(sim->scheduler.n_preempted, 2);
    assert_int_equal(sim->memory.jobs[0].cache.n_stored, 16);
    for (int i = 0; i < 3; i++)
        assert_int_equal(sim->scheduler.jobs[i].n_preempted, i > 0);
    run_all(sim, 1000000);
    for (int i = 0; i < 3; i++)
        assert_int_equal(sim->texts[i].n, lengths[i] + 2);
    finish(sim);
}

/* A request that outgrows the pool while it runs alone ends with its reason; who waits goes on. */
static void test_one_outgrows_the_pool(void **state) {
    (void)state;
    struct random r = {107};
    struct simulation *sim = corner(&r, 2, 4, 4, PREEMPT_RECOMPUTE, true);
    ask(sim, 0, 10, 1, 50);
    ask(sim, 1, 10, 2, 5);
    run_all(sim, 1000000);
    assert_true(sim->texts[0].refused);
    assert_int_equal(sim->texts[0].n, 17); /* 16 positions, and the token drawn from the last */
    assert_int_equal(sim->texts[1].n, 15);
    finish(sim);
}

static void test_cancel_while_prefilling(void **state) {
    (void)state;
    struct random r = {108};
    struct simulation *sim = corner(&r, 2, 100, 4, PREEMPT_RECOMPUTE, true);
    ask(sim, 0, 300, 1, 5);
    ask(sim, 1, 300, 1, 5);
    one_step(sim, 0);
    assert_int_equal(sim->scheduler.jobs[0].state, REQUEST_PREFILLING);
    stop_one(sim, 0, 0);
    check_blocks(sim);
    assert_true(sim->pool.blocks.stats.cached > 0); /* what it read may still be wanted */
    run_all(sim, 1000000);
    assert_int_equal(sim->texts[1].n, 305);
    finish(sim);
}

/* Forks wait until the prompt is read, share all of it but its last token, and write copies; a fork
 * of one that is gone reads the prompt itself. */
static void test_forks(void **state) {
    (void)state;
    struct random r = {109};
    struct simulation *sim = corner(&r, 3, 40, 16, PREEMPT_RECOMPUTE, false);
    sim->requests[1].fork_of = 0;
    sim->requests[2].fork_of = 0;
    ask(sim, 0, 200, 1, 3);
    ask(sim, 1, 200, 1, 40);
    one_step(sim, 0);
    assert_int_equal(sim->scheduler.n_running, 1);
    while (sim->scheduler.n_running < 2)
        one_step(sim, 0);
    assert_int_equal(sim->memory.stats.shared, 199);
    assert_int_equal(sim->pool.blocks.stats.used, 14); /* of 13 each, all but the last are one */
    while (sim->scheduler.jobs[0].state != REQUEST_DONE)
        one_step(sim, 0);
    ask(sim, 2, 200, 1, 2);
    run_all(sim, 1000000);
    assert_int_equal(sim->memory.stats.shared, 199);
    assert_int_equal(sim->texts[1].n, 240);
    assert_int_equal(sim->texts[2].n, 202);
    finish(sim);
}

/* Somebody who runs lacks room: nobody new may take what is left, or it would starve. */
static void test_nobody_new_while_one_lacks_room(void **state) {
    (void)state;
    struct random r = {112};
    struct simulation *sim = corner(&r, 3, 14, 1, PREEMPT_RECOMPUTE, false);
    sim->scheduler.options.chunk = 4;
    ask(sim, 0, 12, 1, 2);
    ask(sim, 1, 1, 2, 6);
    one_step(sim, 0);
    one_step(sim, 0);
    ask(sim, 2, 1, 3, 1);
    one_step(sim, 0); /* the first needs four blocks, three are left: the third would fit */
    assert_int_equal(sim->memory.jobs[0].cache.n_stored, 8);
    assert_int_equal(block_available(&sim->pool.blocks), 3);
    assert_int_equal(sim->scheduler.jobs[2].state, REQUEST_WAITING);
    run_all(sim, 1000000);
    assert_int_equal(sim->texts[0].n, 14);
    assert_int_equal(sim->texts[2].n, 2);
    finish(sim);
}

/* The last one that decodes gives way: the older ones, which still read, go on in the same step. */
static void test_readers_go_on_when_a_decode_gives_way(void **state) {
    (void)state;
    struct random r = {113};
    struct simulation *sim = corner(&r, 2, 14, 1, PREEMPT_RECOMPUTE, false);
    sim->scheduler.options.chunk = 2;
    ask(sim, 0, 12, 1, 2);
    ask(sim, 1, 1, 2, 10);
    while (!sim->scheduler.jobs[1].n_preempted)
        assert_int_not_equal(one_step(sim, 0), 0);
    run_all(sim, 1000000);
    assert_int_equal(sim->texts[1].n, 11);
    finish(sim);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_requests),
        cmocka_unit_test(test_multiples_of_the_block_size),
        cmocka_unit_test(test_hit_on_a_full_last_block),
        cmocka_unit_test(test_preempt_one_with_shared_blocks),
        cmocka_unit_test(test_a_pool_of_one_block),
        cmocka_unit_test(test_all_but_the_oldest_give_way),
        cmocka_unit_test(test_one_outgrows_the_pool),
        cmocka_unit_test(test_nobody_new_while_one_lacks_room),
        cmocka_unit_test(test_readers_go_on_when_a_decode_gives_way),
        cmocka_unit_test(test_cancel_while_prefilling),
        cmocka_unit_test(test_forks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
