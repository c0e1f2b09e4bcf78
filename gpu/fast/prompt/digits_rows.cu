/*
 * Splits rows of bfp16 in one piece into digits, as digits.cu does with those of any cache.
 *
 * What the engine has, and NHD and HND caches: eight elements are a load of 16 bytes, and a column
 * of digits is a store; and nothing has to wait for the rows' exponents, so queries, keys and
 * values are split by one kernel. The blocks of all kv heads go side by side: so do their rows.
 */
#include "gpu/fast/prompt/digits.h"
#include "gpu/fast/prompt/split.h"

/* A piece in shared memory, with 16 bytes behind each row, so that neighbouring ones lie in
 * different banks. */
template <int DIMS> struct piece_rows { uint4 row[PIECE / DIMS][DIMS / 8 + 1]; };

/* What a block has in shared memory: its rows' beginnings, and its pieces of them. */
template <int DIMS> struct rows_memory {
    const int16_t *rows[PIECES][PIECE / DIMS];
    struct piece_rows<DIMS> pieces[PIECES];
};

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

/* Turns a piece of values on its side. A warp has 32 positions of SIDE_DIMS dimensions. */
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
    uint8_t *begin = tile_of(out, kv_head, first_row / TILE) + group_bytes(TILE, out->dim);
    uint8_t *to = row_of(begin, out->value_dims, TILE, first + d) +
                  (first_row % TILE / 16 + 2 * span) * column;
    split_side(to, column, &values->row[32 * span + lane][d / 8]);
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
    bool exists = part.block < n && mem->rows[0][0], next_exists;
    start(part.block, 0);
    find(part.block + part.n_blocks, 1);
    for (int k = part.block; k < n; k += part.n_blocks, stage = 1 - stage, exists = next_exists) {
        int row = pieces.first_row(k), first = pieces.first_dim(k);
        __syncthreads(); /* the next rows are found, and their place is free */
        next_exists = k + part.n_blocks < n && mem->rows[1 - stage][0];
        start(k + part.n_blocks, 1 - stage);
        find(k + 2 * part.n_blocks, stage);
        if (KEYS && first == 0 && exists)
            note_exponents(s, kv_head, row, ROWS);
        cp_async_wait<1>();
        __syncthreads();
        /* Nobody asks for digits behind the end of a sequence. */
        if (KEYS && exists)
            split_key_piece<DIMS>(s, kv_head, row, first, &mem->pieces[stage]);
        else if (exists)
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

template <int DIMS>
static void launch_rows(struct gpu_device *gpu, dim3 grid, const struct split_arguments *s) {
    if (s->work.overlaps)
        GPU_LAUNCH_EARLY(gpu, split_rows<DIMS>, grid, THREADS, 0, *s);
    else
        GPU_LAUNCH(gpu, split_rows<DIMS>, grid, THREADS, 0, *s);
}

void gpu_attention_split_rows(struct gpu_device *gpu, dim3 grid, const struct split_arguments *s) {
    if (piece_dims(s->out.dim) == MOST_DIMS)
        launch_rows<MOST_DIMS>(gpu, grid, s);
    else
        launch_rows<64>(gpu, grid, s);
}
