/*
 * hash_rows: SHA-256 of rows (FIPS 180-4), as a tree. A thread hashes a piece: one hash is a chain
 * of steps, but a row has many pieces. A block does several levels of the tree, whose digests are
 * in shared memory: all of a small row; of a large one the first two, in many small blocks, and
 * what is left is a row for another launch. Behind sample, which waits for memory, both run at
 * once: they read the same rows.
 */
#include "gpu/gpu.h"
#include "gpu/ptx/tensor_core.h"
#include "model/sha256.h"

enum { PIECE_WORDS = HASH_PIECE_BYTES / 4, BRANCHES = PIECE_WORDS / DIGEST_WORDS };
enum { MOST_THREADS = BRANCHES * BRANCHES, FEW_THREADS = 8 * BRANCHES };

/* SHA-256 reads and writes big-endian words. */
static __device__ __forceinline__ uint32_t swap_bytes(uint32_t x) {
    return x >> 24 | (x >> 8 & 0xff00) | (x << 8 & 0xff0000) | x << 24;
}

/* A block of the message from word `at` on, of n words in all: behind them are one bit, zeros, and
 * the length in bits. */
static __device__ __forceinline__ void load_block(uint32_t w[BLOCK_WORDS], const uint32_t *x, int n,
                                                  int at, bool aligned) {
    if (aligned && at + BLOCK_WORDS <= n) {
        UNROLL
        for (int j = 0; j < BLOCK_WORDS; j += 4) {
            uint4 four = *(const uint4 *)(x + at + j);
            w[j] = swap_bytes(four.x);
            w[j + 1] = swap_bytes(four.y);
            w[j + 2] = swap_bytes(four.z);
            w[j + 3] = swap_bytes(four.w);
        }
        return;
    }
    UNROLL
    for (int j = 0; j < BLOCK_WORDS; j++)
        w[j] = at + j < n ? swap_bytes(x[at + j]) : at + j == n ? 0x80000000u : 0;
    if (at + BLOCK_WORDS > n + 2)
        w[BLOCK_WORDS - 1] = 32 * (uint32_t)n;
}

/* The digest of n words. aligned: four of them can be loaded at once. */
static __device__ __forceinline__ void hash_piece(uint32_t state[DIGEST_WORDS], const uint32_t *x,
                                                  int n, bool aligned) {
    sha256_start(state);
    for (int at = 0; at < n + 3; at += BLOCK_WORDS) {
        uint32_t w[BLOCK_WORDS];
        load_block(w, x, n, at, aligned);
        sha256_block(state, w);
    }
    UNROLL
    for (int j = 0; j < DIGEST_WORDS; j++)
        state[j] = swap_bytes(state[j]);
}

/* A part of a row of n_words for each block, a piece of it for each thread, and then the digests:
 * once, or, where a row has one part, until there is one. out_words: of the digests of a row. */
__global__ static void hash_rows_1(uint32_t *digests, const uint32_t *rows, int n_words,
                                   int out_words, int n_parts, bool aligned) {
    SHARED(uint32_t, below, [MOST_THREADS * DIGEST_WORDS]);
    int part = (int)blockIdx.x % n_parts, most = (int)blockDim.x * PIECE_WORDS;
    size_t row = blockIdx.x / (unsigned)n_parts;
    const uint32_t *x = rows + row * (size_t)n_words + part * most;
    int n = min(n_words - part * most, most), at = (int)threadIdx.x * PIECE_WORDS;
    for (int level = 0; level == 0 || (n_parts > 1 ? level == 1 : n > DIGEST_WORDS); level++) {
        uint32_t state[DIGEST_WORDS];
        if (at < n)
            hash_piece(state, x + at, min(n - at, PIECE_WORDS), aligned);
        __syncthreads(); /* all have read what is below */
        for (int j = 0; j < DIGEST_WORDS && at < n; j++)
            below[(int)threadIdx.x * DIGEST_WORDS + j] = state[j];
        __syncthreads();
        n = (n + PIECE_WORDS - 1) / PIECE_WORDS * DIGEST_WORDS;
        x = below;
        aligned = true;
    }
    uint32_t *to =
        digests + row * (size_t)out_words + part * (FEW_THREADS / BRANCHES) * DIGEST_WORDS;
    if ((int)threadIdx.x < n)
        to[threadIdx.x] = below[threadIdx.x];
}

