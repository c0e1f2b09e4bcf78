/*
 * workload.h: a file of requests is read as it is written, everything else is refused with file,
 * line and field; random workloads are the same on every machine and have the lengths and arrivals
 * that they promise.
 */
#include "scheduler/workload.h"
#include "tests/checkpoint_writer.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include <cmocka.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

static char folder[32], path[64];

static int make_folder(void **state) {
    (void)state;
    temporary_folder_make(folder);
    snprintf(path, sizeof path, "%s/work.jsonl", folder);
    return 0;
}

static int remove_folder(void **state) {
    (void)state;
    temporary_folder_remove(folder);
    return 0;
}

/* One token for each byte of a prompt; "?" cannot be encoded. */
static int encode_prompt(void *context, const char *text, int32_t **ids, size_t *n,
                         struct error *err) {
    (void)context;
    if (!strcmp(text, "?"))
        return error_set(err, "no token for it");
    *n = strlen(text);
    *ids = malloc(sizeof **ids * (*n + 1));
    assert_non_null(*ids);
    for (size_t i = 0; i < *n; i++)
        (*ids)[i] = (unsigned char)text[i];
    return 0;
}

/* One token for each message. */
static int encode_messages(void *context, const json_t *line, const char *where, int32_t **ids,
                           size_t *n, struct error *err) {
    const json_t *messages = json_object_get(line, "messages");
    (void)context;
    if (!json_is_array(messages))
        return error_set(err, "%s: messages: must be a list", where);
    *n = json_array_size(messages);
    *ids = calloc(*n + 1, sizeof **ids);
    assert_non_null(*ids);
    return 0;
}

static const struct workload_encoder encoder = {encode_prompt, encode_messages, NULL};
static const struct request defaults = {
    .arrival = 0.5,
    .max_new = 17,
    .sampling = {.temperature = 0.5f, .top_k = 3, .top_p = 1, .seed = 9}};

static int read_bytes(struct workload *w, const char *content, size_t n, struct error *err) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(content, 1, n, f), n);
    fclose(f);
    return workload_read(w, path, &defaults, &encoder, err);
}

static void read_text(struct workload *w, const char *content) {
    struct error err;
    if (read_bytes(w, content, strlen(content), &err))
        fail_msg("%s", err.text);
}

static void what_a_line_does_not_say_is_the_default(void **state) {
    (void)state;
    static const char *const lines[] = {
        "{\"prompt\": \"Hi\"}",
        "\"Hi\"",
        "\n \t\r\n{\"prompt\": \"Hi\"}\n\n",
        "{\"prompt\": \"Hi\", \"id\": null, \"messages\": null, \"max_new\": null, \"seed\": null, "
        "\"arrival\": null, \"temperature\": null, \"top_k\": null, \"top_p\": null, "
        "\"stop\": null}",
    };
    for (size_t i = 0; i < COUNT(lines); i++) {
        struct workload w = {0};
        read_text(&w, lines[i]);
        const struct request *r = w.requests;
        assert_int_equal(w.n, 1);
        assert_int_equal(r->n_prompt, 2);
        assert_int_equal(r->prompt[1], 'i');
        assert_int_equal(r->max_new, 17);
        assert_true(r->arrival == 0.5);
        assert_true(r->sampling.temperature == 0.5f && r->sampling.top_p == 1);
        assert_int_equal(r->sampling.top_k, 3);
        assert_int_equal(r->sampling.seed, 9);
        assert_false(r->sampling.has_seed);
        assert_int_equal(r->n_stops, 0);
        assert_string_equal(w.requests[0].title, "Hi");
        workload_free(&w);
    }
}

