/*
 * attention, before versions 2 and 3: queries, keys and values as 8-bit digits in the order in
 * which the tensor cores want them (attention.h). It costs a few percent of the time and leaves the
 * kernel proper nothing but whole 16-byte copies.
 */
#include "gpu/attention.h"
#include "gpu/fast/plan/plan.h"
#include "gpu/ptx/tensor_core.h"

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

/* Column 0 of row `row` of a tile, whose rows lie in groups of `rows`. (Numbers of 32 bits: in a
 * division, those of 64 take several times as long.) */
static __device__ __forceinline__ uint8_t *row_of(uint8_t *groups, int rows, int bytes_per_row,
                                                  int row) {
    unsigned group = (unsigned)row / (unsigned)rows, in_group = (unsigned)row % (unsigned)rows;
    return groups + group * (unsigned)group_bytes(rows, bytes_per_row) + in_group * 16;
}

/* ---- queries, and any rows ---------------------------------------------------------------------
 */

/* What the kernels of this file share. */
struct split_arguments {
    struct attention_arguments a;
    struct kv_views kv;
    struct attention_work work; /* empty: of the sequence of the arguments */
    struct attention_digits out;
    int query_blocks, key_blocks; /* of blockIdx.y, the rest is the values' */
};

/* A block's part of the queries, keys or values of a kv head: number `block` of n_blocks. */
struct part {
    int block, n_blocks;
};

/* A warp snaps one row of queries; a lane takes four neighbouring dimensions at a time. */
static __device__ __forceinline__ void split_queries(const struct split_arguments *s, int kv_head,
                                                     struct part part) {
    const struct attention_arguments *a = &s->a;
    const struct attention_digits *out = &s->out;
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    int n = s->work.items ? s->work.counts[COUNT_ROW_LISTS] : out->n_groups;
    for (int i = part.block * WARPS + warp; i < n * QUERY_ROWS; i += part.n_blocks * WARPS) {
        struct row_list list =
            s->work.items ? s->work.row_lists[i / QUERY_ROWS] : list_of(a, i / QUERY_ROWS);
        bool exists = i % QUERY_ROWS < list.n_rows;
        struct prompt_row row = {};
        if (exists)
            row = prompt_row_of<false>(a, NULL, &s->work, &list, kv_head, i % QUERY_ROWS);
        const float *q = a->q + ((size_t)row.token * (size_t)a->n_heads + (size_t)row.head) *
                                    (size_t)a->head_dim;
        uint32_t largest = 0;
        for (int d = lane; d < a->head_dim && exists; d += 32)
            largest = max(largest, num_magnitude(q[d]));
        int e = num_row_exponent(warp_max(largest));
        bool bad = e > BFP_MAX_EXPONENT;
        e = bad ? BFP_MIN_EXPONENT : e;
        size_t number = (size_t)kv_head * (size_t)(out->n_groups * QUERY_ROWS) + (size_t)i;
        uint8_t *to = out->queries +
                      number / QUERY_ROWS * (size_t)group_bytes(QUERY_ROWS, out->dim) +
                      number % QUERY_ROWS * 16;
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
                m[j] = tile[4 * word / 32 * 32 + value_slot(4 * word % 32 + j)][side];
            put_digits(row_of(values, out->value_dims, TILE, first + side), out->value_dims, word,
                       m);
        }
        __syncthreads(); /* the next tile takes its place */
    }
}

/* ---- rows of bfp16 in one piece ----------------------------------------------------------------
 *
 * What the engine has, and NHD and HND caches: eight elements are a load of 16 bytes, and a column
 * of digits is a store; and nothing has to wait for the rows' exponents, so queries, keys and
 * values are split by one kernel. The blocks of all kv heads go side by side: so do their rows.
 */
enum {
    PIECE = 8192,    /* elements that a block splits at a time */
    MOST_DIMS = 128, /* of its rows */
    PIECES = 2,      /* in shared memory: one is written while the next arrives */
};

/* The dimensions of a piece: all, if they fit, because what lies side by side is best read at once.
 */
static __host__ __device__ constexpr int piece_dims(int dim) {
    return dim % MOST_DIMS ? 64 : (int)MOST_DIMS;
}

