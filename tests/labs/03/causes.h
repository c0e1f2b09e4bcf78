/* causes.h - the typical mistakes of lab 3. */
#ifndef SAMEBITS_TESTS_LABS_03_CAUSES_H
#define SAMEBITS_TESTS_LABS_03_CAUSES_H

#include "tests/labs/lab.h"

enum { N_LAB_3_CAUSES = 12 };

extern const struct lab_cause lab_3_causes[N_LAB_3_CAUSES];

#endif
