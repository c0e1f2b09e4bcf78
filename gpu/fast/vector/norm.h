/*
 * norm.h - computes what version 1 of ../../rmsnorm.cu and ../../rope.cu does, on rows and heads
 * that a warp, or several, hold in registers; gains a factor of 20 for rmsnorm over a thread per
 * row (8192 x 4096, H200). rmsnorm.cu, snap_rows.cu, silu_mul.cu, rope.cu and fast/step take from
 * here the norm, the rotation, and the rounding to BFP16.
 */
#ifndef SAMEBITS_GPU_FAST_VECTOR_NORM_H
#define SAMEBITS_GPU_FAST_VECTOR_NORM_H

#include "gpu/gpu.h"
#include "gpu/ptx/cluster.h"
#include "gpu/ptx/tensor_core.h"

static __device__ __forceinline__ uint32_t largest_of(float4 v) {
    return max(max(num_magnitude(v.x), num_magnitude(v.y)),
               max(num_magnitude(v.z), num_magnitude(v.w)));
}

/* The largest magnitude of a thread's vectors. */
template <int VECTORS>
static __device__ __forceinline__ uint32_t largest_of_vectors(const float4 (&v)[VECTORS]) {
    uint32_t largest = 0;
    UNROLL
    for (int i = 0; i < VECTORS; i++)
        largest = max(largest, largest_of(v[i]));
    return largest;
}

/* num_mantissa of a row that can be snapped, in one operation: of the product, only what is far
 * below 1 would be rounded. The lower half of the bits is the mantissa; as it is an integer if what
 * was added is taken off again. */
static __device__ __forceinline__ uint32_t mantissa_bits(float x, float scale) {
    return num_bits(fmaf(x, scale, 12582912.0f));
}
static __device__ __forceinline__ int near_mantissa(float x, float scale) {
    return (int)(mantissa_bits(x, scale) - num_bits(12582912.0f));
}

static __device__ __forceinline__ long long squares_of(float4 v, float scale) {
    int a = near_mantissa(v.x, scale), b = near_mantissa(v.y, scale);
    int c = near_mantissa(v.z, scale), d = near_mantissa(v.w, scale);
    return (long long)((unsigned)a * (unsigned)a + (unsigned)b * (unsigned)b) +
           (long long)((unsigned)c * (unsigned)c + (unsigned)d * (unsigned)d);
}

/* num_rms_factor, out of line: it is seldom needed, and long. */
static __device__ OUT_OF_LINE float rms_factor_exactly(long long sum, int e, int n, double eps) {
    return num_rms_factor(sum, e, n, eps);
}

/*
 * num_rms_factor, without its division and its square root wherever an estimate will do: rsqrt is
 * off by less than 2^-51 of itself, the two roundings of 1 / sqrt by less than that, so that both
 * become the same float unless a tie of floats lies between, within 64 units of a double. (A
 * division by a power of two is a product.)
 */
static __device__ __forceinline__ float rms_factor(long long sum, int e, int n, double eps) {
#ifdef __CUDA_ARCH__
    double mean = (double)sum * num_pow2(2 * (e - 15));
    double x = ((n & (n - 1)) == 0 ? mean * num_pow2(__clz(n) - 31) : mean / n) + eps;
    double near = rsqrt(x);
    int from_tie = (__double2loint(near) & 0x1fffffff) - 0x10000000;
    if (near > 0x1p-100 && near < 0x1p100 && abs(from_tie) > 64)
        return (float)near;
#endif
    return rms_factor_exactly(sum, e, n, eps);
}

/* What the row is multiplied by; thread `lane` of its WARPS warps holds v, zeros behind the end. */
template <int WARPS, int VECTORS>
static __device__ __forceinline__ float factor_of_row(const float4 (&v)[VECTORS], int lane,
                                                      int n_cols, double eps, int site, int token,
                                                      unsigned long long *fault) {
    SHARED(uint32_t, part_max, [WARPS]);
    SHARED(long long, part_sum, [WARPS]);
    int e = num_row_exponent(row_max<WARPS>(largest_of_vectors(v), part_max));
    bool bad = e > BFP_MAX_EXPONENT;
    if (bad && lane == 0)
        gpu_fault(fault, site, token);
    e = bad ? BFP_MIN_EXPONENT : e;
    float scale = num_pow2f(15 - e);
    long long sum = 0;
    UNROLL
    for (int i = 0; i < VECTORS; i++)
        sum += squares_of(v[i], scale);
    sum = bad ? 0 : sum;
    return rms_factor(row_sum<WARPS>(sum, part_sum), e, n_cols, eps);
}

static __device__ __forceinline__ float4 normed(float4 v, float r, float4 g) {
    return make_float4(v.x * r * g.x, v.y * r * g.y, v.z * r * g.z, v.w * r * g.w);
}

/* Four neighbours of a row whose exponent e gave scale = 2^(15-e), snapped. */
static __device__ __forceinline__ uint2 mantissas_of(float4 v, float scale) {
    uint32_t a = mantissa_bits(v.x, scale), b = mantissa_bits(v.y, scale);
    uint32_t c = mantissa_bits(v.z, scale), d = mantissa_bits(v.w, scale);
    return make_uint2(__byte_perm(a, b, 0x5410), __byte_perm(c, d, 0x5410));
}

