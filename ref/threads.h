/*
 * threads.h - the reference's own threads: a loop whose items are shared out.
 *
 * OpenBLAS runs single-threaded inside an item, so that everything between the matrix products is
 * shared out, too, and the threads need not be woken twice. No result depends on who does an item.
 */
#ifndef SAMEBITS_THREADS_H
#define SAMEBITS_THREADS_H

#ifdef __cplusplus
extern "C" {
#endif

struct ref_threads;

/* n >= 1 threads, the caller's own among them. Returns NULL when there is no memory or no thread,
 * or one that does not compute as it should (model/arithmetic.h). */
struct ref_threads *ref_threads_new(int n);

/* NULL is fine. */
void ref_threads_free(struct ref_threads *threads);

int ref_threads_count(const struct ref_threads *threads);

/* Calls run(context, item, worker) once for each item 0 ... n_items - 1, in any order, and returns
 * when all are done. worker, 0 ... count - 1, is a number that no other running call has. Must not
 * be called from inside an item: there is one loop at a time, and the inner one would take the
 * place of the outer.
 */
void ref_threads_run(struct ref_threads *threads, int n_items,
                     void (*run)(void *context, int item, int worker), void *context);

/* As ref_threads_run, for items that need not know their worker. */
void ref_threads_share(struct ref_threads *threads, int n_items,
                       void (*run)(void *context, int item), void *context);

#ifdef __cplusplus
}
#endif

#endif