/* The pieces of a tile's keys, and of its values. */
static __host__ __device__ constexpr int pieces_of_tile(int dim) {
    return (dim + piece_dims(dim) - 1) / piece_dims(dim) * (TILE * piece_dims(dim) / PIECE);
}

/* A piece in shared memory, with 16 bytes behind each row, so that neighbouring ones lie in
 * different banks. */
template <int DIMS> struct piece_rows { uint4 row[PIECE / DIMS][DIMS / 8 + 1]; };

/* What a block has in shared memory: its rows' beginnings, and its pieces of them. */
template <int DIMS> struct rows_memory {
    const int16_t *rows[PIECES][PIECE / DIMS];
    struct piece_rows<DIMS> pieces[PIECES];
};

/* The digits of eight mantissas of 16 bytes: their high ones, and their low ones. */
static __device__ __forceinline__ void split_vector(uint2 *high, uint2 *low, uint4 m) {
    high->x = __byte_perm(m.x, m.y, 0x7531);
    high->y = __byte_perm(m.z, m.w, 0x7531);
    low->x = __byte_perm(m.x, m.y, 0x6420);
    low->y = __byte_perm(m.z, m.w, 0x6420);
}

/* Where the row of a position begins; NULL: there is none. */
static __device__ __forceinline__ const int16_t *
row_at(const struct kv_view *v, const struct position_place *at, int kv_head) {
    return at->page < 0 ? NULL
                        : (const int16_t *)v->data + kv_view_row(v, at->page, at->in_page, kv_head);
}

/* The pieces of a kv head's keys, or values, that a block goes through. */
template <int DIMS> struct piece_loader {
    enum { ROWS = PIECE / DIMS, VECTORS = DIMS / 8 };
    const struct split_arguments *s;
    const struct kv_view *v;
    struct rows_memory<DIMS> *mem;
    int kv_head, per_row; /* pieces side by side in a row */

    __device__ __forceinline__ int first_row(int k) const {
        return k / per_row * ROWS;
    }
    __device__ __forceinline__ int first_dim(int k) const {
        return k % per_row * DIMS;
    }

    /* Notes where the rows of piece k begin. */
    __device__ __forceinline__ void find_rows(int k, int stage) const {
        int j = (int)threadIdx.x, i = first_row(k) + j;
        if (j >= ROWS)
            return;
        struct position_place at = place_of(s, i / TILE, i % TILE);
        mem->rows[stage][j] = row_at(v, &at, kv_head);
    }

    /* Starts to copy it: zeros behind the rows' ends, and where there is no row. */
    __device__ __forceinline__ void start(int k, int stage) const {
        UNROLL
        for (int i = 0; i < ROWS * VECTORS / THREADS; i++) {
            int row = ((int)threadIdx.x + i * THREADS) / VECTORS;
            int vector = (int)threadIdx.x % VECTORS, d = first_dim(k) + 8 * vector;
            const int16_t *from = mem->rows[stage][row];
            bool exists = from && d < s->a.head_dim;
            cp_async_16_or_zero(&mem->pieces[stage].row[row][vector], exists ? from + d : v->data,
                                exists);
        }
    }
};

/* The exponents of a piece's keys, and of the values of the same positions. */
static __device__ __forceinline__ void note_exponents(const struct split_arguments *s, int kv_head,
                                                      int first_row, int rows) {
    int j = (int)threadIdx.x, i = first_row + j;
    if (j >= rows)
        return;
    struct position_place at = place_of(s, i / TILE, i % TILE);
    char2 e = make_char2(0, 0);
    if (at.page >= 0) {
        int64_t key = kv_view_exponent(&s->kv.k, at.page, at.in_page, kv_head);
        int64_t value = kv_view_exponent(&s->kv.v, at.page, at.in_page, kv_head);
        e = make_char2(s->kv.k.exponents[key], s->kv.v.exponents[value]);
    }
    ((char2 *)s->out.exponents)[(size_t)kv_head * (size_t)s->out.n_tiles * TILE + (size_t)i] = e;
}

