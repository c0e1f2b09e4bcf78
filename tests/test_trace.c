/*
 * trace.h: what is written is a file of Chrome trace events as ui.perfetto.dev reads it; and the
 * trace of a demo tells of every request, from its arrival to its end without a gap.
 */
#include "model/files/json.h"
#include "scheduler/trace.h"
#include "tests/checkpoint_writer.h"
#include "tests/command.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static char folder[32], path[64];

static int make_folder(void **state) {
    (void)state;
    temporary_folder_make(folder);
    snprintf(path, sizeof path, "%s/trace.json", folder);
    return 0;
}

static int remove_folder(void **state) {
    (void)state;
    temporary_folder_remove(folder);
    return 0;
}

static json_t *read_trace(void) {
    struct error err;
    json_t *root = json_read_file(path, &err);
    if (!root)
        fail_msg("%s", err.text);
    assert_true(json_is_array(json_object_get(root, "traceEvents")));
    return root;
}

static const char *text_of(const json_t *event, const char *key) {
    const char *text = json_string_value(json_object_get(event, key));
    if (!text)
        fail_msg("an event without a text \"%s\"", key);
    return text;
}

static double number_of(const json_t *event, const char *key) {
    const json_t *value = json_object_get(event, key);
    if (!json_is_number(value))
        fail_msg("an event without a number \"%s\"", key);
    return json_number_value(value);
}

static void events_are_written_as_the_format_says(void **state) {
    (void)state;
    struct trace t = {NULL};
    struct error err;
    assert_int_equal(trace_start(&t, &err), 0);
    trace_name(&t, 0, "0 \"quoted\" \xC3\xA9");
    trace_span(&t, 0, REQUEST_PREFILLING, 1.5, 1.75);
    trace_done(&t, 0, "stop string", 1.75);
    trace_counter(&t, "running", 3, 0.000001);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_int_equal(trace_write(&t, file, path, &err), 0);
    fclose(file);
    assert_null(t.events);
    json_t *root = read_trace();
    json_t *want = json_pack(
        "{s[{ss ss si si s{ss}} {ss ss si si sf sf} {ss ss ss si si sf} {ss ss si sf s{sf}}] ss}",
        "traceEvents", "name", "thread_name", "ph", "M", "pid", 1, "tid", 1, "args", "name",
        "0 \"quoted\" \xC3\xA9", "name", "prefilling", "ph", "X", "pid", 1, "tid", 1, "ts",
        1500000.0, "dur", 250000.0, "name", "stop string", "ph", "i", "s", "t", "pid", 1, "tid", 1,
        "ts", 1750000.0, "name", "running", "ph", "C", "pid", 1, "ts", 1.0, "args", "running", 3.0,
        "displayTimeUnit", "ms");
    assert_non_null(want);
    assert_true(json_equal(root, want));
    json_decref(want);
    json_decref(root);
}

static void a_file_that_cannot_be_written_is_named(void **state) {
    (void)state;
    struct trace t = {NULL};
    struct error err = {""};
    FILE *full = fopen("/dev/full", "w");
    if (!full)
        skip();
    assert_int_equal(trace_start(&t, &err), 0);
    trace_counter(&t, "running", 1, 0);
    assert_int_equal(trace_write(&t, full, "/dev/full", &err), -1);
    assert_string_equal(err.text, "/dev/full: cannot write: No space left on device");
    assert_null(t.events);
    fclose(full);
    struct trace none = {NULL};
    trace_end(&none);
    struct trace unwritten = {NULL};
    assert_int_equal(trace_start(&unwritten, &err), 0);
    trace_end(&unwritten);
}

/* ---- the trace of a run -----------------------------------------------------------------------
 */

/* Three at once and two later, one of them after all others are done; 3 does not fit in the context
 * that the demo gets. */
static const char workload[] =
    "{\"id\": \"greeting\", \"prompt\": \"Hello!\", \"max_new\": 6}\n"
    "{\"id\": \"one token\", \"prompt\": \"What is the capital of France?\", \"max_new\": 1}\n"
    "{\"id\": \"count\", \"prompt\": \"Count to ten.\", \"max_new\": 9}\n"
    "{\"id\": \"too long\", \"arrival\": 0.01, \"prompt\": \"one two three four five six seven "
    "eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen "
    "twenty thirty forty fifty sixty seventy eighty ninety hundred\"}\n"
    "{\"id\": \"late\", \"arrival\": 2.5, \"prompt\": \"Hi!\", \"max_new\": 3}\n";
static const double arrivals[] = {0, 0, 0, 0.01, 2.5};
static const char *const titles[] = {"0 greeting", "1 one token", "2 count", "3 too long",
                                     "4 late"};

enum { N = 5 };

/* What the events say of a request. */
struct row {
    int n_names, n_spans, n_ends;
    double end; /* of its last span, seconds */
    char states[N][16];
};

