/* gpu/ptx/halves.h: every fp8 number. */
#include "gpu/ptx/halves.h"
#include "tests/emu/device_test.h"

enum { N_BYTES = 256 };

/* halves[byte]: the byte beside the next one; behind them, 0 beside it. */
template <enum kv_type TYPE> __global__ void widen(uint32_t *halves) {
    uint32_t four[2], next = (threadIdx.x + 1) & 255;
    halves_of_fp8<TYPE>(four, threadIdx.x | next << 8 | threadIdx.x << 24);
    halves[threadIdx.x] = four[0];
    halves[N_BYTES + threadIdx.x] = four[1];
}

static void expect_number(enum kv_type type, uint32_t half, int byte) {
    uint32_t magnitude = kv_magnitude(type, (uint32_t)byte);
    if (magnitude > small_float_of(type).largest)
        assert_true((half & 0x7fff) >= 0x7c00);
    else
        assert_true(kv_float(KV_FP16, half) == kv_float(type, (uint32_t)byte));
}

template <enum kv_type TYPE> static void check_every_number(void) {
    uint32_t *out = to_device(std::vector<uint32_t>(2 * N_BYTES, 0));
    LAUNCH(widen<TYPE>, 1, N_BYTES, 0, 0, out);
    std::vector<uint32_t> halves = from_device(out, 2 * N_BYTES);
    for (int i = 0; i < N_BYTES; i++) {
        expect_number(TYPE, halves[(size_t)i] & 0xffff, i);
        expect_number(TYPE, halves[(size_t)i] >> 16, (i + 1) % N_BYTES);
        expect_number(TYPE, halves[(size_t)(N_BYTES + i)] & 0xffff, 0);
        expect_number(TYPE, halves[(size_t)(N_BYTES + i)] >> 16, i);
    }
}

static void test_every_e4m3_number(void **) {
    check_every_number<KV_E4M3>();
}

static void test_every_e5m2_number(void **) {
    check_every_number<KV_E5M2>();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_e4m3_number),
        cmocka_unit_test(test_every_e5m2_number),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
