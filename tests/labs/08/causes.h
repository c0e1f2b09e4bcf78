/* causes.h - the typical mistakes of lab 8. */
#ifndef SAMEBITS_TESTS_LABS_08_CAUSES_H
#define SAMEBITS_TESTS_LABS_08_CAUSES_H

#include "tests/labs/lab.h"

enum { N_LAB_8_CAUSES = 34 };

extern const struct lab_cause lab_8_causes[N_LAB_8_CAUSES];

#endif
