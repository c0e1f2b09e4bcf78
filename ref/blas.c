/*
 * OpenBLAS keeps to itself: it starts no threads of its own, and its buffers are there before the
 * first product.
 *
 * When the library is loaded it starts a thread for each further core, and each of them, like each
 * thread that multiplies for the first time, maps a buffer. Where no memory is left it tries again
 * for ever: a product never returns, and exit() waits for the library's threads. We never use its
 * threads (ref/threads.h), so it is shown one core only while it is loaded; and the buffers of ours
 * are mapped when the device is opened, where there is somebody to tell.
 */
#include "ref/ref.h"

#include <cblas.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

/* BUFFER_SIZE of OpenBLAS on x86-64, the largest of all its builds. */
#define BUFFER_BYTES ((size_t)128 << 20)

/* OpenBLAS's own: not in cblas.h, but exported by every build. A buffer that is given back stays
 * mapped for the next product. */
extern void *blas_memory_alloc(int);
extern void blas_memory_free(void *);

static cpu_set_t cores; /* what this process may run on; empty when the kernel does not say */

static void show_one_core(int argc, char **argv, char **environment) {
    (void)argc, (void)argv, (void)environment;
    cpu_set_t one;
    int first = 0;
    if (sched_getaffinity(0, sizeof cores, &cores))
        return;
    while (!CPU_ISSET(first, &cores))
        first++;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    sched_setaffinity(0, sizeof one, &one);
}

/* The loader calls what stands here before the libraries' constructors, and ours after them. */
__attribute__((section(".preinit_array"),
               used)) static void (*const before_libraries)(int, char **, char **) = show_one_core;

__attribute__((constructor)) static void show_all_cores(void) {
    if (CPU_COUNT(&cores))
        sched_setaffinity(0, sizeof cores, &cores);
}

int ref_blas_default_threads(void) {
    const char *asked = getenv("OPENBLAS_NUM_THREADS");
    asked = asked ? asked : getenv("OMP_NUM_THREADS");
    int n = asked ? atoi(asked) : 0;
    int n_cores = CPU_COUNT(&cores) ? CPU_COUNT(&cores) : (int)sysconf(_SC_NPROCESSORS_ONLN);
    if (n < 1 || n > n_cores)
        n = n_cores;
    /* With half of a limited address space for the buffers, the other half is for the model. */
    size_t fit = ref_address_space_left("") / 2 / BUFFER_BYTES;
    n = fit < (size_t)n ? (int)fit : n;
    return n > 0 ? n : 1;
}

int ref_blas_reserve(int n_threads, struct error *err) {
    static int n_mapped;
    if (n_threads <= n_mapped)
        return 0;
    size_t bytes = (size_t)(n_threads - n_mapped) * BUFFER_BYTES;
    void *room = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    void **buffers = calloc((size_t)n_threads, sizeof *buffers);
    if (room != MAP_FAILED)
        munmap(room, bytes);
    if (room == MAP_FAILED || !buffers) {
        free(buffers);
        return error_set(
            err,
            "cpu: not enough memory for OpenBLAS's buffers, %d MB of address space for "
            "each of %d threads; try fewer (--threads) or a higher limit (ulimit -v)",
            (int)(BUFFER_BYTES >> 20), n_threads);
    }
    openblas_set_num_threads(1);
    for (int i = 0; i < n_threads; i++)
        buffers[i] = blas_memory_alloc(0);
    for (int i = 0; i < n_threads; i++)
        blas_memory_free(buffers[i]);
    free(buffers);
    n_mapped = n_threads;
    return 0;
}
