/*
 * hash_rows: SHA-256 of rows (FIPS 180-4), as a tree. A thread hashes a piece: one hash is a chain
 * of steps, but a row has many pieces. A block does several levels of the tree, whose digests are
 * in shared memory: all of a small row; of a large one the first two, in many small blocks, and
 * what is left is a row for another launch.
 */
#include "gpu/gpu.h"
#include "gpu/ptx/tensor_core.h"

enum { BLOCK_WORDS = 16, DIGEST_WORDS = 8, PIECE_WORDS = HASH_PIECE_BYTES / 4 };
enum { BRANCHES = PIECE_WORDS / DIGEST_WORDS };
enum { MOST_THREADS = BRANCHES * BRANCHES, FEW_THREADS = 4 * BRANCHES };

/* SHA-256 reads and writes big-endian words. */
static __device__ __forceinline__ uint32_t swap_bytes(uint32_t x) {
    return x >> 24 | (x >> 8 & 0xff00) | (x << 8 & 0xff0000) | x << 24;
}

static __device__ __forceinline__ uint32_t rotate(uint32_t x, int n) {
    return x >> n | x << (32 - n);
}

/* A block of the message, w [16], goes into the state. w is changed. */
static __device__ __forceinline__ void compress(uint32_t state[DIGEST_WORDS],
                                                uint32_t w[BLOCK_WORDS]) {
    /* The first 32 bits of the fractions of the cube roots of the first 64 primes. */
    constexpr uint32_t round_constants[64] = {
        0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4,
        0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe,
        0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f,
        0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7,
        0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc,
        0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b,
        0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116,
        0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
        0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7,
        0xc67178f2};
    uint32_t s[DIGEST_WORDS]; /* a ... h; in step i, a is s[-i mod 8] */
    UNROLL
    for (int i = 0; i < DIGEST_WORDS; i++)
        s[i] = state[i];
    UNROLL
    for (int i = 0; i < 64; i++) {
        uint32_t a = s[-i & 7], b = s[(1 - i) & 7], c = s[(2 - i) & 7], e = s[(4 - i) & 7];
        uint32_t f = s[(5 - i) & 7], g = s[(6 - i) & 7], h = s[(7 - i) & 7];
        if (i >= BLOCK_WORDS) {
            uint32_t x = w[(i - 15) & 15], y = w[(i - 2) & 15];
            w[i & 15] += (rotate(x, 7) ^ rotate(x, 18) ^ x >> 3) + w[(i - 7) & 15] +
                         (rotate(y, 17) ^ rotate(y, 19) ^ y >> 10);
        }
        uint32_t t = h + (rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25)) + ((e & f) ^ (~e & g)) +
                     round_constants[i] + w[i & 15];
        s[(3 - i) & 7] += t; /* d becomes e, */
        s[(7 - i) & 7] = t + (rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22)) +
                         ((a & b) ^ (a & c) ^ (b & c)); /* and h becomes a */
    }
    UNROLL
    for (int i = 0; i < DIGEST_WORDS; i++)
        state[i] += s[i];
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
    constexpr uint32_t start[DIGEST_WORDS] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                              0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    UNROLL
    for (int j = 0; j < DIGEST_WORDS; j++)
        state[j] = start[j];
    for (int at = 0; at < n + 3; at += BLOCK_WORDS) {
        uint32_t w[BLOCK_WORDS];
        load_block(w, x, n, at, aligned);
        compress(state, w);
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
    run_in_turn();
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
    uint32_t *to = digests + row * (size_t)out_words + part * 4 * DIGEST_WORDS;
    if ((int)threadIdx.x < n)
        to[threadIdx.x] = below[threadIdx.x];
}

void gpu_hash_rows(struct device *dev, unsigned char *digests, /* [n_rows, SHA256_BYTES] */
                   const float *x,                             /* [n_rows, n_cols] */
                   int n_rows, int n_cols) {
    struct gpu_device *gpu = gpu_of(dev);
    const uint32_t *from = (const uint32_t *)x;
    int n_words = n_cols, n_pieces = (int)gpu_blocks((size_t)n_cols, PIECE_WORDS);
    /* The digests of a launch behind those of the one before it: half as many at most. */
    size_t most = 2 * (size_t)n_rows * gpu_blocks((size_t)n_pieces, BRANCHES);
    uint32_t *to = (uint32_t *)gpu_scratch(gpu, GPU_SCRATCH_SUMS, SHA256_BYTES * most, "hash_rows");
    if (gpu->failed || !n_rows)
        return;
    for (bool last = false; !last;) {
        last = n_pieces <= MOST_THREADS;
        int threads = last ? MOST_THREADS : FEW_THREADS;
        int n_parts = (int)gpu_blocks((size_t)n_pieces, (size_t)threads);
        int out_words = (last ? 1 : (int)gpu_blocks((size_t)n_pieces, BRANCHES)) * DIGEST_WORDS;
        bool aligned = n_words % 4 == 0 && (uintptr_t)from % 16 == 0;
        GPU_LAUNCH_EARLY(gpu, hash_rows_1, (unsigned)n_rows * (unsigned)n_parts, threads, 0,
                         last ? (uint32_t *)digests : to, from, n_words, out_words, n_parts,
                         aligned);
        from = to;
        to += (size_t)n_rows * (size_t)out_words;
        n_words = out_words;
        n_pieces = (int)gpu_blocks((size_t)n_words, PIECE_WORDS);
    }
}
