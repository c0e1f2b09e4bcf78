/*
 * Prompts, and parts of them: sequences of many new tokens as work for the prompt kernels, all of
 * them in one launch, or a few. Computes what ../../attention_paged.cu does; gains a factor of 8
 * over a launch for each (64 prompts of 128 tokens, 32 heads of 128, H200: 0.2 ms, not 1.8).
 *
 * 64 rows of a sequence are a row list. As a rule it is one item, over all tiles that its rows see,
 * and the rows are finished. Where that would keep some processors waiting for others (few tokens
 * behind a long context), the tiles of a sequence are cut into more items; what they find is kept,
 * and the chains are merged by a kernel of their own (gpu/fast/prompt/chains.cu).
 *
 * The digits of keys and values take as much memory as they do in the cache. A work has a few times
 * as many as the GPU's L2 cache holds: very large batches are several works, one launched after the
 * other.
 *
 * A context in splits for the same queries: Dao et al., "Flash-Decoding", 2023; prompts of all
 * lengths in one launch: Ye et al., "FlashInfer", 2025.
 */
#include "gpu/fast/plan/plan.h"
#include "gpu/fast/prompt/short.h"

#include <algorithm>
#include <stdlib.h>

enum {
    TILE = ATTENTION_TILE,
    CACHES = 8 /* the digits of a work take as much memory as so many L2 caches */
};

/* A sequence of many new tokens. */
struct prompt {
    int sequence, first_token, n_tokens, n_rows, before, length, pages;
    int first_tile, n_tiles, longest; /* all that it needs; most of a row list */
    int each;                         /* tiles of an item */
};

/* What a row list sees. */
struct seen_tiles {
    int first, n, end; /* end: in positions */
};

static struct seen_tiles seen_by(const struct attention_plan *p, const struct prompt *s, int row) {
    int group = p->shape.n_heads / p->shape.n_kv_heads;
    int last = (row + QUERY_ROWS < s->n_rows ? row + QUERY_ROWS : s->n_rows) - 1;
    int end = attention_end(&p->variant, s->before, last / group, s->length);
    int first = attention_first(&p->variant, s->before, row / group) / TILE;
    return {first, blocks_of(end, TILE) - first, end};
}

static struct prompt prompt_of(const struct attention_plan *p, const struct paged_batch *b, int i) {
    struct prompt s = {};
    s.sequence = i;
    s.first_token = b->qo_indptr[i];
    s.n_tokens = b->qo_indptr[i + 1] - s.first_token;
    s.n_rows = s.n_tokens * (p->shape.n_heads / p->shape.n_kv_heads);
    s.length = paged_batch_kv_len(b, i);
    s.before = s.length - s.n_tokens;
    s.pages = b->kv_indptr[i];
    s.first_tile = attention_first(&p->variant, s.before, 0) / TILE;
    int end = attention_end(&p->variant, s.before, s.n_tokens - 1, s.length);
    s.n_tiles = blocks_of(end, TILE) - s.first_tile;
    for (int row = 0; row < s.n_rows; row += QUERY_ROWS) {
        int n = seen_by(p, &s, row).n;
        s.longest = n > s.longest ? n : s.longest;
    }
    return s;
}

/* ---- how much ------------------------------------------------------------------------------- */

/* How many tiles an item of each sequence has, when `each` is the mean. */
static void cut(struct prompt *s, int n, int each) {
    for (int i = 0; i < n; i++) {
        int pieces = (s[i].longest + each / 2) / each;
        s[i].each = blocks_of(s[i].longest, pieces > 1 ? pieces : 1);
        s[i].each = s[i].each > 1 ? s[i].each : 1;
    }
}

static bool is_cut(const struct prompt *s) {
    return s->longest > s->each;
}