/* Snaps row number `row` of y, whose largest magnitude is given, in vectors of four, of which
 * thread `lane` of n holds v: every n-th, zeros behind the end. */
template <int VECTORS>
static __device__ __forceinline__ void
snap_vectors(struct bfp_rows y, const float4 (&v)[VECTORS], uint32_t largest, int row,
             int n_vectors, int lane, int n, int site, unsigned long long *fault) {
    int e = num_row_exponent(largest);
    bool bad = e > BFP_MAX_EXPONENT;
    e = bad ? BFP_MIN_EXPONENT : e;
    UNROLL
    for (int i = 0; i < VECTORS; i++) {
        int j = lane + i * n;
        if (j < n_vectors)
            ((uint2 *)y.mantissas)[(size_t)row * (size_t)n_vectors + (size_t)j] =
                bad ? make_uint2(0, 0) : mantissas_of(v[i], num_pow2f(15 - e));
    }
    if (lane == 0) {
        if (bad)
            gpu_fault(fault, site, row);
        y.exponents[row] = (int8_t)e;
    }
}

/* silu_mul of four neighbours. */
static __device__ __forceinline__ float4 gated(float4 g, float4 u) {
    return make_float4(num_silu(g.x) * u.x, num_silu(g.y) * u.y, num_silu(g.z) * u.z,
                       num_silu(g.w) * u.w);
}

/* Vectors lane, lane + n, ... of a row of x, if GATED as a gate of the row of `up`. */
template <bool GATED, int VECTORS>
static __device__ __forceinline__ void load_vectors(float4 (&v)[VECTORS], const float4 *x,
                                                    const float4 *up, int n_vectors, int lane,
                                                    int n) {
    UNROLL
    for (int i = 0; i < VECTORS; i++) {
        int j = lane + i * n;
        v[i] = make_float4(0, 0, 0, 0);
        if (j < n_vectors)
            v[i] = GATED ? gated(x[j], up[j]) : x[j];
    }
}

/* Snaps rows of x, if GATED x as a gate of `up`; VECTORS per thread of the WARPS warps of a row. */
template <bool GATED, int WARPS, int VECTORS>
__global__ static void snap_in_registers(struct bfp_rows y, const float4 *x, const float4 *up,
                                         int n_rows, int n_vectors, int site,
                                         unsigned long long *fault) {
    run_in_turn();
    SHARED(uint32_t, part, [WARPS]);
    int row = (int)(blockIdx.x * blockDim.y + threadIdx.y), lane = (int)threadIdx.x;
    if (row >= n_rows)
        return;
    size_t at = (size_t)row * (size_t)n_vectors;
    float4 v[VECTORS];
    load_vectors<GATED>(v, x + at, up + at, n_vectors, lane, WARPS * 32);
    snap_vectors(y, v, row_max<WARPS>(largest_of_vectors(v), part), row, n_vectors, lane,
                 WARPS * 32, site, fault);
}

/* snap_in_registers with a cluster of blocks for a row, which tell each other their largest
 * magnitudes: one processor would be busy for long with the exponentials of 14336 gates, and even
 * with those of 3072. */
enum {
    CLUSTER_BLOCKS = cluster_blocks(8),
    CLUSTER_VECTORS = 8 / CLUSTER_BLOCKS,
    MOST_IN_CLUSTERS = 64 /* rows */
};

template <bool GATED, int WARPS>
__global__ static void snap_in_cluster(struct bfp_rows y, const float4 *x, const float4 *up,
                                       int n_vectors, int site, unsigned long long *fault) {
    SHARED(uint32_t, part, [WARPS]);
    SHARED(float, of_block, [CLUSTER_BLOCKS]); /* the bits of an integer */
    SHARED(struct peer_barrier, told, [1]);
    if (threadIdx.x == 0) {
        peer_barrier_start(told);
        peer_expect(told, CLUSTER_BLOCKS * (int)sizeof *of_block);
    }
    cluster_arrive();
    let_next_kernel_start();
    const int threads = WARPS * 32, n = CLUSTER_BLOCKS * threads;
    int row = (int)blockIdx.x / CLUSTER_BLOCKS, rank = cluster_rank();
    int lane = rank * threads + (int)threadIdx.x;
    size_t at = (size_t)row * (size_t)n_vectors;
    float4 v[CLUSTER_VECTORS];
    wait_for_previous_kernel();
    load_vectors<GATED>(v, x + at, up + at, n_vectors, lane, n);
    uint32_t largest = row_max<WARPS>(largest_of_vectors(v), part);
    cluster_wait(); /* the barriers of all have begun */
    if ((int)threadIdx.x < CLUSTER_BLOCKS)
        store_to_peer(&of_block[rank], (int)threadIdx.x, num_float(largest), told);
    peer_wait(told, 0, true);
    for (int i = 0; i < CLUSTER_BLOCKS; i++)
        largest = max(largest, num_bits(of_block[i]));
    snap_vectors(y, v, largest, row, n_vectors, lane, n, site, fault);
}