/* Splits a piece of keys: neighbouring threads write neighbouring keys' columns. */
template <int DIMS>
static __device__ __forceinline__ void split_key_piece(const struct split_arguments *s, int kv_head,
                                                       int first_row, int first,
                                                       const struct piece_rows<DIMS> *keys) {
    enum { ROWS = PIECE / DIMS };
    const struct attention_digits *out = &s->out;
    int j = (int)threadIdx.x, row = j % ROWS, column = column_bytes(out->keys);
    uint8_t *to = row_of(tile_of(out, kv_head, first_row / TILE), out->keys, out->dim,
                         first_row % TILE + row);
    UNROLL
    for (int i = 0; i < PIECE / 16 / THREADS; i++) {
        int c = (j + i * THREADS) / ROWS;
        if (first + 16 * c >= out->dim)
            break;
        uint2 high[2], low[2];
        split_vector(&high[0], &low[0], keys->row[row][2 * c]);
        split_vector(&high[1], &low[1], keys->row[row][2 * c + 1]);
        uint8_t *at_column = to + (first / 16 + c) * column;
        *(uint4 *)at_column = make_uint4(high[0].x, high[0].y, high[1].x, high[1].y);
        *(uint4 *)(at_column + column / 2) = make_uint4(low[0].x, low[0].y, low[1].x, low[1].y);
    }
}

/* Turns a piece of values on its side: ldmatrix hands a lane two positions of a dimension, and
 * value_slot orders them just so. A warp has 32 positions of SIDE_DIMS dimensions. */
template <int DIMS>
static __device__ __forceinline__ void split_value_piece(const struct split_arguments *s,
                                                         int kv_head, int first_row, int first,
                                                         const struct piece_rows<DIMS> *values) {
    enum { SPANS = PIECE / DIMS / 32 };
    const struct attention_digits *out = &s->out;
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, span = warp % SPANS;
    int d = warp / SPANS * SIDE_DIMS, column = column_bytes(out->value_dims);
    if (first + d >= out->dim)
        return;
    /* Lane 4 g + t has bytes 4 t ... of dimension g of two columns. */
    uint8_t *begin = tile_of(out, kv_head, first_row / TILE) + group_bytes(TILE, out->dim);
    uint8_t *to = row_of(begin, out->value_dims, TILE, first + d + lane / 4) +
                  (first_row % TILE / 16 + 2 * span) * column + lane % 4 * 4;
    UNROLL
    for (int vector = 0; vector < SIDE_DIMS / 8; vector++) {
        uint32_t m[4]; /* of 8 positions each */
        ldmatrix_x4_trans(m, &values->row[32 * span + lane][d / 8 + vector]);
        UNROLL
        for (int c = 0; c < 2; c++) {
            uint8_t *at_column = to + c * column + vector * 8 * 16;
            *(uint32_t *)at_column = __byte_perm(m[2 * c], m[2 * c + 1], 0x7531);
            *(uint32_t *)(at_column + column / 2) = __byte_perm(m[2 * c], m[2 * c + 1], 0x6420);
        }
    }
}

/* The keys, or the values, of a kv head: a piece is written while the next is on its way, and where
 * the one after that lies is looked up. */
template <int DIMS, bool KEYS>
static __device__ __forceinline__ void split_pieces(const struct split_arguments *s, int kv_head,
                                                    struct part part,
                                                    struct rows_memory<DIMS> *mem) {
    enum { ROWS = PIECE / DIMS };
    struct piece_loader<DIMS> pieces = {
        s, KEYS ? &s->kv.k : &s->kv.v, mem, kv_head, (s->out.dim + DIMS - 1) / DIMS
    };
    int n = tiles_of(s) * pieces_of_tile(s->out.dim), stage = 0;
    auto find = [&](int k, int i) {
        if (k < n)
            pieces.find_rows(k, i);
    };
    auto start = [&](int k, int i) {
        if (k < n)
            pieces.start(k, i);
        cp_async_commit();
    };
    find(part.block, 0);
    __syncthreads();
    start(part.block, 0);
    find(part.block + part.n_blocks, 1);
    for (int k = part.block; k < n; k += part.n_blocks, stage = 1 - stage) {
        int row = pieces.first_row(k), first = pieces.first_dim(k);
        __syncthreads(); /* the next rows are found, and their place is free */
        start(k + part.n_blocks, 1 - stage);
        find(k + 2 * part.n_blocks, stage);
        if (KEYS && first == 0)
            note_exponents(s, kv_head, row, ROWS);
        cp_async_wait<1>();
        __syncthreads();
        if (KEYS)
            split_key_piece<DIMS>(s, kv_head, row, first, &mem->pieces[stage]);
        else
            split_value_piece<DIMS>(s, kv_head, row, first, &mem->pieces[stage]);
    }
    cp_async_wait<0>();
}

