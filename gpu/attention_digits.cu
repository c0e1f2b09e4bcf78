/*
 * attention, before versions 2 and 3: queries, keys and values as 8-bit digits in the order in
 * which the tensor cores want them (attention.h). It costs a few percent of the time and leaves the
 * kernel proper nothing but whole 16-byte copies.
 */
#include "gpu/attention.h"

enum { TILE = ATTENTION_TILE, SIDE_DIMS = 32 };

/* Four mantissas as digits at byte 4 * word of a row. first: the row's column 0, high digits. */
static __device__ __forceinline__ void put_digits(uint8_t *first, int rows, int word,
                                                  const int m[4]) {
    uint32_t high = 0, low = 0;
    UNROLL
    for (int j = 0; j < 4; j++) {
        high |= ((uint32_t)m[j] >> 8 & 255) << (8 * j);
        low |= ((uint32_t)m[j] & 255) << (8 * j);
    }
    uint8_t *at = first + word / 4 * column_bytes(rows) + word % 4 * 4;
    *(uint32_t *)at = high;
    *(uint32_t *)(at + 16 * rows) = low;
}

/* Column 0 of row `row` of rows that lie in groups of `rows`. */
static __device__ __forceinline__ uint8_t *row_of(uint8_t *groups, int rows, int bytes_per_row,
                                                  size_t row) {
    return groups + row / (size_t)rows * (size_t)group_bytes(rows, bytes_per_row) +
           row % (size_t)rows * 16;
}

static __host__ __device__ size_t padded_rows(const struct attention_digits *d) {
    return ((size_t)d->n_rows + QUERY_ROWS - 1) / QUERY_ROWS * QUERY_ROWS;
}

/* A warp snaps one row of queries; a lane takes four neighbouring dimensions at a time. */
__global__ static void split_queries(struct attention_arguments a, struct attention_digits out) {
    size_t row = (size_t)blockIdx.x * blockDim.y + threadIdx.y;
    int lane = (int)threadIdx.x, group = a.n_heads / a.n_kv_heads, kv_head = (int)blockIdx.y;
    if (row >= padded_rows(&out))
        return;
    bool exists = row < (size_t)out.n_rows;
    int token = exists ? (int)row / group : 0, head = kv_head * group + (int)row % group;
    const float *q = a.q + ((size_t)token * (size_t)a.n_heads + (size_t)head) * (size_t)a.head_dim;
    uint32_t largest = 0;
    for (int d = lane; d < a.head_dim; d += 32)
        largest = max(largest, num_magnitude(q[d]));
    int e = num_row_exponent(warp_max(largest));
    bool bad = e > BFP_MAX_EXPONENT;
    e = bad ? BFP_MIN_EXPONENT : e;
    uint8_t *to = row_of(out.queries + (size_t)kv_head * padded_rows(&out) * 2 * (size_t)out.dim,
                         QUERY_ROWS, out.dim, row);
    for (int word = lane; word < out.dim / 4; word += 32) {
        int m[4];
        UNROLL
        for (int j = 0; j < 4; j++)
            m[j] = exists && 4 * word + j < a.head_dim && !bad
                       ? num_mantissa(q[4 * word + j], num_pow2f(15 - e))
                       : 0;
        put_digits(to, QUERY_ROWS, word, m);
    }
    if (lane == 0 && exists) {
        out.query_exponents[(size_t)kv_head * (size_t)out.n_rows + row] = (int8_t)e;
        if (bad)
            gpu_fault(a.fault, a.site, a.first_token + token);
    }
}

static __device__ __forceinline__ uint8_t *tile_of(const struct attention_digits *d, int kv_head,
                                                   int tile) {
    return d->tiles +
           ((size_t)kv_head * (size_t)d->n_tiles + (size_t)tile) * (size_t)tile_bytes(d->dim);
}

/* A thread splits four neighbouring dimensions of a key; the first of a key also copies the
 * exponents of its position. */
