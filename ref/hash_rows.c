/*
 * hash_rows: SHA-256 of rows, as a tree of pieces (Merkle, 1987). The hash is libcrypto's.
 */
#include "ref/ref.h"

#include <openssl/evp.h>
#include <stdatomic.h>

struct call {
    unsigned char *digests, *pieces; /* [n_rows, SHA256_BYTES]; [threads, most_bytes] */
    const float *x;
    size_t n_cols, most_bytes; /* of the digests of a row's pieces */
    atomic_bool refused;
};

/* The digests of all pieces of `bytes`, one behind the other, may begin where they do: none is
 * longer than its piece. Returns how many; 0: libcrypto refuses. */
static size_t hash_pieces(EVP_MD_CTX *c, unsigned char *digests, const unsigned char *bytes,
                          size_t n_bytes) {
    size_t n = 0;
    for (size_t at = 0; at < n_bytes; at += HASH_PIECE_BYTES, n++) {
        size_t left = n_bytes - at, size = left < HASH_PIECE_BYTES ? left : HASH_PIECE_BYTES;
        /* A context that is begun again without an algorithm keeps the one it has, which is faster.
         */
        if (!EVP_DigestInit_ex(c, NULL, NULL) || !EVP_DigestUpdate(c, bytes + at, size) ||
            !EVP_DigestFinal_ex(c, digests + n * SHA256_BYTES, NULL))
            return 0;
    }
    return n;
}

static void hash(void *context, int first, int end, int worker) {
    struct call *call = context;
    unsigned char *pieces = call->pieces + (size_t)worker * call->most_bytes;
    EVP_MD_CTX *c = EVP_MD_CTX_new();
    bool ok = c && EVP_DigestInit_ex(c, EVP_sha256(), NULL);
    for (size_t row = (size_t)first; row < (size_t)end && ok; row++) {
        const float *x = call->x + row * call->n_cols;
        size_t n = hash_pieces(c, pieces, (const unsigned char *)x, sizeof *x * call->n_cols);
        while (n > 1)
            n = hash_pieces(c, pieces, pieces, n * SHA256_BYTES);
        memcpy(call->digests + row * SHA256_BYTES, pieces, SHA256_BYTES);
        ok = n == 1;
    }
    EVP_MD_CTX_free(c);
    if (!ok)
        atomic_store(&call->refused, true);
}

void ref_hash_rows(struct device *dev, unsigned char *digests, /* host [n_rows, SHA256_BYTES] */
                   const float *x,                             /* [n_rows, n_cols] */
                   int n_rows, int n_cols) {
    struct call call = {digests, NULL, x, (size_t)n_cols, 0, false};
    call.most_bytes = SHA256_BYTES * (sizeof *x * (size_t)n_cols / HASH_PIECE_BYTES + 1);
    call.pieces =
        ref_scratch(dev, SCRATCH_X, (size_t)ref_n_threads(dev) * call.most_bytes, "hash_rows");
    if (!call.pieces)
        return;
    ref_parallel_rows(dev, n_rows, n_cols, hash, &call);
    if (call.refused)
        ((struct ref_device *)dev)->out_of_memory = "hash_rows";
}
