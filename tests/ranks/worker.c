/*
 * worker - one of the ranks of tests/test_ranks.c: mpirun -n 3 worker. Each rank has the whole
 * model, too, and holds what the ranks answer together against what that answers alone.
 *
 * SAMEBITS_WORKLOADS, SAMEBITS_SEED: so many random workloads; SAMEBITS_CONTEXT: and so many of
 * each model whose ranks share positions, not heads; SAMEBITS_GOLDENS: the golden prompts;
 * SAMEBITS_DAMAGES: so many damaged messages; SAMEBITS_DEVICE: the device, on which all share one
 * GPU; SAMEBITS_NCCL=1: or have GPUs of their own. On every rank random numbers are the same, so
 * that all do the same.
 */
#include "model/decode_graph.h"
#include "model/files/json.h"
#include "model/parallel/mpi.h"
#include "model/parallel/nccl.h"
#include "model/workspace.h"
#include "scheduler/kv_contiguous.h"
#include "scheduler/kv_pool.h"
#include "tests/device.h"
#include "tests/workload_runs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct parallel *ranks;

static int number(const char *name) {
    const char *text = getenv(name);
    return text ? atoi(text) : 0;
}

/* SAMEBITS_NCCL: what the ranks of a model say stays on their GPUs. */
static void talk_on_gpus(struct tiny_model *shared) {
    struct error err;
    if (!number("SAMEBITS_NCCL"))
        return;
    assert_true(nccl_join != NULL);
    if (nccl_join(ranks, shared->dev, &err))
        fail_msg("%s", err.text);
}

static int n_recordings; /* of passes, with what ranks said in them */

static void end_talk(struct tiny_model *shared) {
    const struct decode_graphs *g = shared->generator.ws->graphs;
    for (int i = 0; g && i < N_DECODE_SIZES * N_DECODE_FORMS; i++)
        n_recordings += g->recordings[i / N_DECODE_FORMS][i % N_DECODE_FORMS].said.calls > 0;
    generator_end(&shared->generator); /* recordings go before those who talk in them */
    if (ranks->on_device)
        ranks->on_device->end(ranks, shared->dev);
}

static void open_shared(struct tiny_model *whole, struct tiny_model *shared, int which) {
    tiny_model_open(whole, which);
    tiny_model_share(shared, which, whole, ranks);
    talk_on_gpus(shared);
}

static void close_shared(struct tiny_model *whole, struct tiny_model *shared) {
    end_talk(shared);
    tiny_model_close(shared);
    tiny_model_close(whole);
}

/* How far rank 0 is, at once: a campaign may be stopped. */
static void show(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    if (ranks->rank == 0)
        vprintf(format, arguments);
    va_end(arguments);
    fflush(stdout);
}

/* The models that so many ranks can share. */
static bool can_share(int which) {
    static const int heads[N_SHARED_MODELS] = {4, 6, 4, 2, 4, 4, 9, 8, 8};
    return ranks->n_ranks <= heads[which];
}

static void test_workloads(void **state) {
    (void)state;
    struct random r = {(uint64_t)number("SAMEBITS_SEED")};
    struct run_counts counts = {0};
    static const enum run_caches kinds[] = {ONE_PASS, ONE_POOL, ONE_PASS, OWN_CACHES};
    int n = number("SAMEBITS_WORKLOADS"), n_models = 0, n_done = 0;
    for (int which = 0; which < N_SHARED_MODELS; which++)
        n_models += can_share(which);
    int each = (n + n_models - 1) / n_models;
    for (int which = 0; which < N_SHARED_MODELS && n; which++) {
        struct tiny_model whole, shared;
        if (!can_share(which))
            continue;
        open_shared(&whole, &shared, which);
        for (int i = 0; i < each; i++)
            check_random_workloads(&shared, &r, 1, kinds[(which + i) % 4], &counts);
        close_shared(&whole, &shared);
        n_done += each;
        show("%d workloads: %ld preemptions, %ld tokens shared, %d recorded passes\n", n_done,
             counts.preemptions, counts.shared, n_recordings);
    }
    assert_true(n < N_SHARED_MODELS || (n_recordings > 0) == (number("SAMEBITS_NCCL") > 0));
}

/* Device memory of a pool for so many positions. */
static size_t memory_of_pool(struct tiny_model *t, int n_positions) {
    struct kv_pool pool;
    struct error err = {""};
    size_t before = t->dev->bytes;
    struct kv_pool_options options = {.block_size = ATTENTION_TILE * ranks->n_ranks};
    options.n_blocks = n_positions / options.block_size;
    if (kv_pool_start(&pool, &t->model, &options, &err))
        fail_msg("%s", err.text);
    size_t bytes = t->dev->bytes - before;
    kv_pool_end(&pool);
    return bytes;
}

