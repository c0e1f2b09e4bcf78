/*
 * test_block_demos - what the demos of phases 5 to 7 print, compared with itself: blocks follow
 * from positions, what fits follows from the budget, a map has as many letters as blocks are in
 * use. And the options of the pool: bad ones are refused in one line that names them.
 */
#include "model/files/json.h"
#include "tests/command.h"

#include <ctype.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* A pool of most of the memory, which is the default, takes the sanitizers seconds to mark. */
#ifdef __SANITIZE_ADDRESS__
#define POOL "--kv-memory 64M"
#else
#define POOL ""
#endif

/* Runs a demo's tables and returns what --json wrote. *out: the run, for command_free. status: its
 * exit status, 2 when a request cannot be answered. */
static json_t *tables_with(int phase, const char *options, int status, struct command *out) {
    *out = command_runf("%s/demo%d --device cpu --threads 1 --json %s/tables.json %s",
                        build_folder(NULL), phase, command_folder, options);
    if (out->status != status)
        fail_msg("demo%d %s: status %d\n%s", phase, options, out->status, out->err);
    char path[128];
    json_error_t why;
    snprintf(path, sizeof path, "%s/tables.json", command_folder);
    json_t *json = json_load_file(path, 0, &why);
    if (!json)
        fail_msg("%s: %s", path, why.text);
    return json;
}

static json_t *tables_of(int phase, const char *options, struct command *out) {
    return tables_with(phase, options, 0, out);
}

static const json_t *table(const json_t *json, const char *key) {
    const json_t *rows = json_object_get(json, key);
    if (!json_array_size(rows))
        fail_msg("there is no table \"%s\"", key);
    return rows;
}

static double number(const json_t *row, const char *key) {
    const json_t *value = json_object_get(row, key);
    if (!json_is_number(value))
        fail_msg("a row has no number \"%s\"", key);
    return json_number_value(value);
}

static int whole(const json_t *row, const char *key) {
    return (int)number(row, key);
}

/* ---- phase 5 ----------------------------------------------------------------------------------
 */

enum { SHIPPED_BYTES = 4128, SHIPPED_CONTEXT = 4096 }; /* of a position; of the shipped model */

static void check_pool(const json_t *row, int block_size, int n_blocks) {
    assert_int_equal(whole(row, "size"), block_size);
    assert_int_equal(whole(row, "blocks"), n_blocks);
    assert_int_equal(whole(row, "positions"), block_size * n_blocks);
    assert_true(number(row, "pool_mb") == (double)n_blocks * block_size * SHIPPED_BYTES / 1e6);
    assert_true(number(row, "free_mb") > number(row, "pool_mb"));
}

/* The blocks of every request, and their sum. `room`: how many blocks the pool has. */
static int check_sequences(const json_t *rows, int block_size, int room, double *positions) {
    size_t i;
    const json_t *row;
    int sum = 0;
    assert_int_equal(json_array_size(rows), 16);
    json_array_foreach(rows, i, row) {
        int n = whole(row, "positions"), blocks = whole(row, "blocks");
        assert_true(n > 0 && blocks == (n + block_size - 1) / block_size);
        assert_int_equal(whole(row, "waste"), blocks * block_size - n);
        assert_true(whole(row, "waste") < block_size);
        assert_int_equal(whole(row, "static_waste"), SHIPPED_CONTEXT - n);
        bool given = blocks <= room;
        room -= given ? blocks : 0;
        assert_string_equal(json_string_value(json_object_get(row, "given")),
                            given ? "yes" : "no room");
        sum += blocks;
        *positions += n;
    }
    return sum;
}

static void test_what_fits(void **state) {
    (void)state;
#ifdef __SANITIZE_ADDRESS__
    skip(); /* slow, and test_small_pool runs the same code */
#endif
    struct command c;
    double positions = 0;
    json_t *json = tables_of(5, "--kv-memory 64M", &c);
    int n_blocks = (64 << 20) / (16 * SHIPPED_BYTES);
    check_pool(json_array_get(table(json, "pool"), 0), 16, n_blocks);
    int per_round = check_sequences(table(json, "sequences"), 16, n_blocks, &positions);
    const json_t *fit = table(json, "fit");
    const json_t *whole_context = json_array_get(fit, 0), *sixteen = json_array_get(fit, 3),
                 *one = json_array_get(fit, 5);
    int most = n_blocks * 16 / SHIPPED_CONTEXT;
    assert_int_equal(whole(whole_context, "fit"), most);
    assert_true(number(sixteen, "fit") >= 16.0 * (n_blocks / per_round));
    assert_true(number(sixteen, "fit") < 16.0 * (n_blocks / per_round + 1));
    assert_true(number(sixteen, "reserved") == (double)per_round * 16 / 16);
    assert_true(number(sixteen, "fit") > 3 * number(whole_context, "fit"));
    assert_true(number(one, "reserved") == positions / 16 && number(one, "wasted") == 0);
    assert_non_null(strstr(c.out, ", 0 after all were given back"));
    json_decref(json);
    command_free(&c);
}

