#include "scheduler/kv_paged.h"

#include <stdlib.h>

static struct kv_paged *paged_of(struct kv_cache *cache) {
    return (struct kv_paged *)cache;
}

/* For the forward pass, whose caller has made room before; it only checks. */
static int reserve(struct kv_cache *cache, int n_positions, struct error *err) {
    struct kv_paged *c = paged_of(cache);
    int result = kv_paged_reserve(c, n_positions, err);
    return result > 0 ? error_set(err,
                                  "the KV pool of %d blocks of %d positions is full: give it more "
                                  "memory, or run fewer requests at once",
                                  c->pool->blocks.stats.total, c->pool->block_size)
                      : result;
}

/* For the forward pass. It asks for all positions once per pass: then the table is checked, before
 * any kernel follows it. */
static int slots(const struct kv_cache *cache, int first, int n, int64_t *out, struct error *err) {
    const struct kv_paged *c = (const struct kv_paged *)cache;
    if (first == 0 && block_table_check(&c->table, &c->pool->blocks, err))
        return -1;
    return block_table_slots(&c->table, first, n, out, err);
}

/* For a forward pass with one attention for all its sequences: every table is checked first, too.
 */
static int page_table(struct kv_cache *const *caches, const int *kv_lens, int n,
                      struct page_table *out, struct error *err) {
    const struct block_table **tables = malloc(sizeof *tables * ((size_t)n + 1));
    int result = tables ? 0 : error_set(err, "out of memory for a page table");
    *out = (struct page_table){0};
    for (int i = 0; i < n && !result; i++) {
        const struct kv_paged *c = paged_of(caches[i]);
        tables[i] = &c->table;
        result = block_table_check(&c->table, &c->pool->blocks, err);
    }
    if (!result)
        result = page_table_fill(out, tables, kv_lens, n, err);
    if (!result && n)
        out->n_pool_pages = paged_of(caches[0])->pool->blocks.stats.total;
    free(tables);
    return result;
}

int kv_paged_start(struct kv_paged *c, struct kv_pool *pool, struct prefix_cache *prefixes,
                   struct error *err) {
    *c = (struct kv_paged){.base = {.layers = pool->layers,
                                    .type = pool->type,
                                    .n_layers = pool->n_layers,
                                    .n_kv_heads = pool->n_kv_heads,
                                    .head_dim = pool->head_dim,
                                    .dev = pool->dev,
                                    .reserve = reserve,
                                    .slots = slots,
                                    .page_table = page_table},
                           .pool = pool,
                           .prefixes = prefixes};
    return block_table_start(&c->table, pool->block_size, err);
}

static int release(struct kv_paged *c, int32_t block, struct error *err) {
    bool keep = c->prefixes && prefix_cache_knows(c->prefixes, block);
    return kv_pool_release(c->pool, block, keep, err) < 0 ? -1 : 0;
}

int kv_paged_clear(struct kv_paged *c, struct error *err) {
    int result = 0;
    /* The last first: of cached blocks the end of a text is given out anew before its beginning,
     * which more texts share. */
    while (c->table.n_blocks)
        if (release(c, c->table.blocks[--c->table.n_blocks], err))
            result = -1;
    c->n_stored = c->base.capacity = 0;
    return result;
}

void kv_paged_end(struct kv_paged *c) {
    struct error err;
    if (c->pool)
        kv_paged_clear(c, &err);
    block_table_end(&c->table);
    *c = (struct kv_paged){0};
}

/* ---- room ------------------------------------------------------------------------------------ */

/* May this cache write into its block number i? */
static bool is_mine(const struct kv_paged *c, int i) {
    int32_t block = c->table.blocks[i];
    return block_references(&c->pool->blocks, block) == 1 &&
           !(c->prefixes && prefix_cache_knows(c->prefixes, block));
}

/* The block, counted in the table, that the next position goes to if it is there already and must
 * be copied; else -1. Blocks behind it are never shared: they hold nothing yet. */
static int block_to_copy(const struct kv_paged *c, int n_positions) {
    int i = c->n_stored / c->pool->block_size;
    return n_positions > c->n_stored && i < c->table.n_blocks && !is_mine(c, i) ? i : -1;
}

int kv_paged_missing(const struct kv_paged *c, int n_positions) {
    return block_table_missing(&c->table, n_positions) + (block_to_copy(c, n_positions) >= 0);
}

/* Copies the keys and values of a whole block, in all layers. */
static void copy_block(struct kv_pool *p, int32_t to, int32_t from) {
    for (int i = 0; i < p->n_layers; i++) {
        struct kv_parts t = kv_pool_block(p, i, to), f = kv_pool_block(p, i, from);
        for (int part = 0; part < 4; part++)
            p->dev->ops->copy(p->dev, t.at[part], f.at[part], t.bytes[part]);
    }
}