/* A cache that is not in blocks of a tile for each rank is refused, and a model with windows. */
static void check_refused(struct tiny_model *shared, const char *why) {
    struct sequence s = {0};
    struct sampling_options greedy = {.top_p = 1};
    struct error err = {""};
    const int32_t prompt[] = {1, 2, 3};
    assert_int_equal(sequence_start(&s, 0, &greedy, &err), 0);
    assert_int_equal(sequence_add_prompt(&s, prompt, 3, 2, &err), 0);
    struct kv_cache *cache = kv_static_new(&shared->model, 100, &err);
    assert_non_null(cache);
    assert_int_equal(generate(&shared->generator, &s, cache, &err), -1);
    assert_non_null(strstr(err.text, why));
    kv_cache_free(cache);
    sequence_end(&s);
}

/* Each rank has some tiles of every sequence. */
static void test_positions(void **state) {
    (void)state;
    struct random r = {(uint64_t)number("SAMEBITS_SEED")};
    struct run_counts counts = {0};
    int n = number("SAMEBITS_CONTEXT");
    ranks->by_position = true;
    for (int which = 0; which <= LONG_MODEL && n; which++) {
        struct tiny_model whole, shared;
        open_shared(&whole, &shared, which);
        size_t all = memory_of_pool(&whole, 12 * ATTENTION_TILE);
        assert_true(memory_of_pool(&shared, 12 * ATTENTION_TILE) == all / (size_t)ranks->n_ranks);
        check_refused(&shared, shared.model.config.window ? "sliding windows" : "blocks of");
        int n_runs = shared.model.config.window ? 0 : which == LONG_MODEL ? 2 * n : n;
        check_random_workloads(&shared, &r, n_runs, ONE_PASS, &counts);
        close_shared(&whole, &shared);
    }
    ranks->by_position = false;
    if (n)
        show("positions: %ld preemptions, %ld tokens swapped, %ld read again, %ld shared\n",
             counts.preemptions, counts.swapped, counts.recomputed, counts.shared);
    assert_true(n < 4 || (counts.swapped && counts.recomputed && counts.shared));
}

/* ---- goldens --------------------------------------------------------------------------------- */

/* The shipped model, whole and shared. */
static void open_shipped(struct tiny_model *t, struct parallel *with) {
    struct error err;
    struct device_options options = {.n_threads = 1};
    *t = (struct tiny_model){.dev = device_under_test()->open(&options, &err)};
    if (!t->dev || model_load_part(&t->model, t->dev, "data/model", with, NULL, &err) ||
        generator_start(&t->generator, &t->model, &err))
        fail_msg("%s", err.text);
}

static void check_golden(struct tiny_model *whole, struct tiny_model *shared, const json_t *ids) {
    struct sequence want = {0}, got;
    struct sampling_options greedy = {.top_p = 1};
    struct error err;
    int32_t prompt[512];
    int n = (int)json_array_size(ids);
    assert_true(n <= 512);
    for (int i = 0; i < n; i++)
        prompt[i] = (int32_t)json_integer_value(json_array_get(ids, (size_t)i));
    assert_int_equal(sequence_start(&want, 0, &greedy, &err), 0);
    assert_int_equal(sequence_add_prompt(&want, prompt, n, 40, &err), 0);
    got = tiny_alone(shared, &want);
    struct sequence alone = tiny_alone(whole, &want);
    assert_same_answer(&alone, &got);
    sequence_end(&want);
    sequence_end(&got);
    sequence_end(&alone);
}

static void test_goldens(void **state) {
    (void)state;
    struct tiny_model whole, shared;
    struct error err;
    char *line = NULL;
    size_t capacity = 0;
    ssize_t n;
    if (!number("SAMEBITS_GOLDENS"))
        return;
    FILE *f = fopen("data/golden/generations.jsonl", "rb");
    assert_non_null(f);
    open_shipped(&whole, NULL);
    open_shipped(&shared, ranks);
    talk_on_gpus(&shared);
    while ((n = getline(&line, &capacity, f)) > 0) {
        json_t *golden = json_parse(line, (size_t)n, "goldens", &err);
        check_golden(&whole, &shared, json_object_get(golden, "prompt_ids"));
        json_decref(golden);
    }
    free(line);
    fclose(f);
    end_talk(&shared);
    shipped_model_close(&shared);
    shipped_model_close(&whole);
}

