/* Kernels that use one part of CUDA each, compared with loops: blocks, shared memory, barriers. */
#include "tests/emu/device_test.h"

/* ---- indices -------------------------------------------------------------------------------- */

__global__ void write_indices(uint3 *thread, uint3 *block, int n_threads) {
    int in_block = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    int block_number = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    thread[block_number * n_threads + in_block] = threadIdx;
    block[block_number * n_threads + in_block] = blockIdx;
}

static void test_indices_of_3d_grids(void **) {
    const dim3 grid(3, 2, 5), block(7, 3, 2);
    const int n_blocks = 30, n_threads = 42;
    const size_t n = n_blocks * n_threads;
    uint3 *thread = to_device(std::vector<uint3>(n, make_uint3(99, 99, 99)));
    uint3 *where = to_device(std::vector<uint3>(n, make_uint3(99, 99, 99)));
    LAUNCH(write_indices, grid, block, 0, 0, thread, where, n_threads);
    std::vector<uint3> t = from_device(thread, n), b = from_device(where, n);
    for (unsigned i = 0; i < n; i++) {
        unsigned in_block = i % n_threads, number = i / n_threads;
        assert_int_equal(t[i].x, in_block % 7);
        assert_int_equal(t[i].y, in_block / 7 % 3);
        assert_int_equal(t[i].z, in_block / 21);
        assert_int_equal(b[i].x, number % 3);
        assert_int_equal(b[i].y, number / 3 % 2);
        assert_int_equal(b[i].z, number / 6);
    }
}

/* ---- shared memory and barriers ------------------------------------------------------------- */

/* Turns a [32][32] tile over the diagonal; columns are padded against bank conflicts. */
__global__ void transpose(int *y, const int *x, int n) {
    SHARED(int, tile, [32][33]);
    for (int i = threadIdx.y; i < 32; i += blockDim.y)
        tile[i][threadIdx.x] = x[(blockIdx.y * 32 + i) * n + blockIdx.x * 32 + threadIdx.x];
    __syncthreads();
    for (int i = threadIdx.y; i < 32; i += blockDim.y)
        y[(blockIdx.x * 32 + i) * n + blockIdx.y * 32 + threadIdx.x] = tile[threadIdx.x][i];
}

static void test_transpose_through_static_shared_memory(void **) {
    const int n = 96;
    std::vector<int> x(n * n);
    for (int i = 0; i < n * n; i++)
        x[i] = i;
    int *in = to_device(x), *out = to_device(std::vector<int>(n * n, -1));
    LAUNCH(transpose, dim3(3, 3), dim3(32, 8), 0, 0, out, in, n);
    std::vector<int> y = from_device(out, n * n);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++)
            assert_int_equal(y[j * n + i], i * n + j);
    assert_cuda(cudaFree(in));
}

/* Two arrays in the launch's shared memory; prefix sums by doubling, a barrier per step. */
__global__ void prefix_sums(int *y, const int *x) {
    SHARED_DYNAMIC(int, sums);
    int i = threadIdx.x, n = blockDim.x;
    int *next = sums + n;
    sums[i] = x[blockIdx.x * n + i];
    for (int step = 1; step < n; step *= 2) {
        __syncthreads();
        next[i] = sums[i] + (i >= step ? sums[i - step] : 0);
        int *swap = sums;
        sums = next;
        next = swap;
    }
    y[blockIdx.x * n + i] = sums[i];
}

static void test_prefix_sums_in_dynamic_shared_memory(void **) {
    const int sizes[] = {1, 31, 32, 33, 256, 1000, 1024};
    for (int n : sizes) {
        const int n_blocks = 5;
        std::vector<int> x(n * n_blocks);
        uint32_t state = 7;
        for (int &v : x)
            v = next_number(&state) % 1000;
        int *in = to_device(x), *out = to_device(std::vector<int>(x.size(), -1));
        LAUNCH(prefix_sums, n_blocks, n, 2 * n * sizeof(int), 0, out, in);
        std::vector<int> y = from_device(out, x.size());
        for (int b = 0; b < n_blocks; b++)
            for (int i = 0, sum = 0; i < n; i++) {
                sum += x[b * n + i];
                assert_int_equal(y[b * n + i], sum);
            }
        assert_cuda(cudaFree(in));
    }
}

/* Shared variables of a device function and of a template belong to the block, too. */
template <class T, int N> __device__ T block_sum(T value) {
    SHARED(T, part, [N / 32]);
    SHARED(T, total);
    for (int step = 16; step; step /= 2)
        value += __shfl_xor_sync(0xffffffffu, value, step);
    if (threadIdx.x % 32 == 0)
        part[threadIdx.x / 32] = value;
    __syncthreads();
    if (threadIdx.x == 0) {
        total = 0;
        for (int i = 0; i < N / 32; i++)
            total += part[i];
    }
    __syncthreads();
    return total;
}

template <int N> __global__ void two_sums(int *y, double *z) {
    int sum = block_sum<int, N>(threadIdx.x + blockIdx.x);
    double halves = block_sum<double, N>(threadIdx.x * 0.5);
    y[blockIdx.x * N + threadIdx.x] = sum;
    z[blockIdx.x * N + threadIdx.x] = halves;
}

