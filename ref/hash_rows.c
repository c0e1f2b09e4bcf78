/*
 * hash_rows: SHA-256 of rows, as a tree of pieces (Merkle, 1987), whose levels the threads share.
 */
#include "ref/ref.h"

/* The hash is libcrypto's; its older interface, which needs no memory and cannot fail, takes a
 * tenth less time for a piece than the newer one. */
#define OPENSSL_API_COMPAT 0x10100000L
#include <openssl/sha.h>

enum { LIKE_NUMBERS = 1024 /* a piece takes about the time of so many numbers of another op */ };

struct level {
    unsigned char *digests; /* [n_rows, n_pieces, SHA256_BYTES] */
    const unsigned char *rows;
    size_t row_bytes, n_pieces; /* of a row */
};

static void hash(void *context, int first, int end, int worker) {
    const struct level *level = context;
    (void)worker;
    for (size_t i = (size_t)first; i < (size_t)end; i++) {
        size_t at = i % level->n_pieces * HASH_PIECE_BYTES, left = level->row_bytes - at;
        const unsigned char *piece = level->rows + i / level->n_pieces * level->row_bytes + at;
        SHA256_CTX c;
        SHA256_Init(&c);
        SHA256_Update(&c, piece, left < HASH_PIECE_BYTES ? left : HASH_PIECE_BYTES);
        SHA256_Final(level->digests + i * SHA256_BYTES, &c);
    }
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
