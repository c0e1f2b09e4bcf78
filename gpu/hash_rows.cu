/*
 * hash_rows: SHA-256 of rows (FIPS 180-4), as a tree. A thread hashes a piece: one hash is a chain
 * of steps, but a row has many pieces. Then the digests are hashed in the same way, until a row has
 * one.
 */
#include "gpu/gpu.h"

enum { THREADS = 32, BLOCK_WORDS = 16, DIGEST_WORDS = 8, PIECE_WORDS = HASH_PIECE_BYTES / 4 };

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

/* The digests of the pieces of rows of n_words; thread i has piece i of all `count`. */
__global__ static void hash_rows_1(uint32_t *digests, const uint32_t *rows, int n_words,
                                   int n_pieces, size_t count) {
    size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count)
        return;
    int first = (int)(i % (size_t)n_pieces) * PIECE_WORDS, n = min(n_words - first, PIECE_WORDS);
    const uint32_t *x = rows + i / (size_t)n_pieces * (size_t)n_words + first;
    /* Behind the message: one bit, zeros, and its length in bits, two words. */
    int end = (n + 2) / BLOCK_WORDS * BLOCK_WORDS + BLOCK_WORDS;
    uint32_t state[DIGEST_WORDS] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    for (int at = 0; at < end; at += BLOCK_WORDS) {
        uint32_t w[BLOCK_WORDS];
        UNROLL
        for (int j = 0; j < BLOCK_WORDS; j++)
            w[j] = at + j < n ? swap_bytes(x[at + j]) : at + j == n ? 0x80000000u : 0;
        if (at + BLOCK_WORDS == end)
            w[BLOCK_WORDS - 1] = 32 * (uint32_t)n;
        compress(state, w);
    }
    UNROLL
    for (int j = 0; j < DIGEST_WORDS; j++)
        digests[i * DIGEST_WORDS + (size_t)j] = swap_bytes(state[j]);
}

void gpu_hash_rows(struct device *dev, unsigned char *digests, /* host [n_rows, SHA256_BYTES] */
                   const float *x,                             /* [n_rows, n_cols] */
                   int n_rows, int n_cols) {
    struct gpu_device *gpu = gpu_of(dev);
    const uint32_t *from = (const uint32_t *)x;
    int n_words = n_cols;
    /* The digests of one level behind those of the level below it: half as many at most. */
    size_t most = 2 * (size_t)n_rows * gpu_blocks((size_t)n_cols, PIECE_WORDS);
    uint32_t *to = (uint32_t *)gpu_scratch(gpu, GPU_SCRATCH_SUMS, SHA256_BYTES * most, "hash_rows");
    if (gpu->failed || !n_rows)
        return;
    do {
        int n_pieces = (int)gpu_blocks((size_t)n_words, PIECE_WORDS);
        size_t count = (size_t)n_rows * (size_t)n_pieces;
        GPU_LAUNCH(gpu, hash_rows_1, gpu_blocks(count, THREADS), THREADS, 0, to, from, n_words,
                   n_pieces, count);
        from = to;
        to += count * DIGEST_WORDS;
        n_words = n_pieces * DIGEST_WORDS;
    } while (n_words > DIGEST_WORDS);
    dev->ops->download(dev, digests, from, SHA256_BYTES * (size_t)n_rows);
}