static void what_a_line_says_is_read(void **state) {
    (void)state;
    struct workload w = {0};
    read_text(&w, "{\"id\": \"first\", \"messages\": [1, 2, 3], \"max_new\": 1, \"arrival\": 0, "
                  "\"temperature\": 0, \"top_k\": 0, \"top_p\": 0.25, "
                  "\"seed\": 9223372036854775807, \"stop\": [\"a\", \"\\n\\n\"]}\n"
                  "{\"prompt\": \"x\", \"stop\": \"END\", \"max_new\": 1073741824, "
                  "\"arrival\": 1e9}");
    const struct request *r = w.requests;
    assert_int_equal(w.n, 2);
    assert_string_equal(w.requests[0].title, "first");
    assert_int_equal(r[0].n_prompt, 3);
    assert_int_equal(r[0].max_new, 1);
    assert_true(r[0].arrival == 0 && r[0].sampling.temperature == 0);
    assert_true(r[0].sampling.top_k == 0 && r[0].sampling.top_p == 0.25f);
    assert_true(r[0].sampling.seed == INT64_MAX && r[0].sampling.has_seed);
    assert_int_equal(r[0].n_stops, 2);
    assert_string_equal(r[0].stops[1], "\n\n");
    assert_int_equal(r[1].n_stops, 1);
    assert_string_equal(r[1].stops[0], "END");
    assert_int_equal(r[1].max_new, 1 << 30);
    assert_true(r[1].arrival == 1e9);
    workload_free(&w);
}

/* At most 24 bytes of the first line, and no half character. */
static void titles_are_the_beginning_of_the_prompt(void **state) {
    (void)state;
    struct workload w = {0};
    read_text(&w, "{\"prompt\": \"exactly 24 bytes of text\"}\n"
                  "{\"prompt\": \"this is 25 bytes of text.\"}\n"
                  "{\"prompt\": \"one line\\nand another\"}\n"
                  "{\"prompt\": \"twenty-three letters + \xC3\xA9\"}\n"
                  "{\"prompt\": \"a\\tb\\u001b[0m\\u007f\"}\n"
                  "{\"prompt\": \"a\\u0080b\\u009b0m\\u00a0\"}\n"
                  "{\"messages\": [1]}\n"
                  "{\"id\": \"an id that is much too long\", \"prompt\": \"x\"}\n");
    assert_string_equal(w.requests[0].title, "exactly 24 bytes of text");
    assert_string_equal(w.requests[1].title, "this is 25 bytes of text...");
    assert_string_equal(w.requests[2].title, "one line");
    assert_string_equal(w.requests[3].title, "twenty-three letters + ...");
    assert_string_equal(w.requests[4].title, "a b [0m ");
    assert_string_equal(w.requests[5].title, "a  b  0m\u00a0");
    assert_string_equal(w.requests[6].title, "(messages)");
    assert_string_equal(w.requests[7].title, "an id that is much too l...");
    workload_free(&w);
}

static void requests_come_in_order_of_arrival(void **state) {
    (void)state;
    struct workload w = {0};
    read_text(&w, "{\"prompt\": \"a\", \"arrival\": 2}\n{\"prompt\": \"b\", \"arrival\": 1}\n"
                  "{\"prompt\": \"c\", \"arrival\": 2}\n{\"prompt\": \"d\"}\n"
                  "{\"prompt\": \"e\", \"arrival\": 1}\n{\"prompt\": \"f\", \"arrival\": 0}\n");
    assert_int_equal(w.n, 6);
    for (int i = 0; i < 6; i++) {
        assert_int_equal(w.requests[i].title[0], "fdbeac"[i]);
        assert_int_equal(w.requests[i].prompt[0], w.requests[i].title[0]);
    }
    read_text(&w, "{\"prompt\": \"g\", \"arrival\": 1}\n{\"prompt\": \"h\", \"arrival\": 3}");
    assert_int_equal(w.n, 8);
    for (int i = 0; i < 8; i++)
        assert_int_equal(w.requests[i].title[0], "fdbegach"[i]);
    workload_free(&w);
}

