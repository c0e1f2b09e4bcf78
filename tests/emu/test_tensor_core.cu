/* gpu/ptx/tensor_core.h against plain loops: every sign combination and every layout. */
#include "gpu/ptx/tensor_core.h"
#include "tests/emu/device_test.h"

/* ---- mma ------------------------------------------------------------------------------------ */

enum { M = 16, N = 8, K = 32 };

enum signs { S8_S8, S8_U8, U8_S8, U8_U8 };

/* d[block] += a[block] * b[block] with fragments that each lane gathers byte by byte. */
template <int SIGNS>
__global__ void multiply(int32_t *d,       /* [n_blocks, M, N] */
                         const uint8_t *a, /* [n_blocks, M, K] */
                         const uint8_t *b) /* [n_blocks, K, N] */ {
    int lane = threadIdx.x, g = lane / 4, t = lane % 4;
    d += blockIdx.x * M * N;
    a += blockIdx.x * M * K;
    b += blockIdx.x * K * N;
    uint32_t fragment_a[4] = {}, fragment_b[2] = {};
    for (int i = 0; i < 4; i++)
        for (int r = 0; r < 4; r++) {
            int row = g + r % 2 * 8, k = t * 4 + r / 2 * 16 + i;
            fragment_a[r] |= (uint32_t)a[row * K + k] << (8 * i);
            if (r < 2)
                fragment_b[r] |= (uint32_t)b[(t * 4 + r * 16 + i) * N + g] << (8 * i);
        }
    int32_t *places[4] = {&d[g * N + 2 * t], &d[g * N + 2 * t + 1], &d[(g + 8) * N + 2 * t],
                          &d[(g + 8) * N + 2 * t + 1]};
    int32_t sums[4];
    for (int i = 0; i < 4; i++)
        sums[i] = *places[i];
    if (SIGNS == S8_S8)
        mma_s8_s8(sums, fragment_a, fragment_b);
    else if (SIGNS == S8_U8)
        mma_s8_u8(sums, fragment_a, fragment_b);
    else if (SIGNS == U8_S8)
        mma_u8_s8(sums, fragment_a, fragment_b);
    else
        mma_u8_u8(sums, fragment_a, fragment_b);
    for (int i = 0; i < 4; i++)
        *places[i] = sums[i];
}

static int value_of(uint8_t byte, bool is_signed) {
    return is_signed ? (int8_t)byte : byte;
}

template <int SIGNS> static void check_multiply(void **) {
    const int n_blocks = 20;
    const bool a_signed = SIGNS == S8_S8 || SIGNS == S8_U8;
    const bool b_signed = SIGNS == S8_S8 || SIGNS == U8_S8;
    std::vector<uint8_t> a(n_blocks * M * K), b(n_blocks * K * N);
    std::vector<int32_t> d(n_blocks * M * N);
    uint32_t state = 17;
    for (uint8_t &v : a)
        v = (uint8_t)(next_number(&state) >> 9);
    for (uint8_t &v : b)
        v = (uint8_t)(next_number(&state) >> 9);
    for (int32_t &v : d)
        v = (int32_t)next_number(&state); /* sums wrap around */
    for (int i = 0; i < M * K; i++)
        a[i] = 0x80; /* the first block holds the extremes */
    for (int i = 0; i < K * N; i++)
        b[i] = i % N % 2 ? 0x80 : 0xff;
    uint8_t *in_a = to_device(a), *in_b = to_device(b);
    int32_t *out = to_device(d);
    LAUNCH((multiply<SIGNS>), n_blocks, 32, 0, 0, out, in_a, in_b);
    std::vector<int32_t> found = from_device(out, d.size());
    for (int block = 0; block < n_blocks; block++)
        for (int i = 0; i < M; i++)
            for (int j = 0; j < N; j++) {
                uint32_t sum = (uint32_t)d[(block * M + i) * N + j];
                for (int k = 0; k < K; k++)
                    sum += (uint32_t)(value_of(a[(block * M + i) * K + k], a_signed) *
                                      value_of(b[(block * K + k) * N + j], b_signed));
                assert_int_equal(found[(block * M + i) * N + j], (int32_t)sum);
            }
    assert_cuda(cudaFree(in_a));
    assert_cuda(cudaFree(in_b));
}

