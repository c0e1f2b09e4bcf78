/*
 * ring.h - the digits of keys and values from device to shared memory, for version 2 of attention:
 * a pipeline of STAGES chunks, one of which is used while the others arrive.
 *
 * A kernel's `size` says STAGES, STAGE_BYTES, and per tile KEY_CHUNKS of KEY_BYTES and VALUE_CHUNKS
 * of VALUE_BYTES. Its `copy` moves them:
 *
 *     template <int BYTES> start(to, from, stage)   all threads: starts to copy a chunk
 *     end_group()                                   all threads, also when nothing was started
 *     wait(stage, behind)                           until the chunk in this stage is there, behind
 *                                                   which so many groups were ended
 */
#ifndef SAMEBITS_GPU_FAST_PROMPT_RING_H
#define SAMEBITS_GPU_FAST_PROMPT_RING_H

#include "gpu/ptx/tensor_core.h"

/* The chunks of a block, in the order of their use: per tile the keys that somebody sees, then all
 * values. */
template <class size, class copy> struct chunk_ring {
    const uint8_t *from; /* the chunk to be started next */
    unsigned char *ring;
    int tiles_left, chunk; /* of the tile: the number of the chunk at `from` */
    int n_last;            /* key chunks of the last tile */
    int stage, used;       /* of the ring: to be filled and to be used next */
    int behind;            /* groups that were ended and not waited for */
    copy copies;

    template <int BYTES> __device__ __forceinline__ void start_bytes() {
        copies.template start<BYTES>(ring + stage * size::STAGE_BYTES, from, stage);
        from += BYTES;
    }

    /* Starts copying the next chunk into the ring, if there is one left. */
    __device__ __forceinline__ void start() {
        if (tiles_left) {
            if (chunk < size::KEY_CHUNKS)
                start_bytes<size::KEY_BYTES>();
            else
                start_bytes<size::VALUE_BYTES>();
            chunk++;
            if (tiles_left == 1 && chunk == n_last) { /* keys that nobody sees */
                from += (size::KEY_CHUNKS - n_last) * size::KEY_BYTES;
                chunk = size::KEY_CHUNKS;
            }
            if (chunk == size::KEY_CHUNKS + size::VALUE_CHUNKS) {
                chunk = 0;
                tiles_left--;
            }
        }
        copies.end_group(); /* at the end an empty one, so that waiting can count */
        behind++;
        stage = stage + 1 < size::STAGES ? stage + 1 : 0;
    }

    /* Waits for the next chunk, as far as this thread's own copies go. */
    __device__ __forceinline__ const unsigned char *take() {
        copies.wait(used, --behind);
        const unsigned char *chunk = ring + used * size::STAGE_BYTES;
        used = used + 1 < size::STAGES ? used + 1 : 0;
        return chunk;
    }

    /* Waits for all threads, then starts another chunk: in the place of the oldest one, which this
     * thread does not use any more. */
    __device__ __forceinline__ void replace() {
        __syncthreads();
        start();
    }

    /* The next chunk, where the one before is not used any more. */
    __device__ __forceinline__ const unsigned char *next() {
        const unsigned char *chunk = take();
        replace();
        return chunk;
    }
};

#endif
