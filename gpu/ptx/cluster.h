/*
 * cluster.h - thread blocks that run at the same time and write to each other's shared memory
 * (thread block clusters; compute capability 9.0 and later).
 *
 *     cluster_rank()                     which block of the cluster this is
 *     cluster_arrive(), cluster_wait()   a barrier of all threads of the cluster
 *     store_to_peer(&there, rank, x, &b) *&there = x in the shared memory of block `rank`, where
 *                                        the same variables lie at the same places; its barrier b
 *                                        counts the bytes
 *
 *     load_from_peer(&there, rank)       what a peer wrote there itself, before a barrier
 *
 * Who gets something waits for its bytes, which is the only thing to wait for: a barrier of the
 * cluster would wait until all stores are acknowledged, and then for the others. A peer_barrier
 * stands for a series of rounds:
 *
 *     thread 0:    peer_barrier_start(&b); then cluster_arrive() and cluster_wait()
 *     thread 0:    peer_expect(&b, bytes);      of all peers, in this round
 *     all threads: peer_wait(&b, round % 2, needed);     those wait that need it: at least one warp
 *
 * Stores may come before they are expected, but not those of the next round: take two barriers in
 * turn. A block must not end while others still store to it.
 *
 * In the emulation a cluster is one block, which stores to itself, and waits for all its threads.
 *
 * See the CUDA programming guide, "Thread block clusters", and the PTX manual's barrier.cluster,
 * mapa, st.async and mbarrier.
 */
#ifndef SAMEBITS_GPU_PTX_CLUSTER_H
#define SAMEBITS_GPU_PTX_CLUSTER_H

#include "gpu/ptx/byte_barrier.h"

enum { MOST_CLUSTER_BLOCKS = 16 };

#ifdef SAMEBITS_EMU

static const bool compiles_clusters = true;

static inline int cluster_rank(void) {
    return 0;
}
struct peer_barrier {
    uint64_t unused;
};

static inline void cluster_arrive(void) {
}
static inline void cluster_wait(void) {
    __syncthreads();
}
static inline void peer_barrier_start(struct peer_barrier *) {
}
static inline void peer_expect(struct peer_barrier *, int) {
}
static inline void peer_wait(struct peer_barrier *, unsigned, bool) {
    __syncthreads();
}
static inline void store_to_peer(float *there, int, float x, struct peer_barrier *) {
    *there = x;
}

template <class T> static inline T load_from_peer(const T *there, int) {
    return *there;
}

/* How many blocks a cluster has that should have n. */
static constexpr int cluster_blocks(int) {
    return 1;
}

/* Two run at once: so tests have several clusters, and several rows in one. */
template <class... P>
static inline cudaError_t cluster_prepare(void (*kernel)(P...), int *n_blocks, int, int bytes,
                                          int *n_at_once) {
    *n_blocks = 1;
    *n_at_once = 2;
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}

#define LAUNCH_CLUSTERS(kernel, n_clusters, n_blocks, threads, bytes, stream, ...)                 \
    LAUNCH(kernel, (n_clusters) * (n_blocks), threads, bytes, stream, __VA_ARGS__)

#else

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
static const bool compiles_clusters = false;
#define CLUSTER_PTX(...) __trap()
#else
static const bool compiles_clusters = true;
#define CLUSTER_PTX(...) asm volatile(__VA_ARGS__)
#endif

static __device__ __forceinline__ int cluster_rank(void) {
    int rank = 0;
    CLUSTER_PTX("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

static __device__ __forceinline__ void cluster_arrive(void) {
    CLUSTER_PTX("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
static __device__ __forceinline__ void cluster_wait(void) {
    CLUSTER_PTX("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

struct peer_barrier {
    uint64_t state;
};

static __device__ __forceinline__ void peer_barrier_start(struct peer_barrier *b) {
    byte_barrier_start(&b->state);
}
static __device__ __forceinline__ void peer_expect(struct peer_barrier *b, int bytes) {
    byte_barrier_expect(&b->state, bytes);
}
static __device__ __forceinline__ void peer_wait(struct peer_barrier *b, unsigned parity,
                                                 bool needed) {
    if (needed)
        byte_barrier_wait(&b->state, parity);
}

static __device__ __forceinline__ uint32_t peer_address(const void *there, int rank) {
    uint32_t address = 0;
    CLUSTER_PTX("mapa.shared::cluster.u32 %0, %1, %2;"
                : "=r"(address)
                : "r"(shared_address(there)), "r"(rank));
    return address;
}
static __device__ __forceinline__ void store_to_peer(float *there, int rank, float x,
                                                     struct peer_barrier *b) {
    CLUSTER_PTX(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(
            peer_address(there, rank)),
        "f"(x), "r"(peer_address(b, rank))
        : "memory");
}

static __device__ __forceinline__ double2 load_from_peer(const double2 *there, int rank) {
    double2 x = {};
    CLUSTER_PTX("ld.shared::cluster.v2.f64 {%0, %1}, [%2];"
                : "=d"(x.x), "=d"(x.y)
                : "r"(peer_address(there, rank))
                : "memory");
    return x;
}

#undef CLUSTER_PTX

static constexpr int cluster_blocks(int n) {
    return n;
}

/* The launch of clusters, which may start early (LAUNCH_EARLY). attributes: room for two. */
static inline cudaLaunchConfig_t cluster_config(cudaLaunchAttribute *attributes, int n_clusters,
                                                int n_blocks, int threads, int bytes,
                                                cudaStream_t stream) {
    attributes[0] = {};
    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim.x = (unsigned)n_blocks;
    attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
    attributes[1] = {};
    attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[1].val.programmaticStreamSerializationAllowed = 1;
    return {dim3((unsigned)(n_clusters * n_blocks)),
            dim3((unsigned)threads),
            (size_t)bytes,
            stream,
            attributes,
            2};
}

/* Allows the kernel clusters of n_blocks, of so many threads and bytes of shared memory each; how
 * many of them the GPU runs at once. (The emulation changes n_blocks.) */
template <class... P>
static inline cudaError_t cluster_prepare(void (*kernel)(P...), int *n_blocks, int threads,
                                          int bytes, int *n_at_once) {
    cudaLaunchAttribute attributes[2];
    cudaLaunchConfig_t config = cluster_config(attributes, 1, *n_blocks, threads, bytes, NULL);
    cudaError_t result =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (result == cudaSuccess)
        result = cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    *n_at_once = 0;
    return result == cudaSuccess ? cudaOccupancyMaxActiveClusters(n_at_once, kernel, &config)
                                 : result;
}

template <class... P, class... A>
static inline void launch_clusters(void (*kernel)(P...), int n_clusters, int n_blocks, int threads,
                                   int bytes, cudaStream_t stream, A... arguments) {
    cudaLaunchAttribute attributes[2];
    cudaLaunchConfig_t config =
        cluster_config(attributes, n_clusters, n_blocks, threads, bytes, stream);
    cudaLaunchKernelEx(&config, kernel, P(arguments)...);
}
#define LAUNCH_CLUSTERS(kernel, n_clusters, n_blocks, threads, bytes, stream, ...)                 \
    launch_clusters(kernel, n_clusters, n_blocks, threads, bytes, stream, __VA_ARGS__)

#endif
#endif
