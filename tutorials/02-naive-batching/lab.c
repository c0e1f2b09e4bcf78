/*
 * Lab 2: a padded batch. Your file takes the place of scheduler/naive_batch.c; the task is in the
 * section "Lab" of this chapter. `make lab2` builds and grades it.
 */
#include "scheduler/naive_batch.h"
#include "scheduler/pass.h"
#include "tests/labs/not_written.h"

#include <stdlib.h>

/* ---- step 1: read prompts -------------------------------------------------------------------- */

/* What a pass reads of a prompt without padding: columns first ... end-1 are its positions. `last`:
 * the pass ends with the last column, and the token behind it is drawn. All members of struct
 * pass_part are in scheduler/pass.h. */
static struct pass_part prompt_part(struct sequence *s, struct kv_cache *cache, int first, int end,
                                    bool last) {
    (void)s, (void)cache, (void)first, (void)end, (void)last;
    not_written("a part that reads positions first ... end-1, without padding");
}

/* The prompts may be read if there is nothing that generate would refuse: generator_check_prompt
 * for each. Returns the longest length, or -1 with err set. */
static int count_columns(struct generator *g, struct sequence *const *sequences, int n,
                         struct error *err) {
    (void)g, (void)sequences, (void)n, (void)err;
    not_written("check every prompt, and return the length of the longest");
}

/* ---- step 2: pad them ------------------------------------------------------------------------ */

/* prompt_part for a prompt that begins at column `padding` of the batch. Columns first ... end-1
 * may be all padding (then first == end == 0 in the part), all prompt, or both. Padding rows have
 * no position: nothing sees them, and they see nothing. */
static struct pass_part padded_part(struct sequence *s, struct kv_cache *cache, int padding,
                                    int first, int end, bool last) {
    (void)s, (void)cache, (void)padding, (void)first, (void)end, (void)last;
    not_written("count the columns before `padding`; the others are positions column - padding");
}

/* Sets padding_rows of prompts in a rectangle of n times `columns`; prompt_rows is set already. */
static void count_padding(struct sequence *const *sequences, int n, int columns,
                          struct naive_waste *waste) {
    (void)sequences, (void)n, (void)columns, (void)waste;
    not_written("set padding_rows: the columns in front of each prompt, together");
}

/* ---- step 3: answer -------------------------------------------------------------------------- */

/* Sets the n parts of one step and counts it in steps, answer_rows and idle_rows: a sequence that
 * is not done reads its newest token and draws the next; one that is done (finish is not
 * FINISH_NOT_YET) has a row of padding, reads nothing, draws nothing, and keeps its n_cached, which
 * pass_run sets to the end of the part. */
static void step_parts(struct sequence *const *sequences, struct kv_cache *const *caches, int n,
                       struct naive_waste *waste, struct pass_part *parts) {
    (void)sequences, (void)caches, (void)n, (void)waste, (void)parts;
    not_written("a part for each sequence: one row, of its newest token or of padding");
}

/* Whether no sequence has a token to come. */
static bool all_done(struct sequence *const *sequences, int n) {
    (void)sequences, (void)n;
    not_written("look at finish of every sequence");
}

/* Sequences that an interruption left without an end get FINISH_CANCELLED. */
static void cancel_rest(struct sequence *const *sequences, int n) {
    (void)sequences, (void)n;
    not_written("set finish where it is FINISH_NOT_YET");
}

/* ---- given ----------------------------------------------------------------------------------- */

static bool one_length(struct sequence *const *sequences, int n, int columns) {
    int i = 0;
    while (i < n && sequences[i]->n_tokens == columns)
        i++;
    return i == n;
}

static int read_prompts(struct generator *g, struct sequence *const *sequences,
                        struct kv_cache *const *caches, int n, int columns, struct pass_part *parts,
                        struct error *err) {
    for (int first = 0; first < columns && !generator_interrupted(g); first += g->chunk) {
        int end = columns - first < g->chunk ? columns : first + g->chunk;
        for (int i = 0; i < n; i++) {
            int padding = columns - sequences[i]->n_tokens;
            bool last = end == columns;
            parts[i] = padding ? padded_part(sequences[i], caches[i], padding, first, end, last)
                               : prompt_part(sequences[i], caches[i], first, end, last);
        }
        if (pass_run(g, parts, n, err))
            return -1;
    }
    return 0;
}

static bool one_token_each(struct sequence *const *sequences, int n) {
    int i = 0;
    while (i < n && sequences[i]->max_new == 1 && sequences[i]->finish != FINISH_NOT_YET)
        i++;
    return i == n;
}

int naive_batch_generate(struct generator *g, struct sequence *const *sequences,
                         struct kv_cache *const *caches, int n, struct naive_waste *waste,
                         struct error *err) {
    *waste = (struct naive_waste){0};
    int columns = count_columns(g, sequences, n, err);
    if (columns < 0)
        return -1;
    waste->prompt_rows = (int64_t)n * columns;
    if (!one_length(sequences, n, columns))
        count_padding(sequences, n, columns, waste);
    waste->steps = 1;
    struct pass_part *parts = calloc(n > 0 ? (size_t)n : 1, sizeof *parts);
    if (!parts)
        return error_set(err, "out of memory for a batch of %d", n);
    int result = read_prompts(g, sequences, caches, n, columns, parts, err);
    if (!result && !one_token_each(sequences, n)) { /* the steps 1 and 2 of the lab end before */
        while (!result && !generator_interrupted(g) && !all_done(sequences, n)) {
            step_parts(sequences, caches, n, waste, parts);
            result = pass_run(g, parts, n, err);
        }
        if (!result)
            cancel_rest(sequences, n);
    }
    free(parts);
    return result;
}
