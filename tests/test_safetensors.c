/* model/files/safetensors.h: every rule of the format, from memory and from files. */
#include "model/files/safetensors.h"
#include "tests/find_tensor.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

static const char small_header[] =
    "{\"__metadata__\":{\"format\":\"pt\"},"
    "\"w\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[4,16]},"
    "\"b\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}   ";

/* A file in memory: the header's length, the header, then data bytes 0, 1, 2, … The exact size is
 * allocated, so that the sanitizer sees a read past the end. The caller frees it. */
static unsigned char *build(const char *header, size_t data_bytes, size_t *n) {
    size_t length = strlen(header);
    *n = 8 + length + data_bytes;
    unsigned char *bytes = malloc(*n);
    assert_non_null(bytes);
    for (int i = 0; i < 8; i++)
        bytes[i] = (unsigned char)((uint64_t)length >> 8 * i);
    memcpy(bytes + 8, header, length);
    for (size_t i = 0; i < data_bytes; i++)
        bytes[8 + length + i] = (unsigned char)i;
    return bytes;
}

static void assert_says(const struct error *err, const char *part) {
    if (!strstr(err->text, part))
        fail_msg("\"%s\" does not say \"%s\"", err->text, part);
}

static void refuse_bytes(const unsigned char *bytes, size_t n, const char *part) {
    struct safetensors *s = NULL;
    struct error err = {""};
    assert_int_equal(safetensors_parse(&s, bytes, n, "mem", &err), -1);
    assert_null(s);
    assert_says(&err, "mem: ");
    assert_says(&err, part);
}

static void refuse(const char *header, size_t data_bytes, const char *part) {
    size_t n;
    unsigned char *bytes = build(header, data_bytes, &n);
    refuse_bytes(bytes, n, part);
    free(bytes);
}

static void test_reads_a_small_file(void **state) {
    (void)state;
    size_t n;
    unsigned char *bytes = build(small_header, 16, &n);
    struct safetensors *s;
    struct error err;
    assert_int_equal(safetensors_parse(&s, bytes, n, "mem", &err), 0);
    assert_int_equal(safetensors_count(s), 2);
    const struct tensor *b = safetensors_at(s, 0), *w = safetensors_at(s, 1);
    assert_null(safetensors_at(s, 2));
    assert_string_equal(b->name, "b");
    assert_int_equal(b->dtype, DTYPE_F32);
    assert_int_equal(b->n_dims, 0);
    assert_int_equal(b->n_elements, 1);
    assert_int_equal(b->n_bytes, 4);
    assert_string_equal(w->name, "w");
    assert_string_equal(w->dtype_name, "BF16");
    assert_string_equal(w->file, "mem");
    assert_int_equal(w->n_dims, 2);
    assert_int_equal(w->shape[0], 2);
    assert_int_equal(w->shape[1], 3);
    assert_int_equal(w->n_elements, 6);
    assert_int_equal(w->data[0], 4);
    assert_false(w->mapped);
    assert_ptr_equal(find_tensor(s, "w"), w);
    assert_ptr_equal(find_tensor(s, "b"), b);
    assert_null(find_tensor(s, "__metadata__"));
    assert_null(find_tensor(s, ""));
    tensor_drop_pages(w); /* must leave the caller's memory alone */
    assert_int_equal(w->data[11], 15);
    safetensors_close(s);
    safetensors_close(NULL);
    free(bytes);
}

