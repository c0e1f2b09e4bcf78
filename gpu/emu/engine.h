/*
 * engine.h - what the parts of the emulation share. Not for .cu files.
 *
 *   launch.cpp        runs launches: workers, faults
 *   block.cpp         runs a block: warps, barriers, warp operations
 *   shared_memory.cpp a block's shared memory, and the shadow that finds its misuse
 *   memory_hooks.cpp  the functions that the compiler calls before loads and stores; atomics
 *   tensor_core.cpp   mma, ldmatrix, cp.async
 *   host_api.cpp      the runtime: memory, errors
 *   graph.cpp         streams; launches that are captured, and repeated
 *   cublas.cpp        matrix products
 *   fiber.cpp         switches from a thread to another
 *
 * Ownership: a worker is one CPU thread's part of a launch. It keeps its fibers' stacks and its
 * shared memory from launch to launch, and nobody else touches them.
 */
#ifndef SAMEBITS_EMU_ENGINE_H
#define SAMEBITS_EMU_ENGINE_H

#ifdef __SANITIZE_THREAD__
#error "the emulation defines ThreadSanitizer's functions: only .cu files are compiled with it"
#endif

#include "gpu/emu/cuda_emu.h"
#include "gpu/emu/fiber.h"

#include <atomic>
#include <functional>
#include <vector>

namespace emu {

enum {
    WARP = 32,
    MAX_THREADS = 1024,
    MAX_WARPS = MAX_THREADS / WARP,
    MAX_SHARED = 227 * 1024,    /* of a block, with cudaFuncSetAttribute */
    DEFAULT_SHARED = 48 * 1024, /* of a block, without */
    MAX_SHARED_VARIABLES = 200,
    SHARED_GAP = 256,         /* nobody's bytes around each variable */
    ARENA_BYTES = 512 * 1024, /* holds MAX_SHARED and all gaps */
    WORD = 4,                 /* bytes that are mostly accessed together */
};

/* ---- shared memory (shared_memory.cpp) ------------------------------------------------------ */

/* Where an access comes from: the address after the compiler's call, to look up in the program. */
typedef const void *code_address;

enum access { ACCESS_READ, ACCESS_WRITE, ACCESS_ATOMIC };

/*
 * What is known about one byte of shared memory. Times count the synchronisations of a worker, so
 * "before this block" and "before this barrier" are comparisons, and nothing needs clearing.
 */
struct shadow {
    uint32_t write_time, read_time;
    uint32_t read_lanes; /* of read_warp, the first warp to read since the last write or barrier */
    uint16_t writer;     /* thread of the block */
    uint8_t written_atomically;
    uint8_t read_warp;
};

struct shared_variable {
    const struct emu_shared_site *site; /* NULL: the dynamic one */
    size_t begin, end;                  /* in the arena */
};

struct arena {
    unsigned char *bytes;   /* [ARENA_BYTES] */
    unsigned char *owners;  /* [ARENA_BYTES] 1 + index of the variable, 0: nobody's */
    struct shadow *shadows; /* [ARENA_BYTES] that of a word's first byte is that of all four, */
    bool *is_split;         /* [ARENA_BYTES / WORD] unless one was accessed without the others */
    struct shared_variable variables[MAX_SHARED_VARIABLES];
    size_t n_variables, used, variable_bytes;
};

struct worker;
struct cuda_thread;

/* What new memory holds: NaNs as float and double, and indices that are out of every range. */
void fill_with_junk(void *data, size_t bytes);

void arena_create(struct arena *a);
void arena_destroy(struct arena *a);
void arena_begin_launch(struct arena *a, size_t dynamic_bytes);
void arena_begin_block(struct arena *a);
void arena_clear_shadow(struct arena *a);

/* Looks at one access of a thread and remembers it; reports a fault instead of returning. */
void shared_access(struct cuda_thread *t, size_t offset, size_t bytes, enum access how,
                   code_address from);

/* ---- launches and blocks (launch.cpp, block.cpp)
 * --------------------------------------------------------------------- */

/* A 16-byte copy that cp.async started. */
struct pending_copy {
    void *to;
    const void *from;
    size_t from_bytes; /* the rest of the 16 becomes zero */
};

struct warp {
    uint32_t alive, ready, in_op, at_barrier; /* bits of lanes */
    uint32_t synced;                          /* when all lanes last met at a __syncwarp */
    bool synced_partly;
    uint32_t known[WARP][WARP]; /* [b][a]: when lane b last met a, itself or through others */
};

struct cuda_thread {
    struct fiber fiber;
    struct worker *worker;
    struct warp *warp;
    unsigned number; /* in the block */
    uint3 index;
    const unsigned char *stack;
    struct emu_warp_op *op;   /* that it waits in */
    const char *barrier_file; /* that it waits at */
    int barrier_line;
    std::vector<struct pending_copy> copies;
    std::vector<size_t> copy_groups; /* how many copies each committed group has */
};

struct launch {
    const struct emu_kernel *kernel;
    dim3 grid, block;
    size_t dynamic_bytes, shared_limit;
    uint64_t schedule = 0, n_blocks = 0;
    std::atomic<uint64_t> next_block = {0};
    std::atomic<bool> failed = {false};
};

/* A range of addresses that this worker accessed lately. */
struct address_range {
    uintptr_t begin, end;
};

struct worker {
    worker();
    ~worker();

