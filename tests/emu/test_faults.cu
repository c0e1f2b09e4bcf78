/*
 * Faults that the emulation must find: each kernel here is wrong on purpose. On a GPU only the
 * launches that its driver refuses are tried. What needs the compiler's help (every load and store
 * of shared memory) is tried where this file is compiled with it: see gpu/emu/cuda_emu.h.
 */
#include "gpu/ptx/tensor_core.h"
#include "tests/emu/device_test.h"
#include "tests/random.h"

#include <sys/wait.h>
#include <unistd.h>

__global__ void idle() {
}

__global__ void touch_dynamic(int n) {
    SHARED_DYNAMIC(char, bytes);
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        bytes[i] = 1;
}

static void test_impossible_launches_are_refused(void **) {
    LAUNCH(idle, 1, 1025, 0, 0);
    assert_int_equal(cudaPeekAtLastError(), cudaErrorInvalidConfiguration);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidConfiguration);
    assert_cuda(cudaGetLastError()); /* told once */
    LAUNCH(idle, dim3(0, 1), 32, 0, 0);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidConfiguration);
    LAUNCH(idle, dim3(1, 65536), 32, 0, 0);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidConfiguration);
    LAUNCH(idle, 1, dim3(1, 1, 65), 0, 0);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidConfiguration);
    LAUNCH(idle, dim3(65536, 1), 32, 0, 0);
    assert_cuda(cudaGetLastError());
}

static void test_much_shared_memory_must_be_asked_for(void **) {
    LAUNCH(touch_dynamic, 1, 64, 48 * 1024, 0, 48 * 1024);
    assert_cuda(cudaGetLastError());
    LAUNCH(touch_dynamic, 1, 64, 48 * 1024 + 1, 0, 0);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidValue);
    const int most = 227 * 1024;
    assert_cuda(
        cudaFuncSetAttribute(touch_dynamic, cudaFuncAttributeMaxDynamicSharedMemorySize, most));
    LAUNCH(touch_dynamic, 1, 64, most, 0, most);
    assert_cuda(cudaGetLastError());
    LAUNCH(touch_dynamic, 1, 64, most + 1, 0, 0);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidValue);
    assert_int_equal(
        cudaFuncSetAttribute(touch_dynamic, cudaFuncAttributeMaxDynamicSharedMemorySize, most + 1),
        cudaErrorInvalidValue);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidValue);
    assert_cuda(cudaDeviceSynchronize());
}

#ifdef SAMEBITS_EMU

static int n_reports;
static struct emu_report reported;

static void keep_report(const struct emu_report *report) {
    n_reports++;
    reported = *report;
}

/* Asserts that the launch just made ended with this fault, told once in a line that has `words`,
 * and that the device is unusable until it is reset. */
static void expect_fault(enum emu_fault fault, const char *words) {
    struct emu_report last = emu_last_report();
    if (last.fault != fault || !strstr(last.text, words))
        fail_msg("fault %d, expected %d with \"%s\": %s", last.fault, fault, words, last.text);
    assert_int_equal(n_reports, 1);
    assert_string_equal(reported.text, last.text);
    assert_null(strchr(last.text, '\n'));
    assert_int_equal(cudaGetLastError(), cudaErrorLaunchFailure);
    assert_int_equal(cudaDeviceSynchronize(), cudaErrorLaunchFailure);
    void *p;
    assert_int_equal(cudaMalloc(&p, 16), cudaErrorLaunchFailure);
    assert_cuda(cudaDeviceReset());
    assert_cuda(cudaGetLastError());
    n_reports = 0;
}

static void expect_no_fault(void) {
    assert_string_equal(emu_last_report().text, "");
    assert_cuda(cudaGetLastError());
    assert_int_equal(n_reports, 0);
}

/* ---- barriers and warps --------------------------------------------------------------------- */

__global__ void divergent_barrier(int n) {
    if ((int)threadIdx.x < n)
        __syncthreads();
    __syncthreads();
}

