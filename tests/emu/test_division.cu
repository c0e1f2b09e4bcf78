/* gpu/ptx/division.h: every divisor up to 1500, and large ones, at the ends of quotients. */
#include "gpu/ptx/division.h"
#include "tests/emu/device_test.h"

#include <limits.h>

enum { N = 256 };

__global__ void divide(int *quotients, const int *numbers, struct division by) {
    quotients[threadIdx.x] = quotient(numbers[threadIdx.x], by);
}

/* Small numbers, and those around multiples of the divisor, up to the largest there are. */
static void check_divisor(int divisor) {
    std::vector<int> numbers(N);
    int64_t multiples = INT_MAX / divisor;
    for (int i = 0; i < N; i++) {
        int64_t multiple = i < N / 2 ? i / 3 : multiples - i % 32 * (multiples / 32);
        int64_t n = multiple * divisor + i % 3 - 1;
        numbers[(size_t)i] = n < 0 ? 0 : n > INT_MAX ? INT_MAX : (int)n;
    }
    int *in = to_device(numbers), *out = to_device(numbers);
    LAUNCH(divide, 1, N, 0, 0, out, in, division_by(divisor));
    std::vector<int> quotients = from_device(out, numbers.size());
    for (size_t i = 0; i < numbers.size(); i++)
        assert_int_equal(quotients[i], numbers[i] / divisor);
    assert_cuda(cudaFree(in));
}

static void test_quotients(void **) {
    for (int divisor = 1; divisor <= 1500; divisor++)
        check_divisor(divisor);
    for (int divisor : {4096, 65535, 65537, 1 << 30, (1 << 30) + 1, INT_MAX - 1, INT_MAX})
        check_divisor(divisor);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_quotients),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
