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

/* No chain awaits any of them. */
static void awaited_hashes_forget(struct awaited_hashes *a) {
    for (int i = 0; i < a->n; i++)
        if (a->list[i].chain)
            a->list[i].chain->awaited = NULL;
    a->n = 0;
}

struct awaited_hashes *awaited_hashes_new(struct device *dev, struct error *err) {
    struct awaited_hashes *a = calloc(1, sizeof *a);
    if (!a)
        error_set(err, "out of memory for a list of hashes");
    else
        a->dev = dev;
    return a;
}

int logits_chain_await(struct logits_chain *c, struct awaited_hashes *a, const unsigned char *hash,
                       struct error *err) {
    if (a->n == a->capacity) {
        int capacity = a->capacity ? 2 * a->capacity : 64;
        struct awaited_hash *list = realloc(a->list, sizeof *list * (size_t)capacity);
        if (!list)
            return error_set(err, "out of memory for %d hashes", capacity);
        a->list = list;
        a->capacity = capacity;
    }
    a->list[a->n++] = (struct awaited_hash){c, hash};
    c->awaited = a;
    return 0;
}

int logits_chain_complete(struct logits_chain *c, struct error *err) {
    return c->awaited ? awaited_hashes_take(c->awaited, err) : 0;
}

int awaited_hashes_take(struct awaited_hashes *a, struct error *err) {
    int result = 0;
    if (a->n && a->dev->ops->hash_wait)
        result = a->dev->ops->hash_wait(a->dev, err);
    for (int i = 0; i < a->n && !result; i++)
        if (a->list[i].chain)
            result = logits_chain_add(a->list[i].chain, a->list[i].hash, err);
    awaited_hashes_forget(a);
    return result;
}

void awaited_hashes_free(struct awaited_hashes *a) {
    if (!a)
        return;
    awaited_hashes_forget(a);
    free(a->list);
    free(a);
}

void logits_chain_free(struct logits_chain *c) {
    if (!c)
        return;
    for (int i = 0; c->awaited && i < c->awaited->n; i++)
        if (c->awaited->list[i].chain == c)
            c->awaited->list[i].chain = NULL;
    EVP_MD_CTX_free(c->context);
    free(c->marks);
    free(c);
}
