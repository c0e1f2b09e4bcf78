/*
 * attention, before versions 2 and 3: queries, keys and values as 8-bit digits in the order in
 * which the tensor cores want them (attention.h). It costs a few percent of the time and leaves the
 * kernel proper nothing but whole 16-byte copies.
 */
#include "gpu/fast/prompt/digits.h"

/* The exponent of a row, as the kernels want it; a warp. Those of snapped types are found here. */
static __device__ __forceinline__ int
exponent_of(const struct kv_view *v, const struct position_place *at, int kv_head, int dim) {
    if (kv_type_has_exponents(v->type))
        return v->exponents[kv_view_exponent(v, at->page, at->in_page, kv_head)];
    int64_t row = kv_view_row(v, at->page, at->in_page, kv_head);
    uint32_t largest = 0;
    for (int d = (int)threadIdx.x % 32; d < dim; d += 32) {
        uint32_t bits = kv_load_bits(v->data, v->type, row + kv_view_element(v, d));
        largest = max(largest, kv_magnitude(v->type, bits));
    }
    int e = kv_read_exponent(v->type, warp_max(largest));
    return e > BFP_MAX_EXPONENT ? (int)NOT_FINITE : e;
}

/* Element d of a row with that exponent. */
static __device__ __forceinline__ int mantissa_of(const struct kv_view *v, int64_t row, int d,
                                                  int exponent) {
    uint32_t bits = kv_load_bits(v->data, v->type, row + kv_view_element(v, d));
    bool bad = exponent == NOT_FINITE && !kv_type_has_exponents(v->type);
    return bad ? 0 : kv_integer(v->type, bits, num_pow2f(15 - exponent));
}

/* A warp has a position: it splits the key and notes both exponents. */
static __device__ __forceinline__ void split_keys(const struct split_arguments *s, int kv_head,
                                                  struct part part) {
    const struct attention_digits *out = &s->out;
    const struct kv_view *k = &s->kv.k;
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, dim = s->a.head_dim;
    int n = tiles_of(s) * TILE;
    for (int i = part.block * WARPS + warp; i < n; i += part.n_blocks * WARPS) {
        struct position_place at = place_of(s, i / TILE, i % TILE);
        bool exists = at.page >= 0;
        int k_exponent = exists ? exponent_of(k, &at, kv_head, dim) : 0;
        int v_exponent = exists ? exponent_of(&s->kv.v, &at, kv_head, dim) : 0;
        int64_t row = exists ? kv_view_row(k, at.page, at.in_page, kv_head) : 0;
        uint8_t *to = row_of(tile_of(out, kv_head, i / TILE), out->keys, out->dim, i % TILE);
        for (int word = lane; word < out->dim / 4; word += 32) {
            int m[4];
            UNROLL
            for (int j = 0; j < 4; j++)
                m[j] = exists && 4 * word + j < dim ? mantissa_of(k, row, 4 * word + j, k_exponent)
                                                    : 0;
            put_digits(to, out->keys, word, m);
        }
        if (lane == 0) {
            size_t number = (size_t)kv_head * (size_t)out->n_tiles * TILE + (size_t)i;
            out->exponents[2 * number] = (int8_t)k_exponent;
            out->exponents[2 * number + 1] = (int8_t)v_exponent;
        }
    }
}

__global__ static void __launch_bounds__(THREADS) split_any(struct split_arguments s) {
    int head = (int)blockIdx.x, block = (int)blockIdx.y;
    if (block < s.query_blocks)
        split_queries(&s, head, {block, s.query_blocks});
    else
        split_keys(&s, head, {block - s.query_blocks, s.key_blocks});
}

