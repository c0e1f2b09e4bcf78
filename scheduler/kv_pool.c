#include "scheduler/kv_pool.h"

#include "model/context_parallel.h"
#include "model/kv_cache.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { POISON_EXPONENT = 127 };

int block_size_check(int block_size, struct error *err) {
    bool good = block_size > MAX_BLOCK_SIZE ? block_size % MAX_BLOCK_SIZE == 0
                                            : block_size > 0 && !(block_size & (block_size - 1));
    return good ? 0
                : error_set(err,
                            "block size %d: use a power of two from 1 to %d, or a multiple of %d",
                            block_size, MAX_BLOCK_SIZE, MAX_BLOCK_SIZE);
}

/* ---- poison ---------------------------------------------------------------------------------- */

struct kv_parts kv_pool_block(const struct kv_pool *p, int layer, int32_t block) {
    return kv_layer_parts(&p->layers[layer], block * p->n_stored, p->n_stored, p->n_kv_heads,
                          p->head_dim, p->type);
}

/* One array serves all kinds of data: elements (INT16_MIN, INT8_MIN or NaNs), then exponents. */
static int make_junk(struct kv_pool *p, struct error *err) {
    struct kv_parts b = kv_pool_block(p, 0, 0);
    p->junk = malloc(b.bytes[0] + b.bytes[2]);
    if (!p->junk)
        return error_set(err, "out of memory for the poison of a KV pool");
    bool is_float = !kv_type_has_exponents(p->type); /* all bits 1: a NaN in every format */
    for (size_t i = 0; i < b.bytes[0]; i++)
        p->junk[i] = is_float ? 0xff : kv_type_bytes(p->type) == 1 || i % 2 ? 0x80 : 0;
    memset(p->junk + b.bytes[0], POISON_EXPONENT, b.bytes[2]);
    return 0;
}

void kv_pool_poison(struct kv_pool *p, int32_t block) {
    for (int i = 0; i < p->n_layers && p->poison; i++) {
        struct kv_parts b = kv_pool_block(p, i, block);
        for (int part = 0; part < 4; part++)
            p->dev->ops->upload(p->dev, b.at[part], p->junk + (part < 2 ? 0 : b.bytes[0]),
                                b.bytes[part]);
    }
}

/* ---- how large? ------------------------------------------------------------------------------ */

static double megabytes(size_t bytes) {
    return (double)bytes / 1e6;
}

/* The number of blocks, or -1 with err set. The share of 80 % leaves room for what passes need
 * beside the cache: activations, scratch memory, logits. n_pools: that share what is there. */
static int choose_size(const struct kv_pool *p, const struct kv_pool_options *o, int n_pools,
                       struct error *err) {
    int most = INT_MAX / p->block_size;
    size_t left = p->dev->ops->available(p->dev) / (size_t)n_pools;
    if (o->n_blocks < 0)
        return error_set(err, "a KV pool of %d blocks: the number must not be negative",
                         o->n_blocks);
    size_t budget = o->bytes ? o->bytes : left / 5 * 4;
    size_t n = o->n_blocks ? (size_t)o->n_blocks : budget / p->bytes_per_block;
    if (!n)
        return error_set(err,
                         "a KV pool of %.3f MB holds no block: one takes %.3f MB. Give it more "
                         "memory or smaller blocks",
                         megabytes(budget), megabytes(p->bytes_per_block));
    if (n > left / p->bytes_per_block)
        return error_set(err, "a KV pool of %.1f MB: only %.1f MB are free. Make it smaller",
                         (double)n * megabytes(p->bytes_per_block), megabytes(left));
    if (n <= (size_t)most)
        return (int)n;
    if (!o->n_blocks && !o->bytes) /* nobody asked for that many */
        return most;
    return error_set(err, "a KV pool of %zu blocks of %d positions: more than 2^31 - 1 positions",
                     n, p->block_size);
}

/* How many blocks the rank with the least memory can hold: all ranks must plan alike. */
static int choose_common_size(const struct kv_pool *p, const struct kv_pool_options *o,
                              struct parallel *ranks, struct error *err) {
    int mine = choose_size(p, o, ranks ? ranks->n_sharing : 1, err);
    int n_blocks = parallel_least(ranks, mine);
    return n_blocks < 0 && mine >= 0 ? error_set(err, "another rank has no memory for a KV pool")
                                     : n_blocks;
}

/* ---- the pool -------------------------------------------------------------------------------- */

static int allocate_layers(struct kv_pool *p, int n_slots, struct error *err) {
    p->layers = calloc((size_t)p->n_layers, sizeof *p->layers);
    if (!p->layers)
        return error_set(err, "out of memory for a KV pool of %d layers", p->n_layers);
    for (int i = 0; i < p->n_layers; i++)
        if (kv_layer_alloc(&p->layers[i], p->dev, n_slots, p->n_kv_heads, p->head_dim, p->type,
                           err))
            return -1;
    return 0;
}

int kv_pool_start(struct kv_pool *p, const struct model *model, const struct kv_pool_options *o,
                  struct error *err) {
    const struct model_config *c = &model->config;
    *p = (struct kv_pool){0};
    if (block_size_check(o->block_size, err))
        return -1;
    p->dev = model->dev;
    p->n_layers = c->n_layers;
    p->n_kv_heads = c->n_kv_heads;
    p->head_dim = c->head_dim;
    p->block_size = o->block_size;
    p->n_stored = context_stored(model, o->block_size);
    p->type = o->type;
    p->poison = o->poison;
    p->bytes_per_block =
        (size_t)c->n_layers * kv_layer_bytes(p->n_stored, c->n_kv_heads, c->head_dim, o->type);
    int n_blocks = choose_common_size(p, o, model->parallel, err);
    if (n_blocks < 0 || block_allocator_start(&p->blocks, n_blocks, o->order, err) ||
        allocate_layers(p, n_blocks * p->n_stored, err) || (p->poison && make_junk(p, err))) {
        kv_pool_end(p);
        return -1;
    }
    p->bytes = (size_t)n_blocks * p->bytes_per_block;
    for (int32_t block = 0; block < n_blocks; block++)
        kv_pool_poison(p, block);
    return 0;
}

void kv_pool_end(struct kv_pool *p) {
    int n_slots = p->blocks.stats.total * p->n_stored;
    for (int i = 0; p->layers && i < p->n_layers; i++)
        kv_layer_free(&p->layers[i], p->dev, n_slots, p->n_kv_heads, p->head_dim, p->type);
    free(p->layers);
    free(p->junk); /* after the layers: uploads from it may have been under way */
    block_allocator_end(&p->blocks);
    *p = (struct kv_pool){0};
}

int kv_pool_release(struct kv_pool *p, int32_t block, bool keep, struct error *err) {
    int references = block_release(&p->blocks, block, keep, err);
    if (!references && !keep)
        kv_pool_poison(p, block);
    return references;
}
