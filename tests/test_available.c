/* The op `available`: on the device under test, and on the host from files of a made-up machine. */
#include "ref/ref.h"
#include "tests/command.h"
#include "tests/device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

/* Declared in gpu/emu/controls.h. Weak, because tests on a GPU are linked without it. */
extern void emu_set_memory_limit(size_t bytes) __attribute__((weak));
extern void emu_lose_device_at(int n, int error) __attribute__((weak));

static const char *build;

/* ---- the device -------------------------------------------------------------------------------
 */

static void test_device_says_how_much(void **state) {
    struct test_device *t = *state;
    size_t left = t->ops->available(t->dev);
    assert_true(left > (size_t)1 << 20 && left < SIZE_MAX / 2);
}

/* A test sets exactly how much memory the emulation has, and that it is broken. */
static void test_emulated_memory(void **state) {
    struct test_device *t = *state;
    struct error err;
    if (!device_is_emulated())
        skip();
    emu_set_memory_limit((size_t)64 << 20);
    size_t left = t->ops->available(t->dev);
    assert_true(left <= (size_t)64 << 20);
    void *data = t->ops->alloc(t->dev, 1 << 20, "a test", &err);
    assert_non_null(data);
    assert_true(t->ops->available(t->dev) == left - (1 << 20));
    t->ops->free(t->dev, data, 1 << 20);
    assert_true(t->ops->available(t->dev) == left);
    emu_set_memory_limit((size_t)16 << 30);
    emu_lose_device_at(1, 214); /* cudaErrorECCUncorrectable */
    assert_true(t->ops->available(t->dev) == 0);
    emu_lose_device_at(0, 0);
}

/* What the process has mapped, in bytes. */
static rlim_t mapped(void) {
    unsigned long long pages;
    FILE *f = fopen("/proc/self/statm", "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%llu", &pages), 1);
    fclose(f);
    return (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE);
}

/* ulimit -v, where the memory is the host's. The limit counts what the process has mapped already:
 * once more, if a thread that has just begun maps something meanwhile. */
static void test_limit_of_address_space(void **state) {
    struct test_device *t = *state;
    enum { ROOM = 64 << 20, TRIES = 100 };
    struct rlimit old, less;
    rlim_t before;
    size_t left;
    int tries = 0;
    if (!strcmp(t->ops->name, "gpu"))
        skip();
    assert_int_equal(getrlimit(RLIMIT_AS, &old), 0);
    do {
        before = mapped();
        less = old;
        less.rlim_cur = before + ROOM;
        assert_int_equal(setrlimit(RLIMIT_AS, &less), 0);
        left = t->ops->available(t->dev);
        assert_int_equal(setrlimit(RLIMIT_AS, &old), 0);
    } while (mapped() != before && ++tries < TRIES);
    assert_true(left > ROOM / 2 && left <= ROOM);
}

/* OpenBLAS tries for ever to map its buffers, also in threads that it starts when it is loaded: a
 * program that has no room for them must say so and end. */
static void test_short_address_space_ends(void **state) {
    (void)state;
#ifdef __SANITIZE_ADDRESS__
    skip(); /* ASan itself needs terabytes of address space */
#endif
    for (int megabytes = 80; megabytes <= 560; megabytes += 40)
        for (int threads = 1; threads <= 3; threads++) {
            struct command c =
                command_runf("ulimit -v %d; timeout 60 %s/demo8 --device cpu --threads %d "
                             "--prompt Hi --max-new 2",
                             megabytes * 1024, build, threads);
            if (c.status != 0 && c.status != 2)
                fail_msg("%d MB, %d threads: status %d, %s", megabytes, threads, c.status, c.err);
            if (c.status == 2 &&
                (strncmp(c.err, "demo: ", 6) || strchr(c.err, '\n') != c.err + strlen(c.err) - 1))
                fail_msg("%d MB, %d threads: %s", megabytes, threads, c.err);
            if (megabytes >= 560)
                assert_int_equal(c.status, 0);
            command_free(&c);
        }
}

