/*
 * attention_ring.h - the digits of keys and values on their way from device to shared memory, for
 * versions 2 and 3 of attention: a ring of STAGES chunks, of which one is used while the others
 * arrive.
 *
 * A kernel's `size` says THREADS, STAGES, STAGE_BYTES, and per tile KEY_CHUNKS of KEY_BYTES and
 * VALUE_CHUNKS of VALUE_BYTES.
 */
#ifndef SAMEBITS_ATTENTION_RING_H
#define SAMEBITS_ATTENTION_RING_H

#include "gpu/tensor_core.h"

/* The chunks of a block, in the order of their use: per tile the keys that somebody sees, then all
 * values. */
template <class size> struct chunk_ring {
    const uint8_t *from; /* the chunk to be started next */
    unsigned char *ring;
    int tiles_left, chunk; /* of the tile: the number of the chunk at `from` */
    int n_last;            /* key chunks of the last tile */
    int stage, used;       /* of the ring: to be filled and to be used next */

    template <int BYTES> __device__ __forceinline__ void copy() {
        unsigned char *to = ring + stage * size::STAGE_BYTES + threadIdx.x * 16;
        const uint8_t *mine = from + threadIdx.x * 16;
        UNROLL
        for (int at = 0; at < BYTES; at += size::THREADS * 16)
            if (at + size::THREADS * 16 <= BYTES || (int)threadIdx.x * 16 < BYTES - at)
                cp_async_16(to + at, mine + at);
        from += BYTES;
    }

    /* Starts copying the next chunk into the ring, if there is one left. */
    __device__ __forceinline__ void start() {
        if (tiles_left) {
            if (chunk < size::KEY_CHUNKS)
                copy<size::KEY_BYTES>();
            else
                copy<size::VALUE_BYTES>();
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

    /* Waits for the next chunk and starts another one in the place of the one before, which nobody
     * may use any more. */
    __device__ __forceinline__ const unsigned char *next() {
        cp_async_wait<size::STAGES - 2>();
        size::before_barrier();
        __syncthreads();
        start();
        const unsigned char *next = ring + used * size::STAGE_BYTES;
        used = used + 1 < size::STAGES ? used + 1 : 0;
        return next;
    }
};

#endif