static const struct {
    const char *line, *word1, *word2;
} refused[] = {
    /* no JSON */
    {"{\"prompt\": \"x\"", "column", "expected"},
    {"{\"prompt\": \"x\"} 3", "column", "end of file"},
    {"{\"prompt\": \"x\", \"prompt\": \"y\"}", "duplicate", "\"prompt\""},
    {"{\"prompt\": \"\xC3\x28\"}", "column", "0xc3"},
    {"{\"prompt\": \"x\", \"arrival\": NaN}", "column", "NaN"},
    {"{\"prompt\": \"x\", \"arrival\": Infinity}", "column", "Infinity"},
    {"{\"prompt\": \"x\", \"arrival\": 1e999}", "column", "1e999"},
    {"{\"prompt\": \"x\", \"seed\": 9223372036854775808}", "column", "9223372036854775808"},
    /* another shape */
    {"[]", "object", ""},
    {"3", "object", ""},
    {"null", "object", ""},
    {"\"a\\u0000b\"", "prompt", "NUL"},
    {"{}", "prompt", "messages"},
    {"{\"max_new\": 3}", "prompt", "messages"},
    {"{\"prompt\": null}", "prompt", "messages"},
    {"{\"prompt\": \"x\", \"messages\": []}", "prompt", "messages"},
    {"{\"prompt\": \"x\", \"tools\": []}", "tools", "need messages"},
    {"{\"prompt\": \"x\", \"maxnew\": 3}", "maxnew", "unknown"},
    {"{\"prompt\": \"x\", \"\": 3}", "unknown", "max_new"},
    /* another type */
    {"{\"prompt\": 3}", "prompt", "string"},
    {"{\"prompt\": [\"x\"]}", "prompt", "string"},
    {"{\"messages\": \"x\"}", "messages", "list"},
    {"{\"prompt\": \"x\", \"id\": 3}", "id", "string"},
    {"{\"prompt\": \"x\", \"max_new\": \"3\"}", "max_new", "whole number"},
    {"{\"prompt\": \"x\", \"max_new\": 3.0}", "max_new", "whole number"},
    {"{\"prompt\": \"x\", \"arrival\": \"0\"}", "arrival", "number"},
    {"{\"prompt\": \"x\", \"temperature\": true}", "temperature", "number"},
    {"{\"prompt\": \"x\", \"top_k\": 1.5}", "top_k", "whole number"},
    {"{\"prompt\": \"x\", \"top_p\": []}", "top_p", "number"},
    {"{\"prompt\": \"x\", \"seed\": 1.5}", "seed", "whole number"},
    {"{\"prompt\": \"x\", \"stop\": 3}", "stop", "text"},
    {"{\"prompt\": \"x\", \"stop\": [\"a\", 3]}", "stop", "text"},
    {"{\"prompt\": \"x\", \"stop\": {\"a\": \"b\"}}", "stop", "text"},
    /* out of range */
    {"{\"prompt\": \"x\", \"max_new\": 0}", "max_new", "is 0"},
    {"{\"prompt\": \"x\", \"max_new\": -5}", "max_new", "is -5"},
    {"{\"prompt\": \"x\", \"max_new\": 1073741825}", "max_new", "to 1073741824"},
    {"{\"prompt\": \"x\", \"arrival\": -0.001}", "arrival", "from 0"},
    {"{\"prompt\": \"x\", \"arrival\": 1.1e9}", "arrival", "to 1e9"},
    {"{\"prompt\": \"x\", \"temperature\": -1}", "temperature", "from 0"},
    {"{\"prompt\": \"x\", \"temperature\": 1e31}", "temperature", "to 1e30"},
    {"{\"prompt\": \"x\", \"top_k\": -1}", "top_k", "is -1"},
    {"{\"prompt\": \"x\", \"top_k\": 2147483648}", "top_k", "2147483647"},
    {"{\"prompt\": \"x\", \"top_p\": 1.001}", "top_p", "to 1"},
    {"{\"prompt\": \"x\", \"top_p\": -0.1}", "top_p", "from 0"},
    {"{\"prompt\": \"x\", \"seed\": -1}", "seed", "from 0"},
    {"{\"prompt\": \"x\", \"stop\": \"\"}", "stop", "empty"},
    {"{\"prompt\": \"x\", \"stop\": [\"a\", \"\"]}", "stop", "empty"},
    {"{\"prompt\": \"x\", \"stop\": \"a\\u0000b\"}", "stop", "NUL"},
    {"{\"prompt\": \"a\\u0000b\"}", "prompt", "NUL"},
    {"{\"prompt\": \"x\", \"id\": \"a\\u0000b\"}", "id", "NUL"},
    {"{\"prompt\": \"x\", \"id\": \"\"}", "id", "empty"},
    {"{\"prompt\": \"x\", \"id\": \"same\"}", "id: \"same\"", "line 1"},
    /* what the encoder says */
    {"{\"prompt\": \"?\"}", "prompt", "no token"},
};