/* The positions are those of the real answers: every token but the last, which nobody read. */
static void test_positions(void **state) {
    (void)state;
#ifdef __SANITIZE_ADDRESS__
    skip(); /* slow, and the others run the same code */
#endif
    struct command c;
    json_t *blocks = tables_of(5, "--kv-blocks 1", &c);
    command_free(&c);
    json_t *answers = tables_of(5, "--prompts data/prompts/mixed.jsonl", &c);
    command_free(&c);
    size_t i;
    const json_t *row, *rows = table(blocks, "sequences");
    json_array_foreach(table(answers, "requests"), i, row) assert_int_equal(
        whole(json_array_get(rows, i), "positions"), whole(row, "tokens") + whole(row, "new") - 1);
    json_decref(blocks);
    json_decref(answers);
}

/* A pool that has no room for all: the last ones get none, and nothing else fails. */
static void test_small_pool(void **state) {
    (void)state;
    struct command c;
    double positions = 0;
    json_t *json = tables_of(5, "--kv-blocks 12 --block-size 64", &c);
    check_pool(json_array_get(table(json, "pool"), 0), 64, 12);
    assert_true(check_sequences(table(json, "sequences"), 64, 12, &positions) > 12);
    assert_true(json_is_null(json_object_get(json_array_get(table(json, "fit"), 0), "times")));
    json_decref(json);
    command_free(&c);
}

/* The phases answer prompts with the bits of phase 4. */
static void test_same_bits_as_phase_4(void **state) {
    (void)state;
#ifdef __SANITIZE_ADDRESS__
    skip(); /* slow, and test_workloads runs the same code */
#endif
    char want[17] = "";
    for (int phase = 4; phase <= 8; phase++) {
        struct command c = command_runf(
            "%s/demo%d --device cpu --threads 1 --max-new 4 --prompts data/prompts/short.jsonl %s",
            build_folder(NULL), phase, phase < 7 ? "" : POOL);
        const char *fingerprint = command_fingerprint(&c);
        if (c.status || !fingerprint)
            fail_msg("demo%d: status %d\n%s", phase, c.status, c.err);
        if (phase == 4)
            memcpy(want, fingerprint, 16);
        assert_memory_equal(fingerprint, want, 16);
        command_free(&c);
    }
}

/* ---- phase 6 ----------------------------------------------------------------------------------
 */

/* Counts the letters of a map's lines. */
static void count(const json_t *rows, int *used, int *partly, int *free_blocks) {
    size_t i;
    const json_t *row;
    *used = *partly = *free_blocks = 0;
    json_array_foreach(rows, i, row) {
        for (const char *at = json_string_value(json_object_get(row, "map")); *at; at++) {
            *used += isalpha((unsigned char)*at) != 0;
            *partly += islower((unsigned char)*at) != 0;
            *free_blocks += *at == '.';
        }
    }
}

/* The titles of the maps are only in the text: "Step 12: 8 sequences, 33 of 64 blocks ...". */
static void check_maps(const json_t *json, const char *text, int n_blocks) {
    int n = 0;
    for (const char *at = text; (at = strstr(at, "\nStep ")); at++, n++) {
        int step, sequences, in_use, total, empty, positions, used, partly, free_blocks;
        char key[16];
        assert_int_equal(sscanf(at,
                                " Step %d: %d sequences, %d of %d blocks in use; %d of %d "
                                "positions",
                                &step, &sequences, &in_use, &total, &empty, &positions),
                         6);
        snprintf(key, sizeof key, "map_%d", n);
        count(table(json, key), &used, &partly, &free_blocks);
        assert_int_equal(total, n_blocks);
        assert_int_equal(used, in_use);
        assert_int_equal(free_blocks, n_blocks - in_use);
        assert_true(partly <= sequences);
        assert_int_equal(positions, 16 * in_use);
        assert_true(empty <= 15 * partly && empty >= partly);
    }
    assert_int_equal(n, 4);
}