static void test_divergent_barrier(void **) {
    LAUNCH(divergent_barrier, 2, 64, 0, 0, 64);
    expect_no_fault();
    LAUNCH(divergent_barrier, 2, 64, 0, 0, 0);
    expect_no_fault();
    LAUNCH(divergent_barrier, 2, 64, 0, 0, 32);
    expect_fault(EMU_DIVERGENT_BARRIER, "kernel divergent_barrier, block (");
    LAUNCH(divergent_barrier, 2, 64, 0, 0, 63);
    expect_fault(EMU_DIVERGENT_BARRIER, "but thread (63,0,0) waits at the barrier");
}

__global__ void barrier_in_one_branch(int n) {
    if ((int)threadIdx.x < n)
        __syncthreads();
    else
        __syncwarp();
}

static void test_barrier_against_warp_operation(void **) {
    LAUNCH(barrier_in_one_branch, 1, 64, 0, 0, 40);
    expect_fault(EMU_WARP_DEADLOCK, "__syncwarp with mask ffffffff");
    LAUNCH(barrier_in_one_branch, 1, 64, 0, 0, 32);
    expect_no_fault();
}

__global__ void shuffle_of_some(int *y, int n) {
    if ((int)threadIdx.x < n)
        y[threadIdx.x] = __shfl_xor_sync(0xffffffffu, (int)threadIdx.x, 1);
    else
        __syncthreads();
}

static void test_shuffle_waits_for_lanes_that_do_not_come(void **) {
    int *y = to_device(std::vector<int>(32, 0));
    LAUNCH(shuffle_of_some, 1, 32, 0, 0, y, 16);
    expect_fault(EMU_WARP_DEADLOCK, "waits for lanes ffff0000");
}

__global__ void shuffle_with_the_dead(int *y) {
    if (threadIdx.x >= 31)
        return;
    y[threadIdx.x] = __shfl_xor_sync(0xffffffffu, (int)threadIdx.x, 1);
}

__global__ void shuffle_outside_of_mask(int *y) {
    if (threadIdx.x >= 16)
        y[threadIdx.x] = __shfl_sync(0xffff0000u, (int)threadIdx.x, 3);
}

__global__ void shuffle_without_oneself(int *y) {
    y[threadIdx.x] = __shfl_sync(0x0000ffffu, (int)threadIdx.x, 3);
}

static void test_shuffle_reads_a_lane_that_takes_no_part(void **) {
    int *y = to_device(std::vector<int>(32, 0));
    LAUNCH(shuffle_with_the_dead, 1, 32, 0, 0, y);
    expect_fault(EMU_WARP_LANE, "reads from lane 31");
    y = to_device(std::vector<int>(32, 0));
    LAUNCH(shuffle_outside_of_mask, 1, 32, 0, 0, y);
    expect_fault(EMU_WARP_LANE, "reads from lane 3,");
    y = to_device(std::vector<int>(32, 0));
    LAUNCH(shuffle_without_oneself, 1, 32, 0, 0, y);
    expect_fault(EMU_WARP_LANE, "not in its mask 0000ffff");
}

__global__ void two_votes(int *y) {
    if (threadIdx.x % 2)
        y[threadIdx.x] = __any_sync(0xffffffffu, 1);
    else
        y[threadIdx.x] = __all_sync(0xffffffffu, 1);
}

__global__ void two_masks(int *y) {
    y[threadIdx.x] = __any_sync(threadIdx.x % 2 ? 0xffffffffu : 0x55555555u, 1);
    __syncthreads();
}

static void test_votes_that_do_not_match(void **) {
    int *y = to_device(std::vector<int>(32, 0));
    LAUNCH(two_votes, 1, 32, 0, 0, y);
    expect_fault(EMU_WARP_DEADLOCK, "waits in __a");
    y = to_device(std::vector<int>(32, 0));
    LAUNCH(two_masks, 1, 32, 0, 0, y);
    expect_fault(EMU_WARP_DEADLOCK, "waits for lanes 55555555, but lane 0 waits in __syncthreads");
}

/* A fault in one of many blocks ends the launch, wherever the block runs. */
__global__ void one_bad_block(int *y, unsigned bad) {
    atomicAdd(y, 1);
    if (blockIdx.x == bad && threadIdx.x > 0)
        __syncthreads();
    __syncthreads();
}

