/*
 * bench_cpu - the reference on this CPU: its integer kernels beside version 1, OpenBLAS, and beside
 * the limit, a loop that only reads the weights with as many threads.
 *
 * Two models: one with the shape of Qwen3-0.6B and random weights, whose checkpoint of 1.2 GB is
 * written into $TMPDIR (/tmp) and removed again, and the shipped one. What is compared takes turns,
 * and the medians are compared: a busy machine slows down both.
 */
#include "model/forward.h"
#include "ref/integer/integer.h"
#include "ref/ref.h"
#include "scheduler/kv_contiguous.h"
#include "scheduler/sequence.h"
#include "tests/bench/large_checkpoint.h"

#include <cblas.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    PROMPT = 512,
    FIRST = 256,
    SEQUENCES = 8,
    STEPS = 8,
    CHUNK = 128,
    MOST_REPEATS = 9,
    MOST_WAYS = 3,
    LOADINGS = 3
};

/* ---- what is measured ----------------------------------------------------------------------- */

struct subject {
    struct device *dev;
    struct model model;
    struct workspace *ws;
    struct kv_cache *caches[SEQUENCES];
    double memory_before; /* of the process, at most */
    size_t cache_bytes;
};

/* One way of doing it: so many sequences, with one set of instructions or OpenBLAS. */
struct way {
    double (*seconds)(struct subject *, int n_sequences);
    int n_sequences;
    const struct integer_kernels *kernels; /* NULL: version 1 */
};

/* One pass over n tokens of each of some sequences, from position first on. */
static void pass(struct subject *s, int n_sequences, int first, int n) {
    struct error err;
    int32_t ids[CHUNK + SEQUENCES], positions[CHUNK + SEQUENCES], indptr[SEQUENCES + 1] = {0};
    int32_t last[SEQUENCES], drawn[SEQUENCES];
    struct sampling greedy[SEQUENCES] = {{0}};
    for (int i = 0; i < n_sequences * n; i++) {
        positions[i] = first + i % n;
        ids[i] = (int32_t)((unsigned)(first + i) * 2654435761u % 4000u);
        indptr[i / n + 1] = i + 1;
        last[i / n] = i;
    }
    struct batch batch = {n_sequences * n, n_sequences, n_sequences, ids,  positions,
                          indptr,          last,        s->caches,   NULL, NULL};
    if (!forward(&s->model, s->ws, &batch, NULL, &err) ||
        forward_finish(&s->model, s->ws, &batch, greedy, drawn, &err))
        fail(err.text);
}

/* Seconds of one decoding step, of a prompt, and of reading all weights that a step reads. */
static double of_decoding(struct subject *s, int n_sequences) {
    double begin = clock_now();
    for (int i = 0; i < STEPS; i++)
        pass(s, n_sequences, FIRST + i, 1);
    return (clock_now() - begin) / STEPS;
}

static double of_prompt(struct subject *s, int n_sequences) {
    double begin = clock_now();
    for (int first = 0; first < PROMPT; first += CHUNK)
        pass(s, n_sequences, first, CHUNK);
    return clock_now() - begin;
}

/* As fast as memory lets it: in vectors, and what comes is asked for as the products ask for it
 * (ref/integer/kernels.h). */
enum { PIECE = 1 << 18 /* bytes that a thread reads at once */, NEAR = 2048, FAR = 8 * NEAR };

typedef uint64_t line __attribute__((vector_size(64))); /* of a cache */

static void read_piece(void *context, int item, int worker) {
    (void)worker;
    const struct matrix *w = context;
    size_t bytes = sizeof(int16_t) * (size_t)w->n * (size_t)w->k, first = (size_t)item * PIECE;
    size_t end = first + PIECE < bytes ? first + PIECE : bytes;
    line sum = {0}, next;
    for (const char *x = (const char *)w->mantissas + first; first + sizeof next <= end;
         first += sizeof next, x += sizeof next) {
        memcpy(&next, x, sizeof next);
        sum += next;
        __builtin_prefetch(x + NEAR);
        __builtin_prefetch(x + FAR, 0, 2);
    }
    __asm__ volatile("" : : "m"(sum)); /* it is used */
}

