/* causes.h - the typical mistakes of lab 5. */
#ifndef SAMEBITS_TESTS_LABS_05_CAUSES_H
#define SAMEBITS_TESTS_LABS_05_CAUSES_H

#include "tests/labs/lab.h"

enum { N_LAB_5_CAUSES = 23 };

extern const struct lab_cause lab_5_causes[N_LAB_5_CAUSES];

#endif