static void test_one_block_of_many(void **) {
    int *y = to_device(std::vector<int>(1, 0));
    LAUNCH(one_bad_block, 100, 33, 0, 0, y, 17u);
    expect_fault(EMU_DIVERGENT_BARRIER, "block (17,0,0)");
    y = to_device(std::vector<int>(1, 0));
    LAUNCH(one_bad_block, 100, 33, 0, 0, y, 100u);
    expect_no_fault();
    assert_int_equal(from_device(y, 1)[0], 3300);
}

__global__ void too_much_static() {
    SHARED(int, huge, [13 * 1024]);
    huge[threadIdx.x] = 1;
}

static void test_too_much_static_shared_memory(void **) {
    LAUNCH(too_much_static, 1, 32, 0, 0);
    expect_fault(EMU_SHARED_BOUNDS, "huge with 53248 bytes is too much");
}

__global__ void misaligned_load(uint4 *y, const char *x) {
    *y = __ldg((const uint4 *)(x + 8 * threadIdx.x));
}

static void test_misaligned_load(void **) {
    uint4 *y = to_device(std::vector<uint4>(1));
    char *x = to_device(std::vector<char>(64, 0));
    LAUNCH(misaligned_load, 1, 1, 0, 0, y, x);
    expect_no_fault();
    LAUNCH(misaligned_load, 1, 2, 0, 0, y, x);
    expect_fault(EMU_MISALIGNED, "thread (1,0,0)");
}

/* ---- memory --------------------------------------------------------------------------------- */

/* Reads or writes one element of the middle one of three arrays. */
__global__ void three_arrays(int *y, int index, bool store) {
    SHARED(int, before, [8]);
    SHARED(int, middle, [4][4]);
    SHARED(int, after, [8]);
    before[threadIdx.x % 8] = after[threadIdx.x % 8] = 1;
    for (int i = 0; i < 16 && threadIdx.x == 0; i++)
        middle[i / 4][i % 4] = i;
    if (threadIdx.x == 0 && store)
        (&middle[0][0])[index] = 5;
    if (threadIdx.x == 0 && !store)
        *y = (&middle[0][0])[index];
}

__global__ void copy_ints(int *y, const int *x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        y[i] = x[i];
}

#ifdef __SANITIZE_THREAD__

static void test_shared_memory_out_of_bounds(void **) {
    int *y = to_device(std::vector<int>(1, 0));
    LAUNCH(three_arrays, 1, 1, 0, 0, y, 15, false);
    expect_no_fault();
    LAUNCH(three_arrays, 1, 1, 0, 0, y, 16, false);
    expect_fault(EMU_SHARED_BOUNDS, "reads 4 bytes, 0 bytes past the end of shared middle");
    y = to_device(std::vector<int>(1, 0));
    LAUNCH(three_arrays, 1, 1, 0, 0, y, -1, true);
    expect_fault(EMU_SHARED_BOUNDS, "writes 4 bytes");
    y = to_device(std::vector<int>(1, 0));
    LAUNCH(three_arrays, 1, 1, 0, 0, y, 1000000, true);
    expect_fault(EMU_DEVICE_BOUNDS, "which is not the device's");
}

static void test_dynamic_shared_memory_out_of_bounds(void **) {
    LAUNCH(touch_dynamic, 3, 32, 1000, 0, 1000);
    expect_no_fault();
    LAUNCH(touch_dynamic, 3, 32, 1000, 0, 1001);
    expect_fault(EMU_SHARED_BOUNDS, "shared dynamic memory (1000 bytes)");
}

__global__ void read_unwritten(int *y, int n_written) {
    SHARED(int8_t, kept, [32]);
    if ((int)threadIdx.x < n_written)
        kept[threadIdx.x] = 1;
    __syncthreads();
    y[threadIdx.x] = kept[threadIdx.x];
}

static void test_uninitialised_shared_memory(void **) {
    int *y = to_device(std::vector<int>(32, 0));
    LAUNCH(read_unwritten, 2, 32, 0, 0, y, 32);
    expect_no_fault();
    LAUNCH(read_unwritten, 2, 32, 0, 0, y, 31); /* what earlier blocks wrote does not count */
    expect_fault(EMU_SHARED_UNINITIALISED, "reads uninitialised byte 31 of shared kept");
}

