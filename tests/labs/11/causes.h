/* causes.h - the typical mistakes of lab 11. */
#ifndef SAMEBITS_TESTS_LABS_11_CAUSES_H
#define SAMEBITS_TESTS_LABS_11_CAUSES_H

#include "tests/labs/lab.h"

enum { N_LAB_11_CAUSES = 16 };

extern const struct lab_cause lab_11_causes[N_LAB_11_CAUSES];

#endif
