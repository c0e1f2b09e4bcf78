/*
 * attention, before versions 2 and 3: queries, keys and values as 8-bit digits in the order in
 * which the tensor cores want them (attention.h). It costs a few percent of the time and leaves the
 * kernel proper nothing but whole 16-byte copies.
 */
#include "gpu/attention.h"
#include "gpu/attention_plan.h"

enum { TILE = ATTENTION_TILE, SIDE_DIMS = 32, THREADS = 256, WARPS = THREADS / 32 };

/* Four mantissas as digits at byte 4 * word of a row. first: the row's column 0, high digits. */
static __device__ __forceinline__ void put_digits(uint8_t *first, int rows, int word,
                                                  const int m[4]) {
    uint32_t high = 0, low = 0;
    UNROLL
    for (int j = 0; j < 4; j++) {
        high |= ((uint32_t)m[j] >> 8 & 255) << (8 * j);
        low |= ((uint32_t)m[j] & 255) << (8 * j);
    }
    uint8_t *at = first + word / 4 * column_bytes(rows) + word % 4 * 4;
    *(uint32_t *)at = high;
    *(uint32_t *)(at + 16 * rows) = low;
}

/* Column 0 of row `row` of rows that lie in groups of `rows`. */
static __device__ __forceinline__ uint8_t *row_of(uint8_t *groups, int rows, int bytes_per_row,
                                                  size_t row) {
    return groups + row / (size_t)rows * (size_t)group_bytes(rows, bytes_per_row) +
           row % (size_t)rows * 16;
}

/* ---- queries, and any rows ---------------------------------------------------------------------
 */

/* What the kernels of this file share. */
struct split_arguments {
    struct attention_arguments a;
    struct kv_views kv;
    struct attention_work work; /* empty: of the sequence of the arguments */
    struct attention_digits out;
    int query_blocks, key_blocks; /* of blockIdx.x, the rest is the values' */
};

/* A block's part of the queries, keys or values of a kv head: number `block` of n_blocks. */
struct part {
    int block, n_blocks;
};

/* A warp snaps one row of queries; a lane takes four neighbouring dimensions at a time. */
static __device__ __forceinline__ void split_queries(const struct split_arguments *s,
                                                     struct part part) {
    const struct attention_arguments *a = &s->a;
    const struct attention_digits *out = &s->out;
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, kv_head = (int)blockIdx.y;
    int n = s->work.items ? s->work.counts[COUNT_ROW_LISTS] : out->n_groups;
    for (int i = part.block * WARPS + warp; i < n * QUERY_ROWS; i += part.n_blocks * WARPS) {
        struct row_list list =
            s->work.items ? s->work.row_lists[i / QUERY_ROWS] : list_of(a, i / QUERY_ROWS);
        bool exists = i % QUERY_ROWS < list.n_rows;
        struct wide_row row = {};
        if (exists)
            row = wide_row_of<false>(a, NULL, &s->work, &list, kv_head, i % QUERY_ROWS);
        const float *q = a->q + ((size_t)row.token * (size_t)a->n_heads + (size_t)row.head) *
                                    (size_t)a->head_dim;
        uint32_t largest = 0;
        for (int d = lane; d < a->head_dim && exists; d += 32)
            largest = max(largest, num_magnitude(q[d]));
        int e = num_row_exponent(warp_max(largest));
        bool bad = e > BFP_MAX_EXPONENT;
        e = bad ? BFP_MIN_EXPONENT : e;
        size_t number = (size_t)kv_head * (size_t)(out->n_groups * QUERY_ROWS) + (size_t)i;
        uint8_t *to = row_of(out->queries, QUERY_ROWS, out->dim, number);
        for (int word = lane; word < out->dim / 4; word += 32) {
            int m[4];
            UNROLL
            for (int j = 0; j < 4; j++)
                m[j] = exists && 4 * word + j < a->head_dim && !bad
                           ? num_mantissa(q[4 * word + j], num_pow2f(15 - e))
                           : 0;
            put_digits(to, QUERY_ROWS, word, m);
        }
        if (lane == 0) {
            out->query_exponents[number] = (int8_t)e;
            if (bad)
                gpu_fault(a->fault, a->site, row.token);
        }
    }
}