/* Reverses n elements; a barrier can be dropped before the reads or before the next writes. */
template <bool BEFORE_READ, bool BEFORE_WRITE> __global__ void reverse_twice(int *y, int n) {
    SHARED(int, kept, [256]);
    int i = threadIdx.x, value = i;
    for (int round = 0; round < 2; round++) {
        kept[i] = value;
        if (BEFORE_READ)
            __syncthreads();
        value = kept[n - 1 - i];
        if (BEFORE_WRITE)
            __syncthreads();
    }
    y[i] = value;
}

static void test_dropped_barriers_are_races(void **) {
    const int sizes[] = {2, 32, 33, 256};
    for (int n : sizes) {
        int *y = to_device(std::vector<int>(256, 0));
        LAUNCH((reverse_twice<true, true>), 2, n, 0, 0, y, n);
        expect_no_fault();
        LAUNCH((reverse_twice<true, false>), 2, n, 0, 0, y, n);
        expect_fault(EMU_SHARED_RACE, "with no barrier between");
        y = to_device(std::vector<int>(256, 0));
        LAUNCH((reverse_twice<false, true>), 2, n, 0, 0, y, n);
        assert_true(emu_last_report().fault == EMU_SHARED_RACE ||
                    emu_last_report().fault == EMU_SHARED_UNINITIALISED);
        expect_fault(emu_last_report().fault, "of shared kept");
    }
}

/* Every thread reads what one thread writes afterwards. */
__global__ void write_after_reads(int *y, int writer, bool barrier, bool warp_barrier) {
    SHARED(int, word);
    if (threadIdx.x == 0)
        word = 1;
    __syncthreads();
    int value = word;
    if (barrier)
        __syncthreads();
    if (warp_barrier)
        __syncwarp();
    if ((int)threadIdx.x == writer)
        word = 2;
    y[threadIdx.x] = value;
}

static void test_write_after_reads_is_a_race(void **) {
    for (int n = 32; n <= 96; n += 32)
        for (int writer = 0; writer < n; writer += 31) {
            int *y = to_device(std::vector<int>(96, 0));
            LAUNCH(write_after_reads, 1, n, 0, 0, y, writer, true, false);
            expect_no_fault();
            LAUNCH(write_after_reads, 1, n, 0, 0, y, writer, false, true);
            if (n == 32)
                expect_no_fault(); /* one warp is in step */
            else
                expect_fault(EMU_SHARED_RACE, "byte 0 of shared word");
            assert_cuda(cudaDeviceReset());
            y = to_device(std::vector<int>(96, 0));
            LAUNCH(write_after_reads, 1, n, 0, 0, y, writer, false, false);
            expect_fault(EMU_SHARED_RACE, "byte 0 of shared word");
        }
}

/* Accesses of shared memory, thread by thread; bytes = 0: a barrier. */
struct script {
    int n;
    struct step {
        int thread, first, bytes;
        bool write;
    } steps[20];
};

template <class T> __device__ void access_shared(unsigned char *bytes, const script::step &s) {
    volatile T *at = reinterpret_cast<T *>(bytes + s.first);
    if (s.write)
        *at = 1;
    else
        (void)*at;
}

__global__ void follow(struct script script) {
    SHARED(uint64_t, words);
    unsigned char *bytes = reinterpret_cast<unsigned char *>(&words);
    for (int i = 0; i < script.n; i++) {
        const script::step &s = script.steps[i];
        if (s.bytes == 0)
            __syncthreads();
        else if (s.thread == (int)threadIdx.x)
            s.bytes == 1   ? access_shared<uint8_t>(bytes, s)
            : s.bytes == 2 ? access_shared<uint16_t>(bytes, s)
            : s.bytes == 4 ? access_shared<uint32_t>(bytes, s)
                           : access_shared<uint64_t>(bytes, s);
    }
}

/* Two accesses of different threads to the same byte, one of them a write, and no barrier between.
 */
static bool has_race(const struct script *script) {
    for (int i = 0; i < script->n; i++)
        for (int j = i + 1; j < script->n && script->steps[j].bytes; j++) {
            const script::step *a = &script->steps[i], *b = &script->steps[j];
            if (a->bytes && a->thread != b->thread && (a->write || b->write) &&
                a->first < b->first + b->bytes && b->first < a->first + a->bytes)
                return true;
        }
    return false;
}

/* Eight bytes, written in pieces of one size; then some accesses of any size and a barrier or two.
 */