/* ---- mma of fp16 ------------------------------------------------------------------------------
 */

enum { F16_K = 16 };

/* A whole number up to 2048, or 2^-9 of one, as fp16. */
static uint16_t half_of_number(int n, bool fraction) {
    int exponent = 0, magnitude = abs(n);
    while (magnitude >> exponent > 1)
        exponent++;
    int biased = 15 + exponent - (fraction ? 9 : 0);
    int bits = magnitude ? biased << 10 | ((magnitude << 11 >> exponent) & 0x7ff) >> 1 : 0;
    return (uint16_t)(bits | (n < 0 ? 0x8000 : 0));
}

/* d[block] += a[block] * b[block]; d whole numbers, or 2^-9 of them. */
__global__ void multiply_f16(float *d,          /* [n_blocks, M, N] */
                             const uint16_t *a, /* [n_blocks, M, F16_K] */
                             const uint16_t *b) /* [n_blocks, F16_K, N] */ {
    int lane = threadIdx.x, g = lane / 4, t = lane % 4;
    d += blockIdx.x * M * N;
    a += blockIdx.x * M * F16_K;
    b += blockIdx.x * F16_K * N;
    uint32_t fragment_a[4] = {}, fragment_b[2] = {};
    for (int i = 0; i < 2; i++)
        for (int r = 0; r < 4; r++) {
            int row = g + r % 2 * 8, k = t * 2 + r / 2 * 8 + i;
            fragment_a[r] |= (uint32_t)a[row * F16_K + k] << (16 * i);
            if (r < 2)
                fragment_b[r] |= (uint32_t)b[(t * 2 + r * 8 + i) * N + g] << (16 * i);
        }
    float sums[4];
    for (int i = 0; i < 4; i++)
        sums[i] = d[(g + i / 2 * 8) * N + 2 * t + i % 2];
    mma_f16(sums, fragment_a, fragment_b);
    for (int i = 0; i < 4; i++)
        d[(g + i / 2 * 8) * N + 2 * t + i % 2] = sums[i];
}

/* Digits times whole numbers up to 448: sums up to 2^24 are exact, whatever cancels on the way. */
static void test_exact_sums_of_f16(void **) {
    const int n_blocks = 24;
    std::vector<int> x(n_blocks * M * F16_K), y(n_blocks * F16_K * N), z(n_blocks * M * N);
    std::vector<uint16_t> a(x.size()), b(y.size());
    std::vector<float> d(z.size());
    uint32_t state = 19;
    for (size_t i = 0; i < x.size(); i++) {
        bool largest =
            i / (M * F16_K) % 3 == 0; /* in some blocks all are, of the same sign or not */
        x[i] = largest ? -128 : (int)(next_number(&state) >> 9 & 255) - 128;
        a[i] = half_of_number(x[i], false);
    }
    for (size_t i = 0; i < y.size(); i++) {
        size_t block = i / (F16_K * N);
        int any = (int)(next_number(&state) >> 9) % 449;
        y[i] = block % 3 == 0 ? 448 : any;
        y[i] = next_number(&state) >> 9 & 1 && block % 6 ? -y[i] : y[i];
        b[i] = half_of_number(y[i], block % 2);
    }
    for (size_t i = 0; i < z.size(); i++) {
        size_t block = i / (M * N);
        z[i] = (1 << 24) - 16 * 128 * 448 - 1 - (int)(next_number(&state) >> 9) % 1000;
        z[i] = block % 6 == 0 || i % 2 ? -z[i] : z[i];
        d[i] = (float)z[i] * (block % 2 ? 0x1p-9f : 1);
    }
    uint16_t *in_a = to_device(a), *in_b = to_device(b);
    float *out = to_device(d);
    LAUNCH(multiply_f16, n_blocks, 32, 0, 0, out, in_a, in_b);
    std::vector<float> found = from_device(out, d.size());
    for (int block = 0; block < n_blocks; block++)
        for (int i = 0; i < M; i++)
            for (int j = 0; j < N; j++) {
                int sum = z[(size_t)((block * M + i) * N + j)];
                for (int k = 0; k < F16_K; k++)
                    sum += x[(size_t)((block * M + i) * F16_K + k)] *
                           y[(size_t)((block * F16_K + k) * N + j)];
                float want = (float)sum * (block % 2 ? 0x1p-9f : 1);
                assert_true(found[(size_t)((block * M + i) * N + j)] == want);
            }
    assert_cuda(cudaFree(in_a));
    assert_cuda(cudaFree(in_b));
}

