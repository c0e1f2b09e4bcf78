/* causes.h - the typical mistakes of lab 7. */
#ifndef SAMEBITS_TESTS_LABS_07_CAUSES_H
#define SAMEBITS_TESTS_LABS_07_CAUSES_H

#include "tests/labs/lab.h"

enum { N_LAB_7_CAUSES = 19 };

extern const struct lab_cause lab_7_causes[N_LAB_7_CAUSES];

#endif
