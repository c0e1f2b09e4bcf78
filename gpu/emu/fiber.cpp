/* fiber.cpp - see fiber.h. The switch is written for x86-64; others use ucontext. */
#include "gpu/emu/fiber.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#if defined(FIBER_USES_UCONTEXT)

static void swap_registers(struct fiber *from, struct fiber *to) {
    swapcontext(&from->context, &to->context);
}

static void prepare_registers(struct fiber *f, void *stack, size_t stack_bytes,
                              void (*entry)(void)) {
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = stack;
    f->context.uc_stack.ss_size = stack_bytes;
    f->context.uc_link = NULL;
    makecontext(&f->context, entry, 0);
}

#else

/* void samebits_fiber_swap(void **save (rdi), void *load (rsi)): the registers that a callee must
 * keep go on the old stack; ret takes the address to continue at from the new one. */
__asm__(".text\n"
        ".p2align 4\n"
        ".globl samebits_fiber_swap\n"
        ".hidden samebits_fiber_swap\n"
        ".type samebits_fiber_swap, @function\n"
        "samebits_fiber_swap:\n"
        "    pushq %rbp\n"
        "    pushq %rbx\n"
        "    pushq %r12\n"
        "    pushq %r13\n"
        "    pushq %r14\n"
        "    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n"
        "    popq %r14\n"
        "    popq %r13\n"
        "    popq %r12\n"
        "    popq %rbx\n"
        "    popq %rbp\n"
        "    ret\n"
        ".size samebits_fiber_swap, . - samebits_fiber_swap\n");

/* From the stack pointer upwards: six registers, where to continue, and that function's return
 * address. A function starts with the stack pointer 8 below a multiple of 16. */
enum { FRAME_WORDS = 8, FRAME_ENTRY = 6 };

extern "C" void samebits_fiber_swap(void **save, void *load);

static void swap_registers(struct fiber *from, struct fiber *to) {
    samebits_fiber_swap(&from->stack_pointer, to->stack_pointer);
}

static void prepare_registers(struct fiber *f, void *stack, size_t stack_bytes,
                              void (*entry)(void)) {
    uintptr_t top = ((uintptr_t)stack + stack_bytes) & ~(uintptr_t)15;
    void **frame = (void **)top - FRAME_WORDS;
    memset(frame, 0, FRAME_WORDS * sizeof *frame); /* a zero return address ends backtraces */
    frame[FRAME_ENTRY] = (void *)entry;
    f->stack_pointer = frame;
}

#endif

void fiber_prepare(struct fiber *f, void *stack, size_t stack_bytes, void (*entry)(void)) {
    prepare_registers(f, stack, stack_bytes, entry);
    f->stack = stack;
    f->stack_bytes = stack_bytes;
    f->fake_stack = NULL;
}

#ifdef __SANITIZE_ADDRESS__

/* Who switched last, so that the one who continues can store what AddressSanitizer tells it about
 * the stack that was left. */
static __thread struct fiber *left;

void fiber_entered(void) {
    __sanitizer_finish_switch_fiber(NULL, &left->stack, &left->stack_bytes);
}

void fiber_switch(struct fiber *from, struct fiber *to) {
    left = from;
    __sanitizer_start_switch_fiber(&from->fake_stack, to->stack, to->stack_bytes);
    swap_registers(from, to);
    __sanitizer_finish_switch_fiber(from->fake_stack, &left->stack, &left->stack_bytes);
}

void fiber_leave(struct fiber *from, struct fiber *to) {
    left = from;
    __sanitizer_start_switch_fiber(NULL, to->stack, to->stack_bytes);
    swap_registers(from, to);
    abort();
}

void fiber_forget(void *stack, size_t stack_bytes) {
    __asan_unpoison_memory_region(stack, stack_bytes);
}

#else

void fiber_entered(void) {
}

void fiber_switch(struct fiber *from, struct fiber *to) {
    swap_registers(from, to);
}

void fiber_leave(struct fiber *from, struct fiber *to) {
    swap_registers(from, to);
    abort();
}

void fiber_forget(void *stack, size_t stack_bytes) {
    (void)stack;
    (void)stack_bytes;
}

#endif
