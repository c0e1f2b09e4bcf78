/*
 * sha256.h - the steps of SHA-256 (FIPS 180-4), for words that are numbers, or vectors of them: one
 * of each of many messages. Who includes it may define SHA256_WORD.
 */
#ifndef SAMEBITS_SHA256_H
#define SAMEBITS_SHA256_H

#include <stdint.h>

#ifndef SHA256_WORD
#define SHA256_WORD uint32_t
#endif
#ifdef __CUDACC__
#define SHA256_FN static __device__ __forceinline__
#define SHA256_UNROLL _Pragma("unroll")
#else
#define SHA256_FN static inline
#define SHA256_UNROLL _Pragma("GCC unroll 64")
#endif
#ifdef __cplusplus
#define SHA256_TABLE constexpr uint32_t
#else
#define SHA256_TABLE static const uint32_t
#endif

enum { BLOCK_WORDS = 16, DIGEST_WORDS = 8 };

SHA256_FN SHA256_WORD sha256_rotate(SHA256_WORD x, int n) {
    return x >> n | x << (32 - n);
}

SHA256_FN void sha256_start(SHA256_WORD state[DIGEST_WORDS]) {
    SHA256_TABLE start[DIGEST_WORDS] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                        0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    SHA256_WORD zero = {0};
    SHA256_UNROLL
    for (int i = 0; i < DIGEST_WORDS; i++)
        state[i] = start[i] + zero;
}

/* A block of the message, w [16], goes into the state. w is changed. */
SHA256_FN void sha256_block(SHA256_WORD state[DIGEST_WORDS], SHA256_WORD w[BLOCK_WORDS]) {
    /* The first 32 bits of the fractions of the cube roots of the first 64 primes. */
    SHA256_TABLE round_constants[64] = {
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
    SHA256_WORD s[DIGEST_WORDS]; /* a ... h; in step i, a is s[-i mod 8] */
    SHA256_UNROLL
    for (int i = 0; i < DIGEST_WORDS; i++)
        s[i] = state[i];
    SHA256_UNROLL
    for (int i = 0; i < 64; i++) {
        SHA256_WORD a = s[-i & 7], b = s[(1 - i) & 7], c = s[(2 - i) & 7], e = s[(4 - i) & 7];
        SHA256_WORD f = s[(5 - i) & 7], g = s[(6 - i) & 7], h = s[(7 - i) & 7];
        if (i >= BLOCK_WORDS) {
            SHA256_WORD x = w[(i - 15) & 15], y = w[(i - 2) & 15];
            w[i & 15] += (sha256_rotate(x, 7) ^ sha256_rotate(x, 18) ^ x >> 3) + w[(i - 7) & 15] +
                         (sha256_rotate(y, 17) ^ sha256_rotate(y, 19) ^ y >> 10);
        }
        SHA256_WORD t = h + (sha256_rotate(e, 6) ^ sha256_rotate(e, 11) ^ sha256_rotate(e, 25)) +
                        ((e & f) ^ (~e & g)) + round_constants[i] + w[i & 15];
        s[(3 - i) & 7] += t; /* d becomes e, */
        s[(7 - i) & 7] = t + (sha256_rotate(a, 2) ^ sha256_rotate(a, 13) ^ sha256_rotate(a, 22)) +
                         ((a & b) ^ (a & c) ^ (b & c)); /* and h becomes a */
    }
    SHA256_UNROLL
    for (int i = 0; i < DIGEST_WORDS; i++)
        state[i] += s[i];
}

#endif
