/* causes.h - the typical mistakes of lab 4. */
#ifndef SAMEBITS_TESTS_LABS_04_CAUSES_H
#define SAMEBITS_TESTS_LABS_04_CAUSES_H

#include "tests/labs/lab.h"

enum { N_LAB_4_CAUSES = 21 };

extern const struct lab_cause lab_4_causes[N_LAB_4_CAUSES];

#endif
