/*
 * split.h - how rows of bfp16 in one piece become digits: what digits_rows.cu, which writes them to
 * memory, and short.cu, which keeps them in shared memory, have in common.
 */
#ifndef SAMEBITS_GPU_FAST_PROMPT_SPLIT_H
#define SAMEBITS_GPU_FAST_PROMPT_SPLIT_H

#include "gpu/fast/prompt/prompt.h"
#include "gpu/ptx/tensor_core.h"

enum { SIDE_DIMS = 32 }; /* dimensions of values that a warp turns on their side together */

/* Whether rows are of bfp16, each in one piece that vectors of 16 bytes can load. */
static inline bool is_in_pieces(const struct kv_view *v, int head_dim) {
    return v->type == KV_BFP16 && v->element_step == 1 && v->group_step == v->x &&
           head_dim % 8 == 0 && v->page_step % 8 == 0 && v->position_step % 8 == 0 &&
           v->head_step % 8 == 0 && (uintptr_t)v->data % 16 == 0;
}

/* The digits of eight mantissas of 16 bytes: their high ones, and their low ones. */
static __device__ __forceinline__ void split_vector(uint2 *high, uint2 *low, uint4 m) {
    high->x = __byte_perm(m.x, m.y, 0x7531);
    high->y = __byte_perm(m.z, m.w, 0x7531);
    low->x = __byte_perm(m.x, m.y, 0x6420);
    low->y = __byte_perm(m.z, m.w, 0x6420);
}

/* Turns 32 positions of SIDE_DIMS dimensions of values on their side: ldmatrix hands a lane two
 * positions of a dimension, and column_of orders them just so. A warp; lane 4 g + t gets bytes 4 t
 * ... of dimension g of two columns. to: the first dimension in the first column; column: its
 * bytes; row: of this lane's position. */
static __device__ __forceinline__ void split_side(uint8_t *to, int column, const void *row) {
    int lane = (int)threadIdx.x % 32;
    to += column_of(lane / 4) * 16 + lane % 4 * 4;
    UNROLL
    for (int vector = 0; vector < SIDE_DIMS / 8; vector++) {
        uint32_t m[4]; /* of 8 positions each */
        ldmatrix_x4_trans(m, (const uint4 *)row + vector);
        UNROLL
        for (int c = 0; c < 2; c++) {
            uint8_t *at_column = to + c * column + column_of(8 * vector) * 16;
            *(uint32_t *)at_column = __byte_perm(m[2 * c], m[2 * c + 1], 0x7531);
            *(uint32_t *)(at_column + column / 2) = __byte_perm(m[2 * c], m[2 * c + 1], 0x6420);
        }
    }
}

#endif
