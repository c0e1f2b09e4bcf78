/* Lab 2: a padded batch. */
#include "tests/labs/02/causes.h"
#include "tests/labs/lab.h"

static void serve(struct lab_log *log, const int *lengths, const int *max_new, int n, int chunk) {
    lab_serve_batch(log, &(struct lab_batch){lengths, max_new, n, chunk, 0, false});
}

/* ---- step 1 ---------------------------------------------------------------------------------- */

static void run_read(struct lab_log *log, int length) {
    serve(log, (int[]){length, length}, (int[]){1, 1}, 2, 8);
}

/* A prompt that is empty is refused. */
static void run_refused(struct lab_log *log, int n) {
    serve(log, (int[]){4, 0, 4}, (int[]){1, 1, 1}, n, 8);
}

/* ---- step 2 ---------------------------------------------------------------------------------- */

static void run_padded(struct lab_log *log, int padding) {
    serve(log, (int[]){3, 3 + padding}, (int[]){1, 1}, 2, 128);
}

static void run_pieces(struct lab_log *log, int padding) {
    serve(log, (int[]){5, 5 + padding, 1}, (int[]){1, 1, 1}, 3, 4);
}

/* ---- step 3 ---------------------------------------------------------------------------------- */

static void run_decode(struct lab_log *log, int n_new) {
    serve(log, (int[]){3, 5}, (int[]){n_new, n_new}, 2, 8);
}

static void run_ends(struct lab_log *log, int more) {
    serve(log, (int[]){5, 3, 4}, (int[]){2, 2 + more, 1}, 3, 8);
}

static void run_interrupted(struct lab_log *log, int passes) {
    lab_serve_batch(log, &(struct lab_batch){(int[]){5, 12}, (int[]){2, 9}, 2, 8, passes, false});
}

static void run_serve(struct lab_log *log, int n) {
    static const int lengths[] = {9, 1, 30, 17, 64, 16, 2, 33};
    static const int max_new[] = {6, 3, 8, 1, 5, 8, 2, 4};
    lab_serve_batch(log, &(struct lab_batch){lengths, max_new, n, 16, 0, true});
}

/* ---- the lab --------------------------------------------------------------------------------- */

static const struct lab_check checks[] = {
    {"read", 1, "prompts of one length, in pieces of 8 columns", "columns", LAB_SIZES(1, 8, 9),
     run_read, 0},
    {"refused", 1, "an empty prompt is refused", "requests", LAB_SIZES(1, 2), run_refused, 10},
    {"padded", 2, "a short prompt beside a longer one", "padding rows", LAB_SIZES(1, 9), run_padded,
     0},
    {"pieces", 2, "pieces of 4 columns that cut through the padding", "padding rows",
     LAB_SIZES(3, 4, 7), run_pieces, 10},
    {"decode", 3, "a row for each sequence and step", "new tokens", LAB_SIZES(3), run_decode, 0},
    {"ends", 3, "sequences that are done wait for the longest answer", "steps longer",
     LAB_SIZES(0, 1, 3), run_ends, 10},
    {"interrupted", 3, "what is not done is cancelled", "passes", LAB_SIZES(1, 3), run_interrupted,
     10},
    {"serve", 3, "every tensor of a batch", "requests", LAB_SIZES(2, 8), run_serve, 30},
};

const struct lab lab = {
    .number = 2,
    .title = "a padded batch",
    .served = "your batch",
    .checks = checks,
    .n_checks = sizeof checks / sizeof *checks,
    .batches = true,
    .causes = lab_2_causes,
    .n_causes = N_LAB_2_CAUSES,
};