/* Behind two good lines and an empty one, so every message says line 4. */
static void bad_lines_are_refused_by_line_and_field(void **state) {
    (void)state;
    static const char good[] =
        "{\"id\": \"same\", \"prompt\": \"fine\", \"stop\": [\"a\", \"b\"]}\n"
        "{\"id\": \"other\", \"messages\": [1]}\n\n";
    char content[512], where[80];
    snprintf(where, sizeof where, "%s: line 4", path);
    for (size_t i = 0; i < COUNT(refused); i++) {
        struct workload w = {0};
        struct error err = {""};
        snprintf(content, sizeof content, "%s%s\n{\"prompt\": \"behind\"}\n", good,
                 refused[i].line);
        int result = read_bytes(&w, content, strlen(content), &err);
        workload_free(&w);
        if (!result || strncmp(err.text, where, strlen(where)) ||
            !strstr(err.text + strlen(where), refused[i].word1) ||
            !strstr(err.text + strlen(where), refused[i].word2))
            fail_msg("%s\nexpected \"%s\", \"%s\" and \"%s\", got %d: %s", refused[i].line, where,
                     refused[i].word1, refused[i].word2, result, err.text);
    }
}

static void bad_files_are_refused_by_name(void **state) {
    (void)state;
    struct workload w = {0};
    struct error err;
    assert_int_equal(workload_read(&w, "/nosuch/file", &defaults, &encoder, &err), -1);
    assert_string_equal(err.text, "/nosuch/file: No such file or directory");
    workload_free(&w);
    assert_int_equal(workload_read(&w, folder, &defaults, &encoder, &err), -1);
    assert_non_null(strstr(err.text, folder));
    assert_non_null(strstr(err.text, "directory"));
    workload_free(&w);
    static const char *const empty[] = {"", "\n", " \n\t\r\n\n"};
    for (size_t i = 0; i < COUNT(empty); i++) {
        assert_int_equal(read_bytes(&w, empty[i], strlen(empty[i]), &err), -1);
        assert_non_null(strstr(err.text, path));
        assert_non_null(strstr(err.text, "no prompts"));
        workload_free(&w);
    }
    assert_int_equal(read_bytes(&w, "{\"prompt\": \"x\"}\0", 16, &err), -1);
    assert_non_null(strstr(err.text, "line 1"));
    workload_free(&w);
}

/* ---- at random --------------------------------------------------------------------------------
 */

static void draw(struct workload *w, int n, const struct workload_mix *mix, uint64_t seed) {
    static const struct sampling_options sampling = {.temperature = 0.75f, .top_p = 1, .seed = 5};
    struct error err;
    if (workload_random(w, n, mix, 4096, &sampling, seed, &err))
        fail_msg("%s", err.text);
    assert_int_equal(w->n, n);
}

