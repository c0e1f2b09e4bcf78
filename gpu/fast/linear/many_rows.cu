/*
 * linear, version 5: computes what ../../linear.cu does, for more rows than version 4 is good at;
 * TODO gains
 */
#include "gpu/fast/linear/linear.h"
#include "gpu/ptx/cluster.h"
#include "gpu/ptx/tile_copy.h"
#include <stdio.h>
#include <stdlib.h>

enum { THREADS = 256, STEP = 128, MAX_K = 65536 };

/* A block's tile of y, and what a step of STEP columns of x and W takes in shared memory. Its two
 * groups of four warps multiply 64 rows by COLUMNS each: below each other, beside each other, or the
 * same ones, and then they take every other 32 columns of a step. */
template <int ROW_GROUPS, int COLUMN_GROUPS, int COLUMNS> struct tile_sizes {
    static const int SUM_GROUPS = 2 / (ROW_GROUPS * COLUMN_GROUPS);
    static const int ROWS = 64 * ROW_GROUPS, OUTS = COLUMNS * COLUMN_GROUPS;
    static const int X_BYTES = ROWS * TILE_ROW_BYTES; /* 64 mantissas of each row */
    static const int W_BYTES = OUTS * TILE_ROW_BYTES; /* STEP digits of each row */
    static const int STAGE_BYTES = 2 * X_BYTES + 2 * W_BYTES;
    static const int BLOCKS = COLUMNS == 32 ? 2 : 1; /* of a processor */
    static const int STAGES = 208 * 1024 / STAGE_BYTES / BLOCKS;
    static const int SHARED_BYTES = STAGES * (STAGE_BYTES + 8) + ROWS + OUTS;
    static const int PAIRS = COLUMNS / 4; /* of sums of a thread */
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
    int n_parts, n_tokens, n_steps, bandx;
    int x_rows; /* of a tile of x: a multiple of 8 */
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
    const int ROW_TILES_TOGETHER = p->bandx; int band_tiles = ROW_TILES_TOGETHER * p->n_column_tiles;
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

/* What is copied next: a walk over all steps of all tiles of the block. */
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
    /* Tile number `which` of a step: the high digits of W, the low ones, and the first and the
     * second half of x. */
    __device__ __forceinline__ void copy(int which) {
        struct bulk_barrier *b = &arrived[stage];
        unsigned char *x = ring + stage * size::STAGE_BYTES, *w = x + 2 * size::X_BYTES;
        if (which == 0)
            bulk_expect(b, 2 * (size::W_BYTES + p->x_rows * TILE_ROW_BYTES));
        if (which < 2)
            tile_copy(b, w + which * size::W_BYTES, &place.w->digits, step * STEP,
                      which * place.w->n + place.first_out);
        else
            tile_copy(b, x + (which - 2) * size::X_BYTES, &p->x, step * STEP + (which - 2) * STEP / 2,
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

/* What a thread brings to shared memory: of row or column number threadIdx.x. 0: there is none. */
template <class size>
static __device__ __forceinline__ int8_t load_exponent(const struct product *p,
                                                       const struct tile_place *place) {
    int row = (int)threadIdx.x, column = row - size::ROWS;
    if (column < 0)
        return place->first_token + row < p->n_tokens ? p->x_exponents[place->first_token + row] : 0;
    bool exists = column < size::OUTS && place->first_out + column < place->w->n;
    return exists ? place->w->exponents[place->first_out + column] : 0;
}

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

/* rows: two rows of x at this thread's place in column 0, if they exist; swizzle: what column
 * 0 becomes, in bytes. quarter: which 32 of STEP columns. */
template <class size>
static __device__ __forceinline__ struct row_digits load_digits(const unsigned char *rows,
                                                                bool exist, int swizzle, int quarter) {
    struct row_digits d;
    rows += quarter / 2 * size::X_BYTES;
    UNROLL
    for (int i = 0; i < 4; i++) {
        int at = swizzle ^ (quarter % 2 * 64 + i / 2 * 32 + i % 2 * 16);
        uint2 four = make_uint2(0, 0);
        if (exist)
            four = *(const uint2 *)(rows + i % 2 * TILE_ROW_BYTES + at);
        split_four(&d.high[i], &d.low[i], four);
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

/* An integer below 2^51, as a double: with 1.5 * 2^52 added, it is the low bits. */
static __device__ __forceinline__ double join(int32_t high, int32_t middle, int32_t low) {
    const double shift = 0x1.8p52;
    long long sum = 65536ll * high + (256ll * middle + low) + 0x4338000000000000ll;
    double shifted;
    memcpy(&shifted, &sum, sizeof shifted);
    return shifted - shift;
}

/* Where a thread's outputs are. A pair is two neighbours; pair number i, in the order of wgmma's d,
 * is at row i % 2 and column i / 2 * 8. */
struct outputs {
    const int8_t *x_exponents, *w_exponents; /* in shared memory, of row and column 0 */
    float *y;
    int token, out, n_tokens, n; /* of row and column 0, and how many there are */
};

static __device__ __forceinline__ void write_pair(const struct outputs *o, int i, double2 dot) {
    int token = o->token + i % 2, column = i / 2 * 8, out = o->out + column;
    int e = o->x_exponents[i % 2] - 30;
    float2 y = make_float2(num_dot_to_float(dot.x, e + o->w_exponents[column]),
                           num_dot_to_float(dot.y, e + o->w_exponents[column + 1]));
    float *to = o->y + (size_t)token * (size_t)o->n + (size_t)out;
    if (token < o->n_tokens && out + 1 < o->n && o->n % 2 == 0) {
        *(float2 *)to = y;
    } else if (token < o->n_tokens && out < o->n) {
        to[0] = y.x;
        if (out + 1 < o->n)
            to[1] = y.y;
    }
}

template <int COLUMNS>
static __device__ __forceinline__ double2 join_pair(const tile_sums<COLUMNS> *s, int i) {
    return make_double2(join(s->high[2 * i], s->middle[2 * i], s->low[2 * i]),
                        join(s->high[2 * i + 1], s->middle[2 * i + 1], s->low[2 * i + 1]));
}

/* This thread's share of the outputs, from what the blocks of the cluster, and both groups of warps
 * if these share outputs, have put into their shared memory. */
template <class size, int N_BLOCKS>
static __device__ __forceinline__ void take_share(const double2 *shared, const struct outputs *o) {
    const int SHARE = size::PAIRS / (N_BLOCKS * size::SUM_GROUPS);
    int group = (int)threadIdx.x / 128, turn = cluster_rank();
    if (size::SUM_GROUPS == 2) {
        turn = turn * 2 + group;
        group = 0;
    }
    shared += group * size::PAIRS * 128 + turn * SHARE * 128;
    double2 dots[SHARE] = {};
    UNROLL
    for (int block = 0; block < N_BLOCKS; block++)
        UNROLL
    for (int i = 0; i < SHARE * size::SUM_GROUPS; i++) {
        double2 part = load_from_peer(&shared[(i / SHARE * size::PAIRS + i % SHARE) * 128], block);
        dots[i % SHARE].x += part.x;
        dots[i % SHARE].y += part.y;
    }
    UNROLL
    for (int i = 0; i < SHARE; i++)
        write_pair(o, turn * SHARE + i, dots[i]);
}

template <class size, int COLUMNS>
static __device__ __forceinline__ void exchange(const tile_sums<COLUMNS> *s, double2 *shared,
                                                const struct outputs *o, int n_blocks) {
    int group = (int)threadIdx.x / 128, place = (int)threadIdx.x % 128;
    shared += place;
    UNROLL
    for (int i = 0; i < size::PAIRS; i++)
        shared[(group * size::PAIRS + i) * 128] = join_pair(s, i);
    cluster_arrive();
    cluster_wait();
    if (n_blocks == 4)
        take_share<size, 4>(shared, o);
    else if (n_blocks == 2)
        take_share<size, 2>(shared, o);
    else
        take_share<size, 1>(shared, o);
    cluster_arrive(); /* a block's memory is there until all have read it */
    cluster_wait();
}

template <int ROW_GROUPS, int COLUMN_GROUPS, int COLUMNS>
__global__ static void __launch_bounds__(THREADS, COLUMNS == 32 ? 2 : 1)
    linear_5(const __grid_constant__ struct product p) {
    typedef tile_sizes<ROW_GROUPS, COLUMN_GROUPS, COLUMNS> size;
    SHARED_DYNAMIC(unsigned char, ring);
    if (!compiles_wgmma)
        return;
    let_next_kernel_start();
    struct bulk_barrier *arrived = (struct bulk_barrier *)(ring + size::STAGES * size::STAGE_BYTES);
    int8_t *exponents = (int8_t *)(arrived + size::STAGES); /* of rows, then of columns */
    int thread = (int)threadIdx.x, rank = cluster_rank();
    int first = p.n_steps * rank / p.n_blocks, end = p.n_steps * (rank + 1) / p.n_blocks;
    int n_clusters = (int)gridDim.x / p.n_blocks, cluster = (int)blockIdx.x / p.n_blocks;
    struct loader<size> next = {&p, ring, arrived, first, end, cluster, first, 0, n_clusters, {}};
    next.find_place();
    /* Four threads copy a tile each: one that copied all would hold its warps up. */
    int copied = thread % 64 ? -1 : thread / 64;
    if (thread == 0) {
        for (int i = 0; i < size::STAGES; i++)
            bulk_barrier_start(&arrived[i]);
        tile_map_prefetch(&p.x);
    }
    __syncthreads();
    if (copied >= 2)
        wait_for_previous_kernel();
    for (int i = 0; copied >= 0 && i < size::STAGES && next.has_more(); i++, next.advance())
        next.copy(copied);
    wait_for_previous_kernel();
    for (int i = 0; i < size::STAGES; i++)
        bulk_end_group();

    /* Row 2 g of a warp's 16 is row g of wgmma, and 2 g + 1 is g + 8: then the eight rows that a
     * half of the warp reads at once are in different banks. */
    int group = thread / 128, lane = thread % 32, t = lane % 4;
    int row = thread % 128 / 32 * 16 + lane / 4 * 2 + (ROW_GROUPS == 2 ? group * 64 : 0);
    int column = COLUMN_GROUPS == 2 ? group * COLUMNS : 0;
    int half = size::SUM_GROUPS == 2 ? group : 0; /* the second 32 of every 64 columns */
    int swizzle = (t / 2 ^ row % 8 ^ half * 4) * 16;
    const unsigned char *x = ring + row * TILE_ROW_BYTES + t % 2 * 8;
    const unsigned char *w = ring + 2 * size::X_BYTES + column * TILE_ROW_BYTES;
    int stage = 0;
    bool begun = false;
    unsigned parity = 0;
    for (int tile = cluster; tile < p.n_row_tiles * p.n_column_tiles; tile += n_clusters) {
        struct tile_place place = place_of<size>(&p, tile);
        struct tile_sums<COLUMNS> sums = {};
        int8_t exponent = load_exponent<size>(&p, &place);
        for (int step = first; step < end; step++) {
            bulk_wait(&arrived[stage], parity, size::STAGES - 2);
            UNROLL
            for (int i = 0; i < STEP / 32; i += size::SUM_GROUPS) {
                const unsigned char *digits = w + stage * size::STAGE_BYTES;
                struct row_digits rows =
                    load_digits<size>(x + stage * size::STAGE_BYTES, row < p.x_rows, swizzle, i);
                multiply(&sums, &rows, shared_matrix_swizzled(digits, 2 * (i + half)),
                         shared_matrix_swizzled(digits + size::W_BYTES, 2 * (i + half)));
                wgmma_wait_but_last();
                if (i == 0 && begun) { /* now all are done with the stage before */
                    __syncthreads();
                    if (copied >= 0 && next.has_more()) {
                        next.copy(copied);
                        next.advance();
                    }
                    bulk_end_group();
                }
            }
            begun = true;
            stage = stage + 1 < size::STAGES ? stage + 1 : 0;
            parity ^= stage == 0;
        }
        wgmma_wait();
        wgmma_settle(sums.high);
        wgmma_settle(sums.middle);
        wgmma_settle(sums.low);
        /* All are done with the ring and with the exponents of the last tile. */
        __syncthreads();
        if (thread < size::ROWS + size::OUTS)
            exponents[thread] = exponent;
        const struct outputs o = {exponents + row,
                                  exponents + size::ROWS + column + 2 * t,
                                  place.w->y,
                                  place.first_token + row,
                                  place.first_out + column + 2 * t,
                                  p.n_tokens,
                                  place.w->n};
        if (p.exchanges) {
            exchange<size>(&sums, (double2 *)ring, &o, p.n_blocks);
        } else {
            __syncthreads();
            UNROLL
            for (int i = 0; i < COLUMNS / 4; i++)
                write_pair(&o, i, join_pair(&sums, i));
        }
    }
}

/* ---- the launch -------------------------------------------------------------------------------
 */

/* How many blocks share the sums of a tile, and how many clusters of so many run: as many blocks as
 * there are processors for, if each has two steps. */
template <int ROW_GROUPS, int COLUMN_GROUPS, int COLUMNS>
static int choose_clusters(struct gpu_device *gpu, struct product *p) {
    typedef tile_sizes<ROW_GROUPS, COLUMN_GROUPS, COLUMNS> size;
    auto *clusters = gpu->linear_clusters[COLUMNS == 32 ? 3 : COLUMNS == 64 ? 2 : ROW_GROUPS - 1];
    for (int i = 0; i < N_SPLITS && !clusters[N_SPLITS - 1].at_once; i++) {
        clusters[i].n_blocks = 1 << (N_SPLITS - 1 - i);
        if (!gpu_ok(gpu,
                    cluster_prepare(linear_5<ROW_GROUPS, COLUMN_GROUPS, COLUMNS>, &clusters[i].n_blocks, THREADS,
                                    size::SHARED_BYTES, &clusters[i].at_once),
                    "the linear layer's clusters"))
            return 0;
    }
    int n_tiles = p->n_row_tiles * p->n_column_tiles, i = 0;
    while (i < N_SPLITS - 1 &&
           (n_tiles > clusters[i].at_once || p->n_steps < 2 * clusters[i].n_blocks))
        i++;
    if (getenv("L5_SPLIT")) i = atoi(getenv("L5_SPLIT"));
    if (getenv("L5_PRINT")) { static int last; if (last != n_tiles) fprintf(stderr, "tiles %d: split %d; at once %d %d %d %d\n", n_tiles, clusters[i].n_blocks, clusters[0].at_once, clusters[1].at_once, clusters[2].at_once, clusters[3].at_once); last = n_tiles; }
    p->n_blocks = clusters[i].n_blocks;
    p->exchanges = i < N_SPLITS - 1 || size::SUM_GROUPS == 2;
    return p->exchanges || n_tiles < clusters[i].at_once ? n_tiles : clusters[i].at_once;
}

template <int ROW_GROUPS, int COLUMN_GROUPS, int COLUMNS>
static void launch_5(struct gpu_device *gpu, const struct linear_part *parts, int n_parts,
                     struct bfp_rows x, int n_tokens) {
    typedef tile_sizes<ROW_GROUPS, COLUMN_GROUPS, COLUMNS> size;
    int k = parts->w->k, padded = gpu_padded(k);
    struct product p = {};
    p.x_exponents = x.exponents;
    p.n_parts = n_parts;
    p.bandx = getenv("L5_BAND") ? atoi(getenv("L5_BAND")) : 8;
    p.n_tokens = n_tokens;
    p.n_steps = (padded + STEP - 1) / STEP;
    p.n_row_tiles = (n_tokens + size::ROWS - 1) / size::ROWS;
    p.x_rows = min((n_tokens + 7) / 8 * 8, (int)size::ROWS);
    struct tile_source rows = {x.mantissas, 2, n_tokens, k, 2 * (size_t)k, p.x_rows};
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
    int n_clusters = choose_clusters<ROW_GROUPS, COLUMN_GROUPS, COLUMNS>(gpu, &p);
    if (gpu->failed)
        return;
    LAUNCH_CLUSTERS((linear_5<ROW_GROUPS, COLUMN_GROUPS, COLUMNS>), n_clusters, p.n_blocks, THREADS,
                    size::SHARED_BYTES, gpu->stream, p);
    gpu->launches++;
    gpu_ok(gpu, cudaGetLastError(), "linear_5");
}

bool gpu_linear_many_rows_fits(const struct gpu_device *gpu, const struct matrix *w) {
    return gpu->has_wgmma && gpu_padded(w->k) <= MAX_K && w->k % 8 == 0;
}

void gpu_linear_many_rows(struct gpu_device *gpu, const struct linear_part *parts, int n_parts,
                          struct bfp_rows x, int n_tokens) {
    int n_column_tiles = 0;
    for (int i = 0; i < n_parts; i++)
        n_column_tiles += (parts[i].w->n + 127) / 128;
    int tile = n_tokens <= 64 ? (n_column_tiles * 4 <= gpu->n_processors ? 1 : 2) : 3;
    if (getenv("L5_TILE"))
        tile = atoi(getenv("L5_TILE"));
    if (tile == 1)
        launch_5<1, 1, 64>(gpu, parts, n_parts, x, n_tokens);
    else if (tile == 2)
        launch_5<1, 1, 128>(gpu, parts, n_parts, x, n_tokens);
    else if (tile == 3)
        launch_5<2, 1, 128>(gpu, parts, n_parts, x, n_tokens);
    else
        launch_5<1, 2, 32>(gpu, parts, n_parts, x, n_tokens);
}
