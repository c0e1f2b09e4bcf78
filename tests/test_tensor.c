/* What model/files/safetensors.h does with one tensor: widening, of all 16-bit patterns, and dropping pages. */
#include "model/files/safetensors.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* A tensor over n bytes of the caller's. */
static struct tensor view(const void *data, enum dtype dtype, int64_t n_elements, size_t n_bytes) {
    return (struct tensor){.name = "t",
                           .dtype_name = "?",
                           .dtype = dtype,
                           .n_dims = 1,
                           .shape = {n_elements},
                           .data = data,
                           .n_bytes = n_bytes,
                           .n_elements = n_elements,
                           .file = "mem"};
}

/* The value of a float with these fields, straight from the definition, or NaN's bits. */
static uint32_t expected_bits(unsigned pattern, int fraction_bits, int exponent_bits) {
    unsigned fraction = pattern & ((1u << fraction_bits) - 1);
    unsigned exponent = pattern >> fraction_bits & ((1u << exponent_bits) - 1);
    bool negative = pattern >> 15;
    int bias = (1 << (exponent_bits - 1)) - 1;
    if (exponent == (1u << exponent_bits) - 1 && fraction)
        return (uint32_t)negative << 31 | 0xffu << 23 | fraction << (23 - fraction_bits);
    double value =
        exponent == (1u << exponent_bits) - 1 ? (double)INFINITY
        : exponent ? ldexp(fraction + ldexp(1, fraction_bits), (int)exponent - bias - fraction_bits)
                   : ldexp(fraction, 1 - bias - fraction_bits);
    float single = (float)(negative ? -value : value);
    uint32_t bits;
    memcpy(&bits, &single, sizeof bits);
    return bits;
}

static void test_widens_all_16_bit_patterns(void **state) {
    (void)state;
    enum { ALL = 65536 };
    uint16_t *patterns = malloc(ALL * sizeof *patterns);
    uint32_t *found = malloc(ALL * sizeof *found);
    assert_true(patterns && found);
    for (unsigned i = 0; i < ALL; i++)
        patterns[i] = (uint16_t)i;
    for (int is_bf16 = 0; is_bf16 < 2; is_bf16++) {
        struct tensor t = view(patterns, is_bf16 ? DTYPE_BF16 : DTYPE_F16, ALL, ALL * 2);
        struct error err;
        assert_int_equal(tensor_read_f32((float *)found, &t, 0, ALL, &err), 0);
        for (unsigned i = 0; i < ALL; i++) {
            uint32_t expected = is_bf16 ? expected_bits(i, 7, 8) : expected_bits(i, 10, 5);
            if (found[i] != expected)
                fail_msg("pattern %04x: %08x, expected %08x", i, found[i], expected);
        }
    }
    free(found);
    free(patterns);
}

static void test_reads_odd_addresses_and_ranges(void **state) {
    (void)state;
    const float values[3] = {1.5f, -0.0f, 3e-45f};
    unsigned char shifted[1 + sizeof values];
    memcpy(shifted + 1, values, sizeof values);
    struct tensor t = view(shifted + 1, DTYPE_F32, 3, sizeof values);
    struct error err = {""};
    float out[3] = {0};
    assert_int_equal(tensor_read_f32(out, &t, 0, 3, &err), 0);
    assert_memory_equal(out, values, sizeof values);
    assert_int_equal(tensor_read_f32(out, &t, 2, 1, &err), 0);
    assert_memory_equal(out, &values[2], sizeof *values);
    assert_int_equal(tensor_read_f32(NULL, &t, 3, 0, &err), 0);

    const unsigned char halves[5] = {0, 0x80, 0x3f, 0x00, 0xc0}; /* bf16 1 and -2 from byte 1 */
    t = view(halves + 1, DTYPE_BF16, 2, 4);
    assert_int_equal(tensor_read_f32(out, &t, 1, 1, &err), 0);
    assert_true(out[0] == -2.0f);

    static const int64_t outside[][2] = {
        {-1, 1}, {0, -1}, {0, 3}, {2, 1}, {3, 0}, {1, INT64_MAX}, {INT64_MAX, INT64_MAX}};
    for (size_t i = 0; i < sizeof outside / sizeof *outside; i++) {
        assert_int_equal(tensor_read_f32(out, &t, outside[i][0], outside[i][1], &err), -1);
        assert_non_null(strstr(err.text, "of 2"));
    }
}

/* kB of the mapping at address that are in memory, or -1 when the kernel does not say. */
static long resident_kb(const void *address) {
    FILE *maps = fopen("/proc/self/smaps", "r");
    char line[512];
    bool inside = false;
    long kb = -1;
    while (maps && kb < 0 && fgets(line, sizeof line, maps)) {
        unsigned long begin, end;
        if (sscanf(line, "%lx-%lx ", &begin, &end) == 2)
            inside = (unsigned long)address >= begin && (unsigned long)address < end;
        else if (inside)
            sscanf(line, "Rss: %ld kB", &kb);
    }
    if (maps)
        fclose(maps);
    return kb;
}

/* A file with one U8 tensor of n_bytes bytes, 0, 1, 2, ...; its name replaces *path. */
static void write_tensor_file(char path[32], size_t n_bytes) {
    char header[100];
    uint64_t length = (uint64_t)snprintf(
        header, sizeof header,
        "{\"t\":{\"dtype\":\"U8\",\"shape\":[%zu],\"data_offsets\":[0,%zu]}}", n_bytes, n_bytes);
    strcpy(path, "/tmp/tensor-XXXXXX");
    int fd = mkstemp(path);
    FILE *file = fdopen(fd, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(&length, 8, 1, file), 1);
    assert_int_equal(fwrite(header, length, 1, file), 1);
    for (size_t i = 0; i < n_bytes; i++)
        putc((unsigned char)i, file);
    assert_int_equal(fclose(file), 0);
}

static bool counts_up(const struct tensor *t) {
    for (size_t i = 0; i < t->n_bytes; i++)
        if (t->data[i] != (unsigned char)i)
            return false;
    return true;
}

static void test_drops_pages_and_reads_them_again(void **state) {
    (void)state;
    enum { BYTES = 1 << 20 };
    char path[32];
    write_tensor_file(path, BYTES);
    struct safetensors *s;
    struct error err;
    assert_int_equal(safetensors_open(&s, path, &err), 0);
    const struct tensor *t = safetensors_at(s, 0);
    assert_true(t->mapped);
    assert_true(counts_up(t));
    long before = resident_kb(t->data);
    tensor_drop_pages(t);
    long after = resident_kb(t->data);
    assert_true(counts_up(t));
    safetensors_close(s);
    unlink(path);
    if (before < 0)
        skip();
    assert_true(before >= BYTES / 1024);
    assert_true(after <= 2 * sysconf(_SC_PAGESIZE) / 1024); /* those shared with the header */
}

static void test_leaves_other_memory_alone(void **state) {
    (void)state;
    enum { BYTES = 1 << 20 };
    unsigned char *bytes = malloc(BYTES);
    assert_non_null(bytes);
    memset(bytes, 7, BYTES);
    struct tensor t = view(bytes, DTYPE_BF16, BYTES / 2, BYTES);
    tensor_drop_pages(&t);
    for (size_t i = 0; i < BYTES; i++)
        assert_int_equal(bytes[i], 7);
    free(bytes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_widens_all_16_bit_patterns),
        cmocka_unit_test(test_reads_odd_addresses_and_ranges),
        cmocka_unit_test(test_drops_pages_and_reads_them_again),
        cmocka_unit_test(test_leaves_other_memory_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
