/*
 * ring.h - the digits of keys and values from device to shared memory, for version 2 of attention:
 * a pipeline of STAGES chunks, one of which is used while the others arrive by cp.async, 16 bytes
 * of a thread at a time.
 *
 * A kernel's `size` says THREADS, STAGES, STAGE_BYTES, and per tile KEY_CHUNKS of KEY_BYTES and
 * VALUE_CHUNKS of VALUE_BYTES.
 */
#ifndef SAMEBITS_GPU_FAST_PROMPT_RING_H
#define SAMEBITS_GPU_FAST_PROMPT_RING_H

#include "gpu/ptx/tensor_core.h"

/* The chunks of a block, in the order of their use: per tile the keys that somebody sees, then all
 * values. */
template <class size> struct chunk_ring {
    const uint8_t *from; /* the chunk to be started next */
    unsigned char *ring;
    int tiles_left, chunk; /* of the tile: the number of the chunk at `from` */
    int n_last;            /* key chunks of the last tile */
    int stage, used;       /* of the ring: to be filled and to be used next */

    template <int BYTES> __device__ __forceinline__ void start_bytes() {
        for (int at = (int)threadIdx.x * 16; at < BYTES; at += size::THREADS * 16)
            cp_async_16(ring + stage * size::STAGE_BYTES + at, from + at);
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
        cp_async_commit(); /* at the end an empty group, so that waiting can count */
        stage = stage + 1 < size::STAGES ? stage + 1 : 0;
    }

    /* The next chunk. Waits for it and for all threads, then starts another one in the place of the
     * oldest, which nobody uses any more. */
    __device__ __forceinline__ const unsigned char *next() {
        cp_async_wait<size::STAGES - 2>();
        const unsigned char *chunk = ring + used * size::STAGE_BYTES;
        used = used + 1 < size::STAGES ? used + 1 : 0;
        __syncthreads();
        start();
        return chunk;
    }
};

#endif