static struct work_sizes measure(const struct attention_plan *p, const struct paged_batch *b,
                                 const struct prompt *all, int n_prompts) {
    struct work_sizes n = {};
    n.counts = N_COUNTS * n_prompts;
    for (int i = 0; i < n_prompts; i++) {
        const struct prompt *s = &all[i];
        n.tiles += s->n_tiles;
        n.row_lists += blocks_of(s->n_rows, QUERY_ROWS);
        for (int row = 0; row < s->n_rows; row += QUERY_ROWS) {
            int tiles = seen_by(p, s, row).n;
            n.items += work_items_of(tiles, s->each);
            n.places += is_cut(s) ? work_results_of(tiles, s->each, true) : 0;
        }
        if (is_cut(s)) {
            n.segments += s->n_tokens;
            n.chains = b->qo_indptr[b->n_sequences];
        }
    }
    return n;
}

/* Cuts the sequences so that all processors have something to do, unless what is kept would take
 * too much memory. */
static struct work_sizes balance(const struct attention_plan *p, const struct paged_batch *b,
                                 struct prompt *all, int n_prompts, int blocks) {
    int64_t tiles = 0;
    struct work_sizes n;
    for (int i = 0; i < n_prompts; i++)
        for (int row = 0; row < all[i].n_rows; row += QUERY_ROWS)
            tiles += seen_by(p, &all[i], row).n;
    int64_t each = tiles / blocks + 1;
    do {
        cut(all, n_prompts, each < INT32_MAX / 2 ? (int)each : INT32_MAX / 2);
        n = measure(p, b, all, n_prompts);
        each *= 2;
    } while (work_kept_bytes(n.places, &p->shape) > most_kept_bytes);
    return n;
}

/* ---- the arrays ----------------------------------------------------------------------------- */

/* Tiles, row lists and items of a sequence. base: where its work begins. */
static void fill_sequence(struct work_arrays *f, const struct work_sizes *base,
                          const struct attention_plan *p, const struct prompt *s) {
    int tile = f->n.tiles, first_list = f->n.row_lists, n_lists = blocks_of(s->n_rows, QUERY_ROWS);
    int first_item = f->n.items;
    for (int t = s->first_tile; t < s->first_tile + s->n_tiles; t++) {
        int left = s->length - t * TILE;
        f->tiles[f->n.tiles++] = {s->pages, t, left < TILE ? left : (int)TILE};
    }
    for (int i = 0; i < n_lists; i++) {
        int row = i * QUERY_ROWS;
        struct seen_tiles seen = seen_by(p, s, row);
        struct row_list list = {
            -1, row, s->n_rows - row, -1, 0, s->sequence, s->first_token, s->before, s->length};
        struct work_rows rows = {list,
                                 first_list + i - base->row_lists,
                                 tile - base->tiles + seen.first - s->first_tile,
                                 seen.first,
                                 seen.n,
                                 seen.end,
                                 s->each,
                                 is_cut(s),
                                 true};
        work_plan_add_rows(f, &rows);
    }
    /* Those with most to see first; those of a sequence together, which read the same tiles. */
    std::reverse(f->items + first_item, f->items + f->n.items);
    for (int t = 0; t < s->n_tokens && is_cut(s); t++) {
        f->chains[s->first_token + t] = {f->n.segments, 1, 0, 0, 0, 0};
        f->segments[f->n.segments++] = {first_list, t};
    }
}

/* Whether it is for the kernel for short ones, which has a work of its own. */
static bool prompt_is_short(const struct prompt *s) {
    return s->length <= SHORT_POSITIONS;
}

/* Those with most to do first: others fill the time in which the last ones end. */
static bool is_longer(const struct prompt &a, const struct prompt &b) {
    int of_a = min(a.longest, a.each), of_b = min(b.longest, b.each);
    if (prompt_is_short(&a) != prompt_is_short(&b))
        return prompt_is_short(&b);
    return of_a != of_b ? of_a > of_b : a.first_token < b.first_token;
}