static struct script random_script(struct random *r) {
    static const int sizes[] = {1, 2, 4, 8}, threads[] = {0, 1, 31, 32, 63};
    struct script s = {0, {}};
    int piece = sizes[random_int(r, 0, 3)];
    for (int first = 0; first < 8; first += piece)
        s.steps[s.n++] = {first, first, piece, true};
    s.steps[s.n++] = {0, 0, 0, false};
    for (int left = random_int(r, 2, 6); left > 0; left--) {
        int bytes = random_int(r, 0, 5) ? sizes[random_int(r, 0, 3)] : 0;
        int first = bytes ? random_int(r, 0, 8 / bytes - 1) * bytes : 0;
        s.steps[s.n++] = {threads[random_int(r, 0, 4)], first, bytes, random_int(r, 0, 3) == 0};
    }
    return s;
}

static void test_races_between_accesses_of_any_size(void **) {
    struct random r = {7};
    int n_races = 0;
    for (int i = 0; i < 2000; i++) {
        struct script s = random_script(&r);
        bool race = has_race(&s);
        n_races += race;
        LAUNCH(follow, 1, 64, 0, 0, s);
        if (race)
            expect_fault(EMU_SHARED_RACE, "of shared words");
        else
            expect_no_fault();
    }
    assert_in_range(n_races, 500, 1500);
}

/* A word of which a part was written. */
__global__ void read_half_written(int *y, int n_written) {
    SHARED(int, word);
    int16_t *halves = reinterpret_cast<int16_t *>(&word);
    for (int i = 0; i < n_written; i++)
        *(volatile int16_t *)(halves + i) = 1;
    __syncthreads();
    *y = *(volatile int *)&word;
}

static void test_words_written_by_halves(void **) {
    int *y = to_device(std::vector<int>(1, 0));
    LAUNCH(read_half_written, 2, 1, 0, 0, y, 2);
    expect_no_fault();
    LAUNCH(read_half_written, 2, 1, 0, 0, y, 1); /* of the other half, an earlier launch knows */
    expect_fault(EMU_SHARED_UNINITIALISED, "reads uninitialised byte 2 of shared word");
}

/* Shuffles bring lanes together but do not order their memory; neither do half-warp barriers that
 * leave out the other lane. */
__global__ void swap_in_warp(int *y, int how, int distance) {
    SHARED(int, kept, [32]);
    int i = threadIdx.x;
    kept[i] = i;
    if (how == 0)
        __syncwarp();
    else if (how == 1)
        __shfl_sync(0xffffffffu, i, 0);
    else
        __syncwarp(i < 16 ? 0x0000ffffu : 0xffff0000u);
    y[i] = kept[i ^ distance];
}

static void test_only_syncwarp_orders_a_warp(void **) {
    int *y = to_device(std::vector<int>(32, 0));
    LAUNCH(swap_in_warp, 1, 32, 0, 0, y, 0, 16);
    expect_no_fault();
    LAUNCH(swap_in_warp, 1, 32, 0, 0, y, 2, 8);
    expect_no_fault();
    LAUNCH(swap_in_warp, 1, 32, 0, 0, y, 1, 1);
    expect_fault(EMU_SHARED_RACE, "shared kept");
    y = to_device(std::vector<int>(32, 0));
    LAUNCH(swap_in_warp, 1, 32, 0, 0, y, 2, 16);
    assert_int_not_equal(emu_last_report().fault, EMU_NO_FAULT);
    expect_fault(emu_last_report().fault, "shared kept");
}

/* Lane 0 hears of lane 31 through lane 16: two barriers of pairs. */
__global__ void order_through_another(int *y, bool complete) {
    SHARED(int, word);
    unsigned lane = threadIdx.x;
    if (lane == 31)
        word = 7;
    if (lane == 31 || lane == 16)
        __syncwarp(0x80010000u);
    if (complete && (lane == 16 || lane == 0))
        __syncwarp(0x00010001u);
    if (lane == (complete ? 0 : 16))
        *y = word;
}

static void test_order_is_transitive(void **) {
    int *y = to_device(std::vector<int>(1, 0));
    LAUNCH(order_through_another, 1, 32, 0, 0, y, true);
    expect_no_fault();
    LAUNCH(order_through_another, 1, 32, 0, 0, y, false);
    expect_no_fault();
    assert_int_equal(from_device(y, 1)[0], 7);
}

