/*
 * linear, version 6: computes what ../../linear.cu does, for many rows of x; version 5
 * (many_rows.cu) for GPUs without wgmma. As there, four products of digits meet in registers, where
 * version 3 has cuBLAS write them to memory.
 *
 * A block has one tile of y. Its threads copy tiles of x and W to a ring in shared memory
 * (cp.async), three steps ahead (tiles.h says what happens to them). The ring takes 96 KB, which
 * all GPUs with mma on int8 have.
 */
#include "gpu/fast/linear/tiles.h"
#include "gpu/ptx/tensor_core.h"

enum { STEP = 64, STAGES = 4 };

/* A block's tile of y, and what a step of STEP columns takes in shared memory: rows of 64 mantissas
 * of x, then rows of 64 high and 64 low digits of W, swizzled (gpu/ptx/tile_copy.h). Of its eight
 * warps four are below each other, each with ROW_TILES times 16 rows, and two beside each other. */
template <int ROW_TILES, int COLUMNS> struct tile_sizes {
    static const int ROWS = 64 * ROW_TILES, OUTS = 2 * COLUMNS;
    static const int X_BYTES = ROWS * TILE_ROW_BYTES, W_BYTES = OUTS * TILE_ROW_BYTES;
    static const int STAGE_BYTES = X_BYTES + W_BYTES;
    static const int SHARED_BYTES = STAGES * STAGE_BYTES + ROWS + OUTS; /* and the exponents */
};

/* Starts this thread's copies of 16 bytes of every 32nd row. Behind the last row that one is copied
 * again, and what becomes of it is not written. */
template <int N_ROWS>
static __device__ __forceinline__ void copy_rows(unsigned char *to, const void *from,
                                                 size_t row_bytes, int row, int n, bool valid) {
    UNROLL
    for (int i = 0; i < N_ROWS; i += THREADS / 8)
        cp_async_16_or_zero(to + i * TILE_ROW_BYTES,
                            (const char *)from + (size_t)min(row + i, n - 1) * row_bytes, valid);
}

/* Of the tiles of a step. In columns behind the end of x are zeros. */
template <class size>
static __device__ __forceinline__ void copy_step(unsigned char *ring, const struct product *p,
                                                 const struct tile_place *place, int step) {
    int row = (int)threadIdx.x / 8, chunk = (int)threadIdx.x % 8, column = step * STEP + chunk * 8;
    size_t padded = (size_t)gpu_padded(p->k);
    unsigned char *to =
        ring + step % STAGES * size::STAGE_BYTES + row * TILE_ROW_BYTES + (chunk ^ row % 8) * 16;
    copy_rows<size::ROWS>(to, p->x.mantissas + (column < p->k ? column : 0), 2 * (size_t)p->k,
                          place->first_token + row, p->n_tokens, column < p->k);
    const int8_t *digits = place->w->digits + (size_t)(chunk / 4 * place->w->n) * padded;
    copy_rows<size::OUTS>(to + size::X_BYTES, digits + step * STEP + chunk % 4 * 16, padded,
                          place->first_out + row, place->w->n, true);
}

/* Adds the products of 32 digits: of 16 rows of x, and of 8 rows of W that begin at `column`. */
template <int COLUMNS>
static __device__ __forceinline__ void multiply(struct tile_sums<COLUMNS> *s, int column,
                                                const struct row_digits *x, const uint32_t w[4]) {
    const uint32_t *w_high = w, *w_low = w + 2;
    mma_s8_s8(s->high + column / 2, x->high, w_high);
    mma_s8_s8(s->middle + column / 2, x->high, w_low);
    mma_s8_s8(s->middle + column / 2, x->low, w_high);
    mma_s8_s8(s->low + column / 2, x->low, w_low);
}