/* are_there: x is, though the kernel before this one may still run. */
__global__ static void copy_rows(float *to, const float *x, size_t count, bool are_there) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    let_next_kernel_start();
    if (!are_there)
        wait_for_previous_kernel();
    if (i < count)
        to[i] = x[i];
    if (are_there)
        wait_for_previous_kernel(); /* the next kernel takes it that all before it have ended */
}

/* Copies x for the stream of the hashes, which is opened at first. Whether that went well. */
static bool copy_rows_for_stream(struct gpu_device *gpu, float *to, const float *x, size_t count) {
    bool are_there = gpu->sampled == x && gpu->sampled_at == gpu->launches;
    if (!gpu->failed && !gpu->hash_copied &&
        gpu_ok(gpu, cudaStreamCreateWithPriority(&gpu->hash_stream, cudaStreamNonBlocking, 0),
               "opening a stream"))
        gpu_ok(gpu, cudaEventCreateWithFlags(&gpu->hash_copied, cudaEventDisableTiming),
               "making an event");
    GPU_LAUNCH_EARLY(gpu, copy_rows, gpu_blocks(count, 256), 256, 0, to, x, count, are_there);
    return !gpu->failed &&
           gpu_ok(gpu, cudaEventRecord(gpu->hash_copied, gpu->stream), "an event") &&
           gpu_ok(gpu, cudaStreamWaitEvent(gpu->hash_stream, gpu->hash_copied, 0), "an event");
}

void gpu_hash_rows(struct device *dev, unsigned char *digests, /* [n_rows, SHA256_BYTES] */
                   const float *x,                             /* [n_rows, n_cols] */
                   int n_rows, int n_cols) {
    struct gpu_device *gpu = gpu_of(dev);
    struct error err;
    int n_words = n_cols, n_pieces = (int)gpu_blocks((size_t)n_cols, PIECE_WORDS);
    size_t count = ((size_t)n_rows * (size_t)n_cols + 3) / 4 * 4; /* what is behind is aligned: */
    /* the digests of a launch, and behind them those of the next one: half as many at most. */
    size_t most = 2 * (size_t)n_rows * gpu_blocks((size_t)n_pieces, BRANCHES);
    if (!n_rows || gpu_hash_wait(dev, &err)) /* the copy before this one is read no more */
        return;
    uint32_t *copy = (uint32_t *)gpu_scratch(gpu, GPU_SCRATCH_HASHED,
                                             4 * count + SHA256_BYTES * most, "hash_rows");
    if (!copy_rows_for_stream(gpu, (float *)copy, x, (size_t)n_rows * (size_t)n_cols))
        return;
    const uint32_t *from = copy;
    uint32_t *to = copy + count;
    for (bool last = false; !last;) {
        last = n_pieces <= MOST_THREADS;
        int threads = last ? MOST_THREADS : FEW_THREADS;
        int n_parts = (int)gpu_blocks((size_t)n_pieces, (size_t)threads);
        int out_words = (last ? 1 : (int)gpu_blocks((size_t)n_pieces, BRANCHES)) * DIGEST_WORDS;
        LAUNCH(hash_rows_1, (unsigned)n_rows * (unsigned)n_parts, threads, 0, gpu->hash_stream,
               last ? (uint32_t *)digests : to, from, n_words, out_words, n_parts,
               n_words % 4 == 0);
        from = to;
        to += (size_t)n_rows * (size_t)out_words;
        n_words = out_words;
        n_pieces = (int)gpu_blocks((size_t)n_words, PIECE_WORDS);
    }
    gpu->hashing = gpu_ok(gpu, cudaGetLastError(), "hash_rows");
}

int gpu_hash_wait(struct device *dev, struct error *err) {
    struct gpu_device *gpu = gpu_of(dev);
    if (!gpu->failed && gpu->hashing)
        gpu_ok(gpu, cudaStreamSynchronize(gpu->hash_stream), "waiting for hashes");
    gpu->hashing = false;
    if (gpu->failed)
        *err = gpu->failure;
    return gpu->failed ? -1 : 0;
}
