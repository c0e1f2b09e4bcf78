/*
 * linear, version 5: computes what ../../linear.cu does, for more rows than version 4 is good at;
 * TODO gains
 */
#include "gpu/fast/linear/linear.h"
#include "gpu/ptx/cluster.h"
#include "gpu/ptx/tile_copy.h"

enum { THREADS = 256, STEP = 128, MAX_K = 65536, ROW_TILES_TOGETHER = 8 };

/* A block's tile of y, and what a step of STEP columns of x and W takes in shared memory. Its two
 * groups of four warps take 64 rows and COLUMNS columns each: beside each other, or one below the
 * other with ROW_GROUPS = 2. */
template <int ROW_GROUPS, int COLUMNS> struct tile_sizes {
    static const int ROWS = 64 * ROW_GROUPS, OUTS = COLUMNS * 2 / ROW_GROUPS;
    static const int X_BYTES = ROWS * TILE_ROW_BYTES; /* 64 mantissas of each row */
    static const int W_BYTES = OUTS * TILE_ROW_BYTES; /* STEP digits of each row */
    static const int STAGE_BYTES = 2 * X_BYTES + 2 * W_BYTES;
    static const int STAGES = 200 * 1024 / STAGE_BYTES;
    static const int SHARED_BYTES = STAGES * (STAGE_BYTES + 8);
    static const int PAIRS = COLUMNS / 4; /* of neighbours in y, of each thread */
};

struct weights {
    struct tile_map digits; /* the high ones, and n rows on the low ones */
    const int8_t *exponents;
    float *y;
    int n, first_tile; /* of the columns */
};

/* A launch. Tiles are numbered over all parts; a cluster takes one after the other, and each of its
 * blocks takes a part of the steps. */
struct product {
    struct tile_map x;
    struct weights parts[MOST_LINEAR_PARTS];
    const int8_t *x_exponents;
    int n_parts, n_tokens, n_steps;
    int n_row_tiles, n_column_tiles;
    int n_blocks;   /* of a cluster */
    bool exchanges; /* a cluster takes one tile, and its sums go through shared memory */
};

struct tile_place {
    const struct weights *w;
    int first_token, first_out;
};

/* Neighbours in this order read the same x and W while these are in the cache. */
template <class size>
static __device__ __forceinline__ struct tile_place place_of(const struct product *p, int tile) {
    int band_tiles = ROW_TILES_TOGETHER * p->n_column_tiles;
    int band = tile / band_tiles, in_band = tile % band_tiles;
    int rows = min((int)ROW_TILES_TOGETHER, p->n_row_tiles - band * ROW_TILES_TOGETHER);
    int column = in_band / rows;
    const struct weights *w = &p->parts[0];
    UNROLL
    for (int i = 1; i < MOST_LINEAR_PARTS; i++)
        if (i < p->n_parts && column >= p->parts[i].first_tile)
            w = &p->parts[i];
    return {w, (band * ROW_TILES_TOGETHER + in_band % rows) * size::ROWS,
            (column - w->first_tile) * size::OUTS};
}

/* What thread 0 copies next: a walk over all steps of all tiles of the block. */
template <class size> struct loader {
    const struct product *p;
    unsigned char *ring;
    struct bulk_barrier *arrived;
    int first, end; /* steps of this block */
    int tile, step, stage, tile_stride;
    struct tile_place place;

    __device__ __forceinline__ bool has_more() const {
        return tile < p->n_row_tiles * p->n_column_tiles;
    }
    __device__ __forceinline__ void find_place() {
        if (has_more())
            place = place_of<size>(p, tile);
    }
    __device__ __forceinline__ void copy_weights() {
        unsigned char *to = ring + stage * size::STAGE_BYTES + 2 * size::X_BYTES;
        bulk_expect(&arrived[stage], size::STAGE_BYTES);
        tile_copy(&arrived[stage], to, &place.w->digits, step * STEP, place.first_out);
        tile_copy(&arrived[stage], to + size::W_BYTES, &place.w->digits, step * STEP,
                  place.w->n + place.first_out);
    }
    __device__ __forceinline__ void copy_rows() {
        unsigned char *to = ring + stage * size::STAGE_BYTES;
        tile_copy(&arrived[stage], to, &p->x, step * STEP, place.first_token);
        tile_copy(&arrived[stage], to + size::X_BYTES, &p->x, step * STEP + STEP / 2,
                  place.first_token);
    }
    __device__ __forceinline__ void advance() {
        stage = stage + 1 < size::STAGES ? stage + 1 : 0;
        if (++step < end)
            return;
        step = first;
        tile += tile_stride;
        find_place();
    }
};