/* ---- ldmatrix ------------------------------------------------------------------------------- */

enum { ROW = 24 }; /* elements between rows: 16-byte aligned, and not just the 8 of a matrix */

/* y[form][lane][4]: what each form loads from matrices of distinct elements. */
__global__ void load_matrices(uint32_t *y) {
    SHARED(uint16_t, rows, [32][ROW]);
    int lane = threadIdx.x;
    for (int i = 0; i < ROW; i++)
        rows[lane][i] = (uint16_t)(lane * 100 + i);
    __syncwarp();
    ldmatrix_x4(y + lane * 4, &rows[lane][8]);
    ldmatrix_x4_trans(y + (32 + lane) * 4, &rows[lane][8]);
}

static uint32_t element(int matrix, int row, int column) {
    return (uint32_t)((matrix * 8 + row) * 100 + 8 + column);
}

static void test_ldmatrix_layouts(void **) {
    uint32_t *out = to_device(std::vector<uint32_t>(2 * 32 * 4, 0));
    LAUNCH(load_matrices, 1, 32, 0, 0, out);
    std::vector<uint32_t> y = from_device(out, 2 * 32 * 4);
    for (int form = 0; form < 2; form++)
        for (int lane = 0; lane < 32; lane++)
            for (int i = 0; i < 4; i++) {
                int g = lane / 4, t = lane % 4;
                uint32_t plain = element(i, g, 2 * t) | element(i, g, 2 * t + 1) << 16;
                uint32_t turned = element(i, 2 * t, g) | element(i, 2 * t + 1, g) << 16;
                assert_int_equal(y[(form * 32 + lane) * 4 + i], form ? turned : plain);
            }
}

__global__ void turn_matrix(uint32_t *y) {
    int g = (int)threadIdx.x / 4, t = (int)threadIdx.x % 4;
    uint32_t x = (uint32_t)(100 * g + 2 * t) | (uint32_t)(100 * g + 2 * t + 1) << 16;
    y[threadIdx.x] = movmatrix_trans(x);
}

static void test_movmatrix_turns_rows_into_columns(void **) {
    uint32_t *out = to_device(std::vector<uint32_t>(32, 0));
    LAUNCH(turn_matrix, 1, 32, 0, 0, out);
    std::vector<uint32_t> y = from_device(out, 32);
    for (int lane = 0; lane < 32; lane++) {
        int g = lane / 4, t = lane % 4;
        assert_int_equal(y[lane], (uint32_t)(200 * t + g) | (uint32_t)(200 * t + 100 + g) << 16);
    }
}

/* The fragment that the comment in gpu/ptx/tensor_core.h promises: 8-bit rows of a. */
__global__ void multiply_loaded(int32_t *d, const int8_t *a, const int8_t *columns_of_b) {
    SHARED(int8_t, rows, [M][K]);
    int lane = threadIdx.x;
    for (int i = lane; i < M * K; i += 32)
        rows[i / K][i % K] = a[i];
    __syncwarp();
    uint32_t fragment_a[4], fragment_b[2];
    int32_t sums[4] = {0, 0, 0, 0};
    ldmatrix_x4(fragment_a, &rows[lane % 16][lane / 16 * 16]);
    for (int i = 0; i < 2; i++)
        memcpy(&fragment_b[i], columns_of_b + lane / 4 * K + lane % 4 * 4 + 16 * i, 4);
    mma_s8_s8(sums, fragment_a, fragment_b);
    for (int i = 0; i < 4; i++)
        d[(lane / 4 + i / 2 * 8) * N + lane % 4 * 2 + i % 2] = sums[i];
}

