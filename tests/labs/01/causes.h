/* causes.h - the typical mistakes of lab 1. */
#ifndef SAMEBITS_TESTS_LABS_01_CAUSES_H
#define SAMEBITS_TESTS_LABS_01_CAUSES_H

#include "tests/labs/lab.h"

enum { N_LAB_1_CAUSES = 12 };

extern const struct lab_cause lab_1_causes[N_LAB_1_CAUSES];

#endif