__global__ void atomic_against_plain(int *y, bool barrier_before, bool barrier_after) {
    SHARED(int, sum);
    if (threadIdx.x == 0)
        sum = 0;
    if (barrier_before)
        __syncthreads();
    atomicAdd(&sum, 1);
    if (barrier_after)
        __syncthreads();
    y[threadIdx.x] = sum;
}

static void test_atomics_race_with_plain_accesses_only(void **) {
    int *y = to_device(std::vector<int>(64, 0));
    LAUNCH(atomic_against_plain, 1, 64, 0, 0, y, true, true);
    expect_no_fault();
    LAUNCH(atomic_against_plain, 1, 64, 0, 0, y, true, false);
    expect_fault(EMU_SHARED_RACE, "shared sum");
    y = to_device(std::vector<int>(64, 0));
    LAUNCH(atomic_against_plain, 1, 64, 0, 0, y, false, true);
    assert_int_not_equal(emu_last_report().fault, EMU_NO_FAULT); /* a race, or nothing to add to */
    expect_fault(emu_last_report().fault, "shared sum");
}

/* The second half of what is read lies behind the end. */
__global__ void read_over_the_end(long long *y, int first) {
    SHARED(int, words, [3]);
    words[0] = words[1] = words[2] = 1;
    long long pair;
    memcpy(&pair, &words[first], sizeof pair);
    *y = pair;
}

static void test_read_over_the_end(void **) {
    long long *y = to_device(std::vector<long long>(1, 0));
    LAUNCH(read_over_the_end, 1, 1, 0, 0, y, 1);
    expect_no_fault();
    LAUNCH(read_over_the_end, 1, 1, 0, 0, y, 2);
    expect_fault(EMU_SHARED_BOUNDS, "0 bytes past the end of shared words (12 bytes)");
}

static void test_device_memory_out_of_bounds(void **) {
    int *x = to_device(std::vector<int>(100, 1)), *y = to_device(std::vector<int>(100, 0));
    LAUNCH(copy_ints, 4, 32, 0, 0, y, x, 100);
    expect_no_fault();
    LAUNCH(copy_ints, 4, 32, 0, 0, y, x, 101);
    expect_fault(EMU_DEVICE_BOUNDS, "byte 400 of an allocation of 400 bytes");
}

static void test_host_and_freed_memory_is_not_the_devices(void **) {
    std::vector<int> host(64, 1);
    int *y = to_device(host);
    LAUNCH(copy_ints, 2, 32, 0, 0, y, host.data(), 64);
    expect_fault(EMU_DEVICE_BOUNDS, "reads 4 bytes");
    int *x = to_device(host);
    y = to_device(host);
    assert_cuda(cudaFree(x));
    LAUNCH(copy_ints, 2, 32, 0, 0, y, x, 64);
    expect_fault(EMU_DEVICE_BOUNDS, "which is not the device's");
}

__global__ void misaligned_vector(uint4 *y) {
    SHARED(uint32_t, words, [64]);
    words[threadIdx.x] = words[threadIdx.x + 32] = threadIdx.x;
    __syncthreads();
    if (threadIdx.x < 2)
        y[threadIdx.x] = *(const uint4 *)&words[6 * threadIdx.x];
}

static void test_misaligned_shared_vector(void **) {
    uint4 *y = to_device(std::vector<uint4>(2));
    LAUNCH(misaligned_vector, 1, 32, 0, 0, y);
    expect_fault(EMU_MISALIGNED, "thread (1,0,0): uses ");
}

/* Only one element of each vector is used, so no access is as wide as the vector. */
__global__ void misaligned_element(float *y, const float *x, int offset) {
    float4 v = *(const float4 *)(x + 4 * threadIdx.x + offset);
    y[threadIdx.x] = v.y;
}

static void test_misaligned_element_of_a_vector(void **) {
    float *y = to_device(std::vector<float>(8)), *x = to_device(std::vector<float>(64));
    LAUNCH(misaligned_element, 1, 8, 0, 0, y, x, 4);
    expect_no_fault();
    LAUNCH(misaligned_element, 1, 8, 0, 0, y, x, 2);
    expect_fault(EMU_MISALIGNED, "not a multiple of 16");
}