template <int N> static void check_two_sums() {
    int *y = to_device(std::vector<int>(3 * N, -1));
    double *z = to_device(std::vector<double>(3 * N, -1));
    LAUNCH((two_sums<N>), 3, N, 0, 0, y, z);
    std::vector<int> sums = from_device(y, 3 * N);
    std::vector<double> halves = from_device(z, 3 * N);
    for (int i = 0; i < 3 * N; i++) {
        assert_int_equal(sums[i], N * (N - 1) / 2 + i / N * N);
        assert_true(halves[i] == N * (N - 1) / 4.0);
    }
}

static void test_shared_memory_of_templates(void **) {
    check_two_sums<32>();
    check_two_sums<64>();
    check_two_sums<512>();
}

struct particle {
    float4 place;
    int8_t digits[16];
};

/* Structs, vectors and bytes read through pointers of another type. */
__global__ void shared_structs(uint32_t *y) {
    SHARED(struct particle, particles, [64]);
    struct particle *mine = &particles[threadIdx.x];
    mine->place = make_float4(threadIdx.x, 1, 2, 3);
    for (int i = 0; i < 16; i++)
        mine->digits[i] = (int8_t)(threadIdx.x + i);
    __syncthreads();
    const struct particle *other = &particles[63 - threadIdx.x];
    uint4 words = *(const uint4 *)other->digits;
    y[threadIdx.x] = words.w + (uint32_t)other->place.x;
}

static void test_structs_in_shared_memory(void **) {
    uint32_t *y = to_device(std::vector<uint32_t>(64, 0));
    LAUNCH(shared_structs, 1, 64, 0, 0, y);
    std::vector<uint32_t> found = from_device(y, 64);
    for (uint32_t i = 0; i < 64; i++) {
        uint32_t from = 63 - i, word = 0;
        for (int b = 0; b < 4; b++)
            word |= (uint32_t)(uint8_t)(from + 12 + b) << (8 * b);
        assert_int_equal(found[i], word + from);
    }
}

/* Threads beyond the end return at once; barriers do not wait for them. */
__global__ void reverse_in_block(int *y, const int *x, int n) {
    SHARED(int, kept, [128]);
    int i = threadIdx.x;
    if (i >= n)
        return;
    kept[i] = x[i];
    __syncthreads();
    y[i] = kept[n - 1 - i];
}

static void test_barriers_do_not_wait_for_exited_threads(void **) {
    for (int n = 1; n <= 128; n += 13) {
        std::vector<int> x(n);
        for (int i = 0; i < n; i++)
            x[i] = 3 * i;
        int *in = to_device(x), *out = to_device(std::vector<int>(n, -1));
        LAUNCH(reverse_in_block, 1, 128, 0, 0, out, in, n);
        std::vector<int> y = from_device(out, n);
        for (int i = 0; i < n; i++)
            assert_int_equal(y[i], 3 * (n - 1 - i));
        assert_cuda(cudaFree(in));
    }
}

/* ---- a whole device ------------------------------------------------------------------------- */

/* Each block adds its part and says so; the last to say so publishes the sum. */
__global__ void last_block_sums(unsigned long long *sum, unsigned *n_done, long long *y) {
    SHARED(bool, is_last);
    atomicAdd(sum, (unsigned long long)(blockIdx.x * blockDim.x + threadIdx.x));
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0)
        is_last = atomicAdd(n_done, 1u) == gridDim.x - 1;
    __syncthreads();
    if (is_last && threadIdx.x == 0)
        *y = (long long)atomicAdd(sum, 0ull);
}

static void test_last_block_sees_all(void **) {
    unsigned long long *sum = to_device(std::vector<unsigned long long>(1, 0));
    unsigned *n_done = to_device(std::vector<unsigned>(1, 0));
    long long *y = to_device(std::vector<long long>(1, -1));
    LAUNCH(last_block_sums, 37, 96, 0, 0, sum, n_done, y);
    const long long n = 37 * 96;
    assert_int_equal(from_device(y, 1)[0], n * (n - 1) / 2);
    assert_cuda(cudaFree(sum));
    assert_cuda(cudaFree(n_done));
}

__constant__ float weights[4] = {1, 2.5f, -3, 4};
__device__ int counter;

__global__ void use_symbols(float *y) {
    if (threadIdx.x < 4)
        y[threadIdx.x] = weights[threadIdx.x] * 2;
    atomicAdd(&counter, 1);
}

static void test_constant_and_device_variables(void **) {
    float w[4] = {};
    int before = 0, n = 0;
    assert_cuda(cudaMemcpyFromSymbol(w, weights, sizeof w));
    assert_true(w[1] == 2.5f);
    assert_cuda(cudaMemcpyFromSymbol(&before, counter, sizeof before));
    float *y = to_device(std::vector<float>(4, 0));
    LAUNCH(use_symbols, 2, 40, 0, 0, y);
    std::vector<float> found = from_device(y, 4);
    for (int i = 0; i < 4; i++)
        assert_true(found[i] == 2 * w[i]);
    assert_cuda(cudaMemcpyFromSymbol(&n, counter, sizeof n));
    assert_int_equal(n - before, 80);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_indices_of_3d_grids),
        cmocka_unit_test(test_transpose_through_static_shared_memory),
        cmocka_unit_test(test_prefix_sums_in_dynamic_shared_memory),
        cmocka_unit_test(test_shared_memory_of_templates),
        cmocka_unit_test(test_structs_in_shared_memory),
        cmocka_unit_test(test_barriers_do_not_wait_for_exited_threads),
        cmocka_unit_test(test_last_block_sees_all),
        cmocka_unit_test(test_constant_and_device_variables),
    };
    int failures = 0;
    RUN_GROUP(tests, failures);
    return failures;
}
