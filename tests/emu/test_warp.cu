/* Warp operations, atomics and the small functions of kernels, compared with loops. */
#include "tests/emu/device_test.h"

/* ---- shuffles ------------------------------------------------------------------------------- */

enum { N_FORMS = 4 };

/* y[form][thread]: each form of shuffle of 100 * lane, for one operand and width. */
__global__ void shuffle_all(int *y, int operand, int width) {
    int n = blockDim.x, i = threadIdx.x, value = 100 * (i % 32);
    const unsigned all = 0xffffffffu;
    y[0 * n + i] = __shfl_sync(all, value, operand, width);
    y[1 * n + i] = __shfl_up_sync(all, value, operand, width);
    y[2 * n + i] = __shfl_down_sync(all, value, operand, width);
    y[3 * n + i] = __shfl_xor_sync(all, value, operand, width);
}

static void test_shuffles_of_all_operands_and_widths(void **) {
    const int n = 64;
    for (int width = 1; width <= 32; width *= 2)
        for (int operand = 0; operand < 32; operand++) {
            int *y = to_device(std::vector<int>(N_FORMS * n, -1));
            LAUNCH(shuffle_all, 1, n, 0, 0, y, operand, width);
            std::vector<int> found = from_device(y, N_FORMS * n);
            for (int i = 0; i < n; i++) {
                int lane = i % 32, first = lane - lane % width, last = first + width - 1;
                int up = lane - operand >= first ? lane - operand : lane;
                int down = lane + operand <= last ? lane + operand : lane;
                int other = (lane ^ operand) <= last ? lane ^ operand : lane;
                assert_int_equal(found[0 * n + i], 100 * (first + operand % width));
                assert_int_equal(found[1 * n + i], 100 * up);
                assert_int_equal(found[2 * n + i], 100 * down);
                assert_int_equal(found[3 * n + i], 100 * other);
            }
        }
}

/* Values of each type travel with all their bits. */
__global__ void shuffle_types(unsigned long long *a, double *b, float *c, long long *d) {
    int i = threadIdx.x;
    a[i] = __shfl_xor_sync(0xffffffffu, 0x0123456789abcdefull * (i + 1), 1);
    b[i] = __shfl_xor_sync(0xffffffffu, -1.0 / (i + 1), 1);
    c[i] = __shfl_xor_sync(0xffffffffu, 1.0f / (i + 1), 1);
    d[i] = __shfl_xor_sync(0xffffffffu, -0x123456789abll * (i + 1), 1);
}

static void test_shuffles_of_all_types(void **) {
    unsigned long long *a = to_device(std::vector<unsigned long long>(32));
    double *b = to_device(std::vector<double>(32));
    float *c = to_device(std::vector<float>(32));
    long long *d = to_device(std::vector<long long>(32));
    LAUNCH(shuffle_types, 1, 32, 0, 0, a, b, c, d);
    std::vector<unsigned long long> found_a = from_device(a, 32);
    std::vector<double> found_b = from_device(b, 32);
    std::vector<float> found_c = from_device(c, 32);
    std::vector<long long> found_d = from_device(d, 32);
    for (int i = 0; i < 32; i++) {
        int other = i ^ 1;
        assert_true(found_a[i] == 0x0123456789abcdefull * (other + 1));
        assert_true(found_b[i] == -1.0 / (other + 1));
        assert_true(found_c[i] == 1.0f / (other + 1));
        assert_true(found_d[i] == -0x123456789abll * (other + 1));
    }
}

/* The two halves of a warp, and a group of odd lanes, work by themselves; some lanes have left. */
__global__ void shuffle_parts(int *y) {
    int lane = threadIdx.x % 32;
    if (lane < 16) {
        int sum = lane;
        for (int step = 8; step; step /= 2)
            sum += __shfl_xor_sync(0x0000ffffu, sum, step);
        y[threadIdx.x] = sum;
        return;
    }
    if (lane % 2) {
        y[threadIdx.x] = __shfl_sync(0xaaaa0000u, lane, 31);
        return;
    }
    y[threadIdx.x] = __reduce_add_sync(0x55550000u, lane);
}

static void test_parts_of_a_warp(void **) {
    int *y = to_device(std::vector<int>(96, -1));
    LAUNCH(shuffle_parts, 1, 96, 0, 0, y);
    std::vector<int> found = from_device(y, 96);
    for (int i = 0; i < 96; i++) {
        int lane = i % 32;
        assert_int_equal(found[i], lane < 16 ? 120 : lane % 2 ? 31 : 16 * 8 + 2 * 28);
    }
}