/* A block turns 32 dimensions of a tile of values on their side; after split_any. */
__global__ static void __launch_bounds__(THREADS) split_any_values(struct split_arguments s) {
    SHARED(int16_t, tile, [TILE][SIDE_DIMS + 2]);
    let_next_kernel_start();
    const struct attention_digits *out = &s.out;
    const struct kv_view *v = &s.kv.v;
    int kv_head = (int)blockIdx.x, sides = out->dim / SIDE_DIMS, n = tiles_of(&s) * sides;
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    for (int k = (int)blockIdx.y; k < n; k += (int)gridDim.y) {
        int t = k / sides, first = k % sides * SIDE_DIMS, d = first + lane;
        for (int j = warp; j < TILE; j += WARPS) {
            struct position_place at = place_of(&s, t, j);
            size_t number = ((size_t)kv_head * (size_t)out->n_tiles + (size_t)t) * TILE + (size_t)j;
            int exponent = out->exponents[2 * number + 1];
            int64_t row = kv_view_row(v, at.page, at.in_page, kv_head);
            bool exists = at.page >= 0 && d < s.a.head_dim;
            tile[j][lane] = (int16_t)(exists ? mantissa_of(v, row, d, exponent) : 0);
        }
        __syncthreads();
        uint8_t *values = tile_of(out, kv_head, t) + group_bytes(TILE, out->dim);
        for (int i = (int)threadIdx.x; i < SIDE_DIMS * TILE / 4; i += THREADS) {
            /* Neighbouring threads write neighbouring rows of a column. */
            int word = i % 4 + i / (4 * SIDE_DIMS) * 4, side = i / 4 % SIDE_DIMS, m[4];
            UNROLL
            for (int j = 0; j < 4; j++)
                m[j] = tile[4 * word / 32 * 32 + column_of(4 * word % 32 + j)][side];
            put_digits(row_of(values, out->value_dims, TILE, first + column_of(side)),
                       out->value_dims, word, m);
        }
        __syncthreads(); /* the next tile takes its place */
    }
}

bool gpu_attention_is_plain(const struct kv_views *kv, const struct attention_variant *variant) {
    return attention_is_causal_only(variant) && kv_type_has_exponents(kv->k.type) &&
           kv_type_has_exponents(kv->v.type);
}

/* Blocks for n parts of queries, keys or values, which loop over them: three of these fit into a
 * grid's second dimension. */
static unsigned blocks_for(const struct gpu_device *gpu, size_t n, int heads) {
    return gpu_attention_blocks(gpu, n < MOST_ITEM_BLOCKS / 3 ? n : MOST_ITEM_BLOCKS / 3, heads);
}

bool gpu_attention_digits(struct gpu_device *gpu, const struct attention_arguments *a,
                          const struct kv_views *kv, const struct attention_work *work,
                          struct attention_digits *d) {
    size_t kv_heads = (size_t)a->n_kv_heads;
    int rows = a->n_tokens * (a->n_heads / a->n_kv_heads);
    d->n_groups = work ? work->most_row_lists : (rows + QUERY_ROWS - 1) / QUERY_ROWS;
    d->n_tiles = work ? work->most_tiles : (a->kv_len + TILE - 1) / TILE;
    d->queries =
        work && work->digits
            ? work->digits
            : (uint8_t *)gpu_scratch(gpu, GPU_SCRATCH_ATTENTION,
                                     digit_bytes(d->n_groups, d->n_tiles, a->n_kv_heads, d->dim),
                                     "attention");
    if (!d->queries)
        return false;
    d->tiles = d->queries + kv_heads * (size_t)d->n_groups * (size_t)(QUERY_ROWS * 2 * d->dim);
    d->exponents =
        (int8_t *)(d->tiles + kv_heads * (size_t)d->n_tiles * (size_t)tile_bytes(d->dim));
    d->query_exponents = d->exponents + 2 * kv_heads * (size_t)d->n_tiles * TILE;
    size_t n_tiles = (size_t)(work ? work->n_tiles : d->n_tiles);
    size_t n_rows = (size_t)(work ? work->n_row_lists : d->n_groups) * QUERY_ROWS;
    bool in_pieces = is_in_pieces(&kv->k, a->head_dim) && is_in_pieces(&kv->v, a->head_dim);
    int heads = a->n_kv_heads, sides = d->dim / SIDE_DIMS;
    size_t key_parts = gpu_blocks(n_tiles * TILE, WARPS), value_parts = n_tiles * (size_t)sides;
    if (in_pieces)
        key_parts = value_parts = n_tiles * (size_t)pieces_of_tile(d->dim);
    unsigned queries = d->without_queries ? 0 : blocks_for(gpu, gpu_blocks(n_rows, WARPS), heads);
    /* At least one: version 3 starts before this kernel ends, and takes it that all before have. */
    unsigned keys = blocks_for(gpu, key_parts ? key_parts : 1, heads);
    unsigned values = blocks_for(gpu, value_parts, heads);
    struct split_arguments s = {*a, *kv, attention_work_of(work, a), *d, (int)queries, (int)keys};
    dim3 all((unsigned)heads, queries + keys + values);
    if (in_pieces) {
        gpu_attention_split_rows(gpu, all, &s);
    } else {
        GPU_LAUNCH(gpu, split_any, dim3((unsigned)heads, queries + keys), THREADS, 0, s);
        if (values)
            GPU_LAUNCH(gpu, split_any_values, dim3((unsigned)heads, values), THREADS, 0, s);
    }
    return !gpu->failed;
}
