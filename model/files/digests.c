#include "model/files/digests.h"

#include "model/files/checkpoint.h"
#include "model/files/folder.h"

#include <errno.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATH_BYTES = 4096, PIECE = 1 << 18 };

void hex_of(char *out, const unsigned char *bytes, size_t n) {
    for (size_t i = 0; i < n; i++)
        snprintf(out + 2 * i, 3, "%02x", bytes[i]);
}

int sha256_of(char out[SHA256_HEX], const void *bytes, size_t n, struct error *err) {
    unsigned char digest[EVP_MAX_MD_SIZE];
    if (!EVP_Digest(bytes, n, digest, NULL, EVP_sha256(), NULL))
        return error_set(err, "libcrypto refuses SHA-256");
    hex_of(out, digest, SHA256_HEX / 2);
    return 0;
}

static int hash_file(char out[SHA256_HEX], const char *path, struct error *err) {
    unsigned char digest[EVP_MAX_MD_SIZE];
    FILE *f = fopen(path, "rb");
    if (!f)
        return error_set(err, "%s: %s", path, strerror(errno));
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    unsigned char *piece = malloc(PIECE);
    size_t n;
    bool good = context && piece && EVP_DigestInit_ex(context, EVP_sha256(), NULL);
    while (good && (n = fread(piece, 1, PIECE, f)) > 0)
        good = EVP_DigestUpdate(context, piece, n);
    good = good && !ferror(f) && EVP_DigestFinal_ex(context, digest, NULL);
    fclose(f);
    free(piece);
    EVP_MD_CTX_free(context);
    if (!good)
        return error_set(err, "%s: cannot be read, or no memory", path);
    hex_of(out, digest, SHA256_HEX / 2);
    return 0;
}

/* Adds the digest of DIR/NAME, if it is not there yet. */
static int add(json_t *digests, const char *dir, const char *name, struct error *err) {
    char path[PATH_BYTES], hex[SHA256_HEX];
    if (json_object_get(digests, name))
        return 0;
    if (model_folder_path(path, sizeof path, dir, name, err) || hash_file(hex, path, err))
        return -1;
    return json_object_set_new(digests, name, json_string(hex))
               ? error_set(err, "%s: its name is not valid UTF-8", path)
               : 0;
}

static int add_weights(json_t *digests, const char *dir, struct error *err) {
    struct checkpoint *checkpoint;
    int result = 0;
    if (checkpoint_open(&checkpoint, dir, err))
        return -1;
    for (size_t i = 0; i < checkpoint_count(checkpoint) && !result; i++) {
        const char *path = checkpoint_at(checkpoint, i)->file, *slash = strrchr(path, '/');
        result = add(digests, dir, slash ? slash + 1 : path, err);
    }
    checkpoint_close(checkpoint);
    return result;
}

json_t *folder_digests(const char *dir, struct error *err) {
    static const char generation[] = "generation_config.json";
    json_t *digests = json_object();
    if (add(digests, dir, "config.json", err) ||
        (model_folder_has(dir, generation) && add(digests, dir, generation, err)) ||
        add(digests, dir, "tokenizer.json", err) || add_weights(digests, dir, err)) {
        json_decref(digests);
        return NULL;
    }
    return digests;
}