template <int COLUMNS> struct tile_sums {
    int32_t high[COLUMNS / 2], middle[COLUMNS / 2], low[COLUMNS / 2];
};

/* A thread's digits of 32 columns of x: its part of the matrix a of wgmma. */
struct row_digits {
    uint32_t high[4], low[4];
};

/* Four mantissas as signed digits. A low byte above 127 is the digit 256 less, and one is carried to
 * the high one, byte by byte. */
static __device__ __forceinline__ void split_four(uint32_t *high, uint32_t *low, uint2 four) {
    *low = __byte_perm(four.x, four.y, 0x6420);
    uint32_t h = __byte_perm(four.x, four.y, 0x7531);
    *high = ((h & 0x7f7f7f7f) + (*low >> 7 & 0x01010101)) ^ (h & 0x80808080);
}

/* rows: two rows of x at this thread's place in column 0; swizzle: what column 0 becomes, in bytes.
 * quarter: which 32 of STEP columns. */
template <class size>
static __device__ __forceinline__ struct row_digits load_digits(const unsigned char *rows,
                                                                int swizzle, int quarter) {
    struct row_digits d;
    rows += quarter / 2 * size::X_BYTES;
    UNROLL
    for (int i = 0; i < 4; i++) {
        int at = swizzle ^ (quarter % 2 * 64 + i / 2 * 32 + i % 2 * 16);
        split_four(&d.high[i], &d.low[i],
                   *(const uint2 *)(rows + i % 2 * TILE_ROW_BYTES + at));
    }
    return d;
}

template <class sums>
static __device__ __forceinline__ void multiply(sums *s, const struct row_digits *x,
                                                shared_matrix w_high, shared_matrix w_low) {
    wgmma_begin();
    wgmma_s8_s8<true>(s->high, x->high, w_high);
    wgmma_s8_s8<true>(s->middle, x->high, w_low);
    wgmma_s8_s8<true>(s->middle, x->low, w_high);
    wgmma_s8_s8<true>(s->low, x->low, w_low);
    wgmma_end();
}

/* Exact: each is an integer below 2^53. */
static __device__ __forceinline__ double join(int32_t high, int32_t middle, int32_t low) {
    return fma(65536.0, (double)high, fma(256.0, (double)middle, (double)low));
}

/* Rounds and writes a pair of neighbours in y: pair number i of a thread, in the order of wgmma's d.
 * token, out: of pair 0. */
static __device__ __forceinline__ void write_pair(const struct product *p, const struct weights *w,
                                                  int token, int out, int i, double2 dot) {
    token += i % 2;
    out += i / 2 * 8;
    if (token >= p->n_tokens)
        return;
    float *y = w->y + (size_t)token * (size_t)w->n + (size_t)out;
    int e = p->x_exponents[token] - 30;
    if (out < w->n)
        y[0] = num_dot_to_float(dot.x, e + w->exponents[out]);
    if (out + 1 < w->n)
        y[1] = num_dot_to_float(dot.y, e + w->exponents[out + 1]);
}

/* The sums of a tile become y, those of all blocks of the cluster: each puts its own into its shared
 * memory and takes a share of the tile from all. */
template <int ROW_GROUPS, int COLUMNS>
static __device__ __forceinline__ void finish_tile(const struct product *p,
                                                   const struct tile_place *place,
                                                   const tile_sums<COLUMNS> *s, double2 *shared,
                                                   int token, int out) {
    const int PAIRS = tile_sizes<ROW_GROUPS, COLUMNS>::PAIRS;
    shared += threadIdx.x;
    if (p->exchanges)
        __syncthreads();
    UNROLL
    for (int i = 0; i < PAIRS; i++) {
        double2 dot = make_double2(join(s->high[2 * i], s->middle[2 * i], s->low[2 * i]),
                                   join(s->high[2 * i + 1], s->middle[2 * i + 1], s->low[2 * i + 1]));
        if (p->exchanges)
            shared[i * THREADS] = dot;
        else
            write_pair(p, place->w, token, out, i, dot);
    }
    if (!p->exchanges)
        return;
    cluster_arrive();
    cluster_wait();
    int share = PAIRS / p->n_blocks, first = cluster_rank() * share;
    for (int i = first; i < first + share; i++) {
        double2 dot = make_double2(0, 0);
        for (int block = 0; block < p->n_blocks; block++) {
            double2 part = load_from_peer(&shared[i * THREADS], block);
            dot.x += part.x;
            dot.y += part.y;
        }
        write_pair(p, place->w, token, out, i, dot);
    }
    cluster_arrive(); /* a block's memory is there until all have read it */
    cluster_wait();
}