/* The sequences from number `first` on that are one work. Returns the number behind them. */
static int fill_work(struct attention_plan *p, const struct prompt *all, int first, int n_prompts,
                     int most_tiles) {
    struct prompts_plan *prompts = &p->prompts;
    struct work_arrays *f = &prompts->plan.host;
    struct work_sizes base = f->n;
    int i = first;
    bool is_short = prompt_is_short(&all[first]);
    while (i < n_prompts && prompt_is_short(&all[i]) == is_short &&
           (i == first || f->n.tiles - base.tiles + all[i].n_tiles <= most_tiles))
        fill_sequence(f, &base, p, &all[i++]);
    int32_t *counts = f->counts + base.counts;
    counts[COUNT_ROW_LISTS] = f->n.row_lists - base.row_lists;
    counts[COUNT_TILES] = f->n.tiles - base.tiles;
    counts[COUNT_ITEMS] = f->n.items - base.items;
    prompts->work[prompts->n_work] = work_plan_work(&prompts->plan, &base, &p->arrays);
    prompts->work[prompts->n_work++].is_short = is_short;
    f->n.counts += N_COUNTS;
    return i;
}

static int fill(struct attention_plan *p, const struct paged_batch *b, struct prompt *all,
                int n_prompts, int most_tiles) {
    struct prompts_plan *prompts = &p->prompts;
    if (prompts->most_work < n_prompts) {
        struct attention_work *more =
            (struct attention_work *)realloc(prompts->work, sizeof *more * (size_t)n_prompts);
        if (!more)
            return -1;
        prompts->work = more;
        prompts->most_work = n_prompts;
    }
    if (prompts->chains)
        memset(prompts->plan.host.chains, 0,
               sizeof *prompts->plan.host.chains * (size_t)b->qo_indptr[b->n_sequences]);
    std::sort(all, all + n_prompts, is_longer);
    for (int i = 0; i < n_prompts;)
        i = fill_work(p, all, i, n_prompts, most_tiles);
    return 0;
}

void attention_plan_prompts_free(struct device *dev, struct prompts_plan *p) {
    work_plan_free(dev, &p->plan);
    free(p->work);
    *p = {};
}

int attention_plan_prompts(struct device *dev, struct attention_plan *p,
                           const struct paged_batch *b, struct error *err) {
    struct gpu_device *gpu = gpu_of(dev);
    int blocks = gpu->n_processors * 2 / p->shape.n_kv_heads, n = 0;
    if (!p->n_prompts || !gpu_attention_fits_tensor_cores(gpu, p->shape.head_dim))
        return 0;
    struct prompt *all = (struct prompt *)malloc(sizeof *all * (size_t)p->n_prompts);
    if (!all)
        return error_set(err, "out of memory for the plan of attention");
    for (int i = 0; i < b->n_sequences; i++)
        if (attention_plan_is_prompt(p, b, i))
            all[n++] = prompt_of(p, b, i);
    struct work_sizes sizes = balance(p, b, all, n, blocks > 0 ? blocks : 1);
    p->prompts.chains = sizes.chains > 0;
    int status = work_plan_reserve(dev, &p->prompts.plan, &p->shape, &sizes, false, err);
    size_t tile = digit_bytes(0, 1, p->shape.n_kv_heads, prompt_dim(p->shape.head_dim));
    if (!status && fill(p, b, all, n, (int)(CACHES * (size_t)gpu->cache_bytes / tile)))
        status = error_set(err, "out of memory for the plan of attention");
    free(all);
    if (!status)
        work_plan_upload(dev, &p->prompts.plan);
    return status;
}

void gpu_attention_prompts(struct gpu_device *gpu, const struct attention_arguments *a,
                           const struct kv_views *kv, const struct attention_variant *variant,
                           const struct attention_plan *plan) {
    struct attention_arguments all = *a;
    all.page_size = plan->arrays.page_size;
    for (int i = 0; i < plan->prompts.n_work; i++) {
        const struct attention_work *work = &plan->prompts.work[i];
        if (gpu_attention_short_fits(gpu, &all, kv, variant, work))
            gpu_attention_short(gpu, &all, kv, work);
        else
            gpu_attention_prompt(gpu, &all, kv, variant, work);
    }
    if (plan->prompts.chains)
        gpu_attention_chains(gpu, a, variant, plan->n_tokens, &plan->prompts.plan, NULL);
}
