/*
 * test_html - the files of --html: each is the page with a run in it, and what the run's changes
 * add up to is what the demo itself has told. tests/browser looks at them in a browser.
 */
#include "model/files/json.h"
#include "tests/command.h"
#include "tutorials/common/page.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MOST_REQUESTS = 64, MOST_BLOCKS = 512 };

static char html[64], json[64];
static const char tag[] = "<script id=\"record\" type=\"application/json\">";

static char *read_text(const char *path) {
    enum { MOST = 16 << 20 };
    FILE *f = fopen(path, "rb");
    char *text = malloc(MOST + 1);
    assert_true(f && text);
    size_t n = fread(text, 1, MOST, f);
    assert_true(n > 0 && n < MOST);
    fclose(f);
    text[n] = 0;
    return text;
}

/* The run in a file, which is otherwise the page. */
static json_t *read_record(const char *path) {
    struct error err;
    char *text = read_text(path), *begin = strstr(text, tag);
    assert_non_null(begin);
    begin += strlen(tag);
    char *end = strstr(begin, "</script>");
    assert_non_null(end);
    size_t before = (size_t)(begin - text);
    assert_memory_equal(text, page_text, before);
    assert_memory_equal(page_text + before, "null</script>", 13);
    assert_string_equal(end, page_text + before + 4);
    json_t *run = json_parse(begin, (size_t)(end - begin), path, &err);
    assert_non_null(run);
    free(text);
    return run;
}

static json_int_t number_of(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    assert_true(json_is_integer(value));
    return json_integer_value(value);
}

/* What all changes so far have told of a request. */
struct seen {
    char state[16], fingerprint[17], finish[16];
    json_int_t n_read, n_new, blocks[MOST_BLOCKS];
    size_t n_blocks, n_text;
    bool sampled;
};

static void set_text(char *to, size_t size, const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    if (value)
        snprintf(to, size, "%s", json_string_value(value));
}

static void read_blocks(struct seen *s, const json_t *object) {
    const json_t *keep = json_object_get(object, "keep"), *list = json_object_get(object, "blocks");
    if (keep) {
        assert_true((size_t)json_integer_value(keep) < s->n_blocks);
        s->n_blocks = (size_t)json_integer_value(keep);
    }
    for (size_t i = 0; i < json_array_size(list); i++) {
        assert_true(s->n_blocks < MOST_BLOCKS);
        s->blocks[s->n_blocks++] = json_integer_value(json_array_get(list, i));
    }
}

static void read_request(struct seen *s, const json_t *object) {
    const json_t *read = json_object_get(object, "read"), *new = json_object_get(object, "new");
    set_text(s->state, sizeof s->state, object, "state");
    set_text(s->finish, sizeof s->finish, object, "finish");
    set_text(s->fingerprint, sizeof s->fingerprint, object, "fingerprint");
    s->n_text += json_string_length(json_object_get(object, "text"));
    s->sampled = s->sampled || json_object_get(object, "sample_of");
    read_blocks(s, object);
    if (read)
        s->n_read = json_integer_value(read);
    if (new) {
        assert_int_equal(json_integer_value(new), s->n_new + 1); /* one a step */
        s->n_new++;
    }
}

/* A block is used by as many as have it. */
static void check_references(const struct seen *seen, const json_int_t *references) {
    json_int_t users[MOST_BLOCKS] = {0};
    for (int r = 0; r < MOST_REQUESTS; r++)
        for (size_t i = 0; i < seen[r].n_blocks; i++)
            users[seen[r].blocks[i]]++;
    for (int b = 0; b < MOST_BLOCKS; b++)
        assert_int_equal(users[b], references[b] > 0 ? references[b] : 0);
}

static void read_changes(const json_t *run, struct seen *seen) {
    json_int_t references[MOST_BLOCKS] = {0}, step = 0;
    const json_t *changes = json_object_get(run, "changes"), *change, *object, *pair;
    size_t i, k;
    double time = 0;
    json_array_foreach(changes, i, change) {
        assert_true(number_of(change, "step") >= step);
        step = number_of(change, "step");
        assert_true(json_number_value(json_object_get(change, "time")) >= time);
        time = json_number_value(json_object_get(change, "time"));
        json_array_foreach(json_object_get(change, "requests"), k, object) {
            assert_in_range(number_of(object, "id"), 0, MOST_REQUESTS - 1);
            read_request(&seen[number_of(object, "id")], object);
        }
        json_array_foreach(json_object_get(change, "references"), k, pair) {
            json_int_t block = json_integer_value(json_array_get(pair, 0));
            assert_in_range(block, 0, number_of(run, "blocks") - 1);
            references[block] = json_integer_value(json_array_get(pair, 1));
        }
        check_references(seen, references);
    }
}

/* A cell of the table of requests that --json has. */
static const json_t *cell(const json_t *root, int row, const char *key) {
    const json_t *rows = json_object_get(root, "requests");
    return json_object_get(json_array_get(rows, (size_t)row), key);
}

