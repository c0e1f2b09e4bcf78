/*
 * fuzz_tokenizer.c - any bytes as a tokenizer.json, a NUL, and any bytes as text: refused with a
 * message, or the text can be encoded, and its ids decoded, whole and one by one, with one result.
 *
 * An input without a usable file goes as text through one of a few small tokenizers instead, so
 * that those bytes are not wasted.
 */
#include "model/tokenizer/tokenizer.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static const char *const files[] = {
    "{\"normalizer\":{\"type\":\"NFC\"},\"pre_tokenizer\":{\"type\":\"ByteLevel\"},"
    "\"decoder\":{\"type\":\"ByteLevel\"},"
    "\"added_tokens\":[{\"id\":4,\"content\":\"<s>\",\"lstrip\":true,\"rstrip\":true}],"
    "\"model\":{\"unk_token\":\"u\",\"vocab\":{\"a\":0,\"u\":1,\"aa\":2,\"\\u00c3\":3},"
    "\"merges\":[\"a a\"]}}",
    "{\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":["
    "{\"type\":\"Prepend\",\"prepend\":\"_\"},"
    "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\" +\"},\"content\":\"_\"}]},"
    "\"decoder\":{\"type\":\"Sequence\",\"decoders\":["
    "{\"type\":\"Replace\",\"pattern\":{\"String\":\"_\"},\"content\":\" \"},"
    "{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},"
    "{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}]},"
    "\"model\":{\"byte_fallback\":true,\"vocab\":{\"_\":0,\"__\":1,\"<0xC3>\":2,\"<0xA9>\":3},"
    "\"merges\":[[\"_\",\"_\"]]}}",
    "{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":["
    "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\p{L}+|\\\\s+(?!\\\\S)\"},"
    "\"behavior\":\"MergedWithNext\",\"invert\":true},"
    "{\"type\":\"Digits\",\"individual_digits\":true},"
    "{\"type\":\"Metaspace\",\"replacement\":\"_\"}]},"
    "\"decoder\":{\"type\":\"Metaspace\",\"replacement\":\"_\"},"
    "\"model\":{\"unk_token\":\"u\",\"fuse_unk\":true,\"vocab\":{\"_\":0,\"1\":1,\"u\":2},"
    "\"merges\":[]}}",
};

static void decode_one_by_one(const struct tokenizer *t, const int32_t *ids, size_t n,
                              const char *whole, size_t n_whole) {
    struct error err;
    size_t done = 0;
    struct decode_stream *s = decode_stream_new(t, false, &err);
    for (size_t i = 0; i <= n; i++) {
        const char *piece;
        size_t n_piece;
        int failed = i < n ? decode_stream_push(s, ids[i], &piece, &n_piece, &err)
                           : decode_stream_flush(s, &piece, &n_piece, &err);
        if (failed || n_piece > n_whole - done || memcmp(piece, whole + done, n_piece) != 0)
            abort();
        done += n_piece;
    }
    if (done != n_whole)
        abort();
    decode_stream_free(s);
}

static void decode(const struct tokenizer *t, const int32_t *ids, size_t n) {
    struct error err = {""};
    char *text;
    size_t n_text;
    if (tokenizer_decode(t, ids, n, false, &text, &n_text, &err)) { /* limits of PCRE2 */
        if (text || !err.text[0])
            abort();
        return;
    }
    decode_one_by_one(t, ids, n, text, n_text);
    free(text);
}

static void use(const struct tokenizer *t, const char *text, size_t n) {
    struct error err = {""};
    int32_t *ids;
    size_t n_ids;
    if (tokenizer_encode(t, text, n, true, &ids, &n_ids, &err)) {
        if (ids || !err.text[0])
            abort();
        return;
    }
    for (size_t i = 0; i < n_ids; i++) {
        if (ids[i] < 0 || ids[i] >= tokenizer_vocab_size(t))
            abort();
    }
    decode(t, ids, n_ids);
    free(ids);
    int32_t any[64]; /* the text's bytes as ids */
    size_t n_any = n < 64 ? n : 64;
    for (size_t i = 0; i < n_any; i++)
        any[i] = (unsigned char)text[i] % 8 - 1;
    decode(t, any, n_any);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    struct error err = {""};
    struct tokenizer *t;
    const uint8_t *nul = n ? memchr(data, 0, n) : NULL;
    size_t n_json = nul ? (size_t)(nul - data) : n;
    if (tokenizer_load_text(&t, (const char *)data, n_json, "fuzz", &err) == 0) {
        use(t, (const char *)data + n_json + (nul ? 1 : 0), n - n_json - (nul ? 1 : 0));
        tokenizer_free(t);
        return 0;
    }
    if (t || !err.text[0])
        abort();
    const char *file = files[n % (sizeof files / sizeof *files)];
    if (tokenizer_load_text(&t, file, strlen(file), "file", &err))
        abort();
    use(t, (const char *)data, n);
    tokenizer_free(t);
    return 0;
}
