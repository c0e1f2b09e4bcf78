/*
 * linear, version 5: computes what ../../linear.cu does, for 9 or 17 rows and more, where the GPU
 * has wgmma. Gains 1.4 to 2.2 times the speed of cuBLAS on int8 digits (version 3): W is read once,
 * and four products of digits meet in registers, not in memory.
 *
 * Tensor maps copy tiles of x and W to a ring in shared memory (tiles.h says what happens to them).
 * Where there are fewer tiles than processors, a cluster of blocks shares the columns of a tile.
 * Its partial sums are doubles that hold integers below 2^53, so the order in which they meet does
 * not matter.
 */
#include "gpu/fast/linear/many_rows.h"

/* This thread's share of the outputs, from what the blocks of the cluster have put into their
 * shared memory, which must be there until all have read. */
template <class size, int N_BLOCKS>
static __device__ __forceinline__ void take_share(const double2 *shared, const struct outputs *o) {
    const int SHARE = size::PAIRS / N_BLOCKS;
    int first = cluster_rank() * SHARE;
    double2 dots[SHARE] = {};
    UNROLL
    for (int block = 0; block < N_BLOCKS; block++)
        UNROLL
    for (int i = 0; i < SHARE; i++) {
        double2 part = load_from_peer(&shared[(first + i) * THREADS], block);
        dots[i].x += part.x;
        dots[i].y += part.y;
    }
    cluster_arrive();
    UNROLL
    for (int i = 0; i < SHARE; i++)
        write_outputs<size>(o, first + i, dots[i]);
    cluster_wait();
}

template <class size, int COLUMNS>
static __device__ __forceinline__ void exchange(const tile_sums<COLUMNS> *s, double2 *shared,
                                                const struct outputs *o, int n_blocks) {
    shared += threadIdx.x;
    UNROLL
    for (int i = 0; i < size::PAIRS; i++)
        shared[i * THREADS] = join_outputs<size>(s, i);
    cluster_arrive();
    cluster_wait();
    if (n_blocks == 4)
        take_share<size, 4>(shared, o);
    else if (n_blocks == 2)
        take_share<size, 2>(shared, o);
    else
        take_share<size, 1>(shared, o); /* in the emulation */
}

template <int ROWS, int COLUMNS>
__global__ static void __launch_bounds__(THREADS, 1)
    linear_5(const __grid_constant__ struct product p) {
    typedef tile_sizes<ROWS, COLUMNS> size;
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
        tile_map_prefetch(&p.x_map);
    }
    __syncthreads();
    if (copied >= 2)
        wait_for_previous_kernel();
    for (int i = 0; copied >= 0 && i < size::STAGES && next.has_more(); i++, next.advance())
        next.copy(copied);
    wait_for_previous_kernel();
    for (int i = 0; i < size::STAGES; i++)
        bulk_end_group();

    /* This thread's row of x, or the first of two: g and g + 8 of its warp's 16. Their order is one
     * in which the rows that a half of the warp reads at once are in different banks. */
    int lane = thread % 32, g = lane / 4, t = lane % 4;
    int row = size::STACKED ? thread / 32 * 8 + g % 4 * 2 + g / 4 : thread / 32 * 16 + g * 2;
    bool has_rows = thread / 128 * size::ROWS / 2 < p.x_rows; /* its group */
    int swizzle = (t / 2 ^ row % 8) * 16;
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
            for (int i = 0; i < STEP / 32; i += size::QUARTERS) {
                struct row_digits digits =
                    load<size>(x + stage * size::STAGE_BYTES, row < p.x_rows, swizzle, i);
                if (!size::STACKED || has_rows) /* in the other kind it costs registers */
                    multiply<size>(&sums, &digits, w + stage * size::STAGE_BYTES, i);
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
        if (!size::STACKED)
            wgmma_settle(sums.middle);
        wgmma_settle(sums.low);
        /* All are done with the ring and with the exponents of the last tile. */
        __syncthreads();
        if (thread < size::ROWS + size::OUTS)
            exponents[thread] = exponent;
        __syncthreads();
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
            UNROLL
            for (int i = 0; i < size::PAIRS; i++)
                write_outputs<size>(&o, i, join_outputs<size>(&sums, i));
        }
    }
}

/* ---- the launch -------------------------------------------------------------------------------
 */

/* How many blocks share the sums of a tile, and how many clusters of so many run: as many blocks as
 * there are processors for, if each has two steps. clusters: of this kind of tile; those with room
 * for none are asked for. Returns 0 when the device failed. */
