/* log.h - where lab.h's notes go. */
#ifndef SAMEBITS_TESTS_LABS_LOG_H
#define SAMEBITS_TESTS_LABS_LOG_H

#include "tests/labs/lab.h"

#include <stdio.h>

struct lab_log {
    FILE *file;
};

#endif