static double of_reading(struct subject *s, int n_sequences) {
    (void)n_sequences;
    double begin = clock_now();
    for (int i = 0; i <= s->model.config.n_layers; i++) {
        const struct layer_weights *w = &s->model.layers[i];
        const struct matrix *all[] = {&w->q, &w->k, &w->v, &w->o, &w->gate, &w->up, &w->down};
        const struct matrix *output = model_output(&s->model);
        for (int m = 0; m < (i < s->model.config.n_layers ? 7 : 1); m++) {
            const struct matrix *one = i < s->model.config.n_layers ? all[m] : output;
            size_t bytes = sizeof(int16_t) * (size_t)one->n * (size_t)one->k;
            ref_parallel(s->dev, (int)((bytes + PIECE - 1) / PIECE), read_piece, (void *)one);
        }
    }
    return clock_now() - begin;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median seconds of each way; they take turns. repeats = 1: without a turn that does not count.
 */
static void compare(struct subject *s, const struct way *ways, int n_ways, int repeats,
                    double *median) {
    struct ref_device *ref = (struct ref_device *)s->dev;
    double seconds[MOST_WAYS][MOST_REPEATS];
    struct error err;
    for (int r = repeats > 1 ? -1 : 0; r < repeats; r++)
        for (int i = 0; i < n_ways; i++) {
            int version = ways[i].kernels ? 2 : 1;
            if (ref_ops.set_version(s->dev, "linear", version, &err) ||
                ref_ops.set_version(s->dev, "attention", version, &err))
                fail(err.text);
            if (ways[i].kernels)
                ref->kernels = ways[i].kernels;
            double found = ways[i].seconds(s, ways[i].n_sequences);
            if (r >= 0)
                seconds[i][r] = found;
        }
    for (int i = 0; i < n_ways; i++) {
        qsort(seconds[i], (size_t)repeats, sizeof(double), by_value);
        median[i] = seconds[i][repeats / 2];
    }
}

/* Tokens a second of two ways and their ratio. */
static void print_row(const struct subject *s, const char *name, const char *what, double rate,
                      double beside, double wanted) {
    printf("%-12s %-46s %7d %9.1f %9.1f %7.2f", name, what, ref_n_threads(s->dev), rate, beside,
           rate / beside);
    if (wanted > 0)
        printf(" %7.2f%s", wanted, rate / beside < wanted ? " not reached" : "");
    printf("\n");
    fflush(stdout);
}

static double peak_bytes(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)usage.ru_maxrss * 1024;
}

/* The peak is what there is now. */
static void forget_peak(void) {
    FILE *f = fopen("/proc/self/clear_refs", "w");
    if (!f || fputs("5", f) < 0 || fclose(f))
        fail("cannot write /proc/self/clear_refs");
}

/* Of the process: only the first large model shows it. */
static void print_memory(const struct subject *s, const char *name, const char *when) {
    double cache_bytes = (double)s->cache_bytes * (FIRST + STEPS) / PROMPT; /* those written */
    double bytes = peak_bytes() - s->memory_before - cache_bytes;
    if (s->memory_before < 2e8)
        printf("%-12s at most %.2f bytes of memory a parameter %s (at most 2.3)\n", name,
               bytes / (double)s->model.n_parameters, when);
}

static void all_rows(struct subject *s, const char *name, bool is_large) {
    struct error err;
    const struct integer_kernels *best = integer_choose(&err);
    const struct way decoding[] = {{of_decoding, 1, best}, {of_reading, 1, best}};
    const struct way few[] = {
        {of_decoding, 1, best}, {of_decoding, 1, NULL}, {of_decoding, SEQUENCES, best}};
    const struct way prompts[] = {
        {of_prompt, 1, best}, {of_prompt, 1, NULL}, {of_prompt, 1, &integer_avx2}};
    bool has_avx2 = best == &integer_avx512;
    double t[MOST_WAYS];
    for (int i = 0; i < SEQUENCES; i++)
        for (int first = 0; first < FIRST; first += CHUNK)
            pass(
                &(struct subject){
                    .dev = s->dev, .model = s->model, .ws = s->ws, .caches = {s->caches[i]}},
                1, first, CHUNK);
    compare(s, decoding, 2, MOST_REPEATS, t);
    pass(s, SEQUENCES, FIRST, 1);
    if (is_large)
        print_memory(s, name, "beside the cache");
    print_row(s, name, "decoding, beside reading 2 bytes a parameter", 1 / t[0], 1 / t[1],
              is_large ? 0.85 : 0);
    compare(s, few, 3, is_large ? 5 : MOST_REPEATS, t);
    print_row(s, name, "decoding, beside version 1", 1 / t[0], 1 / t[1], is_large ? 0 : 2.5);
    print_row(s, name, "decoding 8 at once, beside one", SEQUENCES / t[2], 1 / t[0],
              is_large ? 4 : 0);
    compare(s, prompts, has_avx2 ? 3 : 2, is_large ? 1 : MOST_REPEATS, t);
    print_row(s, name, "a prompt of 512, beside version 1", PROMPT / t[0], PROMPT / t[1],
              has_avx2 ? 1.5 : 1);
    if (has_avx2)
        print_row(s, name, "a prompt of 512 with AVX2 only, beside version 1", PROMPT / t[2],
                  PROMPT / t[1], 1);
}

