/*
 * internal.h - what the files of model/tokenizer share. Nobody else includes it.
 *
 *   model/tokenizer/text.c         buffers, UTF-8, character classes
 *   model/tokenizer/regex.c        patterns and their matches
 *   model/tokenizer/vocab.c        tokens and merges, found by hash
 *   model/tokenizer/load.c         the file: its parts, added tokens
 *   model/tokenizer/load_model.c   the file: vocabulary, merges, options of BPE
 *   model/tokenizer/load_steps.c   the file: normalizer, pre-tokenizer, decoder, post-processor
 *   model/tokenizer/added.c        added tokens in a text
 *   model/tokenizer/normalize.c    normalizers
 *   model/tokenizer/pretokenize.c  pre-tokenizers
 *   model/tokenizer/bpe.c          one piece of text to ids
 *   model/tokenizer/encode.c       the way from text to ids
 *   model/tokenizer/decode.c       the way back
 *
 * Growing things (bytes, pieces, spans) have a flag `failed`: once an allocation failed it stays
 * set and additions do nothing, so that code that adds in many places checks once at its end.
 */
#ifndef SAMEBITS_MODEL_TOKENIZER_INTERNAL_H
#define SAMEBITS_MODEL_TOKENIZER_INTERNAL_H

#define PCRE2_CODE_UNIT_WIDTH 8

#include "model/files/json.h"
#include "model/tokenizer/tokenizer.h"

#include <pcre2.h>

/* ---- model/tokenizer/text.c ------------------------------------------------------------------ */

struct bytes {
    char *data;
    size_t n, cap;
    bool failed;
};

/* Appends n bytes, or a character as UTF-8. */
void tok_bytes_add(struct bytes *b, const char *data, size_t n);
void tok_bytes_add_char(struct bytes *b, uint32_t c);
void tok_bytes_free(struct bytes *b); /* leaves it empty and usable */

/* Makes room for `needed` items. Returns the array, moved or not, or NULL when memory is short (the
 * old one is still there then). */
void *tok_grow(void *items, size_t *cap, size_t needed, size_t item_size);

/* Appends an item to a list: a struct with items, n, cap and failed. */
#define TOK_ADD(list, ...)                                                                         \
    do {                                                                                           \
        void *grown = tok_grow((list)->items, &(list)->cap, (list)->n + 1, sizeof *(list)->items); \
        (list)->failed = (list)->failed || !grown;                                                 \
        if (grown)                                                                                 \
            (list)->items = grown;                                                                 \
        if (!(list)->failed)                                                                       \
            (list)->items[(list)->n++] = __VA_ARGS__;                                              \
    } while (0)

int tok_out_of_memory(struct error *err); /* -1, with err set */

/*
 * Reads the character at s[0..n), n at least 1. Returns its length and sets *c; or 0 when the bytes
 * only begin a character; or -k when the first k bytes can belong to none. k is the "maximal
 * subpart" for which decoders write one U+FFFD (Unicode standard, section 3.9).
 */
int tok_utf8_next(const char *s, size_t n, uint32_t *c);

/* Length of the valid UTF-8 at the start of s, in bytes. */
size_t tok_utf8_valid(const char *s, size_t n);

/* The last character of s[0..n), or 0 with *n_char 1 when n is 0 or the end is not valid. */
uint32_t tok_utf8_last(const char *s, size_t n, size_t *n_char);

bool tok_is_space(uint32_t c);   /* Unicode White_Space */
bool tok_is_word(uint32_t c);    /* \w of the regex crate: letters, marks, digits, connectors */
bool tok_is_numeric(uint32_t c); /* general category N */

/* ---- model/tokenizer/regex.c ----------------------------------------------------------------- */

/* Either a compiled regular expression or a literal. */
struct pattern {
    pcre2_code *code;
    struct bytes literal;
    struct bytes name; /* "FILE: pattern "..."", with a NUL, for messages about code */
};

struct span {
    size_t start, end;
    bool match;
};

struct spans {
    struct span *items;
    size_t n, cap;
    bool failed;
};

/* What one thread needs to match with. */
struct matcher {
    pcre2_match_data *data;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
    struct spans spans; /* what tok_find found last */
    struct error *err;  /* of the call that is running */
};

/* Compiles n bytes of a regular expression in Oniguruma's syntax, with a NUL behind them. Returns
 * 0, or -1 with err set: not a pattern, or one that means something else to PCRE2. */
