/* causes.h - the typical mistakes of lab 0. */
#ifndef SAMEBITS_TESTS_LABS_00_CAUSES_H
#define SAMEBITS_TESTS_LABS_00_CAUSES_H

#include "tests/labs/lab.h"

enum { N_LAB_0_CAUSES = 18 };

extern const struct lab_cause lab_0_causes[N_LAB_0_CAUSES];

#endif