/* ---- damaged messages ------------------------------------------------------------------------ */

/* A bit of one rank's message is turned: of what it gives to a sum, or of what it gets. */
static struct damage {
    int kind, call, rank;
    int (*max)(struct parallel *, uint32_t *, size_t, struct error *);
    int (*sum)(struct parallel *, int64_t *, size_t, struct error *);
    int (*gather)(struct parallel *, uint32_t *, const uint32_t *, const int *, struct error *);
} damage;

enum { GIVEN_SUM, TAKEN_SUM, TAKEN_MAX, TAKEN_GATHER, N_DAMAGES };

static void damage_if(int kind, void *x, size_t bytes) {
    if (damage.kind == kind && damage.rank == ranks->rank && damage.call-- == 0)
        ((unsigned char *)x)[bytes / 2] ^= 16;
}

static int damaged_max(struct parallel *p, uint32_t *x, size_t n, struct error *err) {
    int result = damage.max(p, x, n, err);
    damage_if(TAKEN_MAX, x, sizeof *x * n);
    return result;
}

static int damaged_sum(struct parallel *p, int64_t *x, size_t n, struct error *err) {
    damage_if(GIVEN_SUM, x, sizeof *x * n);
    int result = damage.sum(p, x, n, err);
    damage_if(TAKEN_SUM, x, sizeof *x * n);
    return result;
}

static int damaged_gather(struct parallel *p, uint32_t *all, const uint32_t *mine, const int *n,
                          struct error *err) {
    int result = damage.gather(p, all, mine, n, err);
    if (n[0] > 6) /* logits: what ranks say at the end of a pass is short */
        damage_if(TAKEN_GATHER, all, sizeof *all * (size_t)n[0]);
    return result;
}

/* The answer ends in the pass of the damage, with a failure on all ranks, and has no token of it.
 */
static bool check_damage(struct tiny_model *shared, struct random *r) {
    struct sequence asked = tiny_request(r, shared, 0, 20, 12), got;
    struct sequence whole = tiny_alone(shared, &asked);
    struct error err = {""};
    damage.kind = random_int(r, 0, N_DAMAGES - 1);
    damage.call = random_int(r, 0, damage.kind == TAKEN_GATHER ? 1 : 8);
    damage.rank = random_int(r, 0, ranks->n_ranks - 1);
    assert_int_equal(sequence_start(&got, 0, &asked.sampling, &err), 0);
    assert_int_equal(sequence_add_prompt(&got, asked.tokens, asked.n_prompt, asked.max_new, &err),
                     0);
    struct kv_cache *cache = kv_static_new(&shared->model, shared->generator.context, &err);
    assert_non_null(cache);
    int result = generate(&shared->generator, &got, cache, &err);
    uint32_t any = damage.rank == ranks->rank && damage.call < 0;
    assert_int_equal(damage.max(ranks, &any, 1, &err), 0);
    assert_int_equal(result, any ? -1 : 0);
    assert_memory_equal(got.tokens, whole.tokens, sizeof *got.tokens * (size_t)got.n_tokens);
    kv_cache_free(cache);
    sequence_end(&asked);
    sequence_end(&got);
    sequence_end(&whole);
    return any;
}

static void test_damages(void **state) {
    (void)state;
    struct random r = {(uint64_t)number("SAMEBITS_SEED")};
    int n = number("SAMEBITS_DAMAGES"), n_found = 0;
    struct tiny_model whole, shared;
    if (!n)
        return;
    open_shared(&whole, &shared, 7);
    damage = (struct damage){-1, 0, 0, ranks->max, ranks->sum, ranks->gather};
    ranks->max = damaged_max;
    ranks->sum = damaged_sum;
    ranks->gather = damaged_gather;
    for (int i = 0; i < n; i++)
        n_found += check_damage(&shared, &r);
    assert_true(n_found >= n / 2);
    ranks->max = damage.max;
    ranks->sum = damage.sum;
    ranks->gather = damage.gather;
    close_shared(&whole, &shared);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_workloads), cmocka_unit_test(test_positions),
        cmocka_unit_test(test_goldens), cmocka_unit_test(test_damages)};
    struct error err;
    if (!(ranks = mpi_join(&err)))
        return 2;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    error_set(&err, "%d tests failed on rank %d", failed, ranks->rank);
    ranks->end(ranks, failed ? &err : NULL);
    return 0;
}