static void test_accepts_what_the_format_allows(void **state) {
    (void)state;
    static const struct {
        const char *header;
        size_t data_bytes, count;
    } good[] = {
        {"{}", 0, 0},
        {"{}          ", 0, 0},
        {"{\"e\":{\"dtype\":\"F32\",\"shape\":[0,7],\"data_offsets\":[0,0]}}", 0, 1},
        {"{\"a\":{\"dtype\":\"I8\",\"shape\":[2],\"data_offsets\":[0,2]},"
         "\"e\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[2,2]},"
         "\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[2,3]}}",
         3, 3},
        {"{\"a\":{\"dtype\":\"F4\",\"shape\":[4],\"data_offsets\":[0,2]}}", 2, 1},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1],\"data_offsets\":[0,4]}}", 4, 1},
    };
    for (size_t i = 0; i < COUNT(good); i++) {
        size_t n;
        unsigned char *bytes = build(good[i].header, good[i].data_bytes, &n);
        struct safetensors *s;
        struct error err = {""};
        if (safetensors_parse(&s, bytes, n, "mem", &err))
            fail_msg("%s", err.text);
        assert_int_equal(safetensors_count(s), good[i].count);
        safetensors_close(s);
        free(bytes);
    }
}

static void test_other_dtypes_are_kept_but_not_read(void **state) {
    (void)state;
    static const struct {
        const char *name;
        int bytes;
    } others[] = {{"F64", 8},     {"I64", 8}, {"U64", 8},     {"I32", 4},    {"U32", 4},
                  {"I16", 2},     {"U16", 2}, {"I8", 1},      {"U8", 1},     {"BOOL", 1},
                  {"F8_E4M3", 1}, {"C64", 8}, {"F8_E5M2", 1}, {"F8_E8M0", 1}};
    for (size_t i = 0; i < COUNT(others); i++) {
        char header[200];
        snprintf(header, sizeof header,
                 "{\"t\":{\"dtype\":\"%s\",\"shape\":[3],\"data_offsets\":[0,%d]}}", others[i].name,
                 others[i].bytes * 3);
        size_t n;
        unsigned char *bytes = build(header, (size_t)others[i].bytes * 3, &n);
        struct safetensors *s;
        struct error err = {""};
        if (safetensors_parse(&s, bytes, n, "mem", &err))
            fail_msg("%s", err.text);
        const struct tensor *t = find_tensor(s, "t");
        assert_int_equal(t->dtype, DTYPE_OTHER);
        float unused[3];
        assert_int_equal(tensor_read_f32(unused, t, 0, 3, &err), -1);
        assert_says(&err, others[i].name);
        assert_says(&err, "BF16, F16 and F32 are supported");
        safetensors_close(s);
        free(bytes);
    }
}