/* Each row has one block more than the one before, at the end of the same list. */
static void check_growth(const json_t *rows) {
    const char *before = "";
    size_t i;
    const json_t *row;
    assert_true(json_array_size(rows) > 10);
    json_array_foreach(rows, i, row) {
        const char *list = json_string_value(json_object_get(row, "table"));
        int positions = whole(row, "positions"), blocks = whole(row, "blocks");
        assert_int_equal(blocks, (positions + 15) / 16);
        if (i)
            assert_int_equal(positions % 16, 1);
        assert_true(!strncmp(list, before, strlen(before)) && strlen(list) > strlen(before));
        const char *last = strrchr(list, ' ');
        assert_int_equal(whole(row, "slot"), atoi(last ? last : list) * 16 + (positions - 1) % 16);
        before = list;
    }
}

/* The page table and the map of the same moment. */
static void check_pages(const json_t *rows, const json_t *map) {
    int indptr = 0, not_full = 0, used, partly, free_blocks;
    size_t i;
    const json_t *row;
    json_array_foreach(rows, i, row) {
        int positions = whole(row, "positions"), pages = (positions + 15) / 16;
        assert_int_equal(whole(row, "first"), indptr);
        assert_int_equal(whole(row, "last"), positions - (pages - 1) * 16);
        indptr += pages;
        not_full += positions % 16 != 0;
    }
    count(map, &used, &partly, &free_blocks);
    assert_int_equal(used, indptr);
    assert_int_equal(partly, not_full);
}

static void test_tables_and_maps(void **state) {
    (void)state;
    static const int sizes[] = {64, 19}; /* the default; the fewest that hold every request alone */
#ifdef __SANITIZE_ADDRESS__
    const int first = 1; /* slow */
#else
    const int first = 0;
#endif
    for (int i = first; i < 2; i++) {
        struct command c;
        char options[32] = "";
        if (i)
            snprintf(options, sizeof options, "--kv-blocks %d", sizes[i]);
        json_t *json = tables_of(6, options, &c);
        check_maps(json, c.out, sizes[i]);
        check_growth(table(json, "table"));
        check_pages(table(json, "pages"), table(json, "map_2"));
        assert_non_null(strstr(c.out, "; 0 are after the last request"));
        json_decref(json);
        command_free(&c);
    }
}

/* ---- what is refused --------------------------------------------------------------------------
 */

static void test_refused(void **state) {
    (void)state;
#ifdef __SANITIZE_ADDRESS__
    const size_t step = 3; /* slow */
#else
    const size_t step = 1;
#endif
    static const struct {
        int phase;
        const char *arguments, *word1, *word2;
    } cases[] = {
        {10, "--kv-blocks 1", "an answer to each request", "do not fit into the KV pool"},
        {7, "--context 20", "an answer to each request", "the context is 20"},
        {5, "--block-size 12", "--block-size 12", "power of two"},
        {5, "--block-size 512", "--block-size 512", "to 256"},
        {5, "--block-size 0", "--block-size 0", "from 1"},
        {5, "--block-size -16", "--block-size -16", "from 1"},
        {5, "--kv-blocks 0", "--kv-blocks 0", "from 1"},
        {5, "--kv-blocks x", "--kv-blocks x", "whole number"},
        {5, "--kv-memory 0", "--kv-memory 0", "1 or more"},
        {5, "--kv-memory ''", "--kv-memory", "500M"},
        {5, "--kv-memory -5M", "--kv-memory -5M", "500M"},
        {5, "--kv-memory 5MB", "--kv-memory 5MB", "500M"},
        {5, "--kv-memory 5T", "--kv-memory 5T", "500M"},
        {5, "--kv-memory M", "--kv-memory M", "500M"},
        {5, "--kv-memory 99999999999G", "--kv-memory 99999999999G", "500M"},
        {5, "--kv-memory 99999999999999999999", "--kv-memory 999", "500M"},
        {5, "--kv-memory 1G --kv-blocks 7", "--kv-blocks", "--kv-memory"},
        {5, "--kv-memory 1000000G", "MB are free", "Make it smaller"},
        {5, "--kv-memory 66047", "holds no block", "0.066 MB"},
        {6, "--kv-blocks 18", "needs 19 blocks", "the pool has 18"},
        {6, "--context 2", "no request could be answered", "2"},
        {4, "--block-size 16", "--block-size", "make phase5"},
        {4, "--kv-blocks 16", "--kv-blocks", "make phase5"},
        {1, "--kv-memory 1G", "--kv-memory", "make phase5"},
        {6, "--preempt swap", "--preempt", "make phase7"},
        {6, "--no-prefix-cache", "--no-prefix-cache", "make phase7"},
        {6, "--samples 2", "--samples", "make phase7"},
        {7, "--preempt never", "--preempt never", "recompute or swap"},
        {7, "--samples 0 --prompts x", "--samples", "1"},
        {7, "--samples 2", "--samples", "--prompts"},
        {5, "--kv-blocks 9 --prompts x", "--kv-blocks", "make phase7"},
        {6, "--kv-memory 9M --random 2", "--kv-memory", "make phase7"},
        {6, "--block-size 4 --prompt x", "--block-size", "make phase7"},
        {6, "--kv-blocks 9 --chat", "--kv-blocks", "it goes with the tables"},
        {7, "--kv-blocks 9 --prompt x", "--kv-blocks", "nothing with --prompt"},
        {7, "--kv-memory 9M --chat", "--kv-memory", "nothing with --chat"},
        {7, "--preempt recompute --prompt x", "--preempt", "--prompts or --random"},
        {7, "--no-prefix-cache", "--no-prefix-cache", "--prompts or --random"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i += step)
        assert_run_fails(cases[i].phase, cases[i].arguments, cases[i].word1, cases[i].word2);
}

/* ---- phase 7 ----------------------------------------------------------------------------------
 */

/* Pools of any size, blocks of any size, both kinds of preemption, with and without shared
 * prefixes.
 */
static void test_paged_prompts(void **state) {
    (void)state;
    static const char *const options[] = {"--kv-blocks 24",
                                          "--kv-blocks 24 --preempt swap --no-prefix-cache",
                                          "--block-size 256 --kv-blocks 2 --preempt swap"};
    char want[64] = "";
#ifdef __SANITIZE_ADDRESS__
    skip(); /* slow, and test_paged_workloads runs the same code */
#endif
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        struct command c;
        char all[200];
        snprintf(all, sizeof all, "--max-new 12 --prompts data/prompts/mixed.jsonl %s", options[i]);
        json_t *json = tables_of(i % 2 ? 8 : 7, all, &c);
        const json_t *pool = json_array_get(table(json, "pool"), 0);
        const char *got = json_string_value(json_object_get(json, "fingerprint"));
        assert_non_null(got);
        if (!i)
            snprintf(want, sizeof want, "%s", got);
        assert_string_equal(got, want);
        assert_true(whole(pool, "most") <= whole(pool, "blocks"));
        if (i < 2)
            assert_true(whole(pool, "preemptions") > 0);
        if (i == 1)
            assert_true(whole(pool, "swapped") > 0 && !whole(pool, "shared"));
        json_decref(json);
        command_free(&c);
    }
}

