/* causes.h - the typical mistakes of lab 10. */
#ifndef SAMEBITS_TESTS_LABS_10_CAUSES_H
#define SAMEBITS_TESTS_LABS_10_CAUSES_H

#include "tests/labs/lab.h"

enum { N_LAB_10_CAUSES = 20 };

extern const struct lab_cause lab_10_causes[N_LAB_10_CAUSES];

#endif
