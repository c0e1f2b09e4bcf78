/*
 * Work for the prompt kernels (prompt.h: attention_work), and their launch: what prompts
 * (gpu/fast/prompt/prompts.cu) and shared tiles (gpu/fast/prompt/cascade.cu) have in common.
 *
 * All arrays are in one piece whose size grows by half, so that recordings of a pass stay valid
 * while the sequences grow.
 */
#include "gpu/fast/plan/plan.h"

#include <stdlib.h>

/* ---- memory --------------------------------------------------------------------------------- */

/* The arrays of a piece of memory. Returns its size, which NULL is enough for. */
static size_t lay_out(struct work_arrays *a, unsigned char *piece, const struct work_sizes *n) {
    size_t bytes = 0;
    work_place(&a->counts, piece, &bytes, n->counts);
    work_place(&a->row_lists, piece, &bytes, n->row_lists);
    work_place(&a->tiles, piece, &bytes, n->tiles);
    work_place(&a->items, piece, &bytes, n->items);
    work_place(&a->tokens, piece, &bytes, n->tokens);
    work_place(&a->segments, piece, &bytes, n->segments);
    work_place(&a->chains, piece, &bytes, n->chains);
    a->n = {};
    return bytes;
}

size_t work_kept_bytes(int places, const struct attention_shape *shape) {
    return (size_t)places * (size_t)shape->n_kv_heads *
           kept_floats(QUERY_ROWS, prompt_dim(shape->head_dim)) * sizeof(float);
}

void work_plan_free(struct device *dev, struct work_plan *w) {
    dev->ops->free(dev, w->device_bytes, w->bytes);
    dev->ops->free(dev, w->digits, w->digits_bytes);
    dev->ops->free(dev, w->kept, w->kept_bytes);
    free(w->host_bytes);
    *w = {};
}

static int more(int room, int need) {
    return need <= room ? room : need + need / 2;
}

static bool has_room(const struct work_sizes *room, const struct work_sizes *n) {
    return n->counts <= room->counts && n->row_lists <= room->row_lists &&
           n->tiles <= room->tiles && n->items <= room->items && n->tokens <= room->tokens &&
           n->segments <= room->segments && n->chains <= room->chains && n->places <= room->places;
}

int work_plan_reserve(struct device *dev, struct work_plan *w, const struct attention_shape *shape,
                      const struct work_sizes *n, bool own_digits, struct error *err) {
    struct work_sizes r = w->room;
    int dim = prompt_dim(shape->head_dim);
    w->host.n = {};
    if (has_room(&r, n) && work_kept_bytes(r.places, shape) <= w->kept_bytes && /* of any shape */
        (!own_digits ||
         digit_bytes(r.row_lists, r.tiles, shape->n_kv_heads, dim) <= w->digits_bytes))
        return 0;
    r = {more(r.counts, n->counts), more(r.row_lists, n->row_lists), more(r.tiles, n->tiles),
         more(r.items, n->items),   more(r.tokens, n->tokens),       more(r.segments, n->segments),
         more(r.chains, n->chains), more(r.places, n->places)};
    work_plan_free(dev, w);
    size_t bytes = lay_out(&w->host, NULL, &r), kept = work_kept_bytes(r.places, shape);
    size_t digits = digit_bytes(r.row_lists, r.tiles, shape->n_kv_heads, dim);
    w->host_bytes = (unsigned char *)malloc(bytes);
    if (!w->host_bytes)
        return error_set(err, "out of memory for the plan of attention");
    w->device_bytes = (unsigned char *)dev->ops->alloc(dev, bytes, "the plan of attention", err);
    w->bytes = w->device_bytes ? bytes : 0;
    if (w->device_bytes && own_digits)
        w->digits = (uint8_t *)dev->ops->alloc(dev, digits, "the digits of attention", err);
    w->digits_bytes = w->digits ? digits : 0;
    if (w->device_bytes && kept && !own_digits == !w->digits)
        w->kept = (float *)dev->ops->alloc(dev, kept, "the partial results of attention", err);
    w->kept_bytes = w->kept ? kept : 0;
    if (!w->device_bytes || !own_digits != !w->digits || !kept != !w->kept) {
        work_plan_free(dev, w);
        return -1;
    }
    lay_out(&w->host, w->host_bytes, &r);
    lay_out(&w->device, w->device_bytes, &r);
    w->room = r;
    return 0;
}