__global__ static void split_keys(struct attention_arguments a, struct attention_digits out) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    int words = out.dim / 4, kv_head = (int)blockIdx.y, word = (int)(i % (size_t)words), m[4];
    size_t position = i / (size_t)words;
    if (position >= (size_t)out.n_tiles * TILE)
        return;
    bool exists = position < (size_t)a.kv_len;
    size_t row = exists ? slot_of(&a, (int)position) * (size_t)a.n_kv_heads + (size_t)kv_head : 0;
    const int16_t *from = a.kv.k + row * (size_t)a.head_dim;
    UNROLL
    for (int j = 0; j < 4; j++)
        m[j] = exists && 4 * word + j < a.head_dim ? from[4 * word + j] : 0;
    put_digits(
        row_of(tile_of(&out, kv_head, (int)(position / TILE)), out.keys, out.dim, position % TILE),
        out.keys, word, m);
    if (word == 0) {
        int8_t *e = out.exponents + 2 * ((size_t)kv_head * (size_t)out.n_tiles * TILE + position);
        e[0] = exists ? a.kv.k_exponents[row] : (int8_t)0;
        e[1] = exists ? a.kv.v_exponents[row] : (int8_t)0;
    }
}

/* A block turns 32 dimensions of a tile of values on their side. */
__global__ static void __launch_bounds__(256)
    split_values(struct attention_arguments a, struct attention_digits out) {
    SHARED(int16_t, tile, [TILE][SIDE_DIMS + 2]);
    int first = (int)blockIdx.x * SIDE_DIMS, t = (int)blockIdx.y, kv_head = (int)blockIdx.z;
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    for (int j = warp; j < TILE; j += 8) {
        size_t position = (size_t)t * TILE + (size_t)j;
        int d = first + lane;
        bool exists = position < (size_t)a.kv_len && d < a.head_dim;
        size_t slot = exists ? slot_of(&a, (int)position) : 0;
        size_t at = (slot * (size_t)a.n_kv_heads + (size_t)kv_head) * (size_t)a.head_dim;
        tile[j][lane] = exists ? a.kv.v[at + (size_t)d] : (int16_t)0;
    }
    __syncthreads();
    uint8_t *values = tile_of(&out, kv_head, t) + group_bytes(TILE, out.dim);
    for (int i = (int)threadIdx.x; i < SIDE_DIMS * TILE / 4; i += 256) {
        /* Neighbouring threads write neighbouring rows of a column. */
        int word = i % 4 + i / (4 * SIDE_DIMS) * 4, d = i / 4 % SIDE_DIMS, m[4];
        UNROLL
        for (int j = 0; j < 4; j++)
            m[j] = tile[4 * word / 32 * 32 + value_slot(4 * word % 32 + j)][d];
        put_digits(row_of(values, out.value_dims, TILE, (size_t)(first + d)), out.value_dims, word,
                   m);
    }
}

bool gpu_attention_digits(struct gpu_device *gpu, const struct attention_arguments *a,
                          struct attention_digits *d) {
    size_t kv_heads = (size_t)a->n_kv_heads;
    d->n_rows = a->n_tokens * (a->n_heads / a->n_kv_heads);
    d->n_tiles = (a->kv_len + TILE - 1) / TILE;
    size_t n_tiles = kv_heads * (size_t)d->n_tiles, n_queries = kv_heads * (size_t)d->n_rows;
    size_t query_bytes = kv_heads * padded_rows(d) * 2 * (size_t)d->dim;
    size_t all_tiles = n_tiles * (size_t)tile_bytes(d->dim), exponent_bytes = 2 * n_tiles * TILE;
    d->queries =
        (uint8_t *)gpu_scratch(gpu, GPU_SCRATCH_ATTENTION,
                               query_bytes + all_tiles + exponent_bytes + n_queries, "attention");
    if (!d->queries)
        return false;
    d->tiles = d->queries + query_bytes;
    d->exponents = (int8_t *)(d->tiles + all_tiles);
    d->query_exponents = d->exponents + exponent_bytes;
    GPU_LAUNCH(gpu, split_queries, dim3(gpu_blocks(padded_rows(d), 4), (unsigned)kv_heads),
               dim3(32, 4), 0, *a, *d);
    if (d->n_tiles) {
        unsigned blocks = gpu_blocks((size_t)d->n_tiles * TILE * (size_t)d->dim / 4, 256);
        GPU_LAUNCH(gpu, split_keys, dim3(blocks, (unsigned)kv_heads), 256, 0, *a, *d);
        GPU_LAUNCH(gpu, split_values,
                   dim3((unsigned)(d->dim / SIDE_DIMS), (unsigned)d->n_tiles, (unsigned)kv_heads),
                   256, 0, *a, *d);
    }
    return !gpu->failed;
}
