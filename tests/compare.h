/*
 * compare.h - the bit checker: two tensors are the same or they are not.
 *
 * There is no tolerance. -0 is not +0, and one NaN is the same as another only if the payloads
 * are. Outputs are filled with a pattern before the op that writes them, so that an element that
 * was never written cannot pass by luck. C and C++; assert_bits.h makes a cmocka assertion of it.
 */
#ifndef SAMEBITS_TESTS_COMPARE_H
#define SAMEBITS_TESTS_COMPARE_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

enum element { ELEMENT_FLOAT, ELEMENT_DOUBLE, ELEMENT_INT8, ELEMENT_INT16, ELEMENT_INT32 };

/* A dense matrix of somebody else's memory: rows are tokens. */
struct tensor_view {
    const char *name;
    int layer; /* -1: it belongs to no layer */
    size_t rows, cols;
    enum element type;
    const void *data; /* [rows, cols] */
};

/*
 * Returns 0 when both have the same shape, type and bits. Otherwise 1, and the report says which
 * tensor, layer, token and index differ first, both values, both bit patterns, and how many
 * elements differ. Name and layer are taken from `want`; those of `got` are not looked at.
 */
int compare_bits(const struct tensor_view *want, const struct tensor_view *got, char *report,
                 size_t size);

/* Fills memory with a pattern that is a NaN as float and as double, and as int16 is larger than
 * any mantissa. */
void poison(void *data, size_t bytes);

#ifdef __cplusplus
}
#endif

#endif