/* ---- votes and sums ------------------------------------------------------------------------- */

__global__ void vote(uint32_t *y, const uint32_t *bits) {
    int i = threadIdx.x, warp = i / 32;
    int mine = bits[warp] >> (i % 32) & 1;
    uint32_t ballot = __ballot_sync(0xffffffffu, mine);
    int any = __any_sync(0xffffffffu, mine), all = __all_sync(0xffffffffu, mine);
    int odd = 0;
    if (i % 2)
        odd = __all_sync(0xaaaaaaaau, mine);
    y[i] = ballot ^ (uint32_t)(any != 0) ^ (uint32_t)(all != 0) << 1 ^ (uint32_t)(odd != 0) << 2;
}

static void test_votes(void **) {
    const std::vector<uint32_t> bits = {0, 0xffffffffu, 0x80000001u, 0xaaaaaaaau, 0x55555555u};
    const size_t n = bits.size() * 32;
    uint32_t *in = to_device(bits), *out = to_device(std::vector<uint32_t>(n, 0));
    LAUNCH(vote, 1, (unsigned)n, 0, 0, out, in);
    std::vector<uint32_t> y = from_device(out, n);
    for (size_t i = 0; i < n; i++) {
        uint32_t b = bits[i / 32], any = b != 0, all = b == 0xffffffffu;
        uint32_t odd = i % 2 && (b & 0xaaaaaaaau) == 0xaaaaaaaau;
        assert_int_equal(y[i], b ^ any ^ all << 1 ^ odd << 2);
    }
    assert_cuda(cudaFree(in));
}

/* Lanes that have exited do not vote, and a last warp of 20 lanes is complete without them. */
__global__ void vote_of_the_living(uint32_t *y) {
    int i = threadIdx.x;
    if (i % 32 < 5)
        return;
    y[i] = __ballot_sync(0xffffffffu, 1);
    y[i] |= __all_sync(0xffffffffu, 1) ? 1 : 0;
}

static void test_votes_without_exited_lanes(void **) {
    const int n = 52;
    uint32_t *out = to_device(std::vector<uint32_t>(n, 0));
    LAUNCH(vote_of_the_living, 1, n, 0, 0, out);
    std::vector<uint32_t> y = from_device(out, n);
    for (int i = 0; i < n; i++) {
        uint32_t present = i < 32 ? 0xffffffe0u : 0x000fffe0u;
        assert_int_equal(y[i], i % 32 < 5 ? 0 : present | 1);
    }
}

__global__ void reduce(int *max_signed, unsigned *max_unsigned, int *sum, const int *x) {
    int i = threadIdx.x;
    max_signed[i] = __reduce_max_sync(0xffffffffu, x[i]);
    max_unsigned[i] = __reduce_max_sync(0xffffffffu, (unsigned)x[i]);
    sum[i] = __reduce_add_sync(0xffffffffu, x[i]);
}

static void test_reductions(void **) {
    const int n = 128;
    std::vector<int> x(n);
    uint32_t state = 5;
    for (int &v : x)
        v = (int)next_number(&state);
    int *in = to_device(x), *a = to_device(x), *c = to_device(x);
    unsigned *b = to_device(std::vector<unsigned>(n));
    LAUNCH(reduce, 1, n, 0, 0, a, b, c, in);
    std::vector<int> signed_max = from_device(a, n), sum = from_device(c, n);
    std::vector<unsigned> unsigned_max = from_device(b, n);
    for (int i = 0; i < n; i++) {
        int largest = INT32_MIN;
        unsigned largest_unsigned = 0, total = 0;
        for (int j = i / 32 * 32; j < i / 32 * 32 + 32; j++) {
            largest = x[j] > largest ? x[j] : largest;
            largest_unsigned = (unsigned)x[j] > largest_unsigned ? x[j] : largest_unsigned;
            total += (unsigned)x[j];
        }
        assert_int_equal(signed_max[i], largest);
        assert_int_equal(unsigned_max[i], largest_unsigned);
        assert_int_equal(sum[i], (int)total);
    }
    assert_cuda(cudaFree(in));
}

/* Values pass from lane to lane through shared memory, with only the warp in step; halves too. */
__global__ void neighbours_in_warp(int *y) {
    SHARED(int, kept, [64]);
    int i = threadIdx.x, lane = i % 32;
    kept[i] = i;
    __syncwarp();
    int next = kept[i ^ 1];
    __syncwarp();
    unsigned half = lane < 16 ? 0x0000ffffu : 0xffff0000u;
    for (int step = 0; step < 3; step++) {
        kept[i] = next;
        __syncwarp(half);
        next = 2 * kept[i ^ 8];
        __syncwarp(half);
    }
    y[i] = next;
}

