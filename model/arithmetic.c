#include "model/arithmetic.h"

#include "model/numerics.h"

#include <fenv.h>

/* After the constructors of all libraries, and before anybody reads a number. */
__attribute__((constructor)) static void set_default_mode(void) {
    fesetenv(FE_DFL_ENV);
}

struct sum {
    const char *wrong; /* what it means when the bits are others */
    uint32_t got, want;
};

int arithmetic_check(struct error *err) {
    /* Read when they are needed: what a compiler computes, it computes as it should. */
    volatile float one = 1, little = 0x1p-24f, big = 0x1p24f, tiny = 0x1p-127f, ragged = 0x1.001p0f;
    volatile double wide = 1, less = 0x1p-53;
    volatile uint32_t nan = 0x7fc00000u;
    fesetenv(FE_DFL_ENV);
    float square = ragged * ragged - 0x1.002p0f, sum = big + one - big, x = num_float(nan);
    const struct sum sums[] = {
        {"sums of float32 round in another direction", num_bits(one + 1.5f * little), 0x3f800001u},
        {"sums of float32 round in another direction", num_bits(one + little), 0x3f800000u},
        {"sums of float64 round in another direction", wide + 1.5 * less == 0x1.0000000000001p0, 1},
        {"sums of float64 round in another direction", wide + less == 1, 1},
        {"subnormal results become zeros (FTZ)", num_bits(0x1p-126f * (one * 0.5f)), 0x00400000u},
        {"subnormal numbers are read as zeros (DAZ)", num_bits(tiny * big), 0x0c000000u},
        {"products and sums are contracted (-ffp-contract=off is missing)", num_bits(square), 0},
        {"fmaf rounds twice", num_bits(fmaf(ragged, ragged, -0x1.002p0f)), 0x33800000u},
        {"sums are reordered (-ffast-math)", num_bits(sum), 0},
        {"NaN is taken for a number (-ffast-math)", x != x && !(x <= one), 1},
        {"-0 is taken for 0 (-ffast-math)", num_bits(-(one - one)), 0x80000000u},
        {"e^x has other bits", num_bits(num_exp(one)), 0x402df854u},
        {"e^x has other bits where it is subnormal", num_bits(num_exp(-100 * one)), 0x0000001bu},
    };
    for (size_t i = 0; i < sizeof sums / sizeof *sums; i++)
        if (sums[i].got != sums[i].want)
            return error_set(err,
                             "this program cannot keep its promise of the same bits: %s (%08x "
                             "instead of %08x)",
                             sums[i].wrong, (unsigned)sums[i].got, (unsigned)sums[i].want);
    return 0;
}