static void check_run(int phase, const char *options, bool forks, bool preempts) {
    static struct seen seen[MOST_REQUESTS];
    struct error err;
    memset(seen, 0, sizeof seen);
    struct command c = command_runf("%s/demo%d --device cpu %s --html %s --json %s",
                                    build_folder(NULL), phase, options, html, json);
    if (c.status)
        fail_msg("%s", c.err);
    command_free(&c);
    json_t *run = read_record(html), *root = json_read_file(json, &err);
    assert_int_equal(number_of(run, "phase"), phase);
    read_changes(run, seen);
    int n = (int)json_array_size(json_object_get(root, "requests"));
    bool sampled = false;
    assert_true(n > 1);
    for (int i = 0; i < n; i++) {
        assert_string_equal(seen[i].state, "done");
        assert_string_equal(seen[i].finish, json_string_value(cell(root, i, "finish")));
        assert_int_equal(seen[i].n_new, json_integer_value(cell(root, i, "new")));
        assert_string_equal(seen[i].fingerprint, json_string_value(cell(root, i, "fingerprint")));
        assert_int_equal(seen[i].n_blocks, 0);
        assert_true(seen[i].n_text > 0);
        sampled = sampled || seen[i].sampled;
    }
    assert_int_equal(sampled, forks);
    const json_t *changes = json_object_get(run, "changes");
    const json_t *last = json_array_get(changes, json_array_size(changes) - 1);
    if (preempts)
        assert_true(number_of(last, "preemptions") > 0);
    json_decref(run);
    json_decref(root);
}

static void a_file_holds_the_run(void **state) {
    (void)state;
    for (int phase = 3; phase <= 6; phase++)
        check_run(phase, "--prompts data/prompts/short.jsonl --max-running 4", false, false);
    check_run(7, "--prompts data/prompts/mixed.jsonl --kv-blocks 24", false, true);
    check_run(8, "--prompts data/prompts/mixed.jsonl --kv-blocks 24 --preempt swap", false, true);
    check_run(8, "--prompts data/prompts/shared.jsonl --kv-blocks 20 --samples 3", true, false);
    check_run(8, "--random 20 --mix short --rate 300 --seed 2 --max-new 9", false, false);
}

static int count(const char *text, const char *word) {
    int n = 0;
    while ((text = strstr(text, word)))
        n++, text++;
    return n;
}

static void a_prompt_cannot_end_the_script(void **state) {
    (void)state;
    static const char evil[] =
        "{\"id\": \"</script><!-- \\u20ac\", \"prompt\": \"Hi!\", \"max_new\": 2}\n";
    const char *file = command_file("evil.jsonl", evil, strlen(evil));
    struct command c = command_runf("%s/demo4 --device cpu --prompts %s --html %s",
                                    build_folder(NULL), file, html);
    assert_int_equal(c.status, 0);
    command_free(&c);
    char *text = read_text(html);
    assert_int_equal(count(text, "</script>"), count(page_text, "</script>"));
    free(text);
    json_t *run = read_record(html);
    const json_t *change = json_array_get(json_object_get(run, "changes"), 0);
    const json_t *request = json_array_get(json_object_get(change, "requests"), 0);
    assert_string_equal(json_string_value(json_object_get(request, "title")),
                        "</script><!-- \u20ac");
    json_decref(run);
}

static void what_cannot_be_written_is_refused(void **state) {
    (void)state;
    assert_run_refused(2, "--prompts data/prompts/short.jsonl --html x", "--html", "make phase3");
    assert_run_refused(4, "--html x", "--html", "--prompts or --random");
    assert_run_refused(7, "--prompt Hi --html x", "--html", "--prompts or --random");
    assert_run_refused(4, "--random 2 --html /nosuch/x", "/nosuch/x", "cannot write");
    assert_run_refused(4, "--random 2 --html same --json same", "--html and --json", "write same");
    struct command c = command_runf("%s/demo4 --device cpu --max-new 2 --html /dev/full "
                                    "--prompts data/prompts/short.jsonl",
                                    build_folder(NULL));
    assert_int_equal(c.status, 2); /* behind the tables */
    assert_non_null(strstr(c.err, "/dev/full: cannot write"));
    assert_non_null(command_fingerprint(&c));
    command_free(&c);
}

static int make_folder(void **state) {
    command_folder_make(state);
    snprintf(html, sizeof html, "%s/run.html", command_folder);
    snprintf(json, sizeof json, "%s/run.json", command_folder);
    return 0;
}

int main(int argc, char **argv) {
    (void)argc;
    build_folder(argv[0]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_holds_the_run),
        cmocka_unit_test(a_prompt_cannot_end_the_script),
        cmocka_unit_test(what_cannot_be_written_is_refused),
    };
    return cmocka_run_group_tests(tests, make_folder, command_folder_remove);
}
