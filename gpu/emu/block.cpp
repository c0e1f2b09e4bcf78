/*
 * block.cpp - runs launches.
 *
 * A block's threads are fibers. The scheduler runs a warp until each of its lanes waits or has
 * exited, then the next warp, and so lets warps drift as far apart as the barriers allow: what a
 * missing barrier allows to happen, happens. When every warp is stuck, either all live threads wait
 * at one barrier, which then opens, or the kernel has a fault.
 */
#include "gpu/emu/engine.h"

#include <algorithm>
#include <dlfcn.h>
#include <memory>
#include <mutex>
#include <numeric>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>

namespace emu {

__thread struct cuda_thread *self;

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

/* The same from the scheduler, which then stops by itself. */
__attribute__((format(printf, 3, 4))) static void
scheduler_fault(const struct cuda_thread *t, enum emu_fault kind, const char *format, ...) {
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

/* Stack i of w. Its lowest page is inaccessible, so that an overflow is a crash, not a mystery. */
static unsigned char *worker_stack(struct worker *w, unsigned i) {
    unsigned char *stack = w->stacks + i * stack_bytes();
    if (i >= w->n_stacks) {
        mprotect(stack, (size_t)sysconf(_SC_PAGESIZE), PROT_NONE);
        w->n_stacks = i + 1;
    }
    return stack;
}

static uint64_t next_random(uint64_t *state) {
    uint64_t x = *state += 0x9e3779b97f4a7c15u; /* SplitMix64: Steele, Lea and Flood, 2014 */
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* ---- warp operations ------------------------------------------------------------------------ */

static struct cuda_thread *lane_of(struct worker *w, const struct warp *warp, unsigned lane) {
    return &w->threads[(size_t)(warp - w->warps) * WARP + lane];
}

static bool same_operation(const struct emu_warp_op *a, const struct emu_warp_op *b) {
    return a->mask == b->mask && a->name == b->name && (a->orders_memory || a->line == b->line) &&
           a->complete == b->complete;
}

/* The lanes have met: what each did before is before what each does next, and so is all that any of
 * them knew to be before. */
static void order_lanes(struct worker *w, struct warp *warp, uint32_t lanes) {
    w->now++;
    if (lanes == warp->alive) {
        warp->synced = w->now;
        return;
    }
    warp->synced_partly = true;
    uint32_t joined[WARP] = {};
    for (unsigned b = 0; b < WARP; b++)
        for (unsigned a = 0; lanes >> b & 1 && a < WARP; a++)
            joined[a] = max(joined[a], warp->known[b][a]);
    for (unsigned b = 0; b < WARP; b++)
        for (unsigned a = 0; lanes >> b & 1 && a < WARP; a++)
            warp->known[b][a] = lanes >> a & 1 ? w->now : joined[a];
}

/* Finishes `op` if all its participants have come. */
static bool complete_op(struct worker *w, struct warp *warp, const struct emu_warp_op *op) {
    uint32_t lanes = op->mask & warp->alive;
    if ((warp->in_op & lanes) != lanes)
        return false;
    struct emu_warp_op *ops[WARP] = {};
    for (uint32_t rest = lanes; rest; rest &= rest - 1) {
        unsigned lane = (unsigned)__builtin_ctz(rest);
        ops[lane] = lane_of(w, warp, lane)->op;
        if (!same_operation(ops[lane], op))
            return false;
    }
    if (op->complete)
        op->complete(ops, lanes);
    if (op->orders_memory)
        order_lanes(w, warp, lanes);
    warp->in_op &= ~lanes;
    warp->ready |= lanes;
    return true;
}

static unsigned pick_lane(struct worker *w, uint32_t ready) {
    if (w->launch->schedule == 0)
        return (unsigned)__builtin_ctz(ready);
    if (w->launch->schedule == 1)
        return 31 - (unsigned)__builtin_clz(ready);
    unsigned turn = next_random(&w->random) % WARP;
    uint32_t turned = ready >> turn | ready << (-turn % WARP);
    return ((unsigned)__builtin_ctz(turned) + turn) % WARP;
}

/* Who runs after a lane of the warp: its next one that is ready, at once and not by way of the
 * scheduler, which has its turn when there is none. */
static struct fiber *next_fiber(struct worker *w, struct warp *warp) {
    if (!warp->ready || w->launch->failed)
        return &w->scheduler;
    unsigned lane = pick_lane(w, warp->ready);
    warp->ready &= ~(1u << lane);
    self = w->running = lane_of(w, warp, lane);
    return &w->running->fiber;
}

static void wait_for_others(struct cuda_thread *t) {
    fiber_switch(&t->fiber, next_fiber(t->worker, t->warp));
}

/* ---- barriers ------------------------------------------------------------------------------- */

static struct cuda_thread *first_lane(struct worker *w, uint32_t (*lanes)(const struct warp *)) {
    for (unsigned i = 0; i < w->n_warps; i++)
        if (uint32_t some = lanes(&w->warps[i]))
            return lane_of(w, &w->warps[i], (unsigned)__builtin_ctz(some));
    return NULL;
}

/* Every thread waits: reports the first warp operation that cannot finish. */
static void report_deadlock(const struct cuda_thread *t) {
    const struct emu_warp_op *op = t->op;
    uint32_t missing = op->mask & t->warp->alive;
    for (uint32_t rest = missing & t->warp->in_op; rest; rest &= rest - 1) {
        unsigned lane = (unsigned)__builtin_ctz(rest);
        if (same_operation(lane_of(t->worker, t->warp, lane)->op, op))
            missing &= ~(1u << lane);
    }
    unsigned lane = (unsigned)__builtin_ctz(missing);
    const struct cuda_thread *other = lane_of(t->worker, t->warp, lane);
    bool in_op = t->warp->in_op >> lane & 1;
    scheduler_fault(t, EMU_WARP_DEADLOCK,
                    "%s with mask %08x at %s:%d waits for lanes %08x, but lane %u waits in %s at "
                    "%s:%d",
                    op->name, op->mask, op->file, op->line, missing, lane,
                    in_op ? other->op->name : "__syncthreads",
                    in_op ? other->op->file : other->barrier_file,
                    in_op ? other->op->line : other->barrier_line);
}

/* Opens the barrier at which all live threads wait; false when something else holds them. */
static bool open_barrier(struct worker *w) {
    struct cuda_thread *t = first_lane(w, [](const struct warp *warp) { return warp->in_op; });
    if (t) {
        report_deadlock(t);
        return false;
    }
    t = first_lane(w, [](const struct warp *warp) { return warp->at_barrier; });
    for (unsigned i = 0; i < w->n_threads; i++) {
        const struct cuda_thread *other = &w->threads[i];
        if (!(other->warp->at_barrier >> (i % WARP) & 1) ||
            (other->barrier_line == t->barrier_line && other->barrier_file == t->barrier_file))
            continue;
        scheduler_fault(t, EMU_DIVERGENT_BARRIER,
                        "waits at the barrier %s:%d, but %s waits at the barrier %s:%d",
                        t->barrier_file, t->barrier_line, name_of(other).text, other->barrier_file,
                        other->barrier_line);
        return false;
    }
    w->last_barrier = ++w->now;
    for (unsigned i = 0; i < w->n_warps; i++) {
        w->warps[i].ready = w->warps[i].at_barrier;
        w->warps[i].at_barrier = 0;
    }
    return true;
}

/* ---- one block ------------------------------------------------------------------------------ */

/* What each fiber runs: one thread of the kernel. */
static void thread_main(void) {
    fiber_entered();
    struct cuda_thread *t = self;
    struct worker *w = t->worker;
    w->launch->kernel->call(w->launch->kernel->arguments);
    uint32_t lane = 1u << (t->number % WARP);
    t->warp->alive &= ~lane;
    w->n_alive--;
    /* Operations do not wait for lanes that have exited. */
    for (uint32_t rest = t->warp->in_op; rest; rest &= rest - 1) {
        unsigned waiting = (unsigned)__builtin_ctz(rest);
        if (t->warp->in_op >> waiting & 1)
            complete_op(w, t->warp, lane_of(w, t->warp, waiting)->op);
    }
    fiber_leave(&t->fiber, next_fiber(w, t->warp));
}

static void prepare_threads(struct worker *w) {
    dim3 block = w->launch->block;
    for (unsigned i = 0; i < w->n_warps; i++) {
        struct warp *warp = &w->warps[i];
        unsigned n = min(w->n_threads - i * WARP, (unsigned)WARP);
        warp->alive = warp->ready = n == WARP ? 0xffffffffu : (1u << n) - 1;
        warp->in_op = warp->at_barrier = 0;
        warp->synced_partly = false;
    }
    for (unsigned i = 0; i < w->n_threads; i++) {
        struct cuda_thread *t = &w->threads[i];
        t->worker = w;
        t->warp = &w->warps[i / WARP];
        t->number = i;
        t->index = {i % block.x, i / block.x % block.y, i / block.x / block.y};
        t->stack = worker_stack(w, i);
        t->copies.clear();
        t->copy_groups.clear();
        /* Stacks start a cache line apart, or all would compete for the same lines. */
        size_t usable = stack_bytes() - i % 64 * 64;
        fiber_prepare(&t->fiber, w->stacks + i * stack_bytes(), usable, thread_main);
    }
}

static void run_warp(struct worker *w, struct warp *warp) {
    struct fiber *first = next_fiber(w, warp);
    if (first == &w->scheduler)
        return;
    fiber_switch(&w->scheduler, first);
    self = w->running = NULL;
}

static void run_block(struct worker *w, uint64_t index) {
    const struct launch *launch = w->launch;
    dim3 grid = launch->grid;
    w->block_index = {(unsigned)(index % grid.x), (unsigned)(index / grid.x % grid.y),
                      (unsigned)(index / grid.x / grid.y)};
    w->n_threads = w->n_alive = launch->block.x * launch->block.y * launch->block.z;
    w->n_warps = (w->n_threads + WARP - 1) / WARP;
    w->random = launch->schedule ^ index << 32;
    if (w->now > UINT32_MAX / 2) {
        arena_clear_shadow(&w->arena);
        memset(w->warps, 0, sizeof w->warps);
        w->now = 0;
    }
    w->block_start = w->last_barrier = ++w->now;
    arena_begin_block(&w->arena);
    prepare_threads(w);
    unsigned order[MAX_WARPS];
    for (unsigned i = 0; i < w->n_warps; i++) {
        order[i] = i;
        if (launch->schedule > 1)
            std::swap(order[i], order[next_random(&w->random) % (i + 1)]);
    }
    while (w->n_alive > 0 && !launch->failed) {
        for (unsigned i = 0; i < w->n_warps; i++)
            run_warp(w, &w->warps[order[launch->schedule == 1 ? w->n_warps - 1 - i : i]]);
        if (w->n_alive > 0 && !launch->failed && !open_barrier(w))
            break;
    }
    if (launch->failed)
        fiber_forget(w->stacks, w->n_stacks * stack_bytes());
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

/* The launch, with a copy of its arguments, to be run when a graph is. */
static void capture_launch(const struct launch *launch) {
    struct emu_kernel kernel = *launch->kernel;
    size_t bytes = kernel.argument_bytes;
    std::vector<max_align_t> arguments(bytes / sizeof(max_align_t) + 1);
    memcpy(arguments.data(), kernel.arguments, bytes);
    capture_work([kernel, arguments, grid = launch->grid, block = launch->block,
                  dynamic = launch->dynamic_bytes, limit = launch->shared_limit]() mutable {
        kernel.arguments = arguments.data();
        struct launch again = {&kernel, grid, block, dynamic, limit};
        run_launch(&again);
    });
}

} // namespace emu

using namespace emu;

void emu_launch(const struct emu_kernel *kernel, dim3 grid, dim3 block, size_t shared_bytes,
                cudaStream_t) {
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
        capture_launch(&launch);
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

/* ---- called by threads ---------------------------------------------------------------------- */

uint3 emu_thread_index(void) {
    return self->index;
}

uint3 emu_block_index(void) {
    return self->worker->block_index;
}

dim3 emu_block_dim(void) {
    return self->worker->launch->block;
}

dim3 emu_grid_dim(void) {
    return self->worker->launch->grid;
}

void emu_barrier(const char *file, int line) {
    struct cuda_thread *t = self;
    t->barrier_file = file;
    t->barrier_line = line;
    t->warp->at_barrier |= 1u << (t->number % WARP);
    wait_for_others(t);
}

void emu_warp_wait(struct emu_warp_op *op) {
    struct cuda_thread *t = self;
    uint32_t lane = 1u << (t->number % WARP);
    if (!(op->mask & lane))
        fault(t, EMU_WARP_LANE, "%s at %s:%d: the caller's lane is not in its mask %08x", op->name,
              op->file, op->line, op->mask);
    t->op = op;
    t->warp->in_op |= lane;
    if (complete_op(t->worker, t->warp, op))
        t->warp->ready &= ~lane; /* the last to arrive goes on */
    else
        wait_for_others(t);
}