int tok_pattern_compile(struct pattern *p, const char *regex, size_t n, const char *where,
                        struct error *err);
void tok_pattern_free(struct pattern *p);
int tok_matcher_init(struct matcher *m, struct error *err); /* 0, or -1 with err set */
void tok_matcher_free(struct matcher *m);

/* Cuts the whole text into matches and what lies between them, m->spans. 0, or -1 with m->err set.
 */
int tok_find(struct matcher *m, const struct pattern *p, const char *text, size_t n);

/* Appends the text to out with every match replaced by content. 0, or -1 with m->err set. */
int tok_replace(struct matcher *m, const struct pattern *p, const struct bytes *content,
                const char *text, size_t n, struct bytes *out);

/* ---- steps: one normalizer, pre-tokenizer or decoder; Sequences are laid flat --------------- */

enum step_kind {
    STEP_NFC,
    STEP_PREPEND,
    STEP_REPLACE,
    STEP_SPLIT,
    STEP_BYTE_LEVEL,
    STEP_DIGITS,
    STEP_METASPACE,
    STEP_BYTE_FALLBACK,
    STEP_FUSE,
    STEP_STRIP,
};

enum split_behavior {
    SPLIT_ISOLATED,
    SPLIT_REMOVED,
    SPLIT_MERGED_WITH_PREVIOUS,
    SPLIT_MERGED_WITH_NEXT,
    SPLIT_CONTIGUOUS,
};

enum prepend_scheme { PREPEND_ALWAYS, PREPEND_FIRST, PREPEND_NEVER };

struct step {
    enum step_kind kind;
    struct pattern pattern;       /* Replace; where a pre-tokenizer cuts, but for Digits */
    struct bytes content;         /* Prepend, Replace: the text; Metaspace, Strip: one character */
    enum split_behavior behavior; /* of a pre-tokenizer */
    enum prepend_scheme prepend_scheme; /* Metaspace */
    bool split;                         /* whether a pre-tokenizer cuts at all */
    bool invert;                        /* Split */
    bool add_prefix_space;              /* ByteLevel */
    int start, stop;                    /* Strip */
};

struct steps {
    struct step *items;
    size_t n, cap;
    bool failed;
};

struct ids {
    int32_t *items;
    size_t n, cap;
    bool failed;
};

enum step_use { USE_NORMALIZER = 1, USE_PRE_TOKENIZER = 2, USE_DECODER = 4 };

/* Appends the steps of a normalizer, pre-tokenizer or decoder to out. The object may be NULL or
 * JSON null: no steps. Returns 0, or -1 with the error set; what is in out is to be freed in any
 * case. */
int tok_load_steps(struct steps *out, const struct json_source *from, enum step_use use);
void tok_steps_free(struct steps *steps);

/* ---- model/tokenizer/vocab.c ----------------------------------------------------------------- */

enum { TOKEN_ID_MAX = (1 << 22) - 1 }; /* far above any vocabulary; bounds the table */

struct token {
    size_t at; /* the text in struct vocab's texts: as it is spelled in the file ... */
    uint32_t n;
    uint32_t decoded_n; /* ... and as it is decoded, normalised if it was found so */
    size_t decoded_at;
    bool exists;
    bool in_model; /* in the BPE vocabulary, as opposed to only added */
    bool added;
    bool special;
    bool skipped; /* special under the name that it is decoded to: what skip_special leaves out */
};

struct merge {
    uint64_t pair; /* left id << 32 | right id; no_pair in an empty slot */
    uint32_t rank;
    int32_t id; /* of the merged token */
};

struct vocab {
    struct bytes texts;
    struct token *tokens;
    size_t n_tokens;
    int32_t *slots; /* hash of the text -> id, -1 empty; n_slots is a power of two */
    size_t n_slots;
    struct merge *merges; /* hash of the pair; n_merge_slots is a power of two */
    size_t n_merge_slots;
};

/* Makes room for ids below n_tokens, n_texts tokens and n_merges merges; there is none yet. Returns
 * 0, or -1 with err set. */
int tok_vocab_init(struct vocab *v, size_t n_tokens, size_t n_texts, size_t n_merges,
                   struct error *err);
void tok_vocab_free(struct vocab *v);
/* Adds a token. id must be below n_tokens and free, the text not there yet. Out of memory shows in
 * texts.failed. */