template <int ROW_GROUPS, int COLUMNS>
__global__ static void __launch_bounds__(THREADS, 1)
    linear_5(const __grid_constant__ struct product p) {
    typedef tile_sizes<ROW_GROUPS, COLUMNS> size;
    SHARED_DYNAMIC(unsigned char, ring);
    if (!compiles_wgmma)
        return;
    let_next_kernel_start();
    struct bulk_barrier *arrived = (struct bulk_barrier *)(ring + size::STAGES * size::STAGE_BYTES);
    int thread = (int)threadIdx.x, rank = cluster_rank();
    int first = p.n_steps * rank / p.n_blocks, end = p.n_steps * (rank + 1) / p.n_blocks;
    int n_clusters = (int)gridDim.x / p.n_blocks, cluster = (int)blockIdx.x / p.n_blocks;
    struct loader<size> next = {&p, ring, arrived, first, end, cluster, first, 0, n_clusters, {}};
    next.find_place();
    if (thread == 0) {
        for (int i = 0; i < size::STAGES; i++)
            bulk_barrier_start(&arrived[i]);
        struct loader<size> ahead = next;
        for (int i = 0; i < size::STAGES - 1 && ahead.has_more(); i++, ahead.advance())
            ahead.copy_weights();
    }
    wait_for_previous_kernel();
    if (thread == 0)
        for (int i = 0; i < size::STAGES - 1 && next.has_more(); i++, next.advance())
            next.copy_rows();
    for (int i = 0; i < size::STAGES - 1; i++)
        bulk_end_group();
    __syncthreads();

    /* Row 2 g of a warp's 16 is row g of wgmma, and 2 g + 1 is g + 8: then the eight rows that a
     * half of the warp reads at once are in different banks. */
    int group = thread / 128, lane = thread % 32, t = lane % 4;
    int row = thread % 128 / 32 * 16 + lane / 4 * 2 + (ROW_GROUPS == 2 ? group * 64 : 0);
    int column = ROW_GROUPS == 2 ? 0 : group * COLUMNS;
    int swizzle = (t / 2 ^ row % 8) * 16;
    const unsigned char *x = ring + row * TILE_ROW_BYTES + t % 2 * 8;
    const unsigned char *w = ring + 2 * size::X_BYTES + column * TILE_ROW_BYTES;
    int stage = 0;
    unsigned parity = 0;
    for (int tile = cluster; tile < p.n_row_tiles * p.n_column_tiles; tile += n_clusters) {
        struct tile_sums<COLUMNS> sums = {};
        for (int step = first; step < end; step++) {
            bulk_wait(&arrived[stage], parity, size::STAGES - 2);
            UNROLL
            for (int i = 0; i < STEP / 32; i++) {
                const unsigned char *digits = w + stage * size::STAGE_BYTES;
                struct row_digits rows =
                    load_digits<size>(x + stage * size::STAGE_BYTES, swizzle, i);
                multiply(&sums, &rows, shared_matrix_swizzled(digits, 2 * i),
                         shared_matrix_swizzled(digits + size::W_BYTES, 2 * i));
                wgmma_wait_but_last();
                if (i == 0) { /* now all are done with the stage before */
                    __syncthreads();
                    if (thread == 0 && next.has_more()) {
                        next.copy_weights();
                        next.copy_rows();
                        next.advance();
                    }
                    bulk_end_group();
                }
            }
            stage = stage + 1 < size::STAGES ? stage + 1 : 0;
            parity ^= stage == 0;
        }
        wgmma_wait();
        wgmma_settle(sums.high);
        wgmma_settle(sums.middle);
        wgmma_settle(sums.low);
        struct tile_place place = place_of<size>(&p, tile);
        finish_tile<ROW_GROUPS, COLUMNS>(&p, &place, &sums, (double2 *)ring,
                                         place.first_token + row,
                                         place.first_out + column + 2 * t);
    }
}