static __device__ __forceinline__ uint8_t *tile_of(const struct attention_digits *d, int kv_head,
                                                   int tile) {
    return d->tiles +
           ((size_t)kv_head * (size_t)d->n_tiles + (size_t)tile) * (size_t)tile_bytes(d->dim);
}

/* Tiles to be split. */
static __device__ __forceinline__ int tiles_of(const struct split_arguments *s) {
    return s->work.items ? s->work.counts[COUNT_TILES] : s->out.n_tiles;
}

/* Where a position lies. page -1: it does not exist. */
struct position_place {
    int64_t page, in_page;
};

/* Position j of tile number i. */
static __device__ __forceinline__ struct position_place place_of(const struct split_arguments *s,
                                                                 int i, int j) {
    int position = i * TILE + j;
    if (!s->work.items)
        return {position < s->a.kv_len ? 0 : -1, position};
    struct digit_tile tile = s->work.tiles[i];
    if (j >= tile.n)
        return {-1, 0};
    position = tile.tile * TILE + j;
    return {s->work.pages[tile.pages + position / s->a.page_size], position % s->a.page_size};
}

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
    bool snapped = kv_type_is_snapped(v->type);
    float scale = snapped && exponent != NOT_FINITE ? num_pow2f(15 - exponent) : 1;
    uint32_t bits = kv_load_bits(v->data, v->type, row + kv_view_element(v, d));
    return snapped && exponent == NOT_FINITE ? 0 : (int)kv_integer(v->type, bits, scale);
}

/* A warp has a position: it splits the key and notes both exponents. */
static __device__ __forceinline__ void split_keys(const struct split_arguments *s,
                                                  struct part part) {
    const struct attention_digits *out = &s->out;
    const struct kv_view *k = &s->kv.k;
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, dim = s->a.head_dim;
    int kv_head = (int)blockIdx.y, n = tiles_of(s) * TILE;
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
    int block = (int)blockIdx.x;
    if (block < s.query_blocks)
        split_queries(&s, {block, s.query_blocks});
    else
        split_keys(&s, {block - s.query_blocks, s.key_blocks});
}

/* A block turns 32 dimensions of a tile of values on their side; after split_any. */
__global__ static void __launch_bounds__(THREADS) split_any_values(struct split_arguments s) {
    SHARED(int16_t, tile, [TILE][SIDE_DIMS + 2]);
    const struct attention_digits *out = &s.out;
    const struct kv_view *v = &s.kv.v;
    int kv_head = (int)blockIdx.y, sides = out->dim / SIDE_DIMS, n = tiles_of(&s) * sides;
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    for (int k = (int)blockIdx.x; k < n; k += (int)gridDim.x) {
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
                m[j] = tile[4 * word / 32 * 32 + value_slot(4 * word % 32 + j)][side];
            put_digits(row_of(values, out->value_dims, TILE, (size_t)(first + side)),
                       out->value_dims, word, m);
        }
        __syncthreads(); /* the next tile takes its place */
    }
}

/* ---- rows of bfp16 in one piece ----------------------------------------------------------------
 *
 * What the engine has, and NHD and HND caches: 16 elements, a column of digits, are two loads and
 * two stores of 16 bytes; and nothing has to wait for the rows' exponents, so queries, keys and
 * values are split by one kernel.
 */
enum { WORDS = SIDE_DIMS / 2 + 4 /* of a row of values in shared memory: 16-byte vectors */ };

/* The digits of eight mantissas of 16 bytes: their high ones, and their low ones. */
static __device__ __forceinline__ void split_vector(uint2 *high, uint2 *low, uint4 m) {
    high->x = __byte_perm(m.x, m.y, 0x7531);
    high->y = __byte_perm(m.z, m.w, 0x7531);
    low->x = __byte_perm(m.x, m.y, 0x6420);
    low->y = __byte_perm(m.z, m.w, 0x6420);
}

