/* The notes of a check: text, a line each, that the grader reads (verdict.c).
 *
 *     S <size>, E <size>                        a size begins and ends
 *     V \t label \t unit \t first \t values     what was seen; values are separated by spaces
 *     P \t block size \t slots                  where the positions of a request lie
 */
#include "tests/labs/log.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

static void begin(struct lab_log *log, const char *unit, int first, const char *label,
                  va_list arguments) {
    fputs("V\t", log->file);
    vfprintf(log->file, label, arguments);
    fprintf(log->file, "\t%s\t%d\t", unit, first);
}

#define BEGIN(unit, first)                                                                         \
    do {                                                                                           \
        va_list arguments;                                                                         \
        va_start(arguments, label);                                                                \
        begin(log, unit, first, label, arguments);                                                 \
        va_end(arguments);                                                                         \
    } while (0)

void lab_int(struct lab_log *log, long long value, const char *label, ...) {
    BEGIN("", 0);
    fprintf(log->file, "%lld\n", value);
}

void lab_text(struct lab_log *log, const char *value, const char *label, ...) {
    BEGIN("", 0);
    for (; *value; value++) /* one value, one line */
        fputc((unsigned char)*value <= ' ' ? '_' : *value, log->file);
    fputc('\n', log->file);
}

void lab_ints(struct lab_log *log, const int32_t *values, int n, const char *unit, int first,
              const char *label, ...) {
    BEGIN(unit, first);
    for (int i = 0; i < n; i++)
        fprintf(log->file, "%d ", values[i]);
    fputc('\n', log->file);
}

void lab_floats(struct lab_log *log, const float *values, int n, const char *unit, int first,
                const char *label, ...) {
    BEGIN(unit, first);
    for (int i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], sizeof bits);
        fprintf(log->file, "%.9g(0x%08x) ", (double)values[i], bits);
    }
    fputc('\n', log->file);
}

void lab_rows(struct lab_log *log, const float *x, int n_rows, int n_cols, const char *unit,
              int first, const char *label, ...) {
    BEGIN(unit, first);
    for (int i = 0; i < n_rows; i++) {
        size_t bytes = sizeof *x * (size_t)n_cols;
        XXH64_hash_t hash = XXH3_64bits(x + (size_t)i * (size_t)n_cols, bytes);
        fprintf(log->file, "#%08x ", (unsigned)hash);
    }
    fputc('\n', log->file);
}

void lab_places(struct lab_log *log, const int64_t *slots, int n, int block_size) {
    fprintf(log->file, "P\t%d\t", block_size);
    for (int i = 0; i < n; i++)
        fprintf(log->file, "%lld ", (long long)slots[i]);
    fputc('\n', log->file);
}

struct run {
    const struct lab_check *check;
    const int *sizes;
    int n;
    struct lab_log log;
};

static void run_sizes(void *context) {
    struct run *r = context;
    for (int i = 0; i < r->n; i++) {
        fprintf(r->log.file, "S %d\n", r->sizes[i]);
        r->check->run(&r->log, r->sizes[i]);
        fprintf(r->log.file, "E %d\n", r->sizes[i]);
    }
}

void lab_run(const struct lab_check *check, const int *sizes, int n, int fd) {
    struct run r = {check, sizes, n, {fdopen(fd, "w")}};
    if (!r.log.file)
        exit(2);
    setvbuf(r.log.file, NULL, _IOLBF, 1 << 16); /* what was noted before a crash is not lost */
    if (lab.batches)
        lab_with_model(run_sizes, &r);
    else
        run_sizes(&r);
    fclose(r.log.file);
}
