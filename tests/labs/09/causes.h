/* causes.h - the typical mistakes of lab 9. */
#ifndef SAMEBITS_TESTS_LABS_09_CAUSES_H
#define SAMEBITS_TESTS_LABS_09_CAUSES_H

#include "tests/labs/lab.h"

enum { N_LAB_9_CAUSES = 21 };

extern const struct lab_cause lab_9_causes[N_LAB_9_CAUSES];

#endif
