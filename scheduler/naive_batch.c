#include "scheduler/naive_batch.h"

#include "scheduler/pass.h"

#include <stdlib.h>

/* The rows of sequence s in columns first ... end-1 of the padded prompts. Columns before `padding`
 * hold nothing. */
static struct pass_part prompt_part(struct sequence *s, struct kv_cache *cache, int padding,
                                    int first, int end, bool last) {
    int n_empty = padding <= first ? 0 : padding < end ? padding - first : end - first;
    int from = first + n_empty - padding;
    return (struct pass_part){.sequence = s,
                              .cache = cache,
                              .first = from > 0 ? from : 0,
                              .end = end > padding ? end - padding : 0,
                              .padding = n_empty,
                              .draw = last};
}

static int read_prompts(struct generator *g, struct sequence *const *sequences,
                        struct kv_cache *const *caches, int n, int columns, struct pass_part *parts,
                        struct error *err) {
    for (int first = 0; first < columns && !generator_interrupted(g); first += g->chunk) {
        int end = columns - first < g->chunk ? columns : first + g->chunk;
        for (int i = 0; i < n; i++)
            parts[i] = prompt_part(sequences[i], caches[i], columns - sequences[i]->n_tokens, first,
                                   end, end == columns);
        if (pass_run(g, parts, n, err))
            return -1;
    }
    return 0;
}

/* One step of all: a row each, padding for those that are done. */
static int step(struct generator *g, struct sequence *const *sequences,
                struct kv_cache *const *caches, int n, struct naive_waste *waste,
                struct pass_part *parts, struct error *err) {
    for (int i = 0; i < n; i++) {
        struct sequence *s = sequences[i];
        bool done = s->finish != FINISH_NOT_YET;
        int end = done ? s->n_cached : s->n_tokens;
        parts[i] = (struct pass_part){s, caches[i], s->n_cached, end, done, !done};
        waste->idle_rows += done;
    }
    waste->answer_rows += n;
    waste->steps++;
    return pass_run(g, parts, n, err);
}

static bool all_done(struct sequence *const *sequences, int n) {
    int i = 0;
    while (i < n && sequences[i]->finish != FINISH_NOT_YET)
        i++;
    return i == n;
}

int naive_batch_generate(struct generator *g, struct sequence *const *sequences,
                         struct kv_cache *const *caches, int n, struct naive_waste *waste,
                         struct error *err) {
    int columns = 0;
    *waste = (struct naive_waste){0};
    for (int i = 0; i < n; i++) {
        if (generator_check_prompt(g, sequences[i], err))
            return -1;
        columns = sequences[i]->n_tokens > columns ? sequences[i]->n_tokens : columns;
    }
    for (int i = 0; i < n; i++)
        waste->padding_rows += columns - sequences[i]->n_tokens;
    waste->prompt_rows = (int64_t)n * columns;
    waste->steps = 1;
    struct pass_part *parts = malloc(sizeof *parts * (size_t)(n ? n : 1));
    if (!parts)
        return error_set(err, "out of memory for a batch of %d", n);
    int result = read_prompts(g, sequences, caches, n, columns, parts, err);
    while (!result && !all_done(sequences, n) && !generator_interrupted(g))
        result = step(g, sequences, caches, n, waste, parts, err);
    for (int i = 0; i < n && !result; i++) /* all are done, or the run is interrupted */
        if (sequences[i]->finish == FINISH_NOT_YET)
            sequences[i]->finish = FINISH_CANCELLED;
    free(parts);
    return result;
}
