/*
 * memory_hooks.cpp - what happens before each load and store of a kernel.
 *
 * g++ -fsanitize=thread compiles a call of __tsan_read4(address) before each 4-byte load, and so
 * on. Linked with ThreadSanitizer's library these calls find races between CPU threads; here they
 * find what a kernel does wrong. Outside of kernels they do nothing. Atomics are library functions
 * and checked the same way.
 *
 * A vector of which the compiler loads only some elements, or each by itself, has no 16-byte access
 * to check. So -fsanitize=alignment adds a test of every dereferenced pointer, by its type, and
 * calls the last function here when it fails.
 */
#include "gpu/emu/engine.h"

namespace emu {

bool memory_is_checked;

/* The program's own data, by the linker's names: a kernel may use __device__ and __constant__
 * variables, tables and string literals, and write what can be written. */
extern "C" char __executable_start[], __data_start[], _end[];

static struct address_range image_range(uintptr_t address, size_t bytes, enum access how) {
    uintptr_t begin = (uintptr_t)(how == ACCESS_READ ? __executable_start : __data_start);
    uintptr_t end = (uintptr_t)_end;
    return begin <= address && address + bytes <= end ? address_range{begin, end}
                                                      : address_range{0, 0};
}

/* ---- one access ----------------------------------------------------------------------------- */

/* Global memory: what lies outside of the block. */
static void global_access(struct cuda_thread *t, uintptr_t address, size_t bytes, enum access how,
                          code_address from) {
    struct worker *w = t->worker;
    for (struct address_range r : w->recent)
        if (r.begin <= address && address + bytes <= r.end)
            return;
    const struct emu_kernel *kernel = w->launch->kernel;
    uintptr_t arguments = (uintptr_t)kernel->arguments;
    struct address_range found = {arguments, arguments + kernel->argument_bytes};
    if (address < found.begin || address + bytes > found.end)
        found = device_range((const void *)address, bytes);
    if (found.begin == found.end)
        found = image_range(address, bytes, how);
    if (found.begin == found.end)
        fault(t, EMU_DEVICE_BOUNDS, "%s %zu bytes at %p, which is not the device's%s%s",
              how == ACCESS_READ ? "reads" : "writes", bytes, (const void *)address,
              device_neighbour((const void *)address).text, code_place(from).text);
    w->recent[w->next_recent++ % 8] = found;
}

static void any_access(struct cuda_thread *t, uintptr_t address, size_t bytes, enum access how,
                       code_address from) {
    size_t offset = address - (uintptr_t)t->worker->arena.bytes;
    if (offset < ARENA_BYTES)
        shared_access(t, offset, bytes, how, from);
    else if (address - (uintptr_t)t->stack >= stack_bytes())
        global_access(t, address, bytes, how, from);
}

void check_access(struct cuda_thread *t, const void *address, size_t bytes, enum access how,
                  code_address from) {
    if (memory_is_checked)
        any_access(t, (uintptr_t)address, bytes, how, from);
}

static void unaligned_access(uintptr_t address, size_t bytes, enum access how, code_address from) {
    if (self)
        any_access(self, address, bytes, how, from);
}

static void aligned_access(uintptr_t address, size_t bytes, enum access how, code_address from) {
    struct cuda_thread *t = self;
    if (!t)
        return;
    if (address & (bytes - 1))
        fault(t, EMU_MISALIGNED, "%s %zu bytes at %p, not a multiple of %zu%s",
              how == ACCESS_READ ? "reads" : "writes", bytes, (const void *)address, bytes,
              code_place(from).text);
    any_access(t, address, bytes, how, from);
}

} // namespace emu

using namespace emu;

/* ---- what the compiler calls ---------------------------------------------------------------- */

#define HERE __builtin_extract_return_addr(__builtin_return_address(0))

#define HOOK(name, function, how, bytes)                                                           \
    void name##bytes(void *address) {                                                              \
        function((uintptr_t)address, bytes, how, HERE);                                            \
    }
#define HOOKS(bytes)                                                                               \
    HOOK(__tsan_read, aligned_access, ACCESS_READ, bytes)                                          \
    HOOK(__tsan_write, aligned_access, ACCESS_WRITE, bytes)                                        \
    HOOK(__tsan_volatile_read, aligned_access, ACCESS_READ, bytes)                                 \
    HOOK(__tsan_volatile_write, aligned_access, ACCESS_WRITE, bytes)                               \
    HOOK(__tsan_unaligned_read, unaligned_access, ACCESS_READ, bytes)                              \
    HOOK(__tsan_unaligned_write, unaligned_access, ACCESS_WRITE, bytes)

extern "C" {

HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)

void __tsan_read_range(void *address, unsigned long bytes) {
    unaligned_access((uintptr_t)address, bytes, ACCESS_READ, HERE);
}

void __tsan_write_range(void *address, unsigned long bytes) {
    unaligned_access((uintptr_t)address, bytes, ACCESS_WRITE, HERE);
}

/* Called before main by each file that was compiled so. */
void __tsan_init(void) {
    memory_is_checked = true;
}

void __tsan_func_entry(void *) {
}

void __tsan_func_exit(void) {
}

#ifndef __SANITIZE_ADDRESS__ /* there, UBSan's own library answers */

/* What the compiler tells of a place; the names are GCC's. */
struct ubsan_mismatch {
    const char *file;
    uint32_t line, column;
    const void *type;
    unsigned char log_alignment, kind;
};

void __ubsan_handle_type_mismatch_v1(struct ubsan_mismatch *place, uintptr_t address) {
    if (self)
        fault(self, EMU_MISALIGNED, "uses %p at %s:%u, not a multiple of %u", (void *)address,
              place->file, place->line, 1u << place->log_alignment);
}

#endif

} // extern "C"

void emu_check_aligned(const void *address, size_t bytes) {
    if (self && (uintptr_t)address % bytes != 0)
        fault(self, EMU_MISALIGNED, "loads or stores %zu bytes at %p, not a multiple of %zu", bytes,
              address, bytes);
}

void emu_atomic_access(const void *address, size_t bytes, const void *from) {
    emu_check_aligned(address, bytes);
    check_access(self, address, bytes, ACCESS_ATOMIC, from);
}