int kv_paged_reserve(struct kv_paged *c, int n_positions, struct error *err) {
    int shared = block_to_copy(c, n_positions);
    if (kv_paged_missing(c, n_positions) > block_available(&c->pool->blocks))
        return 1;
    if (block_table_grow(&c->table, &c->pool->blocks, n_positions, err))
        return -1; /* not for lack of blocks */
    if (shared >= 0) {
        int32_t old = c->table.blocks[shared];
        c->table.blocks[shared] = block_allocate(&c->pool->blocks);
        copy_block(c->pool, c->table.blocks[shared], old);
        if (release(c, old, err))
            return -1;
    }
    c->base.capacity = c->table.n_blocks * c->pool->block_size;
    return 0;
}

void kv_paged_stored(struct kv_paged *c, const int32_t *tokens, int n_positions) {
    int size = c->pool->block_size;
    for (int i = c->n_stored / size; c->prefixes && i < n_positions / size; i++)
        prefix_cache_add(c->prefixes, c->table.blocks[i], i ? c->table.blocks[i - 1] : -1,
                         tokens + i * size);
    c->n_stored = n_positions;
}

int kv_paged_shrink(struct kv_paged *c, struct error *err) {
    int n = blocks_for(c->n_stored, c->pool->block_size), result = 0;
    while (c->table.n_blocks > n)
        if (release(c, c->table.blocks[--c->table.n_blocks], err))
            result = -1;
    c->base.capacity = c->table.n_blocks * c->pool->block_size;
    return result;
}

/* ---- sharing --------------------------------------------------------------------------------- */

static int share(struct kv_paged *c, int32_t block, struct error *err) {
    if (block_share(&c->pool->blocks, block, err))
        return -1;
    if (!block_table_append(&c->table, block, err))
        return 0;
    struct error ignored;
    release(c, block, &ignored);
    return -1;
}

int kv_paged_match(struct kv_paged *c, const int32_t *tokens, int n_tokens, struct error *err) {
    int size = c->pool->block_size;
    int32_t before = -1;
    for (int i = 0; c->prefixes && (i + 1) * size < n_tokens; i++) {
        int32_t block = prefix_cache_find(c->prefixes, before, tokens + i * size);
        if (block < 0)
            break;
        if (share(c, block, err))
            return -1;
        before = block;
    }
    c->n_stored = c->base.capacity = c->table.n_blocks * size;
    return 0;
}

int kv_paged_fork(struct kv_paged *c, const struct kv_paged *from, int n_positions,
                  struct error *err) {
    int n = blocks_for(n_positions, c->pool->block_size);
    for (int i = 0; i < n; i++)
        if (share(c, from->table.blocks[i], err))
            return -1;
    c->n_stored = n_positions;
    c->base.capacity = n * c->pool->block_size;
    return 0;
}

/* ---- swap ------------------------------------------------------------------------------------ */

/* Copies a block from the pool to host memory, or from there into the pool. */
static void transfer_block(struct kv_pool *p, int32_t block, unsigned char *host, bool out) {
    for (int i = 0; i < p->n_layers; i++) {
        struct kv_parts b = kv_pool_block(p, i, block);
        for (int part = 0; part < 4; part++) {
            if (out)
                p->dev->ops->download(p->dev, host, b.at[part], b.bytes[part]);
            else
                p->dev->ops->upload(p->dev, b.at[part], host, b.bytes[part]);
            host += b.bytes[part];
        }
    }
}

int kv_paged_swap_out(struct kv_paged *c, struct kv_swapped *out, struct error *err) {
    int n = blocks_for(c->n_stored, c->pool->block_size);
    size_t bytes = c->pool->bytes_per_block;
    *out = (struct kv_swapped){malloc(bytes * (size_t)n + 1), n, c->n_stored};
    if (!out->data)
        return error_set(err, "out of host memory for %d blocks of keys and values", n);
    for (int i = 0; i < n; i++)
        transfer_block(c->pool, c->table.blocks[i], out->data + bytes * (size_t)i, true);
    return kv_paged_clear(c, err);
}

int kv_paged_swap_in(struct kv_paged *c, struct kv_swapped *in, struct error *err) {
    int result = block_table_grow(&c->table, &c->pool->blocks, in->n_stored, err);
    if (result)
        return result;
    for (int i = 0; i < in->n_blocks; i++)
        transfer_block(c->pool, c->table.blocks[i], in->data + c->pool->bytes_per_block * (size_t)i,
                       false);
    c->n_stored = in->n_stored;
    c->base.capacity = c->table.n_blocks * c->pool->block_size;
    kv_swapped_free(in);
    return 0;
}

void kv_swapped_free(struct kv_swapped *s) {
    free(s->data);
    *s = (struct kv_swapped){0};
}
