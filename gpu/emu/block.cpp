/*
 * block.cpp - runs a block: warps, barriers, warp operations.
 *
 * A block's threads are fibers. The scheduler runs a warp until each of its lanes waits or has
 * exited, then the next warp, and so lets warps drift as far apart as the barriers allow: what a
 * missing barrier allows to happen, happens. When every warp is stuck, either all live threads wait
 * at one barrier, which then opens, or the kernel has a fault.
 */
#include "gpu/emu/engine.h"

#include <algorithm>
#include <sys/mman.h>
#include <unistd.h>

namespace emu {

__thread struct cuda_thread *self;

/* Stack i of w. Its lowest page is inaccessible, so that an overflow is a crash, not a mystery. */
static unsigned char *worker_stack(struct worker *w, unsigned i) {
    unsigned char *stack = w->stacks + i * stack_bytes();
    if (i >= w->n_stacks) {
        mprotect(stack, (size_t)sysconf(_SC_PAGESIZE), PROT_NONE);
        w->n_stacks = i + 1;
    }
    return stack;
}

uint64_t next_random(uint64_t *state) {
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

void run_block(struct worker *w, uint64_t index) {
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

} // namespace emu

using namespace emu;

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
