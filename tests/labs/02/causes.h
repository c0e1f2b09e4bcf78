/* causes.h - the typical mistakes of lab 2. */
#ifndef SAMEBITS_TESTS_LABS_02_CAUSES_H
#define SAMEBITS_TESTS_LABS_02_CAUSES_H

#include "tests/labs/lab.h"

enum { N_LAB_2_CAUSES = 10 };

extern const struct lab_cause lab_2_causes[N_LAB_2_CAUSES];

#endif
