/*
 * cuda_types.h - those of CUDA's vector types that are used here, with CUDA's sizes and alignments.
 *
 * Kernels read arrays of anything through pointers to vectors, so these may alias all types.
 */
#ifndef SAMEBITS_CUDA_TYPES_H
#define SAMEBITS_CUDA_TYPES_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define EMU_VECTOR_2(name, type, alignment)                                                        \
    struct __attribute__((may_alias, aligned(alignment))) name##2 {                                \
        type x, y;                                                                                 \
    };                                                                                             \
    inline name##2 make_##name##2(type x, type y) {                                                \
        return {x, y};                                                                             \
    }
#define EMU_VECTOR_4(name, type, alignment)                                                        \
    struct __attribute__((may_alias, aligned(alignment))) name##4 {                                \
        type x, y, z, w;                                                                           \
    };                                                                                             \
    inline name##4 make_##name##4(type x, type y, type z, type w) {                                \
        return {x, y, z, w};                                                                       \
    }

EMU_VECTOR_2(char, signed char, 2)
EMU_VECTOR_2(int, int, 8)
EMU_VECTOR_2(uint, unsigned, 8)
EMU_VECTOR_2(float, float, 8)
EMU_VECTOR_2(double, double, 16)
EMU_VECTOR_4(char, signed char, 4)
EMU_VECTOR_4(int, int, 16)
EMU_VECTOR_4(uint, unsigned, 16)
EMU_VECTOR_4(float, float, 16)

#undef EMU_VECTOR_2
#undef EMU_VECTOR_4

struct uint3 {
    unsigned x, y, z;
};
inline uint3 make_uint3(unsigned x, unsigned y, unsigned z) {
    return {x, y, z};
}

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {
    }
    constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {
    }
};

#endif
