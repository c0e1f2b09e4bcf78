/*
 * bench_blocks - the block allocator: nanoseconds for one alloc and one free, by size of the pool.
 *
 * The limit is a plain array of free numbers, popped and pushed at its end, in the same run: what a
 * list costs that finds no double free, counts no references and keeps no cached blocks. Half the
 * pool stays in use; the other half is taken and given back in batches, as sequences do. The blocks
 * of a batch are given back in a shuffled order, so that the free list becomes as scattered as a
 * pool in use has it.
 */
#include "scheduler/block_allocator.h"
#include "scheduler/sequence.h"
#include "tests/random.h"

#include <stdio.h>
#include <stdlib.h>

enum { REPEATS = 9, BATCH = 4096, OPERATIONS = 1 << 20 };

/* The limit. */
struct stack {
    int32_t *numbers;
    int n;
};

static void fail(const char *why) {
    fprintf(stderr, "bench_blocks: %s\n", why);
    exit(2);
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values) {
    qsort(values, REPEATS, sizeof *values, by_value);
    return values[REPEATS / 2];
}

/* order[i]: which block of a batch is given back as the i-th. */
static void shuffle(int *order, int n, struct random *r) {
    for (int i = 0; i < n; i++)
        order[i] = i;
    for (int i = n - 1; i > 0; i--) {
        int j = random_int(r, 0, i), other = order[j];
        order[j] = order[i];
        order[i] = other;
    }
}

/* Nanoseconds for one of each, over OPERATIONS in batches of `batch`. */
static void time_allocator(struct block_allocator *a, const int *order, int batch, int32_t *taken,
                           double *alloc_ns, double *free_ns) {
    struct error err;
    double allocating = 0, freeing = 0;
    int done = 0;
    for (; done < OPERATIONS; done += batch) {
        double start = clock_now();
        for (int i = 0; i < batch; i++)
            taken[i] = block_allocate(a);
        double between = clock_now();
        for (int i = 0; i < batch; i++)
            if (block_release(a, taken[order[i]], false, &err))
                fail(err.text);
        allocating += between - start;
        freeing += clock_now() - between;
    }
    *alloc_ns = allocating / done * 1e9;
    *free_ns = freeing / done * 1e9;
}

/* Nanoseconds for a pop and a push. */
static double time_stack(struct stack *s, const int *order, int batch, int32_t *taken) {
    double start = clock_now();
    int done = 0;
    for (; done < OPERATIONS; done += batch) {
        for (int i = 0; i < batch; i++)
            taken[i] = s->numbers[--s->n];
        for (int i = 0; i < batch; i++)
            s->numbers[s->n++] = taken[order[i]];
        __asm__ volatile("" : : "r"(s->numbers), "r"(taken) : "memory"); /* keep the stores */
    }
    return (clock_now() - start) / done * 1e9;
}

/* All blocks are taken, and half of them given back in random order. */
static void scatter(struct block_allocator *a, struct stack *s, int n, struct random *r) {
    struct error err;
    int *order = malloc(sizeof *order * (size_t)n);
    s->numbers = malloc(sizeof *s->numbers * (size_t)n);
    if (!order || !s->numbers)
        fail("out of memory");
    shuffle(order, n, r);
    for (int i = 0; i < n; i++)
        block_allocate(a);
    for (int i = 0; i < n / 2; i++) {
        if (block_release(a, order[i], false, &err))
            fail(err.text);
        s->numbers[s->n++] = order[i];
    }
    free(order);
}

static void measure(int n, enum block_order order_of_list, struct random *r) {
    static int order[BATCH];
    static int32_t taken[BATCH];
    struct block_allocator a;
    struct stack s = {0};
    struct error err;
    double allocs[REPEATS], frees[REPEATS], array[REPEATS];
    int batch = n / 4 < BATCH ? n / 4 : BATCH;
    if (block_allocator_start(&a, n, order_of_list, &err))
        fail(err.text);
    scatter(&a, &s, n, r);
    for (int i = 0; i <= REPEATS; i++) { /* the first round warms up and is overwritten */
        int slot = i ? i - 1 : 0;
        shuffle(order, batch, r);
        time_allocator(&a, order, batch, taken, &allocs[slot], &frees[slot]);
        array[slot] = time_stack(&s, order, batch, taken);
    }
    if (block_allocator_check(&a, &err))
        fail(err.text);
    double alloc_ns = median(allocs), free_ns = median(frees);
    printf("%10d  %5s  %7.2f  %7.2f  %12.2f  %16.2f  %s\n", n,
           order_of_list == BLOCKS_LIFO ? "LIFO" : "FIFO", alloc_ns, free_ns, alloc_ns + free_ns,
           median(array), alloc_ns < 20 && free_ns < 20 ? "" : "(above the aim)");
    block_allocator_end(&a);
    free(s.numbers);
}

int main(void) {
    struct random r = {17};
    printf(
        "Nanoseconds for an alloc and a free of one block, half the pool in use, medians of %d.\n"
        "Beside them a pop and a push of a plain array of numbers, the limit. Aim: each below "
        "20 ns.\n\n",
        REPEATS);
    printf("%10s  %5s  %7s  %7s  %12s  %16s\n", "blocks", "order", "alloc", "free", "alloc + free",
           "array, the limit");
    for (int order = BLOCKS_LIFO; order <= BLOCKS_FIFO; order++)
        for (int n = 1000; n <= 10000000; n *= 10)
            measure(n, (enum block_order)order, &r);
    return 0;
}
