/*
 * tile_copy.h - copies of tiles of a matrix to shared memory, started by one thread (tensor maps and
 * cp.async.bulk.tensor; compute capability 9.0).
 *
 *     host:      struct tile_map map; tile_map_make(&map, ...); the map is part of an argument of
 *                the kernel that is declared const __grid_constant__
 *     one thread: bulk_expect(&barrier, bytes of all tiles);
 *     any thread: tile_copy(&barrier, to, &map, ...); tile_map_prefetch(&map) some time before
 *     all:       bulk_end_group(), bulk_wait as for any bulk copy (gpu/ptx/warpgroup.h)
 *
 * A tile is 128 bytes of each of some rows of the matrix; what lies outside of the matrix arrives as
 * zeros. In shared memory its rows are one after the other, 128 bytes each, from a multiple of 1024
 * on, and the 16-byte columns of a row are swizzled, so that eight rows of one column are in
 * different banks:
 *
 *     column c of row r is at  r * 128 + (c ^ r % 8) * 16
 *
 *     row 0   0 1 2 3 4 5 6 7
 *     row 1   1 0 3 2 5 4 7 6
 *     row 2   2 3 0 1 6 7 4 5
 *     ...
 *
 * See the PTX manual's chapters on tensors and cp.async.bulk.tensor.
 */
#ifndef SAMEBITS_GPU_PTX_TILE_COPY_H
#define SAMEBITS_GPU_PTX_TILE_COPY_H

#include "gpu/ptx/warpgroup.h"

enum { TILE_ROW_BYTES = 128 };

/* What the host says of a matrix: elements of 1 or 2 bytes; data and row_bytes are multiples of 16.
 */
struct tile_source {
    const void *data;
    int element_bytes, n_rows, n_columns;
    size_t row_bytes; /* from one row to the next */
    int tile_rows;    /* at most 256 */
};

#ifdef SAMEBITS_EMU

struct tile_map {
    struct tile_source source;
};

static inline bool tile_map_make(struct tile_map *map, const struct tile_source *source) {
    map->source = *source;
    return true;
}

static inline void tile_map_prefetch(const struct tile_map *) {
}

static inline void tile_copy(struct bulk_barrier *, void *to, const struct tile_map *map,
                             int column, int row) {
    const struct tile_source *s = &map->source;
    for (int i = 0; i < s->tile_rows; i++)
        for (int c = 0; c < TILE_ROW_BYTES / 16; c++) {
            int at = column * s->element_bytes + c * 16;
            int bytes = row + i < s->n_rows ? s->n_columns * s->element_bytes - at : 0;
            bytes = max(0, min(bytes, 16));
            const char *from = (const char *)s->data;
            if (bytes)
                from += (size_t)(row + i) * s->row_bytes + (size_t)at;
            emu_copy_start((char *)to + i * TILE_ROW_BYTES + (c ^ i % 8) * 16, from,
                           (size_t)bytes);
        }
}

#else

#include <cuda.h>

struct tile_map {
    CUtensorMap map;
};

/* Returns false when the driver refuses the matrix, or has no tensor maps. */
static inline bool tile_map_make(struct tile_map *map, const struct tile_source *source) {
    static decltype(&cuTensorMapEncodeTiled) encode;
    void *function = NULL;
    cudaDriverEntryPointQueryResult found;
    if (!encode && cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                                    cudaEnableDefault, &found) == cudaSuccess)
        encode = (decltype(encode))function;
    const cuuint64_t size[2] = {(cuuint64_t)source->n_columns, (cuuint64_t)source->n_rows},
                     stride = source->row_bytes;
    const cuuint32_t box[2] = {(cuuint32_t)(TILE_ROW_BYTES / source->element_bytes),
                               (cuuint32_t)source->tile_rows},
                     every[2] = {1, 1};
    return encode && encode(&map->map,
                            source->element_bytes == 1 ? CU_TENSOR_MAP_DATA_TYPE_UINT8
                                                       : CU_TENSOR_MAP_DATA_TYPE_UINT16,
                            2, (void *)source->data, size, &stride, box, every,
                            CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                            CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                            CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define TILE_PTX(...) __trap()
#else
#define TILE_PTX(...) asm volatile(__VA_ARGS__)
#endif

static __device__ __forceinline__ void tile_map_prefetch(const struct tile_map *map) {
    TILE_PTX("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/* column: the element of the matrix that the tile begins with. */
static __device__ __forceinline__ void
tile_copy(struct bulk_barrier *b, void *to, const struct tile_map *map, int column, int row) {
    TILE_PTX("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
             "[%1, {%2, %3}], [%4];" ::"r"(shared_address(to)),
             "l"(map), "r"(column), "r"(row), "r"(shared_address(b))
             : "memory");
}

#undef TILE_PTX
#endif
#endif