/* ---- the launch -------------------------------------------------------------------------------
 */

/* How many blocks share the sums of a tile, and how many clusters of so many run: as many blocks as
 * there are processors for, if each has two steps. */
template <int ROW_GROUPS, int COLUMNS>
static int choose_clusters(struct gpu_device *gpu, struct product *p) {
    typedef tile_sizes<ROW_GROUPS, COLUMNS> size;
    auto *clusters = gpu->linear_clusters[ROW_GROUPS - 1];
    for (int i = 0; i < N_SPLITS && !clusters[N_SPLITS - 1].at_once; i++) {
        clusters[i].n_blocks = 1 << (N_SPLITS - 1 - i);
        if (!gpu_ok(gpu,
                    cluster_prepare(linear_5<ROW_GROUPS, COLUMNS>, &clusters[i].n_blocks, THREADS,
                                    size::SHARED_BYTES, &clusters[i].at_once),
                    "the linear layer's clusters"))
            return 0;
    }
    int n_tiles = p->n_row_tiles * p->n_column_tiles, i = 0;
    while (i < N_SPLITS - 1 &&
           (n_tiles > clusters[i].at_once || p->n_steps < 2 * clusters[i].n_blocks))
        i++;
    p->n_blocks = clusters[i].n_blocks;
    p->exchanges = i < N_SPLITS - 1;
    return n_tiles < clusters[i].at_once ? n_tiles : clusters[i].at_once;
}

template <int ROW_GROUPS, int COLUMNS>
static void launch_5(struct gpu_device *gpu, const struct linear_part *parts, int n_parts,
                     struct bfp_rows x, int n_tokens) {
    typedef tile_sizes<ROW_GROUPS, COLUMNS> size;
    int k = parts->w->k, padded = gpu_padded(k);
    struct product p = {};
    p.x_exponents = x.exponents;
    p.n_parts = n_parts;
    p.n_tokens = n_tokens;
    p.n_steps = (padded + STEP - 1) / STEP;
    p.n_row_tiles = (n_tokens + size::ROWS - 1) / size::ROWS;
    struct tile_source rows = {x.mantissas, 2, n_tokens, k, 2 * (size_t)k, size::ROWS};
    bool made = tile_map_make(&p.x, &rows);
    for (int i = 0; i < n_parts; i++) {
        const struct matrix *m = parts[i].w;
        struct weights *w = &p.parts[i];
        struct tile_source digits = {m->mantissas, 1, 2 * m->n, padded, (size_t)padded, size::OUTS};
        made = made && tile_map_make(&w->digits, &digits);
        w->exponents = m->exponents;
        w->y = parts[i].y;
        w->n = m->n;
        w->first_tile = p.n_column_tiles;
        p.n_column_tiles += (m->n + size::OUTS - 1) / size::OUTS;
    }
    if (!made)
        gpu_failed(gpu, "linear", "no tensor maps");
    int n_clusters = choose_clusters<ROW_GROUPS, COLUMNS>(gpu, &p);
    if (gpu->failed)
        return;
    LAUNCH_CLUSTERS((linear_5<ROW_GROUPS, COLUMNS>), n_clusters, p.n_blocks, THREADS,
                    size::SHARED_BYTES, gpu->stream, p);
    gpu->launches++;
    gpu_ok(gpu, cudaGetLastError(), "linear_5");
}

bool gpu_linear_many_rows_fits(const struct gpu_device *gpu, const struct matrix *w) {
    return gpu->has_wgmma && gpu_padded(w->k) <= MAX_K && w->k % 8 == 0;
}

void gpu_linear_many_rows(struct gpu_device *gpu, const struct linear_part *parts, int n_parts,
                          struct bfp_rows x, int n_tokens) {
    if (n_tokens <= 64)
        launch_5<1, 64>(gpu, parts, n_parts, x, n_tokens);
    else
        launch_5<2, 128>(gpu, parts, n_parts, x, n_tokens);
}