static void test_syncwarp_orders_shared_memory(void **) {
    int *y = to_device(std::vector<int>(64, -1));
    LAUNCH(neighbours_in_warp, 1, 64, 0, 0, y);
    std::vector<int> found = from_device(y, 64);
    for (int i = 0; i < 64; i++)
        assert_int_equal(found[i], 8 * (i ^ 1 ^ 8));
}

/* ---- atomics -------------------------------------------------------------------------------- */

struct atomic_results {
    int add, largest, smallest;
    unsigned add_unsigned, largest_unsigned, smallest_unsigned;
    unsigned long long add_64, largest_64, smallest_64;
    float add_float;
};

__global__ void all_atomics(struct atomic_results *r, unsigned *tickets, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, centred = i - n / 2;
    atomicAdd(&r->add, centred);
    atomicMax(&r->largest, centred);
    atomicMin(&r->smallest, centred);
    unsigned ticket = atomicAdd(&r->add_unsigned, 1u);
    tickets[ticket] = i;
    atomicMax(&r->largest_unsigned, (unsigned)centred);
    atomicMin(&r->smallest_unsigned, (unsigned)centred);
    atomicAdd(&r->add_64, 1ull << 33);
    atomicMax(&r->largest_64, (unsigned long long)i << 32);
    atomicMin(&r->smallest_64, (unsigned long long)(n - i) << 32);
    atomicAdd(&r->add_float, 0.25f);
}

static void test_atomics_on_device_memory(void **) {
    const int n_blocks = 7, n_threads = 96, n = n_blocks * n_threads;
    struct atomic_results start = {};
    start.smallest_unsigned = UINT32_MAX;
    start.smallest_64 = UINT64_MAX;
    struct atomic_results *r = to_device(std::vector<struct atomic_results>(1, start));
    unsigned *tickets = to_device(std::vector<unsigned>(n, 0));
    LAUNCH(all_atomics, n_blocks, n_threads, 0, 0, r, tickets, n);
    struct atomic_results found = from_device(r, 1)[0];
    assert_int_equal(found.add, -n / 2);
    assert_int_equal(found.largest, n / 2 - 1);
    assert_int_equal(found.smallest, -n / 2);
    assert_int_equal(found.add_unsigned, n);
    assert_int_equal(found.largest_unsigned, UINT32_MAX);
    assert_int_equal(found.smallest_unsigned, 0);
    assert_true(found.add_64 == (unsigned long long)n << 33);
    assert_true(found.largest_64 == (unsigned long long)(n - 1) << 32);
    assert_true(found.smallest_64 == 1ull << 32);
    assert_true(found.add_float == n * 0.25f);
    std::vector<unsigned> owners = from_device(tickets, n);
    std::vector<int> count(n, 0);
    for (unsigned owner : owners)
        count[owner]++;
    for (int c : count)
        assert_int_equal(c, 1);
}

__global__ void histogram(unsigned *y, const uint8_t *x, int n) {
    SHARED(unsigned, counts, [16]);
    if (threadIdx.x < 16)
        counts[threadIdx.x] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        atomicAdd(&counts[x[i] % 16], 1u);
    __syncthreads();
    if (threadIdx.x < 16)
        atomicAdd(&y[threadIdx.x], counts[threadIdx.x]);
}

static void test_atomics_on_shared_memory(void **) {
    const int n = 10000;
    std::vector<uint8_t> x(n);
    unsigned expected[16] = {};
    uint32_t state = 11;
    for (uint8_t &v : x) {
        v = (uint8_t)(next_number(&state) >> 8);
        expected[v % 16]++;
    }
    uint8_t *in = to_device(x);
    unsigned *out = to_device(std::vector<unsigned>(16, 0));
    LAUNCH(histogram, 5, 160, 0, 0, out, in, n);
    std::vector<unsigned> y = from_device(out, 16);
    for (int i = 0; i < 16; i++)
        assert_int_equal(y[i], expected[i]);
    assert_cuda(cudaFree(in));
}

/* ---- small functions ------------------------------------------------------------------------ */

enum { N_WORDS = 10 };