/* Seconds that it takes to read the file into memory, as whoever loads it must at least. */
static double of_file(const char *path) {
    int fd = open(path, O_RDONLY);
    struct stat info;
    double begin = clock_now();
    if (fd < 0 || fstat(fd, &info))
        fail("cannot read the checkpoint");
    char *bytes = malloc((size_t)info.st_size);
    for (off_t done = 0; bytes && done < info.st_size;) {
        ssize_t n = read(fd, bytes + done, (size_t)(info.st_size - done));
        if (n <= 0)
            fail("cannot read the checkpoint");
        done += n;
    }
    double seconds = clock_now() - begin;
    free(bytes);
    close(fd);
    return seconds;
}

/* Loads the model and reads its file in turns, and keeps the model. */
static void bench_loading(struct subject *s, const char *name, const char *folder,
                          const char *path) {
    struct error err;
    double loading[LOADINGS], reading[LOADINGS];
    s->memory_before = peak_bytes();
    for (int i = 0; i < LOADINGS; i++) {
        model_free(&s->model);
        double begin = clock_now();
        if (model_load(&s->model, s->dev, folder, NULL, &err))
            fail(err.text);
        loading[i] = clock_now() - begin;
        if (path && !i)
            print_memory(s, name, "while loading");
        if (path)
            reading[i] = of_file(path);
    }
    if (!path)
        return;
    qsort(loading, LOADINGS, sizeof(double), by_value);
    qsort(reading, LOADINGS, sizeof(double), by_value);
    double ratio = loading[LOADINGS / 2] / reading[LOADINGS / 2];
    printf("%-12s %-46s %7d %7.2f s %7.2f s %7.2f  (at most 1.50)\n", name,
           "loading, beside reading the file", ref_n_threads(s->dev), loading[LOADINGS / 2],
           reading[LOADINGS / 2], ratio);
    forget_peak(); /* the file had memory of its own */
}

static void bench(const char *name, const char *folder, const char *path, int n_threads) {
    struct error err;
    struct device_options options = {.n_threads = n_threads};
    struct subject s = {.dev = ref_ops.open(&options, &err)};
    if (!s.dev)
        fail(err.text);
    bench_loading(&s, name, folder, path);
    if (!(s.ws = workspace_new(&s.model, &err)))
        fail(err.text);
    s.cache_bytes = s.dev->bytes;
    for (int i = 0; i < SEQUENCES; i++)
        if (!(s.caches[i] = kv_static_new(&s.model, PROMPT, &err)))
            fail(err.text);
    s.cache_bytes = s.dev->bytes - s.cache_bytes;
    all_rows(&s, name, path != NULL);
    for (int i = 0; i < SEQUENCES; i++)
        kv_cache_free(s.caches[i]);
    workspace_free(s.ws);
    model_free(&s.model);
    ref_ops.close(s.dev);
}

int main(void) {
    char folder[128], path[160];
    write_checkpoint(folder, path);
    const struct integer_kernels *best = integer_choose(NULL);
    printf("integer kernels: %s; OpenBLAS core %s\n\n%-12s %-46s %7s %9s %9s %7s %7s\n",
           best ? best->name : "none", openblas_get_corename(), "model", "", "threads", "tokens/s",
           "beside", "ratio", "wanted");
    for (int n = 2; n >= 1; n--)
        bench("shipped", "data/model", NULL, n);
    for (int n = 2; n >= 1; n--)
        bench("qwen3-0.6b", folder, path, n);
    remove_checkpoint(folder, path);
    return 0;
}
