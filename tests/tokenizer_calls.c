#include "tests/tokenizer_calls.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static char *exact_copy(const char *text, size_t n) {
    char *copy = malloc(n ? n : 1);
    assert_non_null(copy);
    memcpy(copy, text, n);
    return n ? copy : realloc(copy, 1);
}

int32_t *encode(const struct tokenizer *t, const char *text, size_t n, bool add_special,
                size_t *n_ids) {
    struct error err;
    int32_t *ids;
    char *copy = exact_copy(text, n);
    if (tokenizer_encode(t, copy, n, add_special, &ids, n_ids, &err) != 0)
        fail_msg("%s", err.text);
    free(copy);
    return ids;
}

char *decode(const struct tokenizer *t, const int32_t *ids, size_t n, bool skip_special,
             size_t *n_bytes) {
    struct error err;
    char *text;
    if (tokenizer_decode(t, ids, n, skip_special, &text, n_bytes, &err) != 0)
        fail_msg("%s", err.text);
    assert_int_equal(text[*n_bytes], 0);
    return text;
}
