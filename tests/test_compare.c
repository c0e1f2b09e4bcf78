/* The checker is checked first: what it must not let pass, and what its report must say. */
#include "tests/assert_bits.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { ROWS = 3, COLS = 5, COUNT = ROWS * COLS };

static struct tensor_view view(enum element type, const void *data) {
    return (struct tensor_view){
        .name = "k_proj", .layer = 2, .rows = ROWS, .cols = COLS, .type = type, .data = data};
}

/* Compares two arrays of COUNT floats and returns the verdict; the report stays readable. */
static char report[512];

static int differ(const float *want, const float *got) {
    struct tensor_view a = view(ELEMENT_FLOAT, want), b = view(ELEMENT_FLOAT, got);
    strcpy(report, "nothing");
    return compare_bits(&a, &b, report, sizeof report);
}

static void fill(float *x) {
    for (int i = 0; i < COUNT; i++)
        x[i] = (float)i + 0.25f;
}

static float from_bits(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static void test_same_bits_pass(void **state) {
    (void)state;
    float a[COUNT], b[COUNT];
    fill(a);
    a[3] = from_bits(0x7fc12345);
    a[4] = -0.0f;
    a[5] = INFINITY;
    memcpy(b, a, sizeof b);
    assert_int_equal(differ(a, b), 0);
    assert_int_equal(differ(a, a), 0);
    struct tensor_view want = view(ELEMENT_FLOAT, a), got = view(ELEMENT_FLOAT, b);
    got.name = "another name";
    got.layer = 7;
    assert_same_bits(&want, &got);
    want.rows = got.rows = 0;
    want.data = got.data = NULL;
    assert_same_bits(&want, &got);
}

static void test_every_flipped_bit_is_found(void **state) {
    (void)state;
    float a[COUNT], b[COUNT];
    for (int i = 0; i < COUNT; i++)
        for (int bit = 0; bit < 32; bit++) {
            fill(a);
            fill(b);
            uint32_t bits;
            memcpy(&bits, &b[i], sizeof bits);
            bits ^= 1u << bit;
            memcpy(&b[i], &bits, sizeof bits);
            assert_int_equal(differ(a, b), 1);
            char place[64];
            snprintf(place, sizeof place, "token %d, index %d:", i / COLS, i % COLS);
            assert_non_null(strstr(report, place));
            assert_non_null(strstr(report, "1 of 15 elements differ"));
        }
}

static void test_signed_zeros_differ(void **state) {
    (void)state;
    float a[COUNT], b[COUNT];
    fill(a);
    fill(b);
    a[7] = 0.0f;
    b[7] = -0.0f;
    assert_int_equal(differ(a, b), 1);
    assert_string_equal(report, "k_proj, layer 2, token 1, index 2: want 0 (0x00000000), "
                                "got -0 (0x80000000); 1 of 15 elements differ");
}

static void test_nan_payloads_differ(void **state) {
    (void)state;
    float a[COUNT], b[COUNT];
    fill(a);
    fill(b);
    a[0] = from_bits(0x7fc00000);
    b[0] = from_bits(0x7fc00001);
    assert_int_equal(differ(a, b), 1);
    assert_non_null(strstr(report, "want nan (0x7fc00000), got nan (0x7fc00001)"));
    b[0] = from_bits(0xffc00000);
    assert_int_equal(differ(a, b), 1);
    b[0] = 1.0f;
    assert_int_equal(differ(a, b), 1);
    assert_int_equal(differ(b, a), 1);
}

static void test_unwritten_output_is_found(void **state) {
    (void)state;
    float a[COUNT], b[COUNT];
    fill(a);
    poison(b, sizeof b);
    for (int i = 0; i < COUNT; i++)
        assert_true(isnan(b[i]));
    memcpy(b, a, sizeof *b * (COUNT - 1));
    assert_int_equal(differ(a, b), 1);
    assert_non_null(strstr(report, "token 2, index 4: want 14.25 (0x41640000), got nan"));

    double wide[2];
    int16_t mantissa;
    poison(wide, sizeof wide);
    poison(&mantissa, sizeof mantissa);
    assert_true(isnan(wide[0]) && isnan(wide[1]));
    assert_true(mantissa > 32639);
}

static void test_swapped_rows_are_found(void **state) {
    (void)state;
    float a[COUNT], b[COUNT];
    fill(a);
    memcpy(b, a, sizeof b);
    memcpy(b, a + COLS, sizeof *b * COLS);
    memcpy(b + COLS, a, sizeof *b * COLS);
    assert_int_equal(differ(a, b), 1);
    assert_non_null(strstr(report, "token 0, index 0: want 0.25 "));
    assert_non_null(strstr(report, "10 of 15 elements differ"));
}

static void test_shapes_and_types_must_match(void **state) {
    (void)state;
    float a[COUNT];
    fill(a);
    struct tensor_view want = view(ELEMENT_FLOAT, a), got = want;
    got.rows = ROWS - 1;
    assert_int_equal(compare_bits(&want, &got, report, sizeof report), 1);
    assert_string_equal(report, "k_proj, layer 2: want 3 x 5 float32, got 2 x 5 float32");
    assert_int_equal(compare_bits(&got, &want, report, sizeof report), 1);
    got.rows = COLS; /* as many elements in another shape */
    got.cols = ROWS;
    assert_int_equal(compare_bits(&want, &got, report, sizeof report), 1);
    got = want;
    got.type = ELEMENT_INT32;
    assert_int_equal(compare_bits(&want, &got, report, sizeof report), 1);
    assert_string_equal(report, "k_proj, layer 2: want 3 x 5 float32, got 3 x 5 int32");
}

/* The first difference of two arrays of one type, at the last element. */
static void assert_report(enum element type, const void *want, const void *got, const char *text) {
    struct tensor_view a = {"logits", -1, 1, 2, type, want}, b = {"logits", -1, 1, 2, type, got};
    assert_int_equal(compare_bits(&a, &b, report, sizeof report), 1);
    char all[256];
    snprintf(all, sizeof all, "logits, token 0, index 1: want %s; 1 of 2 elements differ", text);
    assert_string_equal(report, all);
}

static void test_every_element_type(void **state) {
    (void)state;
    assert_report(ELEMENT_DOUBLE, (double[]){1, 2}, (double[]){1, -0.0},
                  "2 (0x4000000000000000), got -0 (0x8000000000000000)");
    assert_report(ELEMENT_INT8, (int8_t[]){1, -1}, (int8_t[]){1, 127}, "-1 (0xff), got 127 (0x7f)");
    assert_report(ELEMENT_INT16, (int16_t[]){1, -1}, (int16_t[]){1, 255},
                  "-1 (0xffff), got 255 (0x00ff)");
    assert_report(ELEMENT_INT32, (int32_t[]){1, -2}, (int32_t[]){1, 70000},
                  "-2 (0xfffffffe), got 70000 (0x00011170)");
    assert_report(ELEMENT_FLOAT, (float[]){1, 1e30f}, (float[]){1, -INFINITY},
                  "1.00000002e+30 (0x7149f2ca), got -inf (0xff800000)");
}

static void test_a_report_is_cut_not_overrun(void **state) {
    (void)state;
    float a[COUNT], b[COUNT];
    fill(a);
    fill(b);
    b[1] = 9;
    struct tensor_view want = view(ELEMENT_FLOAT, a), got = view(ELEMENT_FLOAT, b);
    char small[9] = "12345678";
    assert_int_equal(compare_bits(&want, &got, small, 8), 1);
    assert_string_equal(small, "k_proj,");
    assert_int_equal(small[8], 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bits_pass),
        cmocka_unit_test(test_every_flipped_bit_is_found),
        cmocka_unit_test(test_signed_zeros_differ),
        cmocka_unit_test(test_nan_payloads_differ),
        cmocka_unit_test(test_unwritten_output_is_found),
        cmocka_unit_test(test_swapped_rows_are_found),
        cmocka_unit_test(test_shapes_and_types_must_match),
        cmocka_unit_test(test_every_element_type),
        cmocka_unit_test(test_a_report_is_cut_not_overrun),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
