/*
 * tiles.h - what versions 5 and 6 of linear share: tiles of y and their order, mantissas of x as
 * digits, and the end of the sums.
 *
 * A block multiplies a tile of x by a tile of W. x arrives in shared memory as 16-bit mantissas,
 * and becomes digits on its way to registers, W lies there as digits. With digits h and l, x w =
 * 65536 hh + 256 (hl + lh) + ll: three sums of int32, which fit, because a digit is -128 ... 127,
 * and no mantissa is above 127 * 256 + 127:
 *
 *     |hh| <= 127 * 127 * 65536,  |ll| <= 128 * 128 * 65536 = 2^30,
 *     |hl + lh| <= 2 * 127 * 128 * 65536 = 2^31 - 2^24          for up to 65536 columns
 *
 * They become one double, exactly, and the output is rounded once, as in the lesson.
 */
#ifndef SAMEBITS_GPU_FAST_LINEAR_TILES_H
#define SAMEBITS_GPU_FAST_LINEAR_TILES_H

#include "gpu/fast/linear/linear.h"
#include "gpu/ptx/digit_sums.h"
#include "gpu/ptx/tile_copy.h"

enum { THREADS = 256, MAX_K = 65536 };
enum { ROW_TILES_TOGETHER = 8 }; /* neighbours in the order of tiles: place_of */

/* A matrix of the launch. */
struct weights {
    struct tile_map map;              /* of the digits, in version 5 */
    const int8_t *digits, *exponents; /* the high digits, and n rows on the low ones */
    float *y;
    int n, first_tile; /* of the columns */
};

/* A launch. Tiles are numbered over all parts. */
struct product {
    struct weights parts[MOST_LINEAR_PARTS];
    struct bfp_rows x;
    int n_parts, n_tokens, k;
    int n_row_tiles, n_column_tiles;
    /* In version 5 a cluster takes one tile after the other, and each of its blocks a part of the
     * steps. */
    struct tile_map x_map;
    int n_steps;
    int x_rows;     /* of a tile of x: a multiple of 8 */
    int n_blocks;   /* of a cluster */
    bool exchanges; /* a cluster takes one tile, and its sums go through shared memory */
};

/* The launch, but for what only version 5 has. */
template <class size>
static struct product number_tiles(const struct linear_part *parts, int n_parts, struct bfp_rows x,
                                   int n_tokens) {
    struct product p = {};
    p.x = x;
    p.n_parts = n_parts;
    p.n_tokens = n_tokens;
    p.k = parts->w->k;
    p.n_row_tiles = (n_tokens + size::ROWS - 1) / size::ROWS;
    for (int i = 0; i < n_parts; i++) {
        const struct matrix *m = parts[i].w;
        struct weights *w = &p.parts[i];
        w->digits = (const int8_t *)m->mantissas;
        w->exponents = m->exponents;
        w->y = parts[i].y;
        w->n = m->n;
        w->first_tile = p.n_column_tiles;
        p.n_column_tiles += (m->n + size::OUTS - 1) / size::OUTS;
    }
    return p;
}

struct tile_place {
    const struct weights *w;
    int first_token, first_out;
};

/* Neighbours in this order read the same x and W while these are in the cache. */
template <class size>
static __device__ __forceinline__ struct tile_place place_of(const struct product *p, int tile) {
    int band_tiles = ROW_TILES_TOGETHER * p->n_column_tiles;
    int band = tile / band_tiles, in_band = tile % band_tiles;
    int rows = min((int)ROW_TILES_TOGETHER, p->n_row_tiles - band * ROW_TILES_TOGETHER);
    int column = in_band / rows;
    const struct weights *w = &p->parts[0];
    UNROLL
    for (int i = 1; i < MOST_LINEAR_PARTS; i++)
        if (i < p->n_parts && column >= p->parts[i].first_tile)
            w = &p->parts[i];
    return {w, (band * ROW_TILES_TOGETHER + in_band % rows) * size::ROWS,
            (column - w->first_tile) * size::OUTS};
}

/* What a thread brings to shared memory: of row or column number threadIdx.x. 0: there is none. */
template <class size>
static __device__ __forceinline__ int8_t load_exponent(const struct product *p,
                                                       const struct tile_place *place) {
    int row = (int)threadIdx.x, column = row - size::ROWS;
    if (column < 0)
        return place->first_token + row < p->n_tokens ? p->x.exponents[place->first_token + row]
                                                      : 0;
    bool exists = column < size::OUTS && place->first_out + column < place->w->n;
    return exists ? place->w->exponents[place->first_out + column] : 0;
}

template <int COLUMNS> struct tile_sums {
    int32_t high[COLUMNS / 2], middle[COLUMNS / 2], low[COLUMNS / 2];
};

/* A thread's digits of 32 columns of x: its part of the matrix a of wgmma. */
struct row_digits {
    uint32_t high[4], low[4];
};

/* rows: two rows of x at this thread's place in column 0, if they exist; swizzle: what column
 * 0 becomes, in bytes. quarter: which 32 of STEP columns. */
template <class size>
static __device__ __forceinline__ struct row_digits
load_digits(const unsigned char *rows, bool exist, int swizzle, int quarter) {
    struct row_digits d;
    rows += quarter / 2 * size::X_BYTES;
    UNROLL
    for (int i = 0; i < 4; i++) {
        int at = swizzle ^ (quarter % 2 * 64 + i / 2 * 32 + i % 2 * 16);
        uint2 four = make_uint2(0, 0);
        if (exist)
            four = *(const uint2 *)(rows + i % 2 * TILE_ROW_BYTES + at);
        split_four(&d.high[i], &d.low[i], four);
    }
    return d;
}

/* An integer below 2^51, as a double: with 1.5 * 2^52 added, it is the low bits. */
static __device__ __forceinline__ double join(int32_t high, int32_t middle, int32_t low) {
    const double shift = 0x1.8p52;
    long long sum = 65536ll * high + (256ll * middle + low) + 0x4338000000000000ll;
    double shifted;
    memcpy(&shifted, &sum, sizeof shifted);
    return shifted - shift;
}

/* Where a thread's outputs are. A pair is two neighbours; pair number i, in the order of wgmma's d,
 * is at row i % 2 and column i / 2 * 8. */
struct outputs {
    const int8_t *x_exponents, *w_exponents; /* in shared memory, of row and column 0 */
    float *y;
    int token, out, n_tokens, n; /* of row and column 0, and how many there are */
};

static __device__ __forceinline__ void write_pair(const struct outputs *o, int i, double2 dot) {
    int token = o->token + i % 2, column = i / 2 * 8, out = o->out + column;
    int e = o->x_exponents[i % 2] - 30;
    float2 y = make_float2(num_dot_to_float(dot.x, e + o->w_exponents[column]),
                           num_dot_to_float(dot.y, e + o->w_exponents[column + 1]));
    float *to = o->y + (size_t)token * (size_t)o->n + (size_t)out;
    if (token < o->n_tokens && out + 1 < o->n && o->n % 2 == 0) {
        *(float2 *)to = y;
    } else if (token < o->n_tokens && out < o->n) {
        to[0] = y.x;
        if (out + 1 < o->n)
            to[1] = y.y;
    }
}

template <int COLUMNS>
static __device__ __forceinline__ double2 join_pair(const tile_sums<COLUMNS> *s, int i) {
    return make_double2(join(s->high[2 * i], s->middle[2 * i], s->low[2 * i]),
                        join(s->high[2 * i + 1], s->middle[2 * i + 1], s->low[2 * i + 1]));
}

#endif
