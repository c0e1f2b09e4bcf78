/*
 * gpu.h - what the CUDA files share: the device, its scratch memory, checked calls and launches.
 *
 * Every op has the name and the signature of its twin in ref/, mostly in a file of the same name,
 * and gives the same bits (decode_step, a whole pass in one kernel, has no twin: those of its ops
 * are). A file holds the versions of its kernel from the plain one to the best.
 *
 * Errors are sticky: the first CUDA error is kept, later ops of the device do nothing, and the next
 * sync reports it. So the forward pass stays a plain list of calls.
 *
 * Each kernel file compiles for a GPU (nvcc) and for the emulation (g++, gpu/emu).
 */
#ifndef SAMEBITS_GPU_H
#define SAMEBITS_GPU_H

#include "gpu/cuda_compat.h"
#include "model/numerics.h"
#include "model/ops.h"

#include <type_traits>

/* What the device is called: compiled for the emulation, too. */
#ifdef SAMEBITS_EMU
#define GPU_NAME "emu"
#else
#define GPU_NAME "gpu"
#endif

/* A function that programs of early phases are linked without: its address is NULL there. */
#define LINKED_LATER __attribute__((weak))

enum gpu_kernel {
    GPU_SNAP_ROWS,
    GPU_LINEAR,
    GPU_RMSNORM,
    GPU_ADD_RMSNORM,
    GPU_NORM_ROPE,
    GPU_KV_GATHER,
    GPU_ATTENTION,
    GPU_ATTEND,
    GPU_ATTENTION_PLAN,
    GPU_SILU_MUL,
    GPU_SILU_MUL_SNAP,
    GPU_ADD,
    GPU_DECODE_STEP,
    N_GPU_KERNELS
};

/* Scratch areas used at the same time; each grows to the largest size ever asked for. */
enum gpu_scratch {
    GPU_SCRATCH_X,
    GPU_SCRATCH_W,
    GPU_SCRATCH_SUMS,
    GPU_SCRATCH_SAMPLING,
    GPU_SCRATCH_ATTENTION,
    GPU_SCRATCH_PARTIAL,
    GPU_SCRATCH_STEP,
    GPU_SCRATCH_PACKED,
    GPU_SCRATCH_EXCHANGE,
    GPU_SCRATCH_LAYERS,
    GPU_SCRATCH_HASHED,
    N_GPU_SCRATCH
};

enum { N_SPLITS = 3 }; /* of a sum in linear: 4, 2, 1 parts */

/* Clusters of n_blocks blocks, of which at_once run at the same time; 0: not asked for. */
struct linear_clusters {
    int n_blocks, at_once;
};

/* What norm_rope leaves to attend (struct kv_target), for the kernel for decoding: one new token of
 * each sequence, whose key and value become the newest of the cache. */
struct new_tokens {
    const float *k, *v;           /* [n_tokens, n_kv_heads, head_dim] */
    const float *q_gain, *k_gain; /* [head_dim], or NULL */
    const float *cos, *sin;       /* [n_positions, head_dim / 2] */
    double eps;
    int site_q, site_k, site_stored_k, site_stored_v;
};

struct gpu_device {
    struct device base;
    cudaStream_t stream;
    struct cublasContext *blas;
    unsigned long long *fault; /* site << 32 | token of the first fault; all ones: none. Memory of
                                  the host that kernels write to: a sync need not copy it */
    bool failed;
    struct error failure;        /* why, once failed */
    struct ref_threads *threads; /* of the host, for share_out; NULL: not wanted yet */
    int n_threads;               /* as many as it may have; 0: nobody said */
    int version[N_GPU_KERNELS];
    bool has_mma;   /* int8 tensor cores with 16 x 8 x 32 products: the GPU is 8.0 or newer, and the
                       kernels are compiled for that */
    bool has_wgmma; /* products of four warps: compute capability 9.0, compiled for sm_90a */
    int n_processors;    /* streaming multiprocessors */
    int most_shared;     /* bytes of shared memory that a thread block may have */
    int cache_bytes;     /* the L2 cache */
    bool recording;      /* between graph_begin and graph_end: what is launched will run again, with
                            other plans */
    bool launches_early; /* programmatic dependent launch: compute capability 9.0 */
    long launches;       /* kernels, cuBLAS calls and graphs so far */
    const float *sampled; /* what the last sample read: a kernel behind it may start while it runs,
                             and read the same */
    long sampled_at; /* `launches` after that sample: as many still, and nothing came between */
    cudaStream_t hash_stream; /* of hash_rows, behind an event of the other; NULL: not wanted yet */
    cudaEvent_t hash_copied;
    bool hashing;                     /* since hash_rows, until hash_wait */
    struct new_tokens left_to_attend; /* by norm_rope; k is NULL: nothing */
    long memory_changes;
    long weights_changes;      /* matrices filled and freed so far */
    struct {                   /* of decode_step (gpu/fast/step/step.cu) */
        const void *packed_of; /* the embedding of the model whose weights are packed, */
        long packed_at;        /* and weights_changes then */
        /* Two exchanges, of exchange_bytes each; the last launch had the second one, if odd, and
         * used so many of its bytes. */
        void *exchange;
        size_t exchange_bytes, used;
        bool odd;
        void *layers, *layers_device; /* what the kernel knows of the layers, and where that is */
        size_t layers_bytes;
        const void *kernel; /* the last one: it may use all shared memory */
    } step;
    struct linear_clusters linear_clusters[3][N_SPLITS]; /* of linear_5, for each kind of tile */
    struct {
        void *data;
        size_t bytes;
    } scratch[N_GPU_SCRATCH];
};