/* A limit without room for a buffer in each thread makes the device take fewer by itself. */
static void test_threads_that_fit(void **state) {
    (void)state;
#ifdef __SANITIZE_ADDRESS__
    skip();
#endif
    struct command c = command_runf("ulimit -v 400000; OPENBLAS_NUM_THREADS=64 timeout 60 %s/demo8 "
                                    "--device cpu --prompts data/prompts/short.jsonl --max-new 2",
                                    build);
    assert_int_equal(c.status, 0);
    command_free(&c);
}

/* ---- a made-up machine ------------------------------------------------------------------------
 */

static char root[] = "/tmp/samebits-available-XXXXXX";

static int make_root(void **state) {
    (void)state;
    return mkdtemp(root) ? 0 : -1;
}

static int remove_root(void **state) {
    (void)state;
    struct command c = command_runf("rm -rf %s", root);
    command_free(&c);
    return 0;
}

static void put(const char *folder, const char *name, const char *text) {
    struct command c = command_runf("mkdir -p %s/%s", root, folder);
    command_free(&c);
    char path[256];
    snprintf(path, sizeof path, "%s/%s/%s", root, folder, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void expect(size_t bytes) {
    size_t got = ref_host_available(root);
    if (got != bytes)
        fail_msg("%zu bytes are said to be available, not %zu", got, bytes);
}

static void test_limits_of_control_groups(void **state) {
    (void)state;
    expect(SIZE_MAX);
    put("proc", "meminfo", "MemTotal: 90000 kB\nMemFree: 10 kB\nMemAvailable:   8000 kB\n");
    expect(8000 * 1024);
    /* Version 2. Its root has no limit of its own. */
    put("proc/self", "cgroup", "0::/service/job\n");
    expect(8000 * 1024);
    put("sys/fs/cgroup/service/job", "memory.max", "max\n");
    put("sys/fs/cgroup/service/job", "memory.current", "1000\n");
    expect(8000 * 1024);
    put("sys/fs/cgroup/service", "memory.max", "700000\n");
    put("sys/fs/cgroup/service", "memory.current", "300000\n");
    expect(400000); /* of the group above */
    put("sys/fs/cgroup/service/job", "memory.max", "5000\n");
    expect(4000);
    put("sys/fs/cgroup/service/job", "memory.stat", "anon 600\nfile 400\ninactive_file 300\n");
    expect(4300); /* the kernel would drop these cached files */
    put("sys/fs/cgroup/service/job", "memory.current", "6000\n");
    expect(0);
    /* Version 1, beside version 2 without memory. The container's group is mounted as the root. */
    put("proc/self", "cgroup", "7:cpu,cpuacct:/x\n4:memory:/not/mounted\n0::/\n");
    put("sys/fs/cgroup/memory", "memory.limit_in_bytes", "9000\n");
    put("sys/fs/cgroup/memory", "memory.usage_in_bytes", "2000\n");
    expect(7000);
    put("sys/fs/cgroup/memory", "memory.stat", "inactive_file 9\ntotal_inactive_file 500\n");
    expect(7500);
    put("proc", "meminfo", "MemAvailable: 2 kB\n");
    expect(2048);
}

int main(int argc, char **argv) {
    (void)argc;
    build = build_folder(argv[0]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_device_says_how_much, device_group_open,
                                        device_group_close),
        cmocka_unit_test_setup_teardown(test_limit_of_address_space, device_group_open,
                                        device_group_close),
        cmocka_unit_test_setup_teardown(test_emulated_memory, device_group_open,
                                        device_group_close),
        cmocka_unit_test(test_short_address_space_ends),
        cmocka_unit_test(test_threads_that_fit),
        cmocka_unit_test_setup_teardown(test_limits_of_control_groups, make_root, remove_root),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
