/*
 * Phase 5: the block allocator. The memory for keys and values is one pool, cut into blocks of a
 * few positions. A sequence takes blocks as it needs them, so it wastes at most the rest of its
 * last one, where phase 4 reserved the whole context.
 */
#include "tutorials/common/contiguous.h"
#include "tutorials/common/pool.h"
#include "tutorials/common/serve.h"

#include <stdio.h>
#include <stdlib.h>

static void show_pool(struct demo *demo, const struct kv_pool *p, size_t left) {
    static const struct column columns[] = {
        {"free_mb", "free MB", 1, 0},       {"pool_mb", "pool MB", 1, 0},
        {"blocks", "blocks", 0, 0},         {"size", "block size", 0, 0},
        {"block_kb", "KB per block", 1, 0}, {"positions", "positions", 0, 0},
        {"contexts", "contexts", 1, 0},
    };
    int n = p->blocks.stats.total;
    double positions = (double)n * p->block_size;
    json_t *rows = json_array();
    json_array_append_new(rows, json_pack("[ffiifff]", (double)left / 1e6, (double)p->bytes / 1e6,
                                          n, p->block_size, (double)p->bytes_per_block / 1e3,
                                          positions, positions / demo->generator.context));
    demo_table(demo, "pool", "Phase 5: one pool of blocks for the keys and values of all sequences",
               columns, 7, rows);
}

/* ---- the blocks of each sequence ------------------------------------------------------------- */

/* Takes all blocks of a sequence or, when the pool has too few left, none. */
static bool take(struct kv_pool *p, int n_blocks, int32_t *taken, int *n_taken) {
    if (n_blocks > block_available(&p->blocks))
        return false;
    for (int i = 0; i < n_blocks; i++)
        taken[(*n_taken)++] = block_allocate(&p->blocks);
    return true;
}

static int give_back(struct kv_pool *p, const int32_t *taken, int n_taken, struct error *err) {
    for (int i = 0; i < n_taken; i++)
        if (kv_pool_release(p, taken[i], false, err) < 0)
            return -1;
    return block_allocator_check(&p->blocks, err);
}

static int show_sequences(struct demo *demo, struct kv_pool *p, const struct workload *w,
                          const struct request_length *lengths, struct error *err) {
    static const struct column columns[] = {
        {"request", "#", 0, 0},           {"prompt", "prompt", -1, 0},
        {"positions", "positions", 0, 0}, {"blocks", "blocks", 0, 0},
        {"waste", "wasted", 0, 0},        {"static_waste", "static wasted", 0, 0},
        {"given", "in the pool", -1, 0}};
    int32_t *taken = malloc(sizeof *taken * ((size_t)p->blocks.stats.total + 1));
    json_t *rows = json_array();
    char title[200];
    int n_taken = 0;
    if (!taken || !rows) {
        free(taken);
        json_decref(rows);
        return error_set(err, "out of memory for a list of blocks");
    }
    for (int i = 0; i < w->n; i++) {
        int n = lengths[i].n_positions, blocks = blocks_for(n, p->block_size);
        const char *given = take(p, blocks, taken, &n_taken) ? "yes" : "no room";
        json_array_append_new(rows, json_pack("[isiiiis]", i, w->requests[i].title, n, blocks,
                                              blocks * p->block_size - n,
                                              demo->generator.context - n, given));
    }
    int result = give_back(p, taken, n_taken, err);
    free(taken);
    snprintf(
        title, sizeof title,
        "Blocks of %d for each request of %s: at most %d of %d in use, %d after all were given "
        "back",
        p->block_size, demo_requests_file(demo), p->blocks.stats.most_used, p->blocks.stats.total,
        p->blocks.stats.used);
    demo_table(demo, "sequences", title, columns, 7, rows);
    return result;
}

/* ---- how many sequences fit? ----------------------------------------------------------------- */

/* Sequences that fit into a budget when each takes whole pieces of `piece` positions: the requests
 * come in their order, again and again. *reserved: positions that they take on average. */
static int64_t fitting(size_t budget, size_t bytes_per_position, int piece,
                       const struct request_length *lengths, int n, double *reserved) {
    int64_t pieces = (int64_t)(budget / bytes_per_position / (size_t)piece), round = 0;
    for (int i = 0; i < n; i++)
        round += blocks_for(lengths[i].n_positions, piece);
    *reserved = (double)round * piece / n;
    int64_t fit = pieces / round * n;
    pieces %= round;
    for (int i = 0; i < n && (pieces -= blocks_for(lengths[i].n_positions, piece)) >= 0; i++)
        fit++;
    return fit;
}

static void show_fit(struct demo *demo, const struct kv_pool *p, const struct workload *w,
                     const struct request_length *lengths) {
    static const int sizes[] = {256, 64, 16, 4, 1};
    static const struct column columns[] = {{"pieces", "", -1, 0},
                                            {"reserved", "positions each", 1, 0},
                                            {"wasted", "of them wasted %", 1, 0},
                                            {"fit", "sequences that fit", 0, 0},
                                            {"times", "times static", 1, 0}};
    double used = 0, reserved, static_fit = 0;
    char title[120], pieces[64];
    json_t *rows = json_array();
    for (int i = 0; i < w->n; i++)
        used += (double)lengths[i].n_positions / w->n;
    for (int i = -1; i < 5; i++) {
        int piece = i < 0 ? demo->generator.context : sizes[i];
        double fit = (double)fitting(p->bytes, p->bytes_per_block / (size_t)p->block_size, piece,
                                     lengths, w->n, &reserved);
        if (i < 0)
            static_fit = fit;
        snprintf(pieces, sizeof pieces, i < 0 ? "the whole context" : "blocks of %d", piece);
        json_array_append_new(
            rows, json_pack("[sfffo]", pieces, reserved, 100 * (1 - used / reserved), fit,
                            static_fit > 0 ? json_real(fit / static_fit) : json_null()));
    }
    snprintf(title, sizeof title, "How many such sequences fit into %.1f MB?",
             (double)p->bytes / 1e6);
    demo_table(demo, "fit", title, columns, 5, rows);
}

static int tables(struct demo *demo, struct error *err) {
    struct workload w = {0};
    struct kv_pool pool = {0};
    struct request_length *lengths = NULL;
    size_t left = demo->dev->ops->available(demo->dev);
    int result = demo_pool_start(demo, &pool, 0, err);
    if (!result) {
        show_pool(demo, &pool, left);
        lengths = demo_request_lengths(demo, demo_requests_file(demo), &w, err);
        if (!demo_interrupted(demo))
            result = !lengths || show_sequences(demo, &pool, &w, lengths, err);
    }
    if (!result && !demo_interrupted(demo))
        show_fit(demo, &pool, &w, lengths);
    kv_pool_end(&pool);
    free(lengths);
    workload_free(&w);
    return result ? -1 : 0;
}

int main(int argc, char **argv) {
    static const struct phase phase = {
        .number = 5,
        .title = "block allocator",
        .about = "One pool of blocks for the keys and values of all sequences.",
        .caches = contiguous_caches,
        .tables = tables,
        .prompts = serve_prompts,
    };
    return demo_main(argc, argv, &phase);
}