/* One that cannot fit ends with its reason; the other is answered. */
static void test_one_too_large(void **state) {
    (void)state;
    struct command c;
    json_t *json = tables_with(7,
                               "--kv-blocks 1 --block-size 32 --max-new 4 "
                               "--prompts data/prompts/mixed.jsonl",
                               2, &c);
    const json_t *requests = table(json, "requests");
    assert_string_equal(json_string_value(json_object_get(json_array_get(requests, 0), "finish")),
                        "stop");
    assert_string_equal(json_string_value(json_object_get(json_array_get(requests, 1), "finish")),
                        "error");
    assert_non_null(
        strstr(c.out, "request 1: 282 tokens and one more do not fit into the KV pool"));
    json_decref(json);
    command_free(&c);
}

/* Samples of one prompt: each as if it had been asked alone, in its place. */
static void test_samples(void **state) {
    (void)state;
    struct command c;
    json_t *json = tables_of(7,
                             "--samples 3 --temperature 4 --seed 5 --max-new 8 "
                             "--prompts data/prompts/short.jsonl " POOL,
                             &c);
    const json_t *requests = table(json, "requests"),
                 *pool = json_array_get(table(json, "pool"), 0);
    assert_int_equal(json_array_size(requests) % 3, 0);
    int different = 0;
    for (size_t i = 0; i < json_array_size(requests); i += 3) {
        const char *prints[3];
        for (size_t j = 0; j < 3; j++)
            prints[j] =
                json_string_value(json_object_get(json_array_get(requests, i + j), "fingerprint"));
        different += strcmp(prints[0], prints[1]) && strcmp(prints[1], prints[2]);
    }
    assert_true(different > 0);
    assert_true(whole(pool, "shared") > whole(pool, "prompt") / 2);
    json_decref(json);
    command_free(&c);
}

int main(int argc, char **argv) {
    (void)argc;
    build_folder(argv[0]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_fits),       cmocka_unit_test(test_positions),
        cmocka_unit_test(test_small_pool),      cmocka_unit_test(test_same_bits_as_phase_4),
        cmocka_unit_test(test_tables_and_maps), cmocka_unit_test(test_refused),
        cmocka_unit_test(test_paged_prompts),   cmocka_unit_test(test_one_too_large),
        cmocka_unit_test(test_samples),
    };
    return cmocka_run_group_tests(tests, command_folder_make, command_folder_remove);
}