void work_plan_upload(struct device *dev, struct work_plan *w) {
    dev->ops->upload(dev, w->device_bytes, w->host_bytes, w->bytes);
}

/* ---- row lists and items -------------------------------------------------------------------- */

int work_items_of(int n_tiles, int each) {
    return n_tiles > each ? blocks_of(n_tiles, each) : 1;
}

int work_results_of(int n_tiles, int each, bool begins) {
    int first = n_tiles < each ? n_tiles : each;
    return begins ? 1 + n_tiles - first : n_tiles;
}

void work_plan_add_rows(struct work_arrays *to, const struct work_rows *rows) {
    int n_results = rows->kept ? work_results_of(rows->n_tiles, rows->each, rows->begins) : 0;
    int place = rows->kept ? to->n.places : -1;
    struct row_list list = rows->list;
    list.n_rows = list.n_rows < QUERY_ROWS ? list.n_rows : (int)QUERY_ROWS;
    list.place = place;
    list.n_results = n_results;
    to->row_lists[to->n.row_lists++] = list;
    to->n.places += n_results;
    for (int i = 0; i < work_items_of(rows->n_tiles, rows->each); i++) {
        int at = i * rows->each, left = rows->n_tiles - at;
        int n = left < rows->each ? left : rows->each, first = rows->first_tile + at;
        int end = left > rows->each ? (first + n) * ATTENTION_TILE : rows->end;
        bool merges = !rows->kept || (rows->begins && !i);
        to->items[to->n.items++] = {rows->number, rows->tile + at, n,      first,
                                    end,          place,           merges, list};
        place += !rows->kept ? 0 : merges ? 1 : n;
    }
}

struct attention_work work_plan_work(const struct work_plan *w, const struct work_sizes *first,
                                     const struct plan_arrays *a) {
    const struct work_arrays *d = &w->device;
    const int32_t *counts = w->host.counts + first->counts;
    struct attention_work work = {};
    work.counts = d->counts + first->counts;
    work.row_lists = d->row_lists + first->row_lists;
    work.tiles = d->tiles + first->tiles;
    work.items = d->items + first->items;
    work.tokens = d->tokens;
    work.token_sequence = a->token_sequence;
    work.qo_indptr = a->qo_indptr;
    work.kv_lens = a->kv_lens;
    work.pages = a->pages;
    work.digits = w->digits;
    work.kept = w->host.n.places ? w->kept : NULL;
    work.n_row_lists = counts[COUNT_ROW_LISTS];
    work.n_tiles = counts[COUNT_TILES];
    work.n_items = counts[COUNT_ITEMS];
    work.most_row_lists = w->digits ? w->room.row_lists : work.n_row_lists;
    work.most_tiles = w->digits ? w->room.tiles : work.n_tiles;
    return work;
}

/* ---- the launch of a prompt kernel ---------------------------------------------------------- */

void gpu_attention_prompt_launch(struct gpu_device *gpu, const struct prompt_kernel *k,
                                 const struct attention_arguments *a, const struct kv_views *kv,
                                 const struct attention_variant *variant,
                                 const struct attention_work *work) {
    struct attention_digits d = {};
    struct attention_work all = attention_work_of(work, a);
    d.dim = k->dim;
    d.keys = k->keys;
    d.value_dims = k->value_dims;
    d.without_queries = k->splits_queries;
    all.n_at_once = max(2 * gpu->n_processors / a->n_kv_heads, 1);
    if (!gpu_attention_digits(gpu, a, kv, work, &d) ||
        !gpu_ok(gpu,
                cudaFuncSetAttribute((const void *)k->kernel,
                                     cudaFuncAttributeMaxDynamicSharedMemorySize, k->shared_bytes),
                "attention's shared memory"))
        return;
    dim3 grid = gpu_attention_grid(gpu, a, work, &d);
    auto attention = k->kernel;
    if (k->splits_queries)
        GPU_LAUNCH_EARLY(gpu, attention, grid, k->threads, k->shared_bytes, *a, d, *variant, all);
    else
        GPU_LAUNCH(gpu, attention, grid, k->threads, k->shared_bytes, *a, d, *variant, all);
}
