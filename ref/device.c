/* The reference device: ordinary memory, its threads, and the op table itself. */
#include "model/arithmetic.h"
#include "ref/integer/integer.h"
#include "ref/ref.h"

#include <stdlib.h>
#include <sys/mman.h>

enum { ALIGNMENT = 64, LARGE_PAGE = 2 << 20, SHARE = 8192 /* numbers of a thread's turn */ };

static struct device *open_device(const struct device_options *options, struct error *err) {
    int n_threads = options->n_threads > 0 ? options->n_threads : ref_blas_default_threads();
    const struct integer_kernels *kernels = integer_choose(err);
    if (!kernels || arithmetic_check(err))
        return NULL;
    struct ref_device *ref = calloc(1, sizeof *ref);
    if (!ref) {
        error_set(err, "cpu: out of memory");
        return NULL;
    }
    ref->base.ops = &ref_ops;
    ref->kernels = kernels;
    ref->fault.site = -1;
    pthread_mutex_init(&ref->fault_lock, NULL);
    ref->threads = ref_threads_new(n_threads);
    if (!ref->threads) {
        error_set(err, "cpu: cannot start %d threads; try fewer (--threads)", n_threads);
        free(ref);
        return NULL;
    }
    return &ref->base;
}

static void close_device(struct device *dev) {
    struct ref_device *ref = (struct ref_device *)dev;
    if (!ref)
        return;
    for (int i = 0; i < N_SCRATCH; i++)
        dev->ops->free(dev, ref->scratch[i].data, ref->scratch[i].bytes);
    ref_threads_free(ref->threads);
    pthread_mutex_destroy(&ref->fault_lock);
    free(ref);
}

/* The version that is chosen of an op, or NULL when it has one only. */
static int *version_of(struct ref_device *ref, const char *op) {
    if (!strcmp(op, "attention_plan"))
        return &ref->plan_version;
    if (!strcmp(op, "linear") || !strcmp(op, "linear_parts"))
        return &ref->linear_version;
    if (!strcmp(op, "attention") || !strcmp(op, "attend"))
        return &ref->attention_version;
    return NULL;
}

static int versions(const char *op) {
    struct ref_device any;
    return version_of(&any, op) ? 2 : 0;
}

static int set_version(struct device *dev, const char *op, int version, struct error *err) {
    struct ref_device *ref = (struct ref_device *)dev;
    int *chosen = version_of(ref, op);
    if (!chosen)
        return error_set(
            err,
            "cpu: of \"%s\" there is no version to choose: on the reference linear, "
            "attention, attend and attention_plan have 1 and 2, every other op has one "
            "version",
            op);
    if (version < 0 || version > 2)
        return error_set(err, "cpu: %s has versions 1 and 2, or 0 for the best", op);
    if (version == 1 && chosen != &ref->plan_version && ref_blas_reserve(ref_n_threads(dev), err))
        return -1;
    *chosen = version;
    return 0;
}

static void *allocate_aligned(struct device *dev, size_t alignment, size_t bytes, const char *what,
                              struct error *err) {
    /* aligned_alloc wants a multiple of the alignment. */
    size_t rounded = (bytes / alignment + 1) * alignment;
    void *data = rounded > bytes ? aligned_alloc(alignment, rounded) : NULL;
    if (!data) {
        error_set(err, "cpu: not enough memory for %s (%.1f MB)", what, (double)bytes / 1e6);
        return NULL;
    }
    dev->bytes += bytes;
    if (dev->bytes > dev->peak_bytes)
        dev->peak_bytes = dev->bytes;
    return data;
}

static void *allocate(struct device *dev, size_t bytes, const char *what, struct error *err) {
    return allocate_aligned(dev, ALIGNMENT, bytes, what, err);
}

/* Weights are read from the first to the last for every token: in pages of 2 MB, where the kernel
 * has them, they are read faster. Only whole ones: what is not used stays with the kernel. */
static void *allocate_weights(struct device *dev, size_t bytes, struct error *err) {
    bool is_large = bytes >= LARGE_PAGE;
    void *data = allocate_aligned(dev, is_large ? LARGE_PAGE : ALIGNMENT, bytes, "weights", err);
    if (data && is_large)
        madvise(data, bytes / LARGE_PAGE * LARGE_PAGE, MADV_HUGEPAGE);
    return data;
}

static void release(struct device *dev, void *data, size_t bytes) {
    if (!data)
        return;
    dev->bytes -= bytes;
    free(data);
}

static void copy_bytes(struct device *dev, void *to, const void *from, size_t bytes) {
    (void)dev;
    if (bytes)
        memcpy(to, from, bytes);
}

