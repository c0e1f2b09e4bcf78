/*
 * check_reader.h - what `make check` has the compiler read before a reader's kernel file: all of
 * gpu.h, and the way from the op that is checked (CHECK_OP) to the reader's launcher.
 */
#ifndef SAMEBITS_TESTS_CHECK_READER_H
#define SAMEBITS_TESTS_CHECK_READER_H

#include "gpu/gpu.h"

#define CHECK_JOIN_TOKENS(a, b) a##b
#define CHECK_JOIN(a, b) CHECK_JOIN_TOKENS(a, b)

/* Puts the launcher of this file into the table. */
extern "C" void check_use_reader(struct ops *ops);
extern "C" void check_use_reader(struct ops *ops) {
    ops->CHECK_OP = CHECK_JOIN(gpu_, CHECK_OP);
}

#endif