template <class size>
static int choose_clusters(struct gpu_device *gpu, void (*kernel)(struct product),
                           struct linear_clusters *clusters, struct product *p) {
    for (int i = 0; i < N_SPLITS && !clusters[N_SPLITS - 1].at_once; i++) {
        clusters[i].n_blocks = 1 << (N_SPLITS - 1 - i);
        if (!gpu_ok(gpu,
                    cluster_prepare(kernel, &clusters[i].n_blocks, THREADS, size::SHARED_BYTES,
                                    &clusters[i].at_once),
                    "the linear layer's clusters"))
            return 0;
    }
    int n_tiles = p->n_row_tiles * p->n_column_tiles, i = 0;
    while (i < N_SPLITS - 1 &&
           (n_tiles > clusters[i].at_once || p->n_steps < 2 * clusters[i].n_blocks))
        i++;
    p->n_blocks = clusters[i].n_blocks;
    p->exchanges = i < N_SPLITS - 1;
    return p->exchanges || n_tiles < clusters[i].at_once ? n_tiles : clusters[i].at_once;
}

/* Tensor maps of x and of the parts' digits. False: there are none. */
template <class size> static bool make_maps(struct product *p) {
    for (int i = 0; i < p->n_parts; i++) {
        struct weights *w = &p->parts[i];
        int padded = gpu_padded(p->k);
        struct tile_source digits = {w->digits, 1, 2 * w->n, padded, (size_t)padded, size::OUTS};
        if (!tile_map_make(&w->map, &digits))
            return false;
    }
    struct tile_source x = {p->x.mantissas, 2, p->n_tokens, p->k, 2 * (size_t)p->k, p->x_rows};
    return tile_map_make(&p->x_map, &x);
}

template <int ROWS, int COLUMNS>
static void launch_5(struct gpu_device *gpu, struct linear_clusters *clusters,
                     const struct linear_part *parts, int n_parts, struct bfp_rows x,
                     int n_tokens) {
    typedef tile_sizes<ROWS, COLUMNS> size;
    auto linear = linear_5<ROWS, COLUMNS>;
    struct product p = number_tiles<size>(parts, n_parts, x, n_tokens);
    p.n_steps = (gpu_padded(p.k) + STEP - 1) / STEP;
    p.x_rows = min((n_tokens + 7) / 8 * 8, (int)size::ROWS);
    if (!make_maps<size>(&p))
        gpu_failed(gpu, "linear", "no tensor maps");
    int n_clusters = choose_clusters<size>(gpu, linear, clusters, &p);
    if (gpu->failed)
        return;
    LAUNCH_CLUSTERS(linear, n_clusters, p.n_blocks, THREADS, size::SHARED_BYTES, gpu->stream, p);
    gpu->launches++;
    gpu_ok(gpu, cudaGetLastError(), "linear_5");
}

bool gpu_linear_many_rows_fits(const struct gpu_device *gpu, const struct matrix *w) {
    return gpu->has_wgmma && gpu_padded(w->k) <= MAX_K && w->k % 8 == 0;
}

/* How many tiles of 64 rows by so many outputs there are. */
static int count_tiles(const struct linear_part *parts, int n_parts, int n_tokens, int outs) {
    int n = 0;
    for (int i = 0; i < n_parts; i++)
        n += (parts[i].w->n + outs - 1) / outs;
    return n * ((n_tokens + 63) / 64);
}

/* The smallest tiles of which there are not too many: README.md. */
void gpu_linear_many_rows(struct gpu_device *gpu, const struct linear_part *parts, int n_parts,
                          struct bfp_rows x, int n_tokens) {
    struct linear_clusters(*clusters)[N_SPLITS] = gpu->linear_clusters;
    int small = count_tiles(parts, n_parts, n_tokens, 64);
    int large = count_tiles(parts, n_parts, n_tokens, 128);
    int most = gpu->n_processors, k = parts->w->k;
    if (2 * small <= most || (small <= most && k <= 1024))
        launch_5<64, 64>(gpu, clusters[0], parts, n_parts, x, n_tokens);
    else if (large <= most || n_tokens <= 64)
        launch_5<64, 128>(gpu, clusters[1], parts, n_parts, x, n_tokens);
    else
        launch_5<128, 128>(gpu, clusters[2], parts, n_parts, x, n_tokens);
}
