/*
 * The device's memory, copies, and what waits for them; weights as two planes of signed 8-bit
 * digits, as tensor cores want them.
 */
#include "gpu/gpu.h"

/* The end of an allocation that found room. */
static bool has_memory(struct gpu_device *gpu, cudaError_t result, struct error *err) {
    gpu_ok(gpu, result, "an allocation");
    if (gpu->failed)
        error_set(err, "%s", gpu->failure.text);
    else
        gpu->memory_changes++;
    return !gpu->failed;
}

void *gpu_alloc(struct device *dev, size_t bytes, const char *what, struct error *err) {
    struct gpu_device *gpu = gpu_of(dev);
    void *data = NULL;
    cudaError_t result = gpu->failed ? cudaSuccess : cudaMalloc(&data, bytes ? bytes : 1);
    if (result == cudaErrorMemoryAllocation) {
        size_t left = 0, all = 0;
        cudaGetLastError(); /* it is the caller's to handle, not the next launch's */
        cudaMemGetInfo(&left, &all);
        error_set(err,
                  GPU_NAME ": not enough memory for %s (%.2f MB): %.2f of %.2f MB are free. "
                           "Use a smaller --context or model, or --device cpu",
                  what, (double)bytes / 1e6, (double)left / 1e6, (double)all / 1e6);
        return NULL;
    }
    if (!has_memory(gpu, result, err))
        return NULL;
    dev->bytes += bytes;
    if (dev->bytes > dev->peak_bytes)
        dev->peak_bytes = dev->bytes;
    return data;
}

void gpu_free(struct device *dev, void *data, size_t bytes) {
    if (!data)
        return;
    dev->bytes -= bytes;
    gpu_of(dev)->memory_changes++;
    gpu_ok(gpu_of(dev), cudaFree(data), "cudaFree");
}

/* Memory of the host that the GPU writes to; not counted, as it is none of the GPU's. */
void *gpu_alloc_host_visible(struct device *dev, size_t bytes, const char *what,
                             struct error *err) {
    struct gpu_device *gpu = gpu_of(dev);
    void *data = NULL;
    cudaError_t result = gpu->failed ? cudaSuccess : cudaMallocHost(&data, bytes ? bytes : 1);
    if (result == cudaErrorMemoryAllocation) {
        cudaGetLastError(); /* as in gpu_alloc */
        error_set(err,
                  GPU_NAME ": not enough memory of the host for %s (%zu bytes). Use a smaller "
                           "model, or --device cpu",
                  what, bytes);
        return NULL;
    }
    return has_memory(gpu, result, err) ? data : NULL;
}

void gpu_free_host_visible(struct device *dev, void *data, size_t) {
    if (!data)
        return;
    gpu_of(dev)->memory_changes++;
    gpu_ok(gpu_of(dev), cudaFreeHost(data), "cudaFreeHost");
}

long gpu_memory_changes(struct device *dev) {
    return gpu_of(dev)->memory_changes;
}

size_t gpu_available(struct device *dev) {
    struct gpu_device *gpu = gpu_of(dev);
    size_t left = 0, all = 0;
    if (gpu->failed || !gpu_ok(gpu, cudaMemGetInfo(&left, &all), "asking for the free memory"))
        return 0;
#ifdef SAMEBITS_EMU
    /* The emulated memory lies in the host's, which may be smaller. */
    size_t host = ref_ops.available(dev);
    left = host < left ? host : left;
#endif
    return left;
}

static void transfer(struct device *dev, void *to, const void *from, size_t bytes,
                     enum cudaMemcpyKind kind) {
    struct gpu_device *gpu = gpu_of(dev);
    if (!gpu->failed && bytes)
        gpu_ok(gpu, cudaMemcpyAsync(to, from, bytes, kind, gpu->stream), "a copy");
}

void gpu_upload(struct device *dev, void *to, const void *from_host, size_t bytes) {
    transfer(dev, to, from_host, bytes, cudaMemcpyHostToDevice);
}

void gpu_download(struct device *dev, void *to_host, const void *from, size_t bytes) {
    struct gpu_device *gpu = gpu_of(dev);
    transfer(dev, to_host, from, bytes, cudaMemcpyDeviceToHost);
    if (!gpu->failed)
        gpu_ok(gpu, cudaStreamSynchronize(gpu->stream), "waiting for a copy");
    if (gpu->failed)
        memset(to_host, 0, bytes); /* defined, though nobody should look before sync */
}

void gpu_copy(struct device *dev, void *to, const void *from, size_t bytes) {
    transfer(dev, to, from, bytes, cudaMemcpyDeviceToDevice);
}

