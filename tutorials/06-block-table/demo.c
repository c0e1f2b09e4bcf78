/*
 * Phase 6: the block table. It says which block of the pool holds which positions of a sequence, so
 * the blocks of a sequence need not lie side by side. The demo answers requests, then replays how
 * their tables grow when they run together in a small pool, and draws the pool.
 */
#include "scheduler/block_table.h"
#include "tutorials/common/contiguous.h"
#include "tutorials/common/pool.h"
#include "tutorials/common/serve.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEFAULT_BLOCKS = 64, MAP_WIDTH = 64, N_MAPS = 4, MAX_TABLE_TEXT = 100 };

/* ---- the replay ------------------------------------------------------------------------------ */

/* Requests of known lengths, max_running at once. In a step each running one gets one position
 * more; a new one gets all of its prompt. */
struct replay {
    struct kv_pool *pool;
    const struct request_length *lengths; /* [n] */
    struct block_table *tables;           /* [n]; empty before and after its request runs */
    int *positions;                       /* [n] held now; 0: does not run */
    int n, max_running, n_running, next, n_done, step;
    int promised; /* blocks that the running requests need at their ends */
};

static void replay_end(struct replay *r) {
    for (int i = 0; r->tables && i < r->n; i++)
        block_table_end(&r->tables[i]);
    free(r->tables);
    free(r->positions);
    *r = (struct replay){0};
}

static int replay_start(struct replay *r, struct kv_pool *pool,
                        const struct request_length *lengths, int n, int max_running,
                        struct error *err) {
    *r = (struct replay){.pool = pool,
                         .lengths = lengths,
                         .tables = calloc((size_t)n + 1, sizeof *r->tables),
                         .positions = calloc((size_t)n + 1, sizeof *r->positions),
                         .n = n,
                         .max_running = max_running};
    if (!r->tables || !r->positions)
        return error_set(err, "out of memory for %d block tables", n);
    for (int i = 0; i < n; i++) {
        int needs = blocks_for(lengths[i].n_positions, pool->block_size);
        if (needs > pool->blocks.stats.total)
            return error_set(err,
                             "request %d needs %d blocks, the pool has %d. Raise --kv-blocks or "
                             "--kv-memory",
                             i, needs, pool->blocks.stats.total);
        if (block_table_start(&r->tables[i], pool->block_size, err))
            return -1;
    }
    return 0;
}

/* Positions first ... n_positions - 1 get their blocks. That there are enough was promised. */
static int grow(struct replay *r, int i, int n_positions, struct error *err) {
    r->positions[i] = n_positions;
    int result = block_table_grow(&r->tables[i], &r->pool->blocks, n_positions, err);
    if (result > 0)
        return error_set(err,
                         "step %d: request %d finds no block for position %d, though one was "
                         "promised to it when it was admitted",
                         r->step, i, n_positions - 1);
    return result;
}

/* In order of arrival, while the pool has the blocks that a request needs at its end: so no running
 * request ever finds it empty. */
static int admit(struct replay *r, struct error *err) {
    for (; r->next < r->n && r->n_running < r->max_running; r->next++) {
        const struct request_length *l = &r->lengths[r->next];
        int needs = blocks_for(l->n_positions, r->pool->block_size);
        if (r->promised + needs > r->pool->blocks.stats.total)
            return 0;
        if (!l->n_positions) { /* it could not be answered */
            r->n_done++;
            continue;
        }
        r->promised += needs;
        r->n_running++;
        if (grow(r, r->next, l->n_prompt, err))
            return -1;
    }
    return 0;
}

static int finish(struct replay *r, int i, struct error *err) {
    r->promised -= r->tables[i].n_blocks;
    r->positions[i] = 0;
    r->n_running--;
    r->n_done++;
    return block_table_release(&r->tables[i], &r->pool->blocks, 0, err);
}

static int replay_step(struct replay *r, struct error *err) {
    r->step++;
    for (int i = 0; i < r->next; i++) {
        int n = r->positions[i];
        if (!n)
            continue;
        bool more = n < r->lengths[i].n_positions;
        if (more ? grow(r, i, n + 1, err) : finish(r, i, err))
            return -1;
    }
    return admit(r, err);
}

/* ---- what is shown --------------------------------------------------------------------------- */