/* Whether attend of this plan can do norm_rope's work, too; not if another stands in the table. */
bool gpu_attend_takes_new(const struct gpu_device *gpu, const struct kv_views *kv,
                          const struct attention_plan *plan) LINKED_LATER;

/* Keeps the first failure of the device: what was done, and CUDA's word for it. Returns false. */
bool gpu_failed(struct gpu_device *gpu, const char *what, const char *why);

/* True when the call succeeded; otherwise the device has failed. */
bool gpu_ok(struct gpu_device *gpu, cudaError_t result, const char *what);

/* Scratch memory of at least this size, or NULL when the device has failed. */
void *gpu_scratch(struct gpu_device *gpu, enum gpu_scratch which, size_t bytes, const char *op);

/* Launches a kernel on the device's stream and checks it. Nothing happens when the device has
 * failed or there is nothing to do. */
#define GPU_LAUNCH(gpu, kernel, grid, block, shared_bytes, ...)                                    \
    do {                                                                                           \
        if (!(gpu)->failed) {                                                                      \
            LAUNCH(kernel, grid, block, shared_bytes, (gpu)->stream, __VA_ARGS__);                 \
            (gpu)->launches++;                                                                     \
            gpu_ok(gpu, cudaGetLastError(), #kernel);                                              \
        }                                                                                          \
    } while (0)

/* Launches a kernel that waits itself for the one before it (cuda_compat.h). */
#define GPU_LAUNCH_EARLY(gpu, kernel, grid, block, shared_bytes, ...)                              \
    do {                                                                                           \
        if (!(gpu)->launches_early) {                                                              \
            GPU_LAUNCH(gpu, kernel, grid, block, shared_bytes, __VA_ARGS__);                       \
        } else if (!(gpu)->failed) {                                                               \
            LAUNCH_EARLY(kernel, grid, block, shared_bytes, (gpu)->stream, __VA_ARGS__);           \
            (gpu)->launches++;                                                                     \
            gpu_ok(gpu, cudaGetLastError(), #kernel);                                              \
        }                                                                                          \
    } while (0)

static inline struct gpu_device *gpu_of(struct device *dev) {
    return reinterpret_cast<struct gpu_device *>(dev);
}

/* How many blocks of `size` cover `count`. */
static inline unsigned gpu_blocks(size_t count, size_t size) {
    return (unsigned)((count + size - 1) / size);
}

/* The bytes from one row of weights to the next: a multiple of 64, so that a warp reads whole
 * vectors and the padding (zeros) adds nothing to any sum. */
static inline __host__ __device__ int gpu_padded(int k) {
    return (k + 63) / 64 * 64;
}

/* Splits mantissas q [n_rows, k] into their digits: q = 256 * high + low. high and low are
 * [n_rows, gpu_padded(k)], zero in the padding. */
void gpu_split_digits(struct gpu_device *gpu, int8_t *high, int8_t *low, const int16_t *q,
                      int n_rows, int k);

/* ---- for kernels ---------------------------------------------------------------------------- */

/* Remembers a row that could not be snapped; the lowest (site, token) stays. */
static __device__ __forceinline__ void gpu_fault(unsigned long long *fault, int site, int token) {
    atomicMin(fault, (unsigned long long)(unsigned)site << 32 | (unsigned)token);
}

/* Whether a warp's largest number and sum are one instruction: compute capability 8.0 and later. */
#if defined(SAMEBITS_EMU) || (defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800)
static constexpr bool gpu_has_reductions = true;
#else
static constexpr bool gpu_has_reductions = false;
#endif

template <class T> static __device__ __forceinline__ T warp_max(T x) {
    if constexpr (gpu_has_reductions && std::is_integral_v<T> && sizeof(T) == 4) {
        return __reduce_max_sync(0xffffffffu, x);
    } else if constexpr (gpu_has_reductions && std::is_same_v<T, unsigned long long>) {
        unsigned high = (unsigned)(x >> 32), most = warp_max(high);
        return (T)most << 32 | warp_max(high == most ? (unsigned)x : 0u);
    } else {
        for (int step = 16; step; step /= 2) {
            T other = __shfl_xor_sync(0xffffffffu, x, step);
            x = other > x ? other : x;
        }
        return x;
    }
}

/* Sums of long long, of squares or products of mantissas, are below 2^52: two of 32 bits. */
template <class T> static __device__ __forceinline__ T warp_sum(T x) {
    if constexpr (gpu_has_reductions && std::is_integral_v<T> && sizeof(T) == 4) {
        return __reduce_add_sync(0xffffffffu, x);
    } else if constexpr (gpu_has_reductions && std::is_same_v<T, long long>) {
        T high = warp_sum((int)(x >> 26));
        return (high << 26) + warp_sum((unsigned)(x & 0x3ffffff));
    } else {
        for (int step = 16; step; step /= 2)
            x += __shfl_xor_sync(0xffffffffu, x, step);
        return x;
    }
}

/*
 * Maximum and sum over the WARPS warps that share a row; every thread gets the result. part is
 * shared memory of the block, one T per warp of the row. With one warp per row there is no barrier,
 * so rows of a block may end at different times; with more, the row is the whole block.
 */
template <int WARPS, class T, class Join>
static __device__ __forceinline__ T join_warps(T of_warp, T *part, Join join) {
    if (WARPS == 1)
        return of_warp;
    if (threadIdx.x % 32 == 0)
        part[threadIdx.x / 32] = of_warp;
    __syncthreads();
    T x = part[0];
    for (int i = 1; i < WARPS; i++)
        x = join(x, part[i]);
    __syncthreads(); /* part may be used again */
    return x;
}
template <int WARPS, class T> static __device__ __forceinline__ T row_max(T x, T *part) {
    return join_warps<WARPS>(warp_max(x), part, [](T a, T b) { return b > a ? b : a; });
}
template <int WARPS, class T> static __device__ __forceinline__ T row_sum(T x, T *part) {
    return join_warps<WARPS>(warp_sum(x), part, [](T a, T b) { return a + b; });
}

/*
 * The functions of the table, in the order of struct ops (model/ops.h), which describes them; each
 * is called gpu_... and has the type that it has there. LATER_OP: those of phase 8 and later.
 * (tests/check reads the names of the ops here.)
 */
/* clang-format off */
#define GPU_RUNTIME(OP)                                                                            \
    OP(alloc) OP(free) OP(alloc_host_visible) OP(free_host_visible) OP(available)                  \
    OP(upload) OP(download) OP(copy) OP(sync)                                                      \
    OP(graph_begin) OP(graph_end) OP(graph_run) OP(graph_free) OP(memory_changes)                  \
    OP(matrix_create) OP(matrix_put) OP(matrix_free)

#define GPU_OPS(OP, LATER_OP)                                                                      \
    OP(embed) OP(take_rows) OP(snap_rows) OP(linear) OP(linear_parts)                              \
    OP(row_largest) OP(snap_part) OP(linear_sums) OP(round_sums) OP(add_bias)                      \
    OP(rmsnorm) OP(add_rmsnorm) OP(rope) OP(norm_rope) OP(kv_append) OP(kv_gather) OP(attention)   \
    LATER_OP(attention_plan_new) LATER_OP(attention_plan_free) LATER_OP(attention_plan)            \
    LATER_OP(attention_plan_form) LATER_OP(attend) LATER_OP(merge_states) LATER_OP(finish_states)  \
    LATER_OP(kv_convert) OP(silu_mul) OP(silu_mul_snap) OP(add) OP(sample) LATER_OP(hash_rows)     \
    LATER_OP(hash_wait) LATER_OP(decode_step)
/* clang-format on */

#define DECLARE_OP(name) std::remove_pointer_t<decltype(ops::name)> gpu_##name;
GPU_RUNTIME(DECLARE_OP)
GPU_OPS(DECLARE_OP, DECLARE_OP)
#undef DECLARE_OP

#endif