void *gpu_scratch(struct gpu_device *gpu, enum gpu_scratch which, size_t bytes, const char *op) {
    if (gpu->failed)
        return NULL;
    if (bytes > gpu->scratch[which].bytes || !gpu->scratch[which].data) {
        struct error err;
        gpu_free(&gpu->base, gpu->scratch[which].data, gpu->scratch[which].bytes);
        gpu->scratch[which].data = gpu_alloc(&gpu->base, bytes, op, &err);
        gpu->scratch[which].bytes = gpu->scratch[which].data ? bytes : 0;
        if (!gpu->scratch[which].data && !gpu->failed) {
            gpu->failure = err;
            gpu->failed = true;
        }
    }
    return gpu->scratch[which].data;
}

int gpu_sync(struct device *dev, struct fault *fault, struct error *err) {
    struct gpu_device *gpu = gpu_of(dev);
    if (!gpu->failed)
        gpu_ok(gpu, cudaStreamSynchronize(gpu->stream), "waiting for the device");
    fault->site = -1;
    fault->token = 0;
    if (gpu->failed) {
        *err = gpu->failure;
        return -1;
    }
    unsigned long long found = *gpu->fault;
    if (found != ~0ull) {
        fault->site = (int)(found >> 32);
        fault->token = (int)(found & 0xffffffffu);
        *gpu->fault = ~0ull;
    }
    return 0;
}

/* ---- weights -------------------------------------------------------------------------------- */

/* q = 256 * high + low with both digits in -128 ... 127: |q| <= 32639 makes that possible. */
__global__ static void split_digits(int8_t *high, int8_t *low, /* [n_rows, padded] */
                                    const int16_t *q,          /* [n_rows, k] */
                                    int n_rows, int k, int padded) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= (size_t)n_rows * (size_t)padded)
        return;
    int column = (int)(i % (size_t)padded);
    int value = column < k ? q[i / (size_t)padded * (size_t)k + (size_t)column] : 0;
    int digit = (int8_t)(value & 255);
    low[i] = (int8_t)digit;
    high[i] = (int8_t)((value - digit) >> 8);
}

void gpu_split_digits(struct gpu_device *gpu, int8_t *high, int8_t *low, const int16_t *q,
                      int n_rows, int k) {
    int padded = gpu_padded(k);
    size_t count = (size_t)n_rows * (size_t)padded;
    if (count)
        GPU_LAUNCH(gpu, split_digits, gpu_blocks(count, 256), 256, 0, high, low, q, n_rows, k,
                   padded);
}

static size_t plane_bytes(const struct matrix *w) {
    return (size_t)w->n * (((size_t)w->k + 63) / 64 * 64); /* gpu_padded of any k */
}

void gpu_matrix_free(struct device *dev, struct matrix *w) {
    gpu_of(dev)->weights_changes++;
    gpu_free(dev, w->mantissas, 2 * plane_bytes(w));
    gpu_free(dev, w->exponents, (size_t)w->n);
    memset(w, 0, sizeof *w);
}

int gpu_matrix_create(struct device *dev, struct matrix *w, int n, int k, struct error *err) {
    memset(w, 0, sizeof *w);
    w->n = n;
    w->k = k;
    w->mantissas = gpu_alloc(dev, 2 * plane_bytes(w), "weights", err);
    w->exponents = (int8_t *)gpu_alloc(dev, (size_t)n, "weights", err);
    if (w->mantissas && w->exponents)
        return 0;
    gpu_matrix_free(dev, w);
    return -1;
}

void gpu_matrix_put(struct device *dev, struct matrix *w, int first_row, int n_rows,
                    const int16_t *mantissas, const int8_t *exponents) {
    struct gpu_device *gpu = gpu_of(dev);
    gpu->weights_changes++;
    size_t bytes = sizeof(int16_t) * (size_t)n_rows * (size_t)w->k;
    int16_t *q = (int16_t *)gpu_scratch(gpu, GPU_SCRATCH_X, bytes, "weights");
    if (!q)
        return;
    gpu_upload(dev, q, mantissas, bytes);
    gpu_upload(dev, w->exponents + first_row, exponents, (size_t)n_rows);
    int8_t *high = (int8_t *)w->mantissas + (size_t)first_row * (size_t)gpu_padded(w->k);
    gpu_split_digits(gpu, high, high + plane_bytes(w), q, n_rows, w->k);
    /* The caller may change its buffers when this returns. */
    if (!gpu->failed)
        gpu_ok(gpu, cudaStreamSynchronize(gpu->stream), "loading weights");
}