#define TENSOR(name, dtype, shape, offsets)                                                        \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static void test_refuses_broken_headers(void **state) {
    (void)state;
    static const struct {
        const char *header;
        size_t data_bytes;
        const char *says;
    } bad[] = {
        {"", 0, "not a JSON object"},
        {"[]", 0, "not a JSON object"},
        {" {}", 0, "not a JSON object"},
        {"{", 0, "line 1"},
        {"{\"a\":", 0, "line 1"},
        {"{}x", 0, "end of file expected"},
        {"{\"a\":1}", 0, "tensor \"a\": not a JSON object"},
        {"{\"__metadata__\":[]}", 0, "\"__metadata__\" must be an object of strings"},
        {"{\"__metadata__\":{\"k\":1}}", 0, "\"k\" must be a string"},
        {"{" TENSOR("a", "F32", "[1]", "[0,4]") "," TENSOR("a", "F32", "[1]", "[4,8]") "}", 8,
         "duplicate object key"},
        {"{" TENSOR("a", "F33", "[1]", "[0,4]") "}", 4, "dtype \"F33\" is unknown"},
        {"{" TENSOR("a", "F32\\u0000", "[1]", "[0,4]") "}", 4, "dtype \"F32\" is unknown"},
        {"{" TENSOR("a", "f32", "[1]", "[0,4]") "}", 4, "dtype \"f32\" is unknown"},
        {"{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "dtype \"?\" is unknown"},
        {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, "\"shape\" must be a list"},
        {"{" TENSOR("a", "F32", "1", "[0,4]") "}", 4, "\"shape\" must be a list"},
        {"{" TENSOR("a", "F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]") "}", 4, "at most 8"},
        {"{" TENSOR("a", "F32", "[-1]", "[0,4]") "}", 4, "whole numbers >= 0"},
        {"{" TENSOR("a", "F32", "[1.0]", "[0,4]") "}", 4, "whole numbers >= 0"},
        {"{" TENSOR("a", "F32", "[4294967296,4294967296]", "[0,4]") "}", 4, "product overflows"},
        {"{" TENSOR("a", "F32", "[4294967296,4294967296,0]", "[0,0]") "}", 0, "overflows"},
        {"{" TENSOR("a", "F32", "[9223372036854775807]", "[0,4]") "}", 4, "in bits overflows"},
        /* 2^59 elements of 32 bits are 2^64 bits, which would wrap to nothing */
        {"{" TENSOR("a", "F32", "[576460752303423488]", "[0,0]") "}", 0, "in bits overflows"},
        {"{" TENSOR("a", "F32", "[99999999999999999999]", "[0,4]") "}", 4, "too big integer"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "must be [begin, end]"},
        {"{" TENSOR("a", "F32", "[1]", "[0]") "}", 4, "must be [begin, end]"},
        {"{" TENSOR("a", "F32", "[1]", "[0,4,4]") "}", 4, "must be [begin, end]"},
        {"{" TENSOR("a", "F32", "[1]", "[0,4.0]") "}", 4, "must be [begin, end]"},
        {"{" TENSOR("a", "F32", "[1]", "[4,0]") "}", 4, "\"data_offsets\" are [4,0]"},
        {"{" TENSOR("a", "F32", "[1]", "[-4,0]") "}", 4, "\"data_offsets\" are [-4,0]"},
        {"{" TENSOR("a", "F32", "[2]", "[0,8]") "}", 7,
         "ends at byte 8 of the data, but there are "
         "only 7"},
        {"{" TENSOR("a", "F32", "[1]", "[0,9223372036854775807]") "}", 4, "but there are only 4"},
        {"{" TENSOR("a", "F32", "[2]", "[0,4]") "}", 4,
         "2 elements of F32 are 8 bytes, its "
         "data_offsets span 4"},
        {"{" TENSOR("a", "F32", "[1]", "[0,8]") "}", 8, "1 elements of F32 are 4 bytes"},
        {"{" TENSOR("a", "F4", "[3]", "[0,1]") "}", 1, "3 elements of F4"},
        {"{" TENSOR("a", "F4", "[3]", "[0,2]") "}", 2, "3 elements of F4"},
    };
    for (size_t i = 0; i < COUNT(bad); i++)
        refuse(bad[i].header, bad[i].data_bytes, bad[i].says);
}

static void test_tensors_cover_the_data_exactly(void **state) {
    (void)state;
    refuse("{" TENSOR("a", "F32", "[2]", "[0,8]") "," TENSOR("b", "F32", "[1]", "[4,8]") "}", 8,
           "tensors \"a\" and \"b\" overlap at byte 4");
    refuse("{" TENSOR("a", "F32", "[1]", "[0,4]") "," TENSOR("b", "F32", "[1]", "[0,4]") "}", 4,
           "overlap at byte 0");
    refuse("{" TENSOR("a", "F32", "[1]", "[0,4]") "," TENSOR("b", "F32", "[0]", "[2,2]") "}", 4,
           "overlap at byte 2");
    refuse("{" TENSOR("a", "F32", "[1]", "[4,8]") "}", 8, "bytes 0 to 4 of the data, before \"a\"");
    refuse("{" TENSOR("a", "F32", "[1]", "[0,4]") "," TENSOR("b", "F32", "[1]", "[5,9]") "}", 9,
           "bytes 4 to 5 of the data, before \"b\", belong to no tensor");
    refuse("{" TENSOR("a", "F32", "[1]", "[0,4]") "}", 5,
           "5 bytes of data, but the last tensor ends at byte 4");
    refuse("{}", 1, "1 bytes of data, but the last tensor ends at byte 0");
}

