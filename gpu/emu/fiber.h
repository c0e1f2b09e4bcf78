/*
 * fiber.h - threads that take turns by hand: each has a stack, and exactly one runs.
 *
 * A switch saves and loads the registers that a C function must keep, and the stack pointer: some
 * nanoseconds, where swapcontext() makes two system calls to save the signal mask.
 *
 * Rules for the caller
 * - A fiber stays on the CPU thread that prepared it.
 * - A thread's own flow of control is a fiber that needs no preparation, only a zeroed struct.
 * - Entries never return: they end with fiber_leave. A fiber that waits may also be forgotten; then
 *   fiber_forget cleans its stack before the next fiber_prepare.
 */
#ifndef SAMEBITS_FIBER_H
#define SAMEBITS_FIBER_H

#include <stddef.h>

/* -DFIBER_USES_UCONTEXT takes the portable way everywhere, to test it. */
#if !defined(__x86_64__) && !defined(FIBER_USES_UCONTEXT)
#define FIBER_USES_UCONTEXT
#endif

/* gcc says by a macro that AddressSanitizer is on, clang by a question. */
#if defined(__has_feature) && !defined(__SANITIZE_ADDRESS__)
#if __has_feature(address_sanitizer)
#define __SANITIZE_ADDRESS__ 1
#endif
#endif

#ifdef FIBER_USES_UCONTEXT
#include <ucontext.h>
#endif

struct fiber {
#ifdef FIBER_USES_UCONTEXT
    ucontext_t context;
#else
    void *stack_pointer;
#endif
    const void *stack; /* known to AddressSanitizer */
    size_t stack_bytes;
    void *fake_stack;
};

/* The next switch to f calls entry() on this stack. */
void fiber_prepare(struct fiber *f, void *stack, size_t stack_bytes, void (*entry)(void));

/* First thing in an entry. */
void fiber_entered(void);

/* Leaves `from`, which runs, and continues `to`. Returns when somebody switches to `from`. */
void fiber_switch(struct fiber *from, struct fiber *to);

/* Leaves `from` for good and continues `to`: nobody ever switches back. */
[[noreturn]] void fiber_leave(struct fiber *from, struct fiber *to);

/* Declares a stack free of the frames of a fiber that will not continue. */
void fiber_forget(void *stack, size_t stack_bytes);

#endif