    struct launch *launch = NULL;
    struct fiber scheduler = {};
    struct cuda_thread *running = NULL; /* NULL: the scheduler */
    uint3 block_index = {};
    unsigned n_threads = 0, n_warps = 0, n_alive = 0;
    struct cuda_thread threads[MAX_THREADS] = {};
    struct warp warps[MAX_WARPS] = {};
    unsigned char *stacks;
    unsigned n_stacks = 0; /* used at least once */
    struct arena arena = {};
    uint32_t now = 0;          /* counts synchronisations */
    uint32_t block_start = 0;  /* when the block began */
    uint32_t last_barrier = 0; /* or the block's start */
    uint64_t random = 0;
    struct address_range recent[8] = {};
    unsigned next_recent = 0;
};

/* The thread that this CPU thread emulates; NULL outside of kernels. */
extern __thread struct cuda_thread *self;

/* Whether loads and stores of .cu files are seen (memory_hooks.cpp). */
extern bool memory_is_checked;

size_t stack_bytes(void);

void run_block(struct worker *w, uint64_t index);
uint64_t next_random(uint64_t *state);

/* Zeroed memory that takes room only where it is used. */
void *map_memory(size_t bytes);

/* Reports a fault of t and stops the block; called on the stack of a thread. */
[[noreturn]] void fault(const struct cuda_thread *t, enum emu_fault kind, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Reports a fault that the scheduler found, and returns: it stops by itself. */
void scheduler_fault(const struct cuda_thread *t, enum emu_fault kind, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Pieces of messages, by value so that one line can have several. */
struct place {
    char text[192];
};
struct place name_of(const struct cuda_thread *t); /* "thread (3,0,0)" */
struct place code_place(code_address from);        /* " (code: file+0x12)", for addr2line, or "" */

/* An access to any memory from library code, if accesses are checked. */
void check_access(struct cuda_thread *t, const void *address, size_t bytes, enum access how,
                  code_address from);

/* ---- device memory (host_api.cpp) ----------------------------------------------------------- */

/* The allocation (or pinned host memory) that holds all of [address, address + bytes), or an empty
 * range. */
struct address_range device_range(const void *address, size_t bytes);

/* " (N bytes past the end of ...)" for a message, or "". */
struct place device_neighbour(const void *address);

/* Counts one call of the API; an error other than cudaSuccess must be returned at once. */
cudaError_t enter_api(void);
cudaError_t set_error(cudaError_t error); /* returns it */
void set_sticky_error(cudaError_t error);
bool kernels_fit_device(void); /* else a launch has no code to run */
int built_for(void);           /* the compute capability that kernels are compiled for, ten times */
size_t dynamic_shared_limit(const void *kernel); /* what cudaFuncSetAttribute allowed */

/* ---- work for later (graph.cpp)
 * --------------------------------------------------------------------- */

typedef std::vector<std::function<void()>> work_list;

/* Until a fault, which is reported by what waits for it. */
void run_work(const work_list &work);

/* Where a stream's work is written down: NULL where it is done at once. */
work_list *late_work(cudaStream_t stream);

bool is_capturing(void);
void capture_work(std::function<void()> work); /* to be done when the graph is launched */
void forget_capture(void);

/* cudaSuccess, unless a capture is under way, which such a call spoils. */
cudaError_t refuse_in_capture(void);

} // namespace emu

#endif