/* XXH3 over everything that was drawn. */
static uint64_t numbers_of(const struct workload *w) {
    XXH3_state_t *hash = XXH3_createState();
    assert_non_null(hash);
    XXH3_64bits_reset(hash);
    for (int i = 0; i < w->n; i++) {
        const struct request *r = &w->requests[i];
        XXH3_64bits_update(hash, &r->arrival, sizeof r->arrival);
        XXH3_64bits_update(hash, &r->max_new, sizeof r->max_new);
        XXH3_64bits_update(hash, &r->n_prompt, sizeof r->n_prompt);
        XXH3_64bits_update(hash, r->prompt, sizeof *r->prompt * (size_t)r->n_prompt);
    }
    uint64_t digest = XXH3_64bits_digest(hash);
    XXH3_freeState(hash);
    return digest;
}

static uint64_t numbers_of_seed(int n, uint64_t seed) {
    struct workload w = {0};
    draw(&w, n, &workload_sharegpt, seed);
    uint64_t digest = numbers_of(&w);
    workload_free(&w);
    return digest;
}

static void a_seed_gives_the_same_workload_everywhere(void **state) {
    (void)state;
    uint64_t one = numbers_of_seed(500, 1);
    if (one != UINT64_C(0x223ae4140da276f4))
        fail_msg("the numbers of seed 1 changed: 0x%016llx", (unsigned long long)one);
    assert_true(numbers_of_seed(500, 1) == one);
    assert_true(numbers_of_seed(500, 2) != one);
    assert_true(numbers_of_seed(500, UINT64_C(1) << 63 | 1) != one);
    struct workload few = {0}, many = {0};
    draw(&few, 20, &workload_sharegpt, 1);
    draw(&many, 40, &workload_sharegpt, 1);
    many.n = 20; /* more requests begin like fewer */
    assert_true(numbers_of(&few) == numbers_of(&many));
    many.n = 40;
    workload_free(&few);
    workload_free(&many);
}

/* The mean of 10000 numbers is within 4 standard errors of the true one with all but certainty. */
enum { N_DRAWS = 10000 };

static void assert_mean(const char *what, double mean, double want, double deviation) {
    double error = 4 * deviation / sqrt(N_DRAWS);
    if (!(fabs(mean - want) <= error))
        fail_msg("mean %s %g, expected %g +- %g", what, mean, want, error);
}

/* Mean and standard deviation of a lognormal distribution, a half less for rounding down. */
static void assert_lognormal(const char *what, double mean, double median, double sigma) {
    double want = median * exp(sigma * sigma / 2);
    assert_mean(what, mean, want - 0.5, want * sqrt(exp(sigma * sigma) - 1));
}

static void arrivals_and_lengths_have_their_means(void **state) {
    (void)state;
    struct workload_mix mix = {.requests_per_second = 4,
                               .prompt_median = 60,
                               .prompt_sigma = 0.75,
                               .answer_median = 200,
                               .answer_sigma = 0.5,
                               .most_prompt = 1 << 20,
                               .most_answer = 1 << 20};
    struct workload w = {0};
    double prompt = 0, answer = 0, last = 0, square = 0;
    draw(&w, N_DRAWS, &mix, 7);
    for (int i = 0; i < w.n; i++) {
        const struct request *r = &w.requests[i];
        double gap = r->arrival - last;
        assert_true(gap >= 0);
        square += gap * gap / N_DRAWS;
        last = r->arrival;
        prompt += (double)r->n_prompt / N_DRAWS;
        answer += (double)r->max_new / N_DRAWS;
        assert_true(r->sampling.temperature == 0.75f && r->sampling.seed == 5);
        assert_string_equal(w.requests[i].title, "(random)");
    }
    workload_free(&w);
    assert_mean("gap", last / N_DRAWS, 0.25, 0.25);
    /* Exponential: the mean square is twice the squared mean, with deviation sqrt(20) of that. */
    assert_mean("squared gap", square, 2 * 0.25 * 0.25, sqrt(20) * 0.25 * 0.25);
    assert_lognormal("prompt", prompt, 60, 0.75);
    assert_lognormal("answer", answer, 200, 0.5);
}

