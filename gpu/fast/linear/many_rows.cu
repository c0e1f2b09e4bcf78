/*
 * linear, version 5: computes what ../../linear.cu does, for 17 rows and more, where the GPU has
 * wgmma. Gains 1.3 to 1.6 times the speed of cuBLAS on int8 digits (version 3): W is read once, and
 * four products of digits meet in registers, not in memory.
 *
 * A block multiplies a tile of x by a tile of W. Tensor maps copy both to a ring in shared memory;
 * x arrives as 16-bit mantissas, and becomes digits on its way to registers, W lies there as
 * digits. With digits h and l, x w = 65536 hh + 256 (hl + lh) + ll: three sums of int32, which fit,
 * because a digit is -128 ... 127, and no mantissa is above 127 * 256 + 127:
 *
 *     |hh| <= 127 * 127 * 65536,  |ll| <= 128 * 128 * 65536 = 2^30,
 *     |hl + lh| <= 2 * 127 * 128 * 65536 = 2^31 - 2^24          for up to 65536 columns
 *
 * They become one double, exactly, and the output is rounded once, as in the lesson. Where there
 * are fewer tiles than processors, a cluster of blocks shares the columns of a tile. Its partial
 * sums are doubles that hold integers below 2^53, so the order in which they meet does not matter.
 */
#include "gpu/fast/linear/many_rows.h"

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

template <int ROW_GROUPS, int COLUMNS>
__global__ static void __launch_bounds__(THREADS, 1)
    linear_5(const __grid_constant__ struct product p) {
    typedef tile_sizes<ROW_GROUPS, COLUMNS> size;
    SHARED_DYNAMIC(unsigned char, ring);
    if (!compiles_wgmma)
        return;
    let_next_kernel_start();
    struct bulk_barrier *arrived = (struct bulk_barrier *)(ring + size::STAGES * size::STAGE_BYTES);
    int8_t *exponents = (int8_t *)(arrived + size::STAGES); /* of rows, then of columns */
    int thread = (int)threadIdx.x, rank = cluster_rank();
    int first = p.n_steps * rank / p.n_blocks, end = p.n_steps * (rank + 1) / p.n_blocks;
    int n_clusters = (int)gridDim.x / p.n_blocks, cluster = (int)blockIdx.x / p.n_blocks;
    struct loader<size> next = {
        &p, ring, arrived, first, end, cluster, first, 0, n_clusters, {
        }
    };
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
    int half = size::SUM_GROUPS == 2 ? group : 0; /* the second 32 of every 64 columns */
    int swizzle = (t / 2 ^ row % 8 ^ half * 4) * 16;
    const unsigned char *x = ring + row * TILE_ROW_BYTES + t % 2 * 8;
    const unsigned char *w = ring + 2 * size::X_BYTES;
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
                                  exponents + size::ROWS + 2 * t,
                                  place.w->y,
                                  place.first_token + row,
                                  place.first_out + 2 * t,
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
 * there are processors for, if each has two steps. clusters: of this kind of tile; those with room
 * for none are asked for. Returns 0 when the device failed. */
template <int ROW_GROUPS, int COLUMNS>
static int choose_clusters(struct gpu_device *gpu, struct linear_clusters *clusters,
                           struct product *p) {
    typedef tile_sizes<ROW_GROUPS, COLUMNS> size;
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
    p->exchanges = i < N_SPLITS - 1 || size::SUM_GROUPS == 2;
    return p->exchanges || n_tiles < clusters[i].at_once ? n_tiles : clusters[i].at_once;
}

/* The parts as tensor maps of their digits, and their tiles numbered. False: no tensor maps. */
template <class size> static bool map_weights(struct product *p, const struct linear_part *parts) {
    for (int i = 0; i < p->n_parts; i++) {
        const struct matrix *m = parts[i].w;
        struct weights *w = &p->parts[i];
        int padded = gpu_padded(m->k);
        struct tile_source digits = {m->mantissas, 1, 2 * m->n, padded, (size_t)padded, size::OUTS};
        if (!tile_map_make(&w->digits, &digits))
            return false;
        w->exponents = m->exponents;
        w->y = parts[i].y;
        w->n = m->n;
        w->first_tile = p->n_column_tiles;
        p->n_column_tiles += (m->n + size::OUTS - 1) / size::OUTS;
    }
    return true;
}

template <int ROW_GROUPS, int COLUMNS>
static void launch_5(struct gpu_device *gpu, struct linear_clusters *clusters,
                     const struct linear_part *parts, int n_parts, struct bfp_rows x,
                     int n_tokens) {
    typedef tile_sizes<ROW_GROUPS, COLUMNS> size;
    int k = parts->w->k;
    struct product p = {};
    p.x_exponents = x.exponents;
    p.n_parts = n_parts;
    p.n_tokens = n_tokens;
    p.n_steps = (gpu_padded(k) + STEP - 1) / STEP;
    p.n_row_tiles = (n_tokens + size::ROWS - 1) / size::ROWS;
    p.x_rows = min((n_tokens + 7) / 8 * 8, (int)size::ROWS);
    struct tile_source rows = {x.mantissas, 2, n_tokens, k, 2 * (size_t)k, p.x_rows};
    if (!tile_map_make(&p.x, &rows) || !map_weights<size>(&p, parts))
        gpu_failed(gpu, "linear", "no tensor maps");
    int n_clusters = choose_clusters<ROW_GROUPS, COLUMNS>(gpu, clusters, &p);
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

/* Tiles of 64 rows by 64 or 128 outputs, and of 128 by 128: with few rows, small tiles are work for
 * more processors. */
void gpu_linear_many_rows(struct gpu_device *gpu, const struct linear_part *parts, int n_parts,
                          struct bfp_rows x, int n_tokens) {
    if (n_tokens <= 64)
        launch_5<1, 64>(gpu, gpu->linear_clusters[0], parts, n_parts, x, n_tokens);
    else if (n_tokens <= 128)
        launch_5<1, 128>(gpu, gpu->linear_clusters[1], parts, n_parts, x, n_tokens);
    else
        launch_5<2, 128>(gpu, gpu->linear_clusters[2], parts, n_parts, x, n_tokens);
}