/* The copy of the last thread begins behind x, and nobody waits for it. */
__global__ void copy_and_go(const uint4 *x, int n) {
    SHARED(uint4, places, [32]);
    if ((int)threadIdx.x < n)
        cp_async_16(&places[threadIdx.x], &x[threadIdx.x]);
    cp_async_commit();
}

static void test_copies_without_a_wait_are_checked(void **) {
    uint4 *x = to_device(std::vector<uint4>(8));
    LAUNCH(copy_and_go, 1, 32, 0, 0, x, 8);
    expect_no_fault();
    LAUNCH(copy_and_go, 1, 32, 0, 0, x, 9);
    expect_fault(EMU_DEVICE_BOUNDS, "thread (8,0,0): reads 16 bytes");
}

#define MEMORY_TESTS                                                                               \
    cmocka_unit_test(test_shared_memory_out_of_bounds),                                            \
        cmocka_unit_test(test_dynamic_shared_memory_out_of_bounds),                                \
        cmocka_unit_test(test_uninitialised_shared_memory),                                        \
        cmocka_unit_test(test_dropped_barriers_are_races),                                         \
        cmocka_unit_test(test_write_after_reads_is_a_race),                                        \
        cmocka_unit_test(test_races_between_accesses_of_any_size),                                 \
        cmocka_unit_test(test_words_written_by_halves),                                            \
        cmocka_unit_test(test_only_syncwarp_orders_a_warp),                                        \
        cmocka_unit_test(test_order_is_transitive),                                                \
        cmocka_unit_test(test_atomics_race_with_plain_accesses_only),                              \
        cmocka_unit_test(test_device_memory_out_of_bounds),                                        \
        cmocka_unit_test(test_host_and_freed_memory_is_not_the_devices),                           \
        cmocka_unit_test(test_read_over_the_end), cmocka_unit_test(test_misaligned_shared_vector), \
        cmocka_unit_test(test_misaligned_element_of_a_vector),                                     \
        cmocka_unit_test(test_copies_without_a_wait_are_checked),
#elif defined(__SANITIZE_ADDRESS__)

/* Whether a launch of three_arrays or copy_ints makes AddressSanitizer end the process. */
static bool is_caught(int index, bool store, int n_copied) {
    int *x = to_device(std::vector<int>(100, 1)), *y = to_device(std::vector<int>(100, 0));
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        fclose(stderr);
        emu_set_threads(1); /* a forked process has one thread */
        LAUNCH(three_arrays, 1, 1, 0, 0, y, index, store);
        LAUNCH(copy_ints, 4, 32, 0, 0, y, x, n_copied);
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_cuda(cudaFree(x));
    assert_cuda(cudaFree(y));
    return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}

static void test_address_sanitizer_sees_what_is_out_of_bounds(void **) {
    assert_false(is_caught(15, true, 100));
    assert_true(is_caught(16, true, 100));
    assert_true(is_caught(16, false, 100));
    assert_true(is_caught(-1, false, 100));
    assert_true(is_caught(15, false, 101));
}

#define MEMORY_TESTS cmocka_unit_test(test_address_sanitizer_sees_what_is_out_of_bounds),
#else
#define MEMORY_TESTS
#endif
#endif

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_impossible_launches_are_refused),
        cmocka_unit_test(test_much_shared_memory_must_be_asked_for),
#ifdef SAMEBITS_EMU
        cmocka_unit_test(test_divergent_barrier),
        cmocka_unit_test(test_barrier_against_warp_operation),
        cmocka_unit_test(test_shuffle_waits_for_lanes_that_do_not_come),
        cmocka_unit_test(test_shuffle_reads_a_lane_that_takes_no_part),
        cmocka_unit_test(test_votes_that_do_not_match),
        cmocka_unit_test(test_one_block_of_many),
        cmocka_unit_test(test_too_much_static_shared_memory),
        cmocka_unit_test(test_misaligned_load),
        MEMORY_TESTS
#endif
    };
    int failures = 0;
#ifdef SAMEBITS_EMU
    emu_set_handler(keep_report);
#endif
    RUN_GROUP(tests, failures);
    return failures;
}
