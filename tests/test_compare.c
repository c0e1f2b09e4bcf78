/* The checker is checked first: what it must not let pass, and what its report must say. So is
 * --verify, which uses it: beside a reference on purpose broken. */
#include "tests/assert_bits.h"
#include "tutorials/common/paged.h"
#include "tutorials/common/verify.h"

#include <getopt.h>
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

/* ---- --verify ---------------------------------------------------------------------------------
 */

/* The reference's table but for one op, which is wrong. */
static struct ops broken;
static int n_draws;

static void attend_with_a_wrong_bit(struct device *dev, float *y, const float *q,
                                    const struct kv_views *kv, const struct attention_plan *plan,
                                    const struct attention_variant *variant, int site) {
    ref_ops.attend(dev, y, q, kv, plan, variant, site);
    uint32_t bits;
    memcpy(&bits, y, sizeof bits);
    bits ^= 1;
    memcpy(y, &bits, sizeof bits);
}

static void sample_with_a_wrong_end(struct device *dev, int32_t *token_ids, const float *logits,
                                    const struct sampling *how, int n_rows, int vocab, int site) {
    ref_ops.sample(dev, token_ids, logits, how, n_rows, vocab, site);
    if (++n_draws == 8) /* the last of --verify */
        token_ids[0] ^= 1;
}

/* Runs --verify on the broken table, by the way of a phase. Returns what verify_prompt does. */
static int verify_broken(bool fused, struct error *err) {
    const struct phase phase = {.number = 8, .caches = paged_caches, .fused = fused};
    struct demo demo = {.phase = &phase, .cache = paged_caches};
    char *arguments[] = {"demo", "--verify", "--raw", "--prompt", "Once upon a time"};
    struct device_options one = {.n_threads = 1};
    n_draws = 0;
    optind = 1;
    assert_int_equal(options_parse(&demo.options, 5, arguments, &phase, err), 0);
    assert_int_equal(tokenizer_load(&demo.tokenizer, demo.options.model, err), 0);
    demo.dev = ref_ops.open(&one, err);
    assert_non_null(demo.dev);
    demo.dev->ops = &broken;
    assert_int_equal(model_load(&demo.model, demo.dev, demo.options.model, NULL, err), 0);
    assert_int_equal(generator_start(&demo.generator, &demo.model, err), 0);
    assert_int_equal(fingerprint_start(&demo.run, err), 0);
    demo.generator.fused = fused;
    err->text[0] = 0;
    int result = verify_prompt(&demo, err);
    fingerprint_end(&demo.run);
    generator_end(&demo.generator);
    model_free(&demo.model);
    demo.dev->ops->close(demo.dev);
    tokenizer_free(demo.tokenizer);
    return result;
}

static void test_verify_passes_what_is_right(void **state) {
    (void)state;
    struct error err;
    broken = ref_ops;
    for (int fused = 0; fused < 2; fused++)
        assert_int_equal(verify_broken(fused, &err), 0);
}

static void test_verify_takes_the_way_of_the_phase(void **state) {
    (void)state;
    struct error err;
    broken = ref_ops;
    broken.attend = attend_with_a_wrong_bit;
    assert_int_equal(verify_broken(true, &err), -1);
    assert_non_null(strstr(err.text, "differs from the reference: attention output, layer 0"));
}

static void test_verify_compares_what_was_drawn(void **state) {
    (void)state;
    struct error err;
    broken = ref_ops;
    broken.sample = sample_with_a_wrong_end;
    assert_int_equal(verify_broken(true, &err), -1);
    assert_non_null(strstr(err.text, "token 8 of the answer differs from the reference: drew "));
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
        cmocka_unit_test(test_verify_passes_what_is_right),
        cmocka_unit_test(test_verify_takes_the_way_of_the_phase),
        cmocka_unit_test(test_verify_compares_what_was_drawn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
