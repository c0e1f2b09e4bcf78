/*
 * tokenizer_calls.h - encode and decode for tests: an error fails the test.
 */
#ifndef SAMEBITS_TESTS_TOKENIZER_CALLS_H
#define SAMEBITS_TESTS_TOKENIZER_CALLS_H

#include "model/tokenizer/tokenizer.h"

/* The ids of n bytes of text; the text is copied first, to exactly n bytes, so that the sanitizer
 * sees a read past its end. The caller frees them. */
int32_t *encode(const struct tokenizer *t, const char *text, size_t n, bool add_special,
                size_t *n_ids);

/* The text of n ids; the caller frees it. */
char *decode(const struct tokenizer *t, const int32_t *ids, size_t n, bool skip_special,
             size_t *n_bytes);

#endif
