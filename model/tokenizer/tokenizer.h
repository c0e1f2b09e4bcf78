/*
 * tokenizer.h - text to token ids and back, out of a Hugging Face `tokenizer.json`.
 *
 * Byte pair encoding (Sennrich et al. 2016) over bytes spelled as letters (Radford et al. 2019)
 * or over characters with a byte fallback (SentencePiece, Kudo and Richardson 2018). The ids and
 * the text are those of the Hugging Face `tokenizers` library. What a file asks for and this
 * reader does not know is refused by name when the file is loaded, never skipped.
 *
 *   normalizers     NFC, Prepend, Replace, Sequence
 *   pre-tokenizers  Split, ByteLevel, Digits, Metaspace, Sequence
 *   model           BPE (no dropout, no subword prefix or suffix)
 *   post-processors ByteLevel, TemplateProcessing (its `single` template), Sequence
 *   decoders        ByteLevel, ByteFallback, Fuse, Replace, Strip, Metaspace, Sequence
 *
 * A `truncation` and a `padding` that would change one text's length are refused. A vocabulary with
 * U+0000 in a token cannot be read.
 *
 * Known differences are versions of Unicode. Letters, digits and the like in patterns are those of
 * PCRE2 (10.42: Unicode 14), there of Oniguruma (16); the order of combining marks in NFC is
 * utf8proc's (2.8: Unicode 15), there that of Unicode 9, where newer marks stay where they are.
 *
 * Rules for the caller: a tokenizer never changes after it is loaded, so any number of threads may
 * encode and decode with the same one; a decode_stream belongs to one thread.
 */
#ifndef SAMEBITS_MODEL_TOKENIZER_TOKENIZER_H
#define SAMEBITS_MODEL_TOKENIZER_TOKENIZER_H

#include "model/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct tokenizer;

/*
 * Loads DIR/tokenizer.json. On success *out is the caller's, to be given to tokenizer_free. Returns 0, or -1 with err set and
 * *out NULL.
 */
int tokenizer_load(struct tokenizer **out, const char *dir, struct error *err);

/* tokenizer_load for the n bytes of a tokenizer.json; where names them in errors. */
int tokenizer_load_text(struct tokenizer **out, const char *json, size_t n, const char *where,
                        struct error *err);

/* NULL is fine. */
void tokenizer_free(struct tokenizer *t);

/* 1 + the largest id. Ids below it without a token are possible; they decode to nothing. */
int tokenizer_vocab_size(const struct tokenizer *t);

/*
 * Encodes n_bytes of text. The text may hold NUL bytes and need not be valid UTF-8: the valid parts
 * are treated as always, a byte outside of them goes through as that byte (as its byte-level letter
 * or as <0xNN>; a vocabulary with neither gives its unknown token, or nothing if it has none).
 * Added tokens are found in the text, so "<|im_end|>" in it becomes that token's id.
 * add_special applies the post-processor (a BOS in front, where the file asks for one).
 * On success *out is a malloc'ed array of *n_out ids, the caller's to free (NULL if *n_out is 0).
 * Returns 0, or -1 with err set: out of memory, text of more than 256 MiB, or a split pattern that
 * exceeds PCRE2's limits on this text.
 */
int tokenizer_encode(const struct tokenizer *t, const char *text, size_t n_bytes, bool add_special,
                     int32_t **out, size_t *n_out, struct error *err);

/*
 * Decodes n ids; with skip_special the special tokens are left out (but not one that the normalizer
 * changes: the library does not recognise it). Ids without a token are left out too. Bytes that
 * form no character become U+FFFD, so the text is always valid UTF-8. On success *out is malloc'ed,
 * the caller's to free, and has a NUL behind its *n_bytes bytes. Returns 0, or -1 with err set (out
 * of memory, PCRE2 limits).
 */
int tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n, bool skip_special,
                     char **out, size_t *n_bytes, struct error *err);

/* The id of exactly this token (as it is spelled in the file), or -1. */
int32_t tokenizer_id(const struct tokenizer *t, const char *token);


/*
 * Decoding one id at a time. Each push gives the bytes that no later id can change, always whole
 * characters: what is incomplete is held back, and a run of <0xNN> tokens until it ends, because
 * one wrong byte turns all of the run into U+FFFD. All pieces and the flush, one behind the other,
 * are what tokenizer_decode gives for the same ids.
 */
struct decode_stream;

/* t must outlive the stream. Returns NULL with err set when memory is short. */
struct decode_stream *decode_stream_new(const struct tokenizer *t, bool skip_special,
                                        struct error *err);

/* *text points to *n_bytes bytes (maybe none, no NUL behind) that are valid until the next call on
 * this stream. Returns 0, or -1 with err set; then the stream is only good for freeing. */
int decode_stream_push(struct decode_stream *s, int32_t id, const char **text, size_t *n_bytes,
                       struct error *err);

/* The rest, with U+FFFD for an incomplete character. Afterwards the stream starts anew. */
int decode_stream_flush(struct decode_stream *s, const char **text, size_t *n_bytes,
                        struct error *err);

/* NULL is fine. */
void decode_stream_free(struct decode_stream *s);

#endif