static void test_refuses_bad_header_lengths(void **state) {
    (void)state;
    static const struct {
        uint64_t length;
        const char *says;
    } bad[] = {
        {0, "not a JSON object"},
        {3, "a header of 3 bytes, but the file has 10"},
        {100000000, "a header of 100000000 bytes, but the file has 10"},
        {100000001, "a header of 100000001 bytes (at most 100000000)"},
        {(uint64_t)1 << 60, "a header of 1152921504606846976 bytes (at most 100000000)"},
        {UINT64_MAX, "a header of 18446744073709551615 bytes"},
    };
    for (size_t i = 0; i < COUNT(bad); i++) {
        unsigned char bytes[10] = {0, 0, 0, 0, 0, 0, 0, 0, '{', '}'};
        for (int j = 0; j < 8; j++)
            bytes[j] = (unsigned char)(bad[i].length >> 8 * j);
        refuse_bytes(bytes, sizeof bytes, bad[i].says);
    }
}

/* Writes the bytes to a new file under /tmp, whose name replaces *path. */
static void write_file(char path[32], const unsigned char *bytes, size_t n) {
    strcpy(path, "/tmp/safetensors-XXXXXX");
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, bytes, n), (ssize_t)n);
    close(fd);
}

static void test_refuses_every_truncation(void **state) {
    (void)state;
    size_t n;
    unsigned char *bytes = build(small_header, 16, &n);
    char path[32];
    write_file(path, bytes, n);
    struct safetensors *s;
    struct error err;
    assert_int_equal(safetensors_open(&s, path, &err), 0);
    assert_true(safetensors_at(s, 0)->mapped);
    safetensors_close(s);
    for (size_t cut = n; cut-- > 0;) {
        unsigned char *part = malloc(cut ? cut : 1);
        assert_non_null(part);
        memcpy(part, bytes, cut);
        refuse_bytes(part, cut, cut < 8 ? "too few" : cut < n - 16 ? "the file has" : "only");
        free(part);
        assert_int_equal(truncate(path, (off_t)cut), 0);
        assert_int_equal(safetensors_open(&s, path, &err), -1);
        assert_says(&err, path);
        assert_says(&err, !cut ? "the file is empty" : cut < 8 ? "too few" : "complete?");
    }
    unlink(path);
    free(bytes);
}

static void test_refuses_what_is_no_file(void **state) {
    (void)state;
    struct safetensors *s;
    struct error err;
    assert_int_equal(safetensors_open(&s, "/tmp", &err), -1);
    assert_says(&err, "/tmp: not a file but a folder");
    assert_int_equal(safetensors_open(&s, "/dev/null", &err), -1);
    assert_says(&err, "/dev/null: not a file");
    assert_int_equal(safetensors_open(&s, "/tmp/no/such/file", &err), -1);
    assert_says(&err, "/tmp/no/such/file: No such file");
    assert_int_equal(safetensors_open(&s, "/tmp/no/such/file", NULL), -1);
}

static void test_refuses_an_unreadable_file(void **state) {
    (void)state;
    char path[32];
    write_file(path, (const unsigned char *)"x", 1);
    assert_int_equal(chmod(path, 0), 0);
    bool is_root = !geteuid();
    if (is_root) /* who may read everything */
        assert_int_equal(seteuid(65534), 0);
    struct safetensors *s;
    struct error err;
    int rc = safetensors_open(&s, path, &err);
    if (is_root)
        assert_int_equal(seteuid(0), 0);
    unlink(path);
    assert_int_equal(rc, -1);
    assert_says(&err, "Permission denied");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reads_a_small_file),
        cmocka_unit_test(test_accepts_what_the_format_allows),
        cmocka_unit_test(test_other_dtypes_are_kept_but_not_read),
        cmocka_unit_test(test_refuses_broken_headers),
        cmocka_unit_test(test_tensors_cover_the_data_exactly),
        cmocka_unit_test(test_refuses_bad_header_lengths),
        cmocka_unit_test(test_refuses_every_truncation),
        cmocka_unit_test(test_refuses_what_is_no_file),
        cmocka_unit_test(test_refuses_an_unreadable_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