/* The numbers of a list, the first and the last when there are too many for a line. */
static void list_text(char out[MAX_TABLE_TEXT], const int32_t *numbers, int n) {
    int used = 0;
    out[0] = 0;
    for (int i = 0; i < n; i++) {
        used += snprintf(out + used, (size_t)(MAX_TABLE_TEXT - used), i ? " %d" : "%d", numbers[i]);
        if (i < n - 1 && used > MAX_TABLE_TEXT - 32) {
            snprintf(out + used, (size_t)(MAX_TABLE_TEXT - used), " ... %d", numbers[n - 1]);
            return;
        }
    }
}

static char letter_of(int request) {
    return (char)('A' + request % 26);
}

/* The map: a letter for each block, a small one for the last block of a sequence when it is not
 * full, '.' for a free one. Returns the positions that last blocks leave empty. */
static int draw(const struct replay *r, char *map) {
    int wasted = 0;
    memset(map, '.', (size_t)r->pool->blocks.stats.total);
    for (int i = 0; i < r->next; i++) {
        const struct block_table *t = &r->tables[i];
        for (int b = 0; b < t->n_blocks; b++)
            map[t->blocks[b]] = letter_of(i);
        int rest = t->n_blocks * t->block_size - r->positions[i];
        if (rest)
            map[t->blocks[t->n_blocks - 1]] = (char)(letter_of(i) + 'a' - 'A');
        wasted += rest;
    }
    return wasted;
}

static int show_map(struct demo *demo, const struct replay *r, int number, struct error *err) {
    static const struct column columns[] = {{"block", "block", 0, 0}, {"map", "", -1, 0}};
    int total = r->pool->blocks.stats.total, used = r->pool->blocks.stats.used;
    char *map = malloc((size_t)total + 1), line[MAP_WIDTH + 1], key[32], title[200];
    json_t *rows = json_array();
    if (!map || !rows) {
        free(map);
        json_decref(rows);
        return error_set(err, "out of memory for a map of %d blocks", total);
    }
    int wasted = draw(r, map);
    for (int first = 0; first < total; first += MAP_WIDTH) {
        int n = total - first < MAP_WIDTH ? total - first : MAP_WIDTH;
        snprintf(line, sizeof line, "%-*.*s", MAP_WIDTH, n, map + first);
        json_array_append_new(rows, json_pack("[is]", first, line));
    }
    snprintf(key, sizeof key, "map_%d", number);
    snprintf(title, sizeof title,
             "Step %d: %d sequences, %d of %d blocks in use; %d of %d positions in them are empty",
             r->step, r->n_running, used, total, wasted, used * r->pool->block_size);
    demo_table(demo, key, title, columns, 2, rows);
    free(map);
    return 0;
}

/* What the kernels of phase 8 are given: the tables of all running sequences, one after the other.
 */
static int show_pages(struct demo *demo, const struct replay *r, struct error *err) {
    static const struct column columns[] = {{"sequence", "sequence", -1, 0},
                                            {"positions", "positions", 0, 0},
                                            {"first", "kv_indptr", 0, 0},
                                            {"last", "kv_last_page_len", 0, 0},
                                            {"pages", "kv_page_indices", -1, 0}};
    size_t n = (size_t)r->n_running + 1;
    const struct block_table **tables = calloc(n, sizeof *tables);
    int *kv_lens = calloc(n, sizeof *kv_lens), *who = calloc(n, sizeof *who), count = 0, result = 0;
    struct page_table p = {0};
    json_t *rows = json_array();
    if (!tables || !kv_lens || !who || !rows)
        result = error_set(err, "out of memory for a page table");
    for (int i = 0; !result && i < r->next; i++)
        if (r->positions[i]) {
            tables[count] = &r->tables[i];
            kv_lens[count] = r->positions[i];
            who[count++] = i;
        }
    if (!result)
        result = page_table_fill(&p, tables, kv_lens, count, err);
    for (int i = 0; !result && i < count; i++) {
        char pages[MAX_TABLE_TEXT], letter[2] = {letter_of(who[i]), 0};
        list_text(pages, p.kv_page_indices + p.kv_indptr[i], p.kv_indptr[i + 1] - p.kv_indptr[i]);
        json_array_append_new(rows, json_pack("[siiis]", letter, kv_lens[i], p.kv_indptr[i],
                                              p.kv_last_page_len[i], pages));
    }
    if (result)
        json_decref(rows);
    else
        demo_table(demo, "pages", "The same moment as the page table of a batch", columns, 5, rows);
    page_table_end(&p);
    free(tables);
    free(kv_lens);
    free(who);
    return result;
}