static void lengths_and_ids_stay_in_their_range(void **state) {
    (void)state;
    struct workload_mix mix = workload_sharegpt;
    struct workload w = {0};
    bool seen[4096] = {false};
    int n_seen = 0, shortest = 0, longest = 0;
    double prompt = 0, answer = 0;
    draw(&w, N_DRAWS, &mix, 8);
    for (int i = 0; i < w.n; i++) {
        const struct request *r = &w.requests[i];
        assert_in_range(r->n_prompt, 1, mix.most_prompt);
        assert_in_range(r->max_new, 1, mix.most_answer);
        shortest += r->n_prompt == 1;
        longest += r->n_prompt == mix.most_prompt;
        prompt += (double)r->n_prompt / N_DRAWS;
        answer += (double)r->max_new / N_DRAWS;
        for (int j = 0; j < r->n_prompt; j++) {
            assert_in_range(r->prompt[j], 0, 4095);
            n_seen += !seen[r->prompt[j]];
            seen[r->prompt[j]] = true;
        }
    }
    workload_free(&w);
    assert_int_equal(n_seen, 4096);
    assert_true(shortest && longest);
    /* What the header says of ShareGPT, but for the tails that are cut. */
    assert_true(prompt > 161 * 0.85 && prompt < 161 * 1.05);
    assert_true(answer > 338 * 0.85 && answer < 338 * 1.05);
    mix = (struct workload_mix){.prompt_median = 1e6,
                                .prompt_sigma = 9,
                                .answer_median = 1e-6,
                                .answer_sigma = 1,
                                .most_prompt = 5,
                                .most_answer = 5};
    draw(&w, 100, &mix, 9);
    for (int i = 0; i < w.n; i++) {
        assert_true(w.requests[i].arrival == 0);
        assert_in_range(w.requests[i].n_prompt, 1, 5);
        assert_int_equal(w.requests[i].max_new, 1);
    }
    workload_free(&w);
    draw(&w, 0, &mix, 9);
    workload_free(&w);
}

/* Each request n times, one behind the other, with numbered samples and one prompt for all. */
static void forks_stand_behind_their_request(void **state) {
    (void)state;
    enum { N = 3 };
    struct workload w = {0};
    struct error err;
    read_text(
        &w, "{\"id\": \"a\", \"prompt\": \"xyz\", \"stop\": [\"end\", \"stop\"], \"arrival\": 1}\n"
            "{\"id\": \"b\", \"prompt\": \"q\", \"arrival\": 2}\n");
    assert_int_equal(workload_fork(&w, N, &err), 0);
    assert_int_equal(w.n, 2 * N);
    for (int i = 0; i < w.n; i++) {
        const struct request *r = &w.requests[i], *first = &w.requests[i / N * N];
        assert_int_equal(r->fork_back, i % N);
        assert_string_equal(w.requests[i].title, i < N ? "a" : "b");
        assert_int_equal(r->n_prompt, i < N ? 3 : 1);
        assert_memory_equal(r->prompt, first->prompt, sizeof *r->prompt * (size_t)r->n_prompt);
        assert_true(r->arrival == (i < N ? 1 : 2));
        assert_int_equal(r->n_stops, i < N ? 2 : 0);
        assert_true(r->prompt == first->prompt && r->stops == first->stops);
        assert_int_equal(r->sampling.sample, i % N);
        for (int k = 0; k < r->n_stops; k++)
            assert_string_equal(r->stops[k], k ? "stop" : "end");
    }
    workload_free(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forks_stand_behind_their_request),
        cmocka_unit_test(what_a_line_does_not_say_is_the_default),
        cmocka_unit_test(what_a_line_says_is_read),
        cmocka_unit_test(titles_are_the_beginning_of_the_prompt),
        cmocka_unit_test(requests_come_in_order_of_arrival),
        cmocka_unit_test(bad_lines_are_refused_by_line_and_field),
        cmocka_unit_test(bad_files_are_refused_by_name),
        cmocka_unit_test(a_seed_gives_the_same_workload_everywhere),
        cmocka_unit_test(arrivals_and_lengths_have_their_means),
        cmocka_unit_test(lengths_and_ids_stay_in_their_range),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
