/*
 * arithmetic.h - whether this thread computes as the rules of numerics.h say.
 *
 * A thread can be told to round in another direction, or to take subnormal numbers for zeros
 * (FTZ, DAZ): libraries do that, for their own sake, when they are loaded. A compiler can be told
 * to reorder sums, or to round a * b + c once. Each of these changes the bits, and nothing else
 * would tell.
 */
#ifndef SAMEBITS_ARITHMETIC_H
#define SAMEBITS_ARITHMETIC_H

#include "model/error.h"

/*
 * Gives this thread the rounding mode and the subnormal numbers of IEEE 754, and computes a few
 * sums whose bits are known, which takes less than a microsecond. Returns 0, or -1 with err set:
 * what is wrong. Threads inherit the mode of who starts them; before main, the first one has it
 * set.
 */
int arithmetic_check(struct error *err);

#endif