/* Eight mantissas of a row from dimension d on; zeros behind its end. */
static __device__ __forceinline__ uint4 load_vector(const struct kv_view *v, int64_t row, int d,
                                                    int dim) {
    return d < dim ? *(const uint4 *)((const int16_t *)v->data + row + d) : make_uint4(0, 0, 0, 0);
}

/* Writes a column of a row's digits. */
static __device__ __forceinline__ void put_column(uint8_t *first, int rows, int column,
                                                  uint4 m[2]) {
    uint2 high[2], low[2];
    split_vector(&high[0], &low[0], m[0]);
    split_vector(&high[1], &low[1], m[1]);
    uint8_t *at = first + column * column_bytes(rows);
    *(uint4 *)at = make_uint4(high[0].x, high[0].y, high[1].x, high[1].y);
    *(uint4 *)(at + 16 * rows) = make_uint4(low[0].x, low[0].y, low[1].x, low[1].y);
}

/* A thread has a column of a key; neighbouring threads have neighbouring keys, whose columns lie
 * side by side. */
static __device__ __forceinline__ void split_key_rows(const struct split_arguments *s,
                                                      struct part part) {
    const struct attention_digits *out = &s->out;
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, columns = out->dim / 16;
    int kv_head = (int)blockIdx.y, n = tiles_of(s) * TILE;
    for (int i = part.block * 32 + lane; i < n; i += part.n_blocks * 32) {
        struct position_place at = place_of(s, i / TILE, i % TILE);
        bool exists = at.page >= 0;
        int64_t row = exists ? kv_view_row(&s->kv.k, at.page, at.in_page, kv_head) : 0;
        uint8_t *to = row_of(tile_of(out, kv_head, i / TILE), out->keys, out->dim, i % TILE);
        for (int c = warp; c < columns; c += WARPS) {
            uint4 m[2];
            UNROLL
            for (int j = 0; j < 2; j++)
                m[j] = load_vector(&s->kv.k, row, 16 * c + 8 * j, exists ? s->a.head_dim : 0);
            put_column(to, out->keys, c, m);
        }
        if (warp == 0) {
            size_t number = (size_t)kv_head * (size_t)out->n_tiles * TILE + (size_t)i;
            char2 e = make_char2(0, 0);
            if (exists) {
                int64_t k = kv_view_exponent(&s->kv.k, at.page, at.in_page, kv_head);
                int64_t v = kv_view_exponent(&s->kv.v, at.page, at.in_page, kv_head);
                e = make_char2(s->kv.k.exponents[k], s->kv.v.exponents[v]);
            }
            ((char2 *)out->exponents)[number] = e;
        }
    }
}

/* A block turns SIDE_DIMS dimensions of a tile of values on their side, through `tile`: shared
 * memory. A thread packs 16 positions of a dimension, a column. */
static __device__ __forceinline__ void
split_value_rows(const struct split_arguments *s, struct part part, uint4 (*tile)[WORDS / 4]) {
    enum { VECTORS = SIDE_DIMS / 8 };
    const struct attention_digits *out = &s->out;
    int kv_head = (int)blockIdx.y, sides = out->dim / SIDE_DIMS, n = tiles_of(s) * sides;
    for (int k = part.block; k < n; k += part.n_blocks) {
        int t = k / sides, first = k % sides * SIDE_DIMS;
        UNROLL
        for (int i = 0; i < VECTORS; i++) {
            int j = ((int)threadIdx.x + i * THREADS) / VECTORS, vector = (int)threadIdx.x % VECTORS;
            struct position_place at = place_of(s, t, j);
            bool exists = at.page >= 0;
            int64_t row = exists ? kv_view_row(&s->kv.v, at.page, at.in_page, kv_head) : 0;
            tile[j][vector] =
                load_vector(&s->kv.v, row, first + 8 * vector, exists ? s->a.head_dim : 0);
        }
        __syncthreads();
        uint8_t *values = tile_of(out, kv_head, t) + group_bytes(TILE, out->dim);
        for (int i = (int)threadIdx.x; i < SIDE_DIMS * (TILE / 16); i += THREADS) {
            int side = i % SIDE_DIMS, column = i / SIDE_DIMS;
            const int16_t *from = (const int16_t *)tile[16 * column / 32 * 32] + side;
            uint4 m[2];
            uint32_t *words = (uint32_t *)m;
            UNROLL
            for (int w = 0; w < 8; w++) {
                int slot = 16 * column % 32 + 2 * w;
                uint32_t even = (uint16_t)from[value_slot(slot) * 2 * WORDS];
                uint32_t odd = (uint16_t)from[value_slot(slot + 1) * 2 * WORDS];
                words[w] = even | odd << 16;
            }
            put_column(row_of(values, out->value_dims, TILE, (size_t)(first + side)),
                       out->value_dims, column, m);
        }
        __syncthreads(); /* the next tile takes its place */
    }
}