static void test_ldmatrix_feeds_mma(void **) {
    std::vector<int8_t> a(M * K), b(N * K);
    uint32_t state = 23;
    for (int8_t &v : a)
        v = (int8_t)(next_number(&state) >> 9);
    for (int8_t &v : b)
        v = (int8_t)(next_number(&state) >> 9);
    int8_t *in_a = to_device(a), *in_b = to_device(b);
    int32_t *out = to_device(std::vector<int32_t>(M * N, -1));
    LAUNCH(multiply_loaded, 1, 32, 0, 0, out, in_a, in_b);
    std::vector<int32_t> d = from_device(out, M * N);
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            int sum = 0;
            for (int k = 0; k < K; k++)
                sum += a[i * K + k] * b[j * K + k];
            assert_int_equal(d[i * N + j], sum);
        }
    assert_cuda(cudaFree(in_a));
    assert_cuda(cudaFree(in_b));
}

/* ---- cp.async ------------------------------------------------------------------------------- */

enum { STAGES = 3, THREADS = 64 };

/* y = reversed tiles of x, each of THREADS vectors, loaded STAGES - 1 tiles ahead. WAITS = false
 * forgets to wait. */
template <bool WAITS> __global__ void reverse_tiles(uint4 *y, const uint4 *x, int n_tiles, int n) {
    SHARED(uint4, tiles, [STAGES][THREADS]);
    int i = threadIdx.x;
    for (int tile = 0; tile < STAGES - 1; tile++) {
        int from = tile * THREADS + i;
        cp_async_16_or_zero(&tiles[tile][i], &x[from < n ? from : 0], from < n);
        cp_async_commit();
    }
    for (int tile = 0; tile < n_tiles; tile++) {
        if (WAITS)
            cp_async_wait<STAGES - 2>();
        __syncthreads();
        y[tile * THREADS + i] = tiles[tile % STAGES][THREADS - 1 - i];
        int next = tile + STAGES - 1, from = next * THREADS + i;
        if (from < n)
            cp_async_16(&tiles[next % STAGES][i], &x[from]);
        else
            cp_async_16_or_zero(&tiles[next % STAGES][i], x, false);
        cp_async_commit();
    }
    if (WAITS)
        cp_async_wait<0>();
}

static void test_cp_async_pipeline(void **) {
    for (int n_tiles = 1; n_tiles <= 7; n_tiles++) {
        const int size = n_tiles * THREADS, n = size - 5;
        std::vector<uint4> x(n);
        for (int i = 0; i < n; i++)
            x[i] = make_uint4(i + 1, 2 * i, 3 * i, 4 * i);
        uint4 *in = to_device(x), *out = to_device(std::vector<uint4>(size));
        LAUNCH((reverse_tiles<true>), 1, THREADS, 0, 0, out, in, n_tiles, n);
        std::vector<uint4> y = from_device(out, size);
        for (int i = 0; i < size; i++) {
            int from = i / THREADS * THREADS + THREADS - 1 - i % THREADS;
            uint4 expected = from < n ? x[from] : make_uint4(0, 0, 0, 0);
            assert_memory_equal(&y[i], &expected, sizeof expected);
        }
        assert_cuda(cudaFree(in));
    }
}

#ifdef SAMEBITS_EMU

static void ignore(const struct emu_report *) {
}

/* A forgotten wait changes the result: the copies happen as late as they may. */
static void test_forgotten_wait_is_seen(void **) {
    std::vector<uint4> x(4 * THREADS, make_uint4(1, 2, 3, 4));
    uint4 *in = to_device(x), *out = to_device(x);
    LAUNCH((reverse_tiles<false>), 1, THREADS, 0, 0, out, in, 4, 4 * THREADS);
    std::vector<uint4> y = from_device(out, x.size());
    assert_memory_not_equal(y.data(), x.data(), x.size() * sizeof x[0]);
    assert_cuda(cudaFree(in));
}

/* Two groups of copies put the values that are already there. The second is not waited for. */
__global__ void late_copies(uint4 *y, const uint4 *x) {
    SHARED(uint4, places, [2][32]);
    int i = threadIdx.x;
    for (int group = 0; group < 2; group++) {
        places[group][i] = x[i];
        cp_async_16(&places[group][i], &x[i]);
        cp_async_commit();
    }
    cp_async_wait<1>();
    for (int group = 0; group < 2; group++)
        y[group * 32 + i] = places[group][i];
}

