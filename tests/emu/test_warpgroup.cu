/* gpu/ptx/warpgroup.h and tile_copy.h against plain loops: tiles of a matrix, also at its edges, and
 * products with them. On a GPU, for sm_90a. */
#include "gpu/ptx/tile_copy.h"
#include "tests/emu/device_test.h"

enum { THREADS = 128, TILE_BYTES = 128, TILE_ROWS = 128, ROWS = 150, K = 208 };

/* The tile that begins at (column, row), as it lies in shared memory. */
__global__ void copy_tile(unsigned char *y, const __grid_constant__ struct tile_map map, int column,
                          int row, bool waits) {
    SHARED_DYNAMIC(unsigned char, tile);
    SHARED(struct bulk_barrier, arrived);
    if (threadIdx.x == 0) {
        bulk_barrier_start(&arrived);
        bulk_expect(&arrived, TILE_ROWS * TILE_BYTES);
        tile_copy(&arrived, tile, &map, column, row);
    }
    bulk_end_group();
    __syncthreads();
    bulk_wait(&arrived, 0, waits ? 0 : 1);
    for (int i = (int)threadIdx.x; i < TILE_ROWS * TILE_BYTES; i += THREADS)
        y[i] = tile[i];
}

template <class T> static std::vector<T> random_matrix(uint32_t seed) {
    std::vector<T> x(ROWS * K);
    for (T &v : x)
        v = (T)(next_number(&seed) >> 9);
    return x;
}

template <class T> static struct tile_map map_of(const T *data, int tile_rows) {
    struct tile_map map;
    const struct tile_source source = {data, sizeof(T), ROWS, K, K * sizeof(T), tile_rows};
    assert_true(tile_map_make(&map, &source));
    return map;
}

/* Byte `at` of a tile: column c of row r is at r * 128 + (c ^ r % 8) * 16. */
template <class T>
static unsigned char byte_of_tile(const std::vector<T> &x, int at, int column, int row) {
    int r = at / TILE_BYTES, byte = (at % TILE_BYTES / 16 ^ r % 8) * 16 + at % 16;
    int in_row = column * (int)sizeof(T) + byte;
    bool exists = row + r < ROWS && in_row < K * (int)sizeof(T);
    return exists ? ((const unsigned char *)x.data())[(row + r) * K * sizeof(T) + in_row] : 0;
}

template <class T> static std::vector<unsigned char> tile_at(const T *in, int column, int row,
                                                             bool waits) {
    unsigned char *out = to_device(std::vector<unsigned char>(TILE_ROWS * TILE_BYTES, 1));
    LAUNCH(copy_tile, 1, THREADS, TILE_ROWS * TILE_BYTES, 0, out, map_of(in, TILE_ROWS), column,
           row, waits);
    return from_device(out, TILE_ROWS * TILE_BYTES);
}

template <class T> static void check_tiles(void **) {
    std::vector<T> x = random_matrix<T>(5);
    T *in = to_device(x);
    for (int column : {0, 64, 128, 192})
        for (int row : {0, 1, 22, 23, 128, 150}) {
            std::vector<unsigned char> y = tile_at(in, column, row, true);
            for (size_t i = 0; i < y.size(); i++)
                assert_int_equal(y[i], byte_of_tile(x, (int)i, column, row));
        }
    assert_cuda(cudaFree(in));
}

/* d[64][columns] = a[64][K] b[columns][K]^T, K in two tiles, all of it in one go or a product at a
 * time. */
template <int COLUMNS>
__global__ void multiply(int32_t *d, const uint8_t *a, const __grid_constant__ struct tile_map map,
                         int first_row) {
    SHARED_DYNAMIC(unsigned char, tiles);
    SHARED(struct bulk_barrier, arrived);
    const int BYTES = COLUMNS * TILE_BYTES;
    if (threadIdx.x == 0) {
        bulk_barrier_start(&arrived);
        bulk_expect(&arrived, 2 * BYTES);
        for (int i = 0; i < 2; i++)
            tile_copy(&arrived, tiles + i * BYTES, &map, i * TILE_BYTES, first_row);
    }
    bulk_end_group();
    __syncthreads();
    bulk_wait(&arrived, 0, 0);
    int lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4;
    int row = (int)threadIdx.x / 32 * 16 + g;
    int32_t sums[COLUMNS / 2];
    UNROLL
    for (int i = 0; i < 2 * TILE_BYTES / 32; i++) {
        uint32_t fragment[4] = {};
        for (int r = 0; r < 4; r++)
            for (int j = 0; j < 4; j++) {
                int k = i * 32 + t * 4 + r / 2 * 16 + j;
                uint32_t byte = k < K ? a[(row + r % 2 * 8) * K + k] : 77;
                fragment[r] |= byte << (8 * j);
            }
        wgmma_begin();
        shared_matrix b = shared_matrix_swizzled(tiles + i / 4 * BYTES, i % 4 * 2);
        if (i == 0)
            wgmma_s8_s8<false>(sums, fragment, b);
        else
            wgmma_s8_s8<true>(sums, fragment, b);
        wgmma_end();
        if (i % 2)
            wgmma_wait_but_last();
        wgmma_wait();
    }
    wgmma_settle(sums);
    for (int i = 0; i < COLUMNS / 2; i++)
        d[(row + i % 4 / 2 * 8) * COLUMNS + i / 4 * 8 + 2 * t + i % 2] = sums[i];
}

template <int COLUMNS> static void check_products(void **) {
    std::vector<uint8_t> a = random_matrix<uint8_t>(6), b = random_matrix<uint8_t>(7);
    for (int i = 0; i < K; i++)
        a[i] = b[i] = 0x80;
    uint8_t *in_a = to_device(a), *in_b = to_device(b);
    for (int first_row : {0, 96}) {
        int32_t *out = to_device(std::vector<int32_t>(64 * COLUMNS, -1));
        LAUNCH((multiply<COLUMNS>), 1, THREADS, 2 * COLUMNS * TILE_BYTES, 0, out, in_a,
               map_of(in_b, COLUMNS), first_row);
        std::vector<int32_t> d = from_device(out, 64 * COLUMNS);
        for (int i = 0; i < 64; i++)
            for (int j = 0; j < COLUMNS; j++) {
                int sum = 0;
                for (int k = 0; k < K && first_row + j < ROWS; k++)
                    sum += (int8_t)a[i * K + k] * (int8_t)b[(first_row + j) * K + k];
                assert_int_equal(d[i * COLUMNS + j], sum);
            }
    }
    assert_cuda(cudaFree(in_a));
    assert_cuda(cudaFree(in_b));
}

#ifdef SAMEBITS_EMU
/* A tile that nobody waited for is junk. */
static void test_forgotten_wait_is_seen(void **) {
    std::vector<uint8_t> x = random_matrix<uint8_t>(8);
    uint8_t *in = to_device(x);
    assert_true(tile_at(in, 0, 0, true) != tile_at(in, 0, 0, false));
    assert_cuda(cudaFree(in));
}
#endif

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(check_tiles<uint8_t>),
        cmocka_unit_test(check_tiles<uint16_t>),
        cmocka_unit_test(check_products<32>),
        cmocka_unit_test(check_products<64>),
        cmocka_unit_test(check_products<128>),
#ifdef SAMEBITS_EMU
        cmocka_unit_test(test_forgotten_wait_is_seen),
#endif
    };
    int failures = 0;
    RUN_GROUP(tests, failures);
    return failures;
}
