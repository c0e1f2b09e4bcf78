/*
 * hash_rows: SHA-256 of rows, as a tree of pieces (Merkle, 1987), whose levels the threads share.
 * Where GCC may use AVX-512, 16 whole pieces are hashed at once, each in a lane of its
 * own: that takes less than half the time of libcrypto, which hashes one after the other.
 */
#include "ref/ref.h"

/* The hash is libcrypto's; its older interface, which needs no memory and cannot fail, takes a
 * tenth less time for a piece than the newer one. */
#define OPENSSL_API_COMPAT 0x10100000L
#include <openssl/sha.h>

enum {
    LANES = 16,        /* pieces that are hashed at once: a thread's turn */
    LIKE_NUMBERS = 128 /* a piece takes about the time of so many numbers of another op */
};

struct level {
    unsigned char *digests; /* [n_rows, n_pieces, SHA256_BYTES] */
    const unsigned char *rows;
    size_t row_bytes, n_pieces; /* of a row */
};

#if defined __AVX512BW__ && !defined __clang__ /* which has no __builtin_shuffle */
typedef uint32_t lanes __attribute__((vector_size(4 * LANES)));
typedef unsigned char bytes __attribute__((vector_size(4 * LANES)));
#define SHA256_WORD lanes
#include "model/sha256.h"

/* SHA-256 reads and writes big-endian words. */
static inline lanes swap_bytes(lanes x) {
    bytes order;
    for (int i = 0; i < 4 * LANES; i++)
        order[i] = (unsigned char)(i ^ 3);
    return (lanes)__builtin_shuffle((bytes)x, order);
}

/* x[i] lane j and x[j] lane i change places: first in blocks of 8 x 8, at last neighbours. */
static inline void transpose(lanes x[LANES]) {
    SHA256_UNROLL for (int round = 0; round < 4; round++) {
        lanes first, second;
        int d = 8 >> round;
        for (int lane = 0; lane < LANES; lane++) {
            first[lane] = (uint32_t)(lane & d ? LANES + lane - d : lane);
            second[lane] = (uint32_t)(lane & d ? LANES + lane : lane + d);
        }
        SHA256_UNROLL for (int i = 0; i < LANES; i++) {
            lanes a = x[i], b = x[i | d];
            if (i & d)
                continue;
            x[i] = __builtin_shuffle(a, b, first);
            x[i | d] = __builtin_shuffle(a, b, second);
        }
    }
}

/* The digests of 16 pieces of the greatest length, one behind the other. */
static void hash_16(unsigned char *digests, const unsigned char *pieces) {
    lanes state[LANES], w[BLOCK_WORDS];
    sha256_start(state);
    for (int at = 0; at < HASH_PIECE_BYTES; at += 64) {
        for (int i = 0; i < LANES; i++)
            memcpy(&w[i], pieces + i * HASH_PIECE_BYTES + at, sizeof w[i]);
        transpose(w);
        for (int i = 0; i < BLOCK_WORDS; i++)
            w[i] = swap_bytes(w[i]);
        sha256_block(state, w);
    }
    memset(w, 0, sizeof w); /* behind the message are one bit, zeros, and its length in bits */
    w[0] += 0x80000000u;
    w[BLOCK_WORDS - 1] += 8 * HASH_PIECE_BYTES;
    sha256_block(state, w);
    for (int i = 0; i < LANES; i++)
        state[i] = swap_bytes(i < DIGEST_WORDS ? state[i] : state[0]);
    transpose(state);
    for (int i = 0; i < LANES; i++)
        memcpy(digests + i * SHA256_BYTES, &state[i], SHA256_BYTES);
}

#endif

static void hash_one(const struct level *level, size_t i) {
    size_t at = i % level->n_pieces * HASH_PIECE_BYTES, left = level->row_bytes - at;
    const unsigned char *piece = level->rows + i / level->n_pieces * level->row_bytes + at;
    SHA256_CTX c;
    SHA256_Init(&c);
    SHA256_Update(&c, piece, left < HASH_PIECE_BYTES ? left : HASH_PIECE_BYTES);
    SHA256_Final(level->digests + i * SHA256_BYTES, &c);
}

static void hash(void *context, int first, int end, int worker) {
    const struct level *level = context;
    int i = first;
    (void)worker;
#if defined __AVX512BW__ && !defined __clang__
    if (level->row_bytes % HASH_PIECE_BYTES == 0)
        for (; i + LANES <= end; i += LANES)
            hash_16(level->digests + (size_t)i * SHA256_BYTES,
                    level->rows + (size_t)i * HASH_PIECE_BYTES);
#endif
    for (; i < end; i++)
        hash_one(level, (size_t)i);
}

static size_t pieces_of(size_t row_bytes) {
    return (row_bytes + HASH_PIECE_BYTES - 1) / HASH_PIECE_BYTES;
}

void ref_hash_rows(struct device *dev, unsigned char *digests, /* [n_rows, SHA256_BYTES] */
                   const float *x,                             /* [n_rows, n_cols] */
                   int n_rows, int n_cols) {
    struct level level = {NULL, (const unsigned char *)x, sizeof *x * (size_t)n_cols, 0};
    /* The digests of one level behind those of the level below it: half as many at most. */
    size_t most = 2 * (size_t)n_rows * pieces_of(level.row_bytes) * SHA256_BYTES;
    unsigned char *to = ref_scratch(dev, SCRATCH_X, most, "hash_rows");
    for (bool last = !to || !n_rows; !last;) {
        level.n_pieces = pieces_of(level.row_bytes);
        last = level.n_pieces == 1;
        level.digests = last ? digests : to;
        ref_parallel_rows(dev, n_rows * (int)level.n_pieces, LIKE_NUMBERS, hash, &level);
        level.rows = level.digests;
        level.row_bytes = level.n_pieces * SHA256_BYTES;
        to += (size_t)n_rows * level.row_bytes;
    }
}