/* Blocks that a processor has at once; before compute capability 8.0 it has room for 1024 threads.
 */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#define SPLIT_BLOCKS 4
#else
#define SPLIT_BLOCKS 6
#endif

template <int DIMS>
__global__ static void __launch_bounds__(THREADS, SPLIT_BLOCKS)
    split_rows(struct split_arguments s) {
    SHARED(struct rows_memory<DIMS>, memory);
    if (!compiles_mma)
        return;
    let_next_kernel_start();
    int head = (int)blockIdx.x, block = (int)blockIdx.y;
    int before_values = s.query_blocks + s.key_blocks;
    if (block < s.query_blocks)
        split_queries(&s, head, {block, s.query_blocks});
    else if (block < before_values)
        split_pieces<DIMS, true>(&s, head, {block - s.query_blocks, s.key_blocks}, &memory);
    else
        split_pieces<DIMS, false>(&s, head, {block - before_values, (int)gridDim.y - before_values},
                                  &memory);
    /* Who waits for this kernel takes it that all before have ended. One block sees to that: the
     * others make room for those behind them. */
    if (blockIdx.x + 1 == gridDim.x && blockIdx.y + 1 == gridDim.y)
        wait_for_previous_kernel();
}

static bool in_vectors(const struct kv_view *v, int head_dim) {
    return v->type == KV_BFP16 && v->element_step == 1 && v->group_step == v->x &&
           head_dim % 8 == 0 && v->page_step % 8 == 0 && v->position_step % 8 == 0 &&
           v->head_step % 8 == 0 && (uintptr_t)v->data % 16 == 0;
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

template <int DIMS>
static void launch_rows(struct gpu_device *gpu, dim3 grid, const struct split_arguments *s) {
    if (s->work.overlaps)
        GPU_LAUNCH_EARLY(gpu, split_rows<DIMS>, grid, THREADS, 0, *s);
    else
        GPU_LAUNCH(gpu, split_rows<DIMS>, grid, THREADS, 0, *s);
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
    bool vectors = in_vectors(&kv->k, a->head_dim) && in_vectors(&kv->v, a->head_dim);
    int heads = a->n_kv_heads, sides = d->dim / SIDE_DIMS;
    size_t key_parts = gpu_blocks(n_tiles * TILE, WARPS), value_parts = n_tiles * (size_t)sides;
    if (vectors)
        key_parts = value_parts = n_tiles * (size_t)pieces_of_tile(d->dim);
    unsigned queries = d->without_queries ? 0 : blocks_for(gpu, gpu_blocks(n_rows, WARPS), heads);
    /* At least one: version 3 starts before this kernel ends, and takes it that all before have. */
    unsigned keys = blocks_for(gpu, key_parts ? key_parts : 1, heads);
    unsigned values = blocks_for(gpu, value_parts, heads);
    struct split_arguments s = {*a, *kv,          work ? *work : (struct attention_work){},
                                *d, (int)queries, (int)keys};
    dim3 all((unsigned)heads, queries + keys + values);
    if (vectors && piece_dims(d->dim) == MOST_DIMS) {
        launch_rows<MOST_DIMS>(gpu, all, &s);
    } else if (vectors) {
        launch_rows<64>(gpu, all, &s);
    } else {
        GPU_LAUNCH(gpu, split_any, dim3((unsigned)heads, queries + keys), THREADS, 0, s);
        if (values)
            GPU_LAUNCH(gpu, split_any_values, dim3((unsigned)heads, values), THREADS, 0, s);
    }
    return !gpu->failed;
}