static void test_copies_are_late_and_their_places_junk(void **) {
    std::vector<uint4> x(32);
    for (int i = 0; i < 32; i++)
        x[i] = make_uint4(i, 1, 2, 3);
    uint4 *in = to_device(x), *out = to_device(std::vector<uint4>(64));
    LAUNCH(late_copies, 1, 32, 0, 0, out, in);
    std::vector<uint4> y = from_device(out, 64);
    assert_memory_equal(&y[0], x.data(), 32 * sizeof x[0]);
    for (int i = 0; i < 32; i++)
        assert_int_not_equal(y[32 + i].x, x[i].x);
    assert_cuda(cudaFree(in));
}

__global__ void partial_mma(int32_t *d) {
    uint32_t a[4] = {0, 0, 0, 0}, b[2] = {0, 0};
    if (threadIdx.x < 31)
        mma_s8_s8(d + 4 * threadIdx.x, a, b);
}

__global__ void misaligned_row(uint32_t *y) {
    SHARED(uint16_t, rows, [32][12]);
    for (int i = 0; i < 12; i++)
        rows[threadIdx.x][i] = 1;
    __syncwarp();
    ldmatrix_x4(y + 4 * threadIdx.x, &rows[threadIdx.x][0]);
}

static void test_misuse_is_reported(void **) {
    emu_set_handler(ignore);
    int32_t *d = to_device(std::vector<int32_t>(128, 0));
    LAUNCH(partial_mma, 1, 32, 0, 0, d);
    assert_int_equal(emu_last_report().fault, EMU_WARP_LANE);
    assert_cuda(cudaDeviceReset());
    uint32_t *y = to_device(std::vector<uint32_t>(128, 0));
    LAUNCH(misaligned_row, 1, 32, 0, 0, y);
    assert_int_equal(emu_last_report().fault, EMU_MISALIGNED);
    assert_cuda(cudaDeviceReset());
    emu_set_handler(NULL);
}

__global__ void one_instruction(uint32_t *y, int which) {
    SHARED(uint4, row, [32]);
    uint32_t a[4] = {0, 0, 0, 0};
    int32_t d[4] = {0, 0, 0, 0};
    row[threadIdx.x] = make_uint4(0, 0, 0, 0);
    __syncwarp();
    if (which == 0)
        mma_s8_s8(d, a, a);
    else if (which == 1)
        ldmatrix_x4(a, &row[threadIdx.x]);
    else
        cp_async_16(&row[threadIdx.x], y);
}

static void test_kernels_for_older_gpus_have_none(void **) {
    emu_set_handler(ignore);
    for (int which = 0; which < 3; which++)
        for (int built_for = 75; built_for <= 80; built_for += 5) {
            uint32_t *y = to_device(std::vector<uint32_t>(4, 0));
            emu_set_capability(90, built_for);
            LAUNCH(one_instruction, 1, 32, 0, 0, y, which);
            assert_int_equal(cudaDeviceSynchronize(),
                             built_for == 75 ? cudaErrorLaunchFailure : cudaSuccess);
            if (built_for == 75)
                assert_int_equal(emu_last_report().fault, EMU_NO_INSTRUCTION);
            emu_reset();
        }
    emu_set_handler(NULL);
}

#endif

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(check_multiply<S8_S8>),
        cmocka_unit_test(check_multiply<S8_U8>),
        cmocka_unit_test(check_multiply<U8_S8>),
        cmocka_unit_test(check_multiply<U8_U8>),
        cmocka_unit_test(test_exact_sums_of_f16),
        cmocka_unit_test(test_ldmatrix_layouts),
        cmocka_unit_test(test_movmatrix_turns_rows_into_columns),
        cmocka_unit_test(test_ldmatrix_feeds_mma),
        cmocka_unit_test(test_cp_async_pipeline),
#ifdef SAMEBITS_EMU
        cmocka_unit_test(test_forgotten_wait_is_seen),
        cmocka_unit_test(test_copies_are_late_and_their_places_junk),
        cmocka_unit_test(test_misuse_is_reported),
        cmocka_unit_test(test_kernels_for_older_gpus_have_none),
#endif
    };
    int failures = 0;
    RUN_GROUP(tests, failures);
    return failures;
}
