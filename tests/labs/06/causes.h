/* causes.h - the typical mistakes of lab 6. */
#ifndef SAMEBITS_TESTS_LABS_06_CAUSES_H
#define SAMEBITS_TESTS_LABS_06_CAUSES_H

#include "tests/labs/lab.h"

enum { N_LAB_6_CAUSES = 23 };

extern const struct lab_cause lab_6_causes[N_LAB_6_CAUSES];

#endif
