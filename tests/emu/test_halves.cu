/* gpu/ptx/halves.h: every e4m3 number, and the cuts of attention. */
#include "gpu/ptx/halves.h"
#include "tests/emu/device_test.h"

enum { N_BYTES = 256 };

/* halves[byte]: the byte beside the next one; behind them, 0 beside it. */
__global__ void widen(uint32_t *halves) {
    uint32_t four[2], next = (threadIdx.x + 1) & 255;
    halves_of_e4m3(four, threadIdx.x | next << 8 | threadIdx.x << 24);
    halves[threadIdx.x] = four[0];
    halves[N_BYTES + threadIdx.x] = four[1];
}

static void expect_number(uint32_t half, int byte) {
    if (kv_magnitude(KV_E4M3, (uint32_t)byte) > small_float_of(KV_E4M3).largest)
        assert_true((half & 0x7fff) > 0x7c00);
    else
        assert_true(kv_float(KV_FP16, half) * 512 == (float)kv_integer(KV_E4M3, (uint32_t)byte, 1));
}

static void test_every_e4m3_number(void **) {
    uint32_t *out = to_device(std::vector<uint32_t>(2 * N_BYTES, 0));
    LAUNCH(widen, 1, N_BYTES, 0, 0, out);
    std::vector<uint32_t> halves = from_device(out, 2 * N_BYTES);
    for (int i = 0; i < N_BYTES; i++) {
        expect_number(halves[(size_t)i] & 0xffff, i);
        expect_number(halves[(size_t)i] >> 16, (i + 1) % N_BYTES);
        expect_number(halves[(size_t)(N_BYTES + i)] & 0xffff, 0);
        expect_number(halves[(size_t)(N_BYTES + i)] >> 16, i);
    }
}

/* x * scale rounded to a multiple of `unit`, by adding large and taking it away. */
__global__ void round_to(uint32_t *y, const uint32_t *x, uint32_t scale, uint32_t large) {
    uint32_t sum = halves_fma(x[threadIdx.x], halves_of(scale), halves_of(large));
    y[threadIdx.x] = halves_subtract(sum, halves_of(large));
}

/* fp16 numbers of 3 bits, those of e5m2 in the upper half, and half of them in the lower one. */
static void check_rounding(uint32_t scale, uint32_t large, float scaled, float unit, float most) {
    std::vector<uint32_t> x(N_BYTES);
    for (size_t i = 0; i < x.size(); i++) {
        uint32_t number = (uint32_t)i << 8, finite = (i & 0x7c) == 0x7c ? 0 : number;
        x[i] = finite << 16 | ((finite & 0x7fff) < 0x400 ? 0 : finite - 0x400);
    }
    uint32_t *in = to_device(x), *out = to_device(x);
    LAUNCH(round_to, 1, N_BYTES, 0, 0, out, in, scale, large);
    std::vector<uint32_t> y = from_device(out, x.size());
    for (size_t i = 0; i < 2 * x.size(); i++) {
        float from = kv_float(KV_FP16, x[i / 2] >> 16 * (i % 2) & 0xffff) * scaled;
        float to = kv_float(KV_FP16, y[i / 2] >> 16 * (i % 2) & 0xffff);
        if (fabsf(from) > most)
            continue;
        assert_true(to == (float)num_rint(from / unit) * unit);
    }
    assert_cuda(cudaFree(in));
}

static void test_rounding_to_a_unit(void **) {
    check_rounding(0x3c00, 0x6600, 1, 1, 512);       /* 1536 */
    check_rounding(0x3000, 0x7200, 0.125f, 8, 8192); /* of an eighth, 12288 */
    check_rounding(0x3c00, 0x5200, 1, 0x1p-5f, 16);  /* 48 */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_e4m3_number),
        cmocka_unit_test(test_rounding_to_a_unit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