void tok_vocab_add(struct vocab *v, int32_t id, const char *text, size_t n, bool in_model);
/* The id of a text, or -1; the second only looks at the BPE vocabulary. */
int32_t tok_vocab_find(const struct vocab *v, const char *text, size_t n);
int32_t tok_vocab_find_model(const struct vocab *v, const char *text, size_t n);
/* Adds the merge of a pair, or replaces it. */
void tok_vocab_add_merge(struct vocab *v, int32_t left, int32_t right, uint32_t rank, int32_t id);
/* The merge of a pair, or NULL. */
const struct merge *tok_vocab_merge(const struct vocab *v, int32_t left, int32_t right);

/* ---- model/tokenizer/added.c ----------------------------------------------------------------- */

struct added {
    int32_t id;
    bool normalized, single_word, lstrip, rstrip;
};

/* A text of struct vocab's texts that leads to an added token. */
struct added_text {
    size_t at, n;
    size_t order;  /* in which the texts were added */
    int32_t added; /* index of the token */
};

struct finder {
    struct added_text *items; /* sorted by text */
    size_t n, cap;
    bool failed;
    size_t start[257]; /* those that begin with byte b are items start[b] to start[b + 1] - 1 */
    const char *texts;
};

/* To be called when all items are there; texts must stay where it is. */
void tok_finder_sort(struct finder *f, char *texts);

/* ---- struct tokenizer ----------------------------------------------------------------------- */

struct tokenizer {
    struct vocab vocab;
    struct steps normalizers, pre_tokenizers, decoders;
    bool has_decoder; /* without one, decoding puts spaces between tokens */
    int32_t unk_id;   /* or -1 */
    int32_t byte_ids[256];
    bool byte_fallback, fuse_unk, ignore_merges;
    struct added *added;
    size_t n_added;
    struct finder raw, normalized; /* added tokens to find before and after normalising */
    struct ids prefix, suffix;     /* what the post-processor puts around the ids */
};

/* Vocabulary, merges and options of BPE out of the whole file. 0, or -1 with the error set. */
int tok_load_model(struct tokenizer *t, const struct json_source *root);
/* t->prefix and t->suffix. The object may be NULL or JSON null: nothing to add. 0, or -1 with the
 * error set. */
int tok_load_post_processor(struct tokenizer *t, const struct json_source *from);

/* ---- encoding ------------------------------------------------------------------------------- */

/* A part of the text, or an added token that was found (then id is not -1). */
struct piece {
    size_t at, n;
    int32_t id;
    bool first; /* begins where the whole input begins (for Metaspace's "first") */
};

struct pieces {
    struct bytes text;
    struct piece *items;
    size_t n, cap;
    bool failed;
};

struct symbol {
    int32_t id;
    int32_t prev, next; /* -1: none */
    bool merged_away;
};

struct candidate {
    uint32_t rank;
    int32_t at, id;
};

/* Everything one call of tokenizer_encode works with. */
struct work {
    const struct tokenizer *t;
    struct matcher matcher;
    struct pieces now, next; /* a pass reads now and writes next, then they change places */
    struct spans parts;
    struct bytes text;
    struct symbol *symbols;
    size_t symbols_cap;
    struct candidate *heap;
    size_t heap_cap;
    struct ids ids;
};

/* Appends an added token, or a part of the text unless it is empty. */
void tok_piece_add(struct pieces *p, size_t at, size_t n, int32_t id, bool first);

/* Cuts the n bytes at `at` of p->text, which begin the input if first, at the added tokens of
 * finder and adds the pieces. */
void tok_added_split(const struct tokenizer *t, const struct finder *finder, struct pieces *p,
                     size_t at, size_t n, bool first);

/* Replaces what was in out with the normalised text. 0, or -1 with m->err set. */
int tok_normalize(const struct tokenizer *t, struct matcher *m, const char *text, size_t n,
                  struct bytes *out);

/* Cuts the pieces of w->now by all pre-tokenizers. 0, or -1 with w->matcher.err set. */
int tok_pre_tokenize(struct work *w);

/* Appends the ids of one piece to w->ids. 0, or -1 with w->matcher.err set. */
int tok_bpe(struct work *w, const char *text, size_t n);

/* The letter that stands for a byte (Radford et al. 2019), and back; -1 if c stands for none. */
uint32_t tok_byte_to_char(unsigned char byte);
int tok_char_to_byte(uint32_t c);

#endif