static __host__ __device__ uint32_t bits_of(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static __host__ __device__ float float_of(uint32_t u) {
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

__global__ void small_functions(uint64_t *y, const uint32_t *a, const uint32_t *b,
                                const uint32_t *c) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, n = 0;
    uint64_t *out = y + (size_t)i * N_WORDS;
    uint32_t x = __ldg(&a[i]), z = b[i], s = c[i];
    uint64_t wide = (uint64_t)x << 32 | z;
    float f = float_of(x & 0x3fffffff), g = float_of(z & 0x3fffffff);
    out[n++] = __byte_perm(x, z, s & 0x7777);
    out[n++] = (uint32_t)__dp2a_lo((int)x, (int)z, (int)s);
    out[n++] = (uint32_t)__dp2a_hi((int)x, (int)z, (int)s);
    out[n++] = __popc(x);
    out[n++] = __clz((int)(x >> (s % 33 % 32)));
    out[n++] = __umulhi(x, z);
    out[n++] = (uint32_t)min((int)x, (int)z);
    out[n++] = max(x, z);
    out[n++] = bits_of(max(f, g));
    out[n++] = (uint64_t)min((long long)wide, -5ll);
}

/* The expected words from the definitions, with loops and plain operators. */
static std::vector<uint64_t> expected_words(uint32_t x, uint32_t z, uint32_t s) {
    std::vector<uint64_t> out;
    uint64_t wide = (uint64_t)x << 32 | z;
    float f = float_of(x & 0x3fffffff), g = float_of(z & 0x3fffffff);
    uint32_t permuted = 0;
    for (int i = 0; i < 4; i++) {
        int from = s >> (4 * i) & 7;
        permuted |= ((from < 4 ? x >> (8 * from) : z >> (8 * (from - 4))) & 0xff) << (8 * i);
    }
    out.push_back(permuted);
    for (int first = 0; first < 4; first += 2) {
        uint32_t dot_2 = s;
        for (int i = 0; i < 2; i++)
            dot_2 += (uint32_t)((int16_t)(x >> (16 * i)) * (int8_t)(z >> (8 * (first + i))));
        out.push_back(dot_2);
    }
    int ones = 0, leading = 0;
    for (int i = 0; i < 32; i++)
        ones += x >> i & 1;
    uint32_t shifted = x >> (s % 33 % 32);
    while (leading < 32 && !(shifted >> (31 - leading) & 1))
        leading++;
    out.push_back(ones);
    out.push_back(leading);
    out.push_back((uint64_t)x * z >> 32);
    out.push_back((uint32_t)((int)x < (int)z ? (int)x : (int)z));
    out.push_back(x > z ? x : z);
    out.push_back(bits_of(f > g ? f : g));
    out.push_back((uint64_t)((int64_t)wide < -5 ? (int64_t)wide : -5));
    return out;
}

static void test_small_functions(void **) {
    const int n = 512;
    std::vector<uint32_t> a(n), b(n), c(n);
    uint32_t state = 3;
    for (int i = 0; i < n; i++) {
        a[i] = i < 4 ? 0 : next_number(&state);
        b[i] = i % 7 == 0 ? 0 : next_number(&state);
        c[i] = next_number(&state);
    }
    uint32_t *x = to_device(a), *z = to_device(b), *s = to_device(c);
    uint64_t *out = to_device(std::vector<uint64_t>(n * N_WORDS, 0));
    LAUNCH(small_functions, 4, n / 4, 0, 0, out, x, z, s);
    std::vector<uint64_t> y = from_device(out, n * N_WORDS);
    for (int i = 0; i < n; i++) {
        std::vector<uint64_t> expected = expected_words(a[i], b[i], c[i]);
        assert_int_equal(expected.size(), N_WORDS);
        for (int j = 0; j < N_WORDS; j++)
            if (y[i * N_WORDS + j] != expected[j])
                fail_msg("function %d of %08x %08x %08x: %llx, expected %llx", j, a[i], b[i], c[i],
                         (unsigned long long)y[i * N_WORDS + j], (unsigned long long)expected[j]);
    }
    assert_cuda(cudaFree(x));
    assert_cuda(cudaFree(z));
    assert_cuda(cudaFree(s));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shuffles_of_all_operands_and_widths),
        cmocka_unit_test(test_shuffles_of_all_types),
        cmocka_unit_test(test_parts_of_a_warp),
        cmocka_unit_test(test_votes),
        cmocka_unit_test(test_votes_without_exited_lanes),
        cmocka_unit_test(test_reductions),
        cmocka_unit_test(test_syncwarp_orders_shared_memory),
        cmocka_unit_test(test_atomics_on_device_memory),
        cmocka_unit_test(test_atomics_on_shared_memory),
        cmocka_unit_test(test_small_functions),
    };
    int failures = 0;
    RUN_GROUP(tests, failures);
    return failures;
}
