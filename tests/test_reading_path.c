/*
 * test_reading_path - what the documents say about the files of the repository is so: the reading
 * path in tutorials/README.md has the right line counts, its names are in its files, links lead
 * somewhere, and the C code that a document shows is in the sources. And files and functions are no
 * longer than they may be.
 */
#include "tests/command.h"

#include <ctype.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { MOST_LINES = 6300 }; /* that phases 0 to 7 may ask a reader to read */

#define FOLDERS "data gpu model ref scheduler tests tutorials"

static int n_bad; /* what the running test has found */

static struct command output_of(const char *line) {
    struct command c = command_run(line, NULL);
    if (c.status)
        fail_msg("%s\nstatus %d:\n%s", line, c.status, c.err);
    return c;
}

/* Calls `check` for each line of each document, with whether it is in a fenced block: the block's
 * language, or NULL outside. */
static void for_each_line(void (*check)(const char *path, int number, char *line,
                                        const char *fence)) {
    struct command paths = output_of("find README.md " FOLDERS " -name '*.md'");
    for (char *rest = paths.out, *path; (path = strtok_r(rest, "\n", &rest));) {
        struct command text = command_runf("cat %s", path);
        char fence[32] = "";
        int number = 0;
        for (char *at = text.out, *line; (line = strsep(&at, "\n"));) {
            number++;
            if (strncmp(line, "```", 3))
                check(path, number, line, *fence ? fence + 3 : NULL);
            else
                snprintf(fence, sizeof fence, "%s", *fence ? "" : line);
        }
        command_free(&text);
    }
    command_free(&paths);
}

static void every_count_is_right(void **state) {
    (void)state;
    struct command page = output_of("cat tutorials/README.md");
    struct command counted = output_of("tests/line_counts --print");
    if (strcmp(page.out, counted.out))
        fail_msg("the line counts in tutorials/README.md are old: run tests/line_counts");
    command_free(&page);
    command_free(&counted);
}

static void the_path_is_short_enough(void **state) {
    (void)state;
    int thousands = 0, rest = 0;
    struct command page = output_of("grep '^\\*\\*Phases 0 to 7: ' tutorials/README.md");
    assert_int_equal(sscanf(page.out, "**Phases 0 to 7: %d,%d lines", &thousands, &rest), 2);
    assert_in_range(thousands * 1000 + rest, 1000, MOST_LINES);
    command_free(&page);
}

/* A row of the reading path: the names that it gives stand in a file to which it links. */
static void check_names(const char *path, int number, char *line, const char *fence) {
    char files[512] = "";
    if (fence || strcmp(path, "tutorials/README.md") || strncmp(line, "| ", 2) || !isdigit(line[2]))
        return;
    for (char *at = line; (at = strstr(at, "](")); at++)
        snprintf(files + strlen(files), sizeof files - strlen(files), " tutorials/%.*s",
                 (int)strcspn(at + 2, ")"), at + 2);
    for (char *at = line, *end; (at = strchr(at, '`')) && (end = strchr(at + 1, '`')); at = end + 1) {
        struct command found =
            command_runf("grep -qwF '%.*s' %s", (int)(end - at) - 1, at + 1, files);
        if (found.status) {
            print_error("%s:%d: %.*s is not in%s\n", path, number, (int)(end - at) - 1, at + 1, files);
            n_bad++;
        }
        command_free(&found);
    }
}

static void names_of_the_path_are_in_its_files(void **state) {
    (void)state;
    n_bad = 0;
    for_each_line(check_names);
    assert_int_equal(n_bad, 0);
}

static void the_code_is_within_its_limits(void **state) {
    (void)state;
    struct command limits = command_run("tests/code_limits", NULL);
    if (limits.status)
        fail_msg("tests/code_limits:\n%s%s", limits.out, limits.err);
    command_free(&limits);
}

/* ---- links ------------------------------------------------------------------------------------
 */

/* A heading as GitHub names it in a link: lower case, no punctuation, hyphens for spaces. */
static void anchor_of(const char *heading, char *out, size_t size) {
    size_t n = 0;
    for (heading += strspn(heading, "# "); *heading && n + 1 < size; heading++) {
        unsigned char c = (unsigned char)*heading;
        if (isalnum(c) || c == '-' || c == '_' || c >= 0x80)
            out[n++] = (char)tolower(c);
        else if (c == ' ')
            out[n++] = '-';
    }
    out[n] = 0;
}

static bool has_heading(const char *path, const char *anchor) {
    struct command headings = command_runf("grep '^#' %s", path);
    bool found = false;
    for (char *at = headings.out, *line; !found && (line = strsep(&at, "\n"));) {
        char name[256];
        anchor_of(line, name, sizeof name);
        found = !strcmp(name, anchor);
    }
    command_free(&headings);
    return found;
}

/* `link` as it stands in the document `path`. */
static bool leads_somewhere(const char *path, const char *link) {
    char target[512], *anchor;
    const char *slash = strrchr(path, '/');
    if (strstr(link, "://"))
        return true;
    if (*link == '#')
        return has_heading(path, link + 1);
    snprintf(target, sizeof target, "%.*s%s", slash ? (int)(slash - path) + 1 : 0, path, link);
    if ((anchor = strchr(target, '#')))
        *anchor++ = 0;
    return !access(target, F_OK) && (!anchor || has_heading(target, anchor));
}

static void check_links(const char *path, int number, char *line, const char *fence) {
    for (char *at = line; !fence && (at = strstr(at, "]("));) {
        char *link = at + 2, *end = strchr(link, ')');
        if (!end)
            return;
        *end = 0;
        at = end + 1;
        if (!leads_somewhere(path, link)) {
            print_error("%s:%d: %s leads nowhere\n", path, number, link);
            n_bad++;
        }
    }
}

static void every_link_leads_somewhere(void **state) {
    (void)state;
    n_bad = 0;
    for_each_line(check_links);
    assert_int_equal(n_bad, 0);
}

/* ---- code -------------------------------------------------------------------------------------
 */

static char *sources; /* all of them, one after the other */

static void check_code(const char *path, int number, char *line, const char *fence) {
    line += strspn(line, " ");
    if (!fence || strcmp(fence, "c") || !*line || !strcmp(line, "...") || strstr(sources, line))
        return;
    print_error("%s:%d: no source has the line\n    %s\n", path, number, line);
    n_bad++;
}

static void code_that_is_shown_exists(void **state) {
    (void)state;
    struct command c = output_of("find " FOLDERS " -name '*.c' -o -name '*.h' -o -name '*.cu' | "
                                 "xargs cat");
    sources = c.out;
    n_bad = 0;
    for_each_line(check_code);
    command_free(&c);
    assert_int_equal(n_bad, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_count_is_right),
        cmocka_unit_test(the_path_is_short_enough),
        cmocka_unit_test(names_of_the_path_are_in_its_files),
        cmocka_unit_test(the_code_is_within_its_limits),
        cmocka_unit_test(every_link_leads_somewhere),
        cmocka_unit_test(code_that_is_shown_exists),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