/* ---- the demo -------------------------------------------------------------------------------- */

static json_t *boundary_row(const struct replay *r, int request) {
    const struct block_table *t = &r->tables[request];
    char text[MAX_TABLE_TEXT];
    list_text(text, t->blocks, t->n_blocks);
    return json_pack("[iiiIs]", r->step, r->positions[request], t->n_blocks,
                     (json_int_t)block_table_slot(t, r->positions[request] - 1), text);
}

/* The one whose answer is longest. */
static int longest_answer(const struct request_length *lengths, int n) {
    int best = 0;
    for (int i = 1; i < n; i++)
        if (lengths[i].n_positions - lengths[i].n_prompt >
            lengths[best].n_positions - lengths[best].n_prompt)
            best = i;
    return best;
}

/* Runs the replay to its end. Every time the watched request's table has grown, a row is added; a
 * map is drawn after the first step and whenever another quarter of the requests is done. */
static int run(struct demo *demo, struct replay *r, int watched, json_t *rows, struct error *err) {
    int n_blocks = 0, n_maps = 0;
    while (r->n_done < r->n) {
        if (replay_step(r, err))
            return -1;
        const struct block_table *t = &r->tables[watched];
        if (t->n_blocks > n_blocks)
            json_array_append_new(rows, boundary_row(r, watched));
        n_blocks = t->n_blocks;
        if (n_maps == N_MAPS || r->n_done < r->n * n_maps / N_MAPS || !r->n_running)
            continue;
        if (show_map(demo, r, n_maps, err) || (n_maps++ == N_MAPS / 2 && show_pages(demo, r, err)))
            return -1;
    }
    return block_allocator_check(&r->pool->blocks, err);
}

static int replay_all(struct demo *demo, struct kv_pool *pool, const struct workload *w,
                      const struct request_length *lengths, struct error *err) {
    static const struct column columns[] = {{"step", "step", 0, 0},
                                            {"positions", "positions", 0, 0},
                                            {"blocks", "blocks", 0, 0},
                                            {"slot", "slot of the last", 0, 0},
                                            {"table", "table", -1, 0}};
    struct replay r;
    int watched = longest_answer(lengths, w->n);
    char title[160];
    json_t *rows = json_array();
    printf("Phase 6: a pool of %d blocks of %d positions. A letter for each request, a small one\n"
           "for its last block while that is not full, . for a free block\n\n",
           pool->blocks.stats.total, pool->block_size);
    int result = replay_start(&r, pool, lengths, w->n, demo->options.max_running, err) ||
                 run(demo, &r, watched, rows, err);
    int steps = r.step;
    replay_end(&r);
    if (result) {
        json_decref(rows);
        return -1;
    }
    snprintf(title, sizeof title, "The block table of request %c (%s) each time it grew",
             letter_of(watched), w->requests[watched].title);
    demo_table(demo, "table", title, columns, 5, rows);
    printf("%d steps. At most %d blocks were in use; %d are after the last request.\n", steps,
           pool->blocks.stats.most_used, pool->blocks.stats.used);
    return 0;
}

static int tables(struct demo *demo, struct error *err) {
    struct workload w = {0};
    struct kv_pool pool = {0};
    struct request_length *lengths = NULL;
    int result = demo_pool_start(demo, &pool, DEFAULT_BLOCKS, err) ||
                 (!(lengths = demo_request_lengths(demo, demo_requests_file(demo), &w, err)) &&
                  !demo_interrupted(demo));
    if (!result && !demo_interrupted(demo))
        result = replay_all(demo, &pool, &w, lengths, err);
    kv_pool_end(&pool);
    free(lengths);
    workload_free(&w);
    return result ? -1 : 0;
}

int main(int argc, char **argv) {
    static const struct phase phase = {
        .number = 6,
        .title = "block table",
        .about = "Each sequence knows its blocks by a table, and they need not lie side by side.",
        .caches = contiguous_caches,
        .tables = tables,
        .prompts = serve_prompts,
    };
    return demo_main(argc, argv, &phase);
}