static int sync_device(struct device *dev, struct fault *fault, struct error *err) {
    struct ref_device *ref = (struct ref_device *)dev;
    *fault = ref->fault;
    ref->fault.site = -1;
    if (ref->out_of_memory) {
        error_set(err, "cpu: not enough memory for the scratch space of %s", ref->out_of_memory);
        ref->out_of_memory = NULL;
        return -1;
    }
    return 0;
}

void ref_fault(struct device *dev, int site, int token) {
    struct ref_device *ref = (struct ref_device *)dev;
    struct fault *known = &ref->fault;
    pthread_mutex_lock(&ref->fault_lock);
    if (known->site < 0 || site < known->site || (site == known->site && token < known->token))
        *known = (struct fault){site, token};
    pthread_mutex_unlock(&ref->fault_lock);
}

void ref_parallel(struct device *dev, int n_items, void (*run)(void *, int, int), void *context) {
    ref_threads_run(((struct ref_device *)dev)->threads, n_items, run, context);
}

struct row_shares {
    void (*run)(void *, int, int, int);
    void *context;
    int n_rows, rows; /* rows: of a share */
};

static void run_rows(void *context, int item, int worker) {
    const struct row_shares *s = context;
    int first = item * s->rows, left = s->n_rows - first;
    s->run(s->context, first, first + (left < s->rows ? left : s->rows), worker);
}

void ref_parallel_rows(struct device *dev, int n_rows, int n_cols,
                       void (*run)(void *, int, int, int), void *context) {
    struct row_shares s = {run, context, n_rows, n_cols < SHARE ? SHARE / n_cols : 1};
    ref_parallel(dev, (n_rows + s.rows - 1) / s.rows, run_rows, &s);
}

static void share_out(struct device *dev, int n_items, void (*run)(void *, int), void *context) {
    ref_threads_share(((struct ref_device *)dev)->threads, n_items, run, context);
}

int ref_n_threads(struct device *dev) {
    return ref_threads_count(((struct ref_device *)dev)->threads);
}

void *ref_scratch(struct device *dev, enum ref_scratch which, size_t bytes, const char *op) {
    struct ref_device *ref = (struct ref_device *)dev;
    if (bytes > ref->scratch[which].bytes || !ref->scratch[which].data) {
        release(dev, ref->scratch[which].data, ref->scratch[which].bytes);
        ref->scratch[which].data = allocate(dev, bytes, op, NULL);
        ref->scratch[which].bytes = ref->scratch[which].data ? bytes : 0;
        if (!ref->scratch[which].data)
            ref->out_of_memory = op;
    }
    return ref->scratch[which].data;
}

static size_t mantissa_bytes(const struct matrix *w) {
    return sizeof(int16_t) * (size_t)w->n * (size_t)w->k + ROW_SLACK;
}

static void matrix_release(struct device *dev, struct matrix *w) {
    release(dev, w->mantissas, mantissa_bytes(w));
    release(dev, w->exponents, (size_t)w->n);
    *w = (struct matrix){0};
}

static int matrix_create(struct device *dev, struct matrix *w, int n, int k, struct error *err) {
    *w = (struct matrix){.n = n, .k = k};
    w->mantissas = allocate_weights(dev, mantissa_bytes(w), err);
    w->exponents = allocate(dev, (size_t)n, "weights", err);
    if (w->mantissas && w->exponents)
        return 0;
    matrix_release(dev, w);
    return -1;
}

static void matrix_put(struct device *dev, struct matrix *w, int first_row, int n_rows,
                       const int16_t *mantissas, const int8_t *exponents) {
    (void)dev;
    size_t k = (size_t)w->k;
    memcpy((int16_t *)w->mantissas + (size_t)first_row * k, mantissas,
           sizeof *mantissas * (size_t)n_rows * k);
    memcpy(w->exponents + first_row, exponents, (size_t)n_rows);
}

#define ENTRY(name) .name = ref_##name,
const struct ops ref_ops = {
    REF_OPS(ENTRY) /* the ops that have files of their own */
        .name = "cpu",
    .open = open_device,
    .close = close_device,
    .versions = versions,
    .set_version = set_version,
    .alloc = allocate,
    .free = release,
    .alloc_host_visible = allocate, /* all of its memory is the host's */
    .free_host_visible = release,
    .upload = copy_bytes,
    .download = copy_bytes,
    .copy = copy_bytes,
    .sync = sync_device,
    .share_out = share_out,
    .matrix_create = matrix_create,
    .matrix_put = matrix_put,
    .matrix_free = matrix_release,
};
