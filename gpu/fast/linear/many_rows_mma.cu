/*
 * linear, version 6: computes what ../../linear.cu does, for many rows of x: version 5
 * (many_rows.cu) for GPUs without wgmma. As there, four products of digits meet in registers, where
 * version 3 has cuBLAS write them to memory.
 *
 * A block has one tile of y. Its threads copy tiles of x and W to a ring in shared memory
 * (cp.async), three steps ahead; tiles.h says what happens to them. The ring takes 96 KB, which all
 * GPUs with mma on int8 have, and 128 registers a thread let two blocks share a large processor.
 */
#include "gpu/fast/linear/tiles.h"
#include "gpu/ptx/tensor_core.h"

enum { STEP = 64, STAGES = 4, COLUMNS = 64 };

/* A block's tile of y, and what a step of STEP columns takes in shared memory: rows of 64 mantissas
 * of x, then rows of 64 high and 64 low digits of W, swizzled (gpu/ptx/tile_copy.h). Its warps have
 * 16 rows by COLUMNS each: four below each other, two beside each other. */
struct size {
    static const int ROWS = GPU_LINEAR_MMA_ROWS, OUTS = GPU_LINEAR_MMA_OUTS;
    static const int X_BYTES = ROWS * TILE_ROW_BYTES;
    static const int STAGE_BYTES = X_BYTES + OUTS * TILE_ROW_BYTES;
    static const int SHARED_BYTES = STAGES * STAGE_BYTES + ROWS + OUTS; /* with the exponents */
};

/* Starts this thread's copies of a tile: 16 bytes of every 32nd row. Behind the last row that one
 * is copied again; what becomes of it is not written. */
template <int N_ROWS>
static __device__ __forceinline__ void copy_rows(unsigned char *to, const void *tile, int last,
                                                 int row_bytes, int column) {
    UNROLL
    for (int i = 0; i < N_ROWS; i += THREADS / 8)
        cp_async_16(to + i * TILE_ROW_BYTES,
                    (const char *)tile +
                        (min((int)threadIdx.x / 8 + i, last) * row_bytes + column));
}

/* Both tiles of a step. Behind the last columns of x these are copied again: W has zeros there. */
static __device__ __forceinline__ void copy_step(unsigned char *ring, const struct product *p,
                                                 const struct tile_place *place, int step) {
    int row = (int)threadIdx.x / 8, chunk = (int)threadIdx.x % 8, column = step * STEP;
    int k = p->k, padded = gpu_padded(k), n = place->w->n;
    unsigned char *to =
        ring + step % STAGES * size::STAGE_BYTES + row * TILE_ROW_BYTES + (chunk ^ row % 8) * 16;
    const int16_t *x = p->x.mantissas + (size_t)place->first_token * (size_t)k;
    const int8_t *w = place->w->digits + (size_t)place->first_out * (size_t)padded;
    if (chunk >= 4) /* the low digits */
        w += (size_t)n * (size_t)padded;
    if (column < k) {
        copy_rows<size::ROWS>(to, x, p->n_tokens - 1 - place->first_token, 2 * k,
                              2 * min(column + chunk * 8, k - 8));
        copy_rows<size::OUTS>(to + size::X_BYTES, w, n - 1 - place->first_out, padded,
                              column + chunk % 4 * 16);
    }
    cp_async_commit();
}

/* Adds the products of 32 digits: of 16 rows of x, and of 8 rows of W that begin at `column`. */
static __device__ __forceinline__ void multiply(struct tile_sums<COLUMNS> *s, int column,
                                                const struct row_digits *x, const uint32_t w[4]) {
    const uint32_t *w_high = w, *w_low = w + 2;
    mma_s8_s8(s->high + column / 2, x->high, w_high);
    mma_s8_s8(s->middle + column / 2, x->high, w_low);
    mma_s8_s8(s->middle + column / 2, x->low, w_high);
    mma_s8_s8(s->low + column / 2, x->low, w_low);
}

__global__ static void __launch_bounds__(THREADS, 2)
    linear_6(const __grid_constant__ struct product p) {
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
    for (int i = 0; i < STAGES - 1; i++)
        copy_step(ring, &p, &place, i);
    /* Where this thread's column 0 is: of rows 2 g and 2 g + 1 of x (as in version 5), and of a row
     * of a matrix for ldmatrix, of which two are high digits and two are low ones. */
    int row = warp / 2 * 16 + lane / 4 * 2, first_column = warp % 2 * COLUMNS;
    int x = row * TILE_ROW_BYTES + (t / 2 ^ row % 8) * 16 + t % 2 * 8;
    int w = size::X_BYTES + (first_column + lane % 8) * TILE_ROW_BYTES +
            (lane / 16 * 4 ^ lane / 8 % 2 ^ lane % 8) * 16;
    struct tile_sums<COLUMNS> sums = {};
    for (int step = 0; step * STEP < p.k; step++) {
        cp_async_wait<STAGES - 2>();
        __syncthreads(); /* all have copied, and are done with the step before */
        copy_step(ring, &p, &place, step + STAGES - 1);
        int stage = step % STAGES * size::STAGE_BYTES;
        /* Not unrolled, for fewer registers. */
        UNROLL_1
        for (int i = 0; i < STEP / 32; i++) {
            struct row_digits digits = load_digits<size>(ring, true, x + stage, i);
            UNROLL
            for (int column = 0; column < COLUMNS; column += 8) {
                uint32_t w_digits[4];
                ldmatrix_x4(w_digits, ring + column * TILE_ROW_BYTES + ((w + stage) ^ i * 32));
                multiply(&sums, column, &digits, w_digits);
            }
        }
    }
    first_column += 2 * t;
    const struct outputs o = {exponents + row,
                              exponents + size::ROWS + first_column,
                              place.w->y,
                              place.first_token + row,
                              place.first_out + first_column,
                              p.n_tokens,
                              place.w->n};
    UNROLL
    for (int i = 0; i < COLUMNS / 4; i++) {
        wgmma_settle(sums.high); /* pair by pair, for fewer registers */
        wgmma_settle(sums.middle);
        wgmma_settle(sums.low);
        write_pair(&o, i, join_pair(&sums, i));
    }
}

bool gpu_linear_many_rows_mma_fits(const struct gpu_device *gpu, const struct matrix *w) {
    return gpu->has_mma && gpu_padded(w->k) <= MAX_K && w->k % 8 == 0;
}

void gpu_linear_many_rows_mma(struct gpu_device *gpu, const struct linear_part *parts, int n_parts,
                              struct bfp_rows x, int n_tokens) {
    struct product p = number_tiles<size>(parts, n_parts, x, n_tokens);
    if (gpu_ok(gpu,
               cudaFuncSetAttribute((const void *)linear_6,
                                    cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    size::SHARED_BYTES),
               "the linear layer's shared memory"))
        GPU_LAUNCH_EARLY(gpu, linear_6, p.n_row_tiles * p.n_column_tiles, THREADS,
                         size::SHARED_BYTES, p);
}