template <int ROW_TILES, int COLUMNS>
__global__ static void __launch_bounds__(THREADS, 1)
    linear_6(const __grid_constant__ struct product p) {
    typedef tile_sizes<ROW_TILES, COLUMNS> size;
    SHARED_DYNAMIC(unsigned char, ring);
    if (!compiles_mma)
        return;
    run_in_turn();
    struct tile_place place = place_of<size>(&p, (int)blockIdx.x);
    int thread = (int)threadIdx.x, warp = thread / 32, lane = thread % 32, t = lane % 4;
    int8_t *exponents = (int8_t *)ring + STAGES * size::STAGE_BYTES; /* of rows, then of columns */
    if (thread < size::ROWS + size::OUTS)
        exponents[thread] = load_exponent<size>(&p, &place);
    UNROLL
    for (int i = 0; i < STAGES - 1; i++) {
        if (i < p.n_steps)
            copy_step<size>(ring, &p, &place, i);
        cp_async_commit();
    }
    /* Where this thread's places in column 0 are: rows 2 g and 2 g + 1 of x (as in version 5), and
     * a row of a matrix for ldmatrix, of which two are high digits and two are low ones. */
    int row = warp / 2 * 16 * ROW_TILES + lane / 4 * 2, first_column = warp % 2 * COLUMNS;
    const unsigned char *x = ring + row * TILE_ROW_BYTES + t % 2 * 8;
    const unsigned char *w = ring + size::X_BYTES + (first_column + lane % 8) * TILE_ROW_BYTES;
    int x_swizzle = (t / 2 ^ row % 8) * 16,
        w_swizzle = (lane / 16 * 4 ^ lane / 8 % 2 ^ lane % 8) * 16;
    struct tile_sums<COLUMNS> sums[ROW_TILES] = {};
    for (int step = 0; step < p.n_steps; step++) {
        cp_async_wait<STAGES - 2>();
        __syncthreads(); /* all have copied, and are done with the step before */
        if (step + STAGES - 1 < p.n_steps)
            copy_step<size>(ring, &p, &place, step + STAGES - 1);
        cp_async_commit();
        int stage = step % STAGES * size::STAGE_BYTES;
        UNROLL
        for (int i = 0; i < STEP / 32; i++) {
            struct row_digits digits[ROW_TILES];
            UNROLL
            for (int j = 0; j < ROW_TILES; j++)
                digits[j] =
                    load_digits<size>(x + stage + j * 16 * TILE_ROW_BYTES, true, x_swizzle, i);
            UNROLL
            for (int column = 0; column < COLUMNS; column += 8) {
                uint32_t of_w[4];
                ldmatrix_x4(of_w, w + stage + column * TILE_ROW_BYTES + (w_swizzle ^ i * 32));
                UNROLL
                for (int j = 0; j < ROW_TILES; j++)
                    multiply(&sums[j], column, &digits[j], of_w);
            }
        }
    }
    UNROLL
    for (int j = 0; j < ROW_TILES; j++) {
        int first_row = row + j * 16, first_out = first_column + 2 * t;
        const struct outputs o = {exponents + first_row,
                                  exponents + size::ROWS + first_out,
                                  place.w->y,
                                  place.first_token + first_row,
                                  place.first_out + first_out,
                                  p.n_tokens,
                                  place.w->n};
        UNROLL
        for (int i = 0; i < COLUMNS / 4; i++)
            write_pair(&o, i, join_pair(&sums[j], i));
    }
}

template <int ROW_TILES, int COLUMNS>
static void launch_6(struct gpu_device *gpu, const struct linear_part *parts, int n_parts,
                     struct bfp_rows x, int n_tokens) {
    typedef tile_sizes<ROW_TILES, COLUMNS> size;
    struct product p = number_tiles<size>(parts, n_parts, x, n_tokens);
    p.n_steps = gpu_padded(p.k) / STEP;
    if (gpu_ok(gpu,
               cudaFuncSetAttribute((const void *)linear_6<ROW_TILES, COLUMNS>,
                                    cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    size::SHARED_BYTES),
               "the linear layer's shared memory"))
        GPU_LAUNCH_EARLY(gpu, (linear_6<ROW_TILES, COLUMNS>), p.n_row_tiles * p.n_column_tiles,
                         THREADS, size::SHARED_BYTES, p);
}

bool gpu_linear_many_rows_mma_fits(const struct gpu_device *gpu, const struct matrix *w) {
    return gpu->has_mma && gpu_padded(w->k) <= MAX_K && w->k % 8 == 0;
}

void gpu_linear_many_rows_mma(struct gpu_device *gpu, const struct linear_part *parts, int n_parts,
                              struct bfp_rows x, int n_tokens) {
    if (n_tokens <= 64)
        launch_6<1, 32>(gpu, parts, n_parts, x, n_tokens);
    else
        launch_6<2, 32>(gpu, parts, n_parts, x, n_tokens);
}
