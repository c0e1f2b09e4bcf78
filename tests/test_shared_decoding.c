/*
 * The engine with sequences that share a document: passes in which attention reads it once have the
 * bits of passes in which each sequence reads it, while sequences grow over the ends of tiles, come
 * and go, and, on a GPU, passes are recorded and replayed, or run as one op. Once more with a
 * window in some layers, which leaves the first tile while they grow: its layers stop sharing that
 * tile.
 */
#include "scheduler/generate.h"
#include "scheduler/kv_paged.h"
#include "scheduler/pass.h"
#include "tests/device.h"
#include "tests/tiny_models.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { READERS = 5, DOCUMENT = 500, QUESTION = 3, BLOCK = 16, STEPS = 30 };

static struct tiny_model shipped;

static void must(int result, const struct error *err) {
    if (result)
        fail_msg("%s", err->text);
}

/* What one run has. */
struct run {
    struct kv_pool pool;
    struct sequence sequences[READERS];
    struct kv_paged caches[READERS];
};

/* A document, and a question of each reader's own. */
static void ask(struct sequence *s, int reader) {
    struct sampling_options greedy = {.top_p = 1};
    struct error err = {""};
    int32_t ids[DOCUMENT + QUESTION];
    for (int i = 0; i < DOCUMENT + QUESTION; i++)
        ids[i] = (i < DOCUMENT ? i * 11 : reader * 37 + i) % 4000 + 10;
    must(sequence_start(s, 7, &greedy, &err), &err);
    must(sequence_add_prompt(s, ids, DOCUMENT + QUESTION, 2 * STEPS, &err), &err);
}

/* A pass of readers first ... end - 1, of all that their caches do not hold. */
static void pass(struct run *run, int first, int end) {
    struct pass_part parts[READERS] = {0};
    struct error err = {""};
    for (int i = first; i < end; i++) {
        struct sequence *s = &run->sequences[i];
        struct kv_cache *cache = &run->caches[i].base;
        must(cache->reserve(cache, s->n_tokens, &err), &err);
        parts[i - first] = (struct pass_part){s, cache, s->n_cached, s->n_tokens, 0, true};
    }
    must(pass_run(&shipped.generator, parts, end - first, &err), &err);
    for (int i = first; i < end; i++)
        kv_paged_stored(&run->caches[i], run->sequences[i].tokens, run->sequences[i].n_cached);
}

/* The fingerprints of all readers, with a version of the plan. */
static void answer(enum plan_version version, uint64_t out[READERS]) {
    static struct run run;
    struct kv_pool_options options = {
        .block_size = BLOCK, .n_blocks = 40 * READERS, .poison = true};
    struct error err = {""};
    must(shipped.dev->ops->set_version(shipped.dev, "attention_plan", (int)version, &err), &err);
    must(kv_pool_start(&run.pool, &shipped.model, &options, &err), &err);
    for (int i = 0; i < READERS; i++) {
        ask(&run.sequences[i], i);
        must(kv_paged_start(&run.caches[i], &run.pool, NULL, &err), &err);
        if (i) { /* the first has read it for all */
            must(kv_paged_fork(&run.caches[i], &run.caches[0], DOCUMENT, &err), &err);
            run.sequences[i].n_cached = run.caches[i].n_stored;
        }
        pass(&run, i, i + 1);
    }
    for (int step = 0; step < STEPS; step++) /* two leave, then all but one, then they are back */
        pass(&run, 0, step < 10 ? READERS : step < 15 ? READERS - 2 : step < 20 ? 1 : READERS);
    for (int i = 0; i < READERS; i++) {
        out[i] = fingerprint_value(&run.sequences[i].fingerprint);
        kv_paged_end(&run.caches[i]);
        sequence_end(&run.sequences[i]);
    }
    kv_pool_end(&run.pool);
    must(shipped.dev->ops->set_version(shipped.dev, "attention_plan", PLAN_BEST, &err), &err);
}

static void check_shared_and_single(void) {
    uint64_t single[READERS], shared[READERS], best[READERS];
    if (device_is_emulated()) /* minutes */
        skip();
    const struct ops *ops = shipped.dev->ops;
    struct error err = {""};
    bool has_step = ops->versions("decode_step") > 0; /* which has no plan */
    if (has_step)
        must(ops->set_version(shipped.dev, "decode_step", 1, &err), &err);
    answer(PLAN_SINGLE, single);
    answer(PLAN_SHARES, shared);
    answer(PLAN_BEST, best);
    assert_memory_equal(single, shared, sizeof single);
    assert_memory_equal(single, best, sizeof single);
    workspace_use_graphs(shipped.generator.ws, false);
    answer(PLAN_SHARES, shared);
    workspace_use_graphs(shipped.generator.ws, true);
    assert_memory_equal(single, shared, sizeof single);
    if (!has_step)
        return;
    must(ops->set_version(shipped.dev, "decode_step", 2, &err), &err);
    answer(PLAN_SHARES, shared);
    must(ops->set_version(shipped.dev, "decode_step", 0, &err), &err);
    assert_memory_equal(single, shared, sizeof single);
}

static void test_shared_and_single(void **state) {
    (void)state;
    check_shared_and_single();
}

static void test_windows(void **state) {
    (void)state;
    struct model_config *c = &shipped.model.config;
    uint64_t without[READERS], with[READERS];
    if (device_is_emulated())
        skip();
    answer(PLAN_SINGLE, without);
    c->window = DOCUMENT + STEPS / 2 - 255; /* of position 255, the last of the first tile */
    for (int i = 0; i < c->n_layers; i++)
        c->windowed[i] = i % 2;
    answer(PLAN_SINGLE, with);
    for (int i = 0; i < READERS; i++) /* the windows do something */
        assert_int_not_equal(with[i], without[i]);
    check_shared_and_single();
    c->window = 0;
}

static int load(void **state) {
    (void)state;
    shipped_model_open(&shipped);
    shipped.generator.fused = shipped.generator.ignore_stop = true;
    return 0;
}

static int unload(void **state) {
    (void)state;
    shipped_model_close(&shipped);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shared_and_single),
        cmocka_unit_test(test_windows),
    };
    return cmocka_run_group_tests(tests, load, unload);
}