/* So few registers a thread that a processor is full of threads, 2048 of them; before compute
 * capability 8.0 it has room for 1024. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#define SPLIT_BLOCKS 4
#else
#define SPLIT_BLOCKS 8
#endif

__global__ static void __launch_bounds__(THREADS, SPLIT_BLOCKS)
    split_rows(struct split_arguments s) {
    SHARED(uint4, tile, [TILE][WORDS / 4]);
    int block = (int)blockIdx.x, before_values = s.query_blocks + s.key_blocks;
    if (block < s.query_blocks)
        split_queries(&s, {block, s.query_blocks});
    else if (block < before_values)
        split_key_rows(&s, {block - s.query_blocks, s.key_blocks});
    else
        split_value_rows(&s, {block - before_values, (int)gridDim.x - before_values}, tile);
}

static bool in_vectors(const struct kv_view *v, int head_dim) {
    return v->type == KV_BFP16 && v->element_step == 1 && v->group_step == v->x &&
           head_dim % 8 == 0 && v->page_step % 8 == 0 && v->position_step % 8 == 0 &&
           v->head_step % 8 == 0 && (uintptr_t)v->data % 16 == 0;
}

bool gpu_attention_is_plain(const struct kv_views *kv, const struct attention_variant *variant) {
    return attention_is_causal_only(variant) && !kv_type_is_snapped(kv->k.type) &&
           !kv_type_is_snapped(kv->v.type);
}

bool gpu_attention_can_split(const struct kv_views *kv) {
    for (const struct kv_view *v = &kv->k; v <= &kv->v; v++)
        if (!kv_type_splits(v->type) || v->scale != 1)
            return false;
    return true;
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
    size_t n_tiles = (size_t)(work ? work->n_tiles : d->n_tiles), n_keys = n_tiles * TILE;
    size_t n_rows = (size_t)(work ? work->n_row_lists : d->n_groups) * QUERY_ROWS;
    bool vectors = in_vectors(&kv->k, a->head_dim) && in_vectors(&kv->v, a->head_dim);
    int heads = a->n_kv_heads, sides = d->dim / SIDE_DIMS;
    unsigned queries =
        d->without_queries ? 0 : gpu_attention_blocks(gpu, gpu_blocks(n_rows, WARPS), heads);
    unsigned keys = gpu_attention_blocks(gpu, gpu_blocks(n_keys, vectors ? 32 : WARPS), heads);
    unsigned values = gpu_attention_blocks(gpu, n_tiles * (size_t)sides, heads);
    struct split_arguments s = {*a, *kv,          work ? *work : (struct attention_work){},
                                *d, (int)queries, (int)keys};
    if (queries + keys == 0)
        return !gpu->failed;
    if (vectors) {
        GPU_LAUNCH(gpu, split_rows, dim3(queries + keys + values, (unsigned)heads), THREADS, 0, s);
    } else {
        GPU_LAUNCH(gpu, split_any, dim3(queries + keys, (unsigned)heads), THREADS, 0, s);
        if (values)
            GPU_LAUNCH(gpu, split_any_values, dim3(values, (unsigned)heads), THREADS, 0, s);
    }
    return !gpu->failed;
}
