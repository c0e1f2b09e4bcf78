/*
 * The engine with caches of every type: sequences in one pass have the bits that each has alone,
 * also after one of them was swapped out and another was forked; types of 8 bits take half the
 * memory.
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

enum { SEQUENCES = 3, STEPS = 5, PROMPT = 20, BLOCK = 16, SWAPPED_AT = 1 };

/* The shipped one; a tiny one where the emulation would take minutes. */
static struct tiny_model model;

static void must(int result, const struct error *err) {
    if (result)
        fail_msg("%s", err->text);
}

static int prompt_of(int32_t *ids, int i) {
    int n = PROMPT - 3 * i;
    for (int j = 0; j < n; j++)
        ids[j] = (i * 37 + j * 11) % (model.model.config.vocab_size - 20) + 10;
    return n;
}

/* Through host memory and back, into other blocks. */
static void swap(struct kv_paged *cache) {
    struct kv_swapped away;
    struct error err = {""};
    int32_t before[2];
    assert_int_equal(cache->table.n_blocks, 2);
    memcpy(before, cache->table.blocks, sizeof before);
    must(kv_paged_swap_out(cache, &away, &err), &err);
    must(kv_paged_swap_in(cache, &away, &err), &err);
    assert_int_equal(cache->table.n_blocks, 2);
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 2; j++)
            assert_int_not_equal(cache->table.blocks[i], before[j]);
}

/* Answers n of the prompts, from number `first` on, in one pass each step; their fingerprints. */
static void answer(enum kv_type type, int first, int n, bool disturbed, uint64_t *out) {
    struct kv_pool pool;
    struct kv_pool_options options = {.block_size = BLOCK,
                                      .n_blocks = 4 * n + 8,
                                      .order = BLOCKS_FIFO, /* who swaps gets other blocks */
                                      .poison = true,
                                      .type = type};
    struct sequence sequences[SEQUENCES];
    struct kv_paged caches[SEQUENCES], fork;
    struct sampling_options greedy = {.top_p = 1};
    struct error err = {""};
    must(kv_pool_start(&pool, &model.model, &options, &err), &err);
    must(kv_paged_start(&fork, &pool, NULL, &err), &err);
    for (int i = 0; i < n; i++) {
        int32_t ids[PROMPT];
        int n_ids = prompt_of(ids, first + i);
        must(sequence_start(&sequences[i], 7, &greedy, &err), &err);
        must(sequence_add_prompt(&sequences[i], ids, n_ids, 99, &err), &err);
        must(kv_paged_start(&caches[i], &pool, NULL, &err), &err);
    }
    for (int step = 0; step < STEPS; step++) {
        struct pass_part parts[SEQUENCES];
        for (int i = 0; i < n; i++) {
            struct sequence *s = &sequences[i];
            must(caches[i].base.reserve(&caches[i].base, s->n_tokens, &err), &err);
            parts[i] = (struct pass_part){s, &caches[i].base, s->n_cached, s->n_tokens, 0, true};
        }
        must(pass_run(&model.generator, parts, n, &err), &err);
        for (int i = 0; i < n; i++)
            kv_paged_stored(&caches[i], sequences[i].tokens, sequences[i].n_cached);
        if (step + 1 == SWAPPED_AT && disturbed) {
            swap(&caches[0]);
            /* Who shares a block and writes to it first copies it. */
            must(kv_paged_fork(&fork, &caches[n - 1], sequences[n - 1].n_cached, &err), &err);
        }
    }
    for (int i = 0; i < n; i++) {
        out[i] = fingerprint_value(&sequences[i].fingerprint);
        kv_paged_end(&caches[i]);
        sequence_end(&sequences[i]);
    }
    kv_paged_end(&fork);
    kv_pool_end(&pool);
}

static void test_alone_and_together(void **state) {
    (void)state;
    uint64_t bfp16[SEQUENCES];
    for (int type = 0; type < N_KV_TYPES; type++) {
        uint64_t together[SEQUENCES], alone[SEQUENCES];
        answer((enum kv_type)type, 0, SEQUENCES, true, together);
        for (int i = 0; i < SEQUENCES; i++)
            answer((enum kv_type)type, i, 1, false, &alone[i]);
        assert_memory_equal(together, alone, sizeof alone);
        if (type == KV_BFP16)
            memcpy(bfp16, alone, sizeof alone);
        else /* the types do something */
            assert_memory_not_equal(bfp16, alone, sizeof alone);
    }
}

static void test_memory(void **state) {
    (void)state;
    size_t whole = kv_layer_bytes(64, 4, 32, KV_BFP16);
    assert_int_equal(whole, 2 * 64 * 4 * (2 * 32 + 1));
    assert_int_equal(kv_layer_bytes(64, 4, 32, KV_BFP8), 2 * 64 * 4 * (32 + 1));
    assert_int_equal(kv_layer_bytes(64, 4, 32, KV_E4M3), 2 * 64 * 4 * 32);
    assert_int_equal(kv_layer_bytes(64, 4, 32, KV_BF16), 2 * 64 * 4 * 64);
}

/* Sequence by sequence, caches are gathered, and that knows bfp16 only. */
static void test_a_pass_each_is_refused(void **state) {
    (void)state;
    struct kv_pool pool;
    struct kv_pool_options options = {.block_size = BLOCK, .n_blocks = 4, .type = KV_E4M3};
    struct kv_paged cache;
    struct sequence s;
    struct sampling_options greedy = {.top_p = 1};
    struct error err = {""};
    int32_t ids[PROMPT];
    must(kv_pool_start(&pool, &model.model, &options, &err), &err);
    must(kv_paged_start(&cache, &pool, NULL, &err), &err);
    must(sequence_start(&s, 0, &greedy, &err), &err);
    must(sequence_add_prompt(&s, ids, prompt_of(ids, 0), 9, &err), &err);
    must(cache.base.reserve(&cache.base, s.n_tokens, &err), &err);
    struct pass_part part = {&s, &cache.base, 0, s.n_tokens, 0, true};
    model.generator.fused = false;
    assert_int_equal(pass_run(&model.generator, &part, 1, &err), -1);
    model.generator.fused = true;
    assert_non_null(strstr(err.text, "a KV cache of type e4m3 needs passes of all sequences"));
    sequence_end(&s);
    kv_paged_end(&cache);
    kv_pool_end(&pool);
}

static int load(void **state) {
    (void)state;
    if (device_is_emulated())
        tiny_model_open(&model, 1);
    else
        shipped_model_open(&model);
    model.generator.fused = model.generator.ignore_stop = true;
    return 0;
}

static int unload(void **state) {
    (void)state;
    if (device_is_emulated())
        tiny_model_close(&model);
    else
        shipped_model_close(&model);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_alone_and_together),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_a_pass_each_is_refused),
    };
    return cmocka_run_group_tests(tests, load, unload);
}
