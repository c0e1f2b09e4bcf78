#include "scheduler/logits_chain.h"

#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

struct logits_chain *logits_chain_new(struct error *err) {
    struct logits_chain *c = calloc(1, sizeof *c);
    if (!c || !(c->context = EVP_MD_CTX_new()) ||
        !EVP_DigestInit_ex(c->context, EVP_sha256(), NULL)) {
        logits_chain_free(c);
        error_set(err, "out of memory for a chain of hashes");
        return NULL;
    }
    return c;
}

static int make_room(struct logits_chain *c, struct error *err) {
    if (c->n < c->capacity)
        return 0;
    int capacity = c->capacity ? 2 * c->capacity : 64;
    unsigned char *marks = realloc(c->marks, (size_t)capacity * LINK_MARK_BYTES);
    if (!marks)
        return error_set(err, "out of memory for a chain of %d hashes", capacity);
    c->marks = marks;
    c->capacity = capacity;
    return 0;
}

int logits_chain_add(struct logits_chain *c, const unsigned char *hash, struct error *err) {
    if (make_room(c, err))
        return -1;
    /* A context that is begun again without an algorithm keeps the one it has, which is faster. */
    if (!EVP_DigestInit_ex(c->context, NULL, NULL) ||
        !EVP_DigestUpdate(c->context, c->last, sizeof c->last) ||
        !EVP_DigestUpdate(c->context, hash, SHA256_BYTES) ||
        !EVP_DigestFinal_ex(c->context, c->last, NULL))
        return error_set(err, "libcrypto refuses SHA-256");
    memcpy(c->marks + (size_t)c->n++ * LINK_MARK_BYTES, c->last, LINK_MARK_BYTES);
    return 0;
}

void logits_chain_free(struct logits_chain *c) {
    if (!c)
        return;
    EVP_MD_CTX_free(c->context);
    free(c->marks);
    free(c);
}
