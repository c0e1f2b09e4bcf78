#include "tests/labs/08/causes.h"
const struct lab_cause lab_8_causes[N_LAB_8_CAUSES];