/* Starts it, with a warp for a short row, 16 or 32, or a cluster. False: rows that are too long, or
 * no vectors. */
template <bool GATED>
static inline bool launch_snap(struct gpu_device *gpu, struct bfp_rows y, const float *x,
                               const float *up, int n_rows, int n_cols, int site) {
    if (n_cols % 4 || n_cols > 16384)
        return false;
    if (gpu->failed)
        return true;
    bool is_long = n_cols > 4096;
    if ((is_long || (GATED && n_cols > 1024)) && n_rows <= MOST_IN_CLUSTERS && gpu->has_wgmma) {
        auto snap = is_long ? snap_in_cluster<GATED, 16> : snap_in_cluster<GATED, 4>;
        LAUNCH_CLUSTERS(snap, n_rows, (int)CLUSTER_BLOCKS, is_long ? 512 : 128, 0, gpu->stream, y,
                        (const float4 *)x, (const float4 *)up, n_cols / 4, site, gpu->fault);
        gpu->launches++;
        gpu_ok(gpu, cudaGetLastError(), "snapping in clusters");
        return true;
    }
    bool is_short = n_cols <= 1024;
    bool is_wide = n_cols > 2048 && n_cols <= 4096 && n_rows <= gpu->n_processors;
    auto snap = is_short         ? snap_in_registers<GATED, 1, 8>
                : is_wide        ? snap_in_registers<GATED, 32, 1>
                : n_cols <= 2048 ? snap_in_registers<GATED, 16, 1>
                : n_cols <= 4096 ? snap_in_registers<GATED, 16, 2>
                                 : snap_in_registers<GATED, 16, 8>;
    GPU_LAUNCH_EARLY(gpu, snap, is_short ? gpu_blocks((size_t)n_rows, 4) : (unsigned)n_rows,
                     is_short ? dim3(32, 4) : dim3(is_wide ? 1024 : 512), 0, y, (const float4 *)x,
                     (const float4 *)up, n_rows, n_cols / 4, site, gpu->fault);
    return true;
}

/* ---- heads: the pairs (d, d + half), of which lane `lane` has d = lane, lane + 32, ... ------ */

/* Zeros behind the end. */
template <int PAIRS>
static __device__ __forceinline__ void load_pairs(float (&a)[PAIRS], float (&b)[PAIRS],
                                                  const float *x, int half, int lane) {
    UNROLL
    for (int i = 0; i < PAIRS; i++) {
        int d = lane + 32 * i;
        a[i] = d < half ? x[d] : 0;
        b[i] = d < half ? x[half + d] : 0;
    }
}

template <int PAIRS>
static __device__ __forceinline__ uint32_t largest_of_pairs(const float (&a)[PAIRS],
                                                            const float (&b)[PAIRS]) {
    uint32_t largest = 0;
    UNROLL
    for (int i = 0; i < PAIRS; i++)
        largest = max(largest, max(num_magnitude(a[i]), num_magnitude(b[i])));
    return warp_max(largest);
}

/* The exponent of a head; a fault and the smallest one, if it cannot be snapped, which is bad. */
template <int PAIRS>
static __device__ __forceinline__ int exponent_of_pairs(bool *bad, const float (&a)[PAIRS],
                                                        const float (&b)[PAIRS], int lane, int site,
                                                        int token, unsigned long long *fault) {
    int e = num_row_exponent(largest_of_pairs(a, b));
    *bad = e > BFP_MAX_EXPONENT;
    if (*bad && lane == 0)
        gpu_fault(fault, site, token);
    return *bad ? BFP_MIN_EXPONENT : e;
}

/* rmsnorm of the head, whose gains the lane has for its pairs. */
template <int PAIRS>
static __device__ __forceinline__ void
norm_pairs(float (&a)[PAIRS], float (&b)[PAIRS], const float (&gain)[2][PAIRS], int half, int lane,
           double eps, int site, int token, unsigned long long *fault) {
    bool bad;
    int e = exponent_of_pairs(&bad, a, b, lane, site, token, fault);
    float scale = num_pow2f(15 - e);
    long long sum = 0;
    UNROLL
    for (int i = 0; i < PAIRS; i++) {
        unsigned m = (unsigned)near_mantissa(a[i], scale), n = (unsigned)near_mantissa(b[i], scale);
        sum += bad ? 0 : (long long)(m * m + n * n);
    }
    float r = rms_factor(warp_sum(sum), e, 2 * half, eps);
    UNROLL
    for (int i = 0; i < PAIRS; i++) {
        a[i] = a[i] * r * gain[0][i];
        b[i] = b[i] * r * gain[1][i];
    }
}

/* Rotates a pair by the angle with cosine c and sine s. */
static __device__ __forceinline__ void rotate(float *a, float *b, float c, float s) {
    float x = *a, y = *b;
    *a = x * c - y * s;
    *b = y * c + x * s;
}

#endif
