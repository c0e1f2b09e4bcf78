/* quotient.h - the divisions at the end of a row of attention, as kernels do them. */
#ifndef SAMEBITS_MODEL_ATTENTION_QUOTIENT_H
#define SAMEBITS_MODEL_ATTENTION_QUOTIENT_H

#include "model/numerics.h"

/* 1 / l, and what that is off by. */
struct num_reciprocal {
    float rounded, rest;
};

NUM_FN struct num_reciprocal num_reciprocal_of(float l) {
    struct num_reciprocal r;
    r.rounded = 1 / l;
    r.rest = fmaf(-r.rounded, l, 1.0f) * r.rounded;
    return r;
}

/*
 * x / l, rounded as a division is, for magnitudes of 2^-60 to 2^60: x times the reciprocal of l,
 * and the correction of what that is off. For kernels: a GPU can't divide in one instruction.
 *
 * A quotient that is off by less than a unit in the last place is right after one correction:
 * Markstein, "Computation of elementary functions on the IBM RISC System/6000 processor", 1990.
 * With both parts of the reciprocal it is off by little more than half a unit.
 * tests/slow_numerics.c tries all that could be wrong nevertheless.
 */
NUM_FN float num_divide_near(float x, float l, struct num_reciprocal by) {
    float q = fmaf(x, by.rounded, x * by.rest);
    return fmaf(fmaf(-q, l, x), by.rounded, q);
}

#endif
