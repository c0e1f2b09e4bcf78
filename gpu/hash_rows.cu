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
 * once, or, where a row has one part, until there is one. out_words: of the digests of a row.
 * are_there: the rows, though the kernel before this one may still run. */
__global__ static void hash_rows_1(uint32_t *digests, const uint32_t *rows, int n_words,
                                   int out_words, int n_parts, bool aligned, bool are_there) {
    SHARED(uint32_t, below, [MOST_THREADS * DIGEST_WORDS]);
    let_next_kernel_start();
    if (!are_there)
        wait_for_previous_kernel();
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
    if (are_there)
        wait_for_previous_kernel(); /* the next kernel takes it that all before it have ended */
}

void gpu_hash_rows(struct device *dev, unsigned char *digests, /* [n_rows, SHA256_BYTES] */
                   const float *x,                             /* [n_rows, n_cols] */
                   int n_rows, int n_cols) {
    struct gpu_device *gpu = gpu_of(dev);
    const uint32_t *from = (const uint32_t *)x;
    int n_words = n_cols, n_pieces = (int)gpu_blocks((size_t)n_cols, PIECE_WORDS);
    /* The digests of a launch behind those of the one before it: half as many at most. */
    size_t most = 2 * (size_t)n_rows * gpu_blocks((size_t)n_pieces, BRANCHES);
    uint32_t *to =
        (uint32_t *)gpu_scratch(gpu, GPU_SCRATCH_PARTIAL, SHA256_BYTES * most, "hash_rows");
    if (gpu->failed || !n_rows)
        return;
    bool are_there = gpu->sampled == x && gpu->sampled_at == gpu->launches;
    for (bool last = false; !last; are_there = false) {
        last = n_pieces <= MOST_THREADS;
        int threads = last ? MOST_THREADS : FEW_THREADS;
        int n_parts = (int)gpu_blocks((size_t)n_pieces, (size_t)threads);
        int out_words = (last ? 1 : (int)gpu_blocks((size_t)n_pieces, BRANCHES)) * DIGEST_WORDS;
        bool aligned = n_words % 4 == 0 && (uintptr_t)from % 16 == 0;
        GPU_LAUNCH_EARLY(gpu, hash_rows_1, (unsigned)n_rows * (unsigned)n_parts, threads, 0,
                         last ? (uint32_t *)digests : to, from, n_words, out_words, n_parts,
                         aligned, are_there);
        from = to;
        to += (size_t)n_rows * (size_t)out_words;
        n_words = out_words;
        n_pieces = (int)gpu_blocks((size_t)n_words, PIECE_WORDS);
    }
}
