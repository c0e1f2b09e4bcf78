/*
 * launch.cpp - runs launches: deals the blocks to workers, and keeps the first fault.
 */
#include "gpu/emu/engine.h"

#include <dlfcn.h>
#include <memory>
#include <mutex>
#include <numeric>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <thread>

namespace emu {

/* What the emu_set_* functions and the last launch left; launches run one at a time. */
static struct {
    std::mutex launching, reporting;
    void (*handler)(const struct emu_report *report);
    struct emu_report last;
    uint64_t schedule;
    unsigned n_workers = 1;
    std::vector<std::unique_ptr<struct worker>> workers;
} engine;

size_t stack_bytes(void) {
#ifdef __SANITIZE_ADDRESS__
    return 256 * 1024; /* its frames are larger */
#else
    return 64 * 1024;
#endif
}

/* ---- faults --------------------------------------------------------------------------------- */

struct place name_of(const struct cuda_thread *t) {
    struct place place;
    snprintf(place.text, sizeof place.text, "thread (%u,%u,%u)", t->index.x, t->index.y,
             t->index.z);
    return place;
}

struct place code_place(code_address from) {
    struct place place = {""};
    Dl_info info;
    if (from && dladdr(from, &info) && info.dli_fname)
        snprintf(place.text, sizeof place.text, " (code: %.150s+0x%zx)", info.dli_fname,
                 (size_t)((const char *)from - (const char *)info.dli_fbase));
    return place;
}

/* The first fault of a launch is kept and reported; it ends the launch on all workers. */
static void report_fault(const struct cuda_thread *t, enum emu_fault kind, const char *format,
                         va_list arguments) {
    struct launch *launch = t->worker->launch;
    if (launch->failed.exchange(true))
        return;
    struct emu_report report = {kind, ""};
    uint3 b = t->worker->block_index;
    int n = snprintf(report.text, sizeof report.text,
                     "emulation: kernel %.120s, block (%u,%u,%u), %s: ", launch->kernel->name, b.x,
                     b.y, b.z, name_of(t).text);
    vsnprintf(report.text + n, sizeof report.text - (size_t)n, format, arguments);
    self = NULL; /* the handler is not part of the kernel */
    std::lock_guard<std::mutex> lock(engine.reporting);
    engine.last = report;
    if (engine.handler)
        engine.handler(&report);
    else
        fprintf(stderr, "%s\n", report.text);
}

void fault(const struct cuda_thread *t, enum emu_fault kind, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    report_fault(t, kind, format, arguments);
    va_end(arguments);
    struct worker *w = t->worker;
    fiber_switch(&w->running->fiber, &w->scheduler);
    abort(); /* a stopped block's threads never continue */
}

void scheduler_fault(const struct cuda_thread *t, enum emu_fault kind, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    report_fault(t, kind, format, arguments);
    va_end(arguments);
}

/* ---- workers -------------------------------------------------------------------------------- */

void *map_memory(size_t bytes) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        fprintf(stderr, "emulation: no memory (%zu bytes)\n", bytes);
        abort();
    }
    return memory;
}

worker::worker() {
    stacks = static_cast<unsigned char *>(map_memory(MAX_THREADS * stack_bytes()));
    arena_create(&arena);
}

worker::~worker() {
    munmap(stacks, MAX_THREADS * stack_bytes());
    arena_destroy(&arena);
}

/* ---- launches ------------------------------------------------------------------------------- */

static void run_worker(struct worker *w, struct launch *launch) {
    w->launch = launch;
    memset(w->recent, 0, sizeof w->recent);
    arena_begin_launch(&w->arena, launch->dynamic_bytes);
    uint64_t n = launch->n_blocks, step = 1, offset = 0;
    if (launch->schedule > 1) {
        uint64_t random = launch->schedule;
        offset = next_random(&random) % n;
        step = next_random(&random) % n;
        while (std::gcd(step, n) != 1)
            step = (step + 1) % n;
    }
    for (uint64_t i; !launch->failed && (i = launch->next_block++) < n;)
        run_block(w, launch->schedule == 1 ? n - 1 - i : (i * step + offset) % n);
}

static bool is_possible(const struct launch *launch) {
    dim3 g = launch->grid, b = launch->block;
    return g.x && g.y && g.z && b.x && b.y && b.z && g.x <= INT32_MAX && g.y <= 65535 &&
           g.z <= 65535 && b.x <= MAX_THREADS && b.y <= MAX_THREADS && b.z <= 64 &&
           (uint64_t)b.x * b.y * b.z <= MAX_THREADS;
}

static void run_launch(struct launch *launch) {
    std::lock_guard<std::mutex> lock(engine.launching);
    launch->schedule = engine.schedule;
    launch->n_blocks = (uint64_t)launch->grid.x * launch->grid.y * launch->grid.z;
    engine.last = {EMU_NO_FAULT, ""};
    unsigned n = (unsigned)min((uint64_t)engine.n_workers, launch->n_blocks);
    while (engine.workers.size() < n)
        engine.workers.push_back(std::make_unique<struct worker>());
    std::vector<std::thread> helpers;
    for (unsigned i = 1; i < n; i++)
        helpers.emplace_back(run_worker, engine.workers[i].get(), launch);
    run_worker(engine.workers[0].get(), launch);
    for (std::thread &helper : helpers)
        helper.join();
    if (launch->failed)
        set_sticky_error(cudaErrorLaunchFailure);
}

/* The launch, with a copy of its arguments, to be run later. */
static std::function<void()> launch_for_later(const struct launch *launch) {
    struct emu_kernel kernel = *launch->kernel;
    size_t bytes = kernel.argument_bytes;
    std::vector<max_align_t> arguments(bytes / sizeof(max_align_t) + 1);
    memcpy(arguments.data(), kernel.arguments, bytes);
    return [kernel, arguments, grid = launch->grid, block = launch->block,
            dynamic = launch->dynamic_bytes, limit = launch->shared_limit]() mutable {
        kernel.arguments = arguments.data();
        struct launch again = {&kernel, grid, block, dynamic, limit};
        run_launch(&again);
    };
}

} // namespace emu

using namespace emu;

void emu_launch(const struct emu_kernel *kernel, dim3 grid, dim3 block, size_t shared_bytes,
                cudaStream_t stream) {
    if (enter_api() != cudaSuccess)
        return;
    if (!kernels_fit_device()) {
        set_error(cudaErrorNoKernelImageForDevice);
        return;
    }
    size_t allowed = dynamic_shared_limit(kernel->function);
    struct launch launch = {kernel, grid, block, shared_bytes,
                            allowed > DEFAULT_SHARED ? MAX_SHARED : DEFAULT_SHARED};
    if (!is_possible(&launch)) {
        set_error(cudaErrorInvalidConfiguration);
        return;
    }
    if (shared_bytes > allowed) {
        set_error(cudaErrorInvalidValue);
        return;
    }
    if (is_capturing())
        capture_work(launch_for_later(&launch));
    else if (work_list *late = late_work(stream))
        late->push_back(launch_for_later(&launch));
    else
        run_launch(&launch);
}

void emu_set_handler(void (*handler)(const struct emu_report *report)) {
    engine.handler = handler;
}

struct emu_report emu_last_report(void) {
    return engine.last;
}

void emu_set_schedule(uint64_t seed) {
    engine.schedule = seed;
}

void emu_set_threads(int n) {
    engine.n_workers = (unsigned)max(n, 1);
}