static void read_span(struct row *row, const json_t *event, double arrival) {
    double begin = number_of(event, "ts") * 1e-6, seconds = number_of(event, "dur") * 1e-6;
    /* Events of a request are in order; each begins where the one before ended. */
    double want = row->n_spans ? row->end : arrival;
    if (!(fabs(begin - want) < 1e-6) || !(seconds >= 0))
        fail_msg("%s begins at %.9f and takes %.9f, expected %.9f", text_of(event, "name"), begin,
                 seconds, want);
    assert_in_range(row->n_spans, 0, 2);
    snprintf(row->states[row->n_spans++], sizeof row->states[0], "%s", text_of(event, "name"));
    row->end = begin + seconds;
}

static void read_event(struct row *rows, const json_t *event) {
    const char *kind = text_of(event, "ph");
    assert_int_equal(number_of(event, "pid"), 1);
    if (!strcmp(kind, "C"))
        return;
    int request = (int)number_of(event, "tid") - 1;
    assert_in_range(request, 0, N - 1);
    struct row *row = &rows[request];
    if (!strcmp(kind, "M")) {
        assert_string_equal(text_of(event, "name"), "thread_name");
        assert_string_equal(text_of(json_object_get(event, "args"), "name"), titles[request]);
        row->n_names++;
    } else if (!strcmp(kind, "i")) {
        assert_string_equal(text_of(event, "name"), request == 3 ? "error" : "length");
        assert_true(fabs(number_of(event, "ts") * 1e-6 - row->end) < 1e-6);
        row->n_ends++;
    } else {
        assert_string_equal(kind, "X");
        read_span(row, event, arrivals[request]);
    }
}

/* Counters are steps in time; each ends at 0 and was never above `most`, which it reaches. */
static void check_counter(const json_t *events, const char *name, double most) {
    double time = 0, value = -1, highest = 0;
    size_t i;
    json_t *event;
    json_array_foreach(events, i, event) {
        if (strcmp(text_of(event, "ph"), "C") || strcmp(text_of(event, "name"), name))
            continue;
        assert_true(number_of(event, "ts") >= time);
        time = number_of(event, "ts");
        assert_true(number_of(json_object_get(event, "args"), name) != value);
        value = number_of(json_object_get(event, "args"), name);
        assert_true(value >= 0);
        highest = value > highest ? value : highest;
    }
    if (value != 0 || highest != most)
        fail_msg("%s ends at %g and rises to %g, expected 0 and %g", name, value, highest, most);
}

static void check_trace(void) {
    static const char *const states[] = {"waiting", "prefilling", "decoding"};
    struct row rows[N] = {0};
    json_t *root = read_trace(), *event, *events = json_object_get(root, "traceEvents");
    size_t i;
    json_array_foreach(events, i, event) read_event(rows, event);
    for (int r = 0; r < N; r++) {
        assert_int_equal(rows[r].n_names, 1);
        assert_int_equal(rows[r].n_ends, 1);
        assert_int_equal(rows[r].n_spans, r == 3 ? 1 : 3);
        for (int s = 0; s < rows[r].n_spans; s++)
            assert_string_equal(rows[r].states[s], states[s]);
    }
    check_counter(events, "running", 2);
    check_counter(events, "waiting", 2); /* when the first of three is admitted */
    json_decref(root);
}

static void a_run_is_told_without_gaps(void **state) {
    (void)state;
    char file[64];
    snprintf(file, sizeof file, "%s/work.jsonl", folder);
    FILE *f = fopen(file, "w");
    assert_non_null(f);
    fputs(workload, f);
    fclose(f);
    for (int phase = 3; phase <= 4; phase++) {
        struct command c =
            command_runf("%s/demo%d --device cpu --prompts %s --trace %s --context 40 "
                         "--max-running 2 --token-budget 12 --chunk 8",
                         build_folder(NULL), phase, file, path);
        if (c.status != 2) /* for request 3 */
            fail_msg("status %d: %s", c.status, c.err);
        assert_non_null(strstr(c.out, "request 3: the prompt has "));
        command_free(&c);
        check_trace();
    }
    /* A path that cannot be opened is refused before anything runs; a full disk behind the tables.
     */
    static const char *const paths[] = {"/nosuch/t.json", "/tmp", "/dev/full"};
    for (int i = 0; i < 3; i++) {
        struct command c =
            command_runf("%s/demo4 --device cpu --max-new 2 --prompts data/prompts/short.jsonl "
                         "--trace %s",
                         build_folder(NULL), paths[i]);
        char want[64];
        snprintf(want, sizeof want, "demo: %s: cannot write: ", paths[i]);
        assert_int_equal(c.status, 2);
        assert_non_null(strstr(c.err, want));
        assert_true(i < 2 ? !*c.out : strstr(c.out, "tok/s") && command_fingerprint(&c));
        command_free(&c);
    }
}

int main(int argc, char **argv) {
    (void)argc;
    build_folder(argv[0]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(events_are_written_as_the_format_says),
        cmocka_unit_test(a_file_that_cannot_be_written_is_named),
        cmocka_unit_test(a_run_is_told_without_gaps),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
