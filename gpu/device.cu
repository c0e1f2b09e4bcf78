/*
 * The CUDA device: memory, errors, the table. Compiled for the emulation it is the device "emu".
 */
#include "gpu/attend.h"
#include "gpu/fast/prompt/prompt.h"
#include "gpu/blas.h"

#include <stdio.h>
#include <stdlib.h>

#ifdef SAMEBITS_EMU
#define TABLE emu_ops
#define NAME "emu"
#else
#define TABLE gpu_ops
#define NAME "gpu"
#endif

bool gpu_failed(struct gpu_device *gpu, const char *what, const char *why) {
    if (!gpu->failed)
        error_set(&gpu->failure,
                  NAME ": %s: %s. Start again; if it fails again, use --device cpu", what, why);
    gpu->failed = true;
    return false;
}

bool gpu_ok(struct gpu_device *gpu, cudaError_t result, const char *what) {
    return result == cudaSuccess || gpu_failed(gpu, what, cudaGetErrorString(result));
}

bool gpu_blas_ok(struct gpu_device *gpu, cublasStatus_t result, const char *what) {
    gpu->launches++;
    return result == CUBLAS_STATUS_SUCCESS || gpu_failed(gpu, what, cublasGetStatusString(result));
}

/* ---- versions --------------------------------------------------------------------------------- */

/* The ops of phase 8 and later: NULL in a program that is linked without them. */
#define FROM_LATER_PHASE(op) extern decltype(op) op __attribute__((weak))
FROM_LATER_PHASE(gpu_attention_plan_new);
FROM_LATER_PHASE(gpu_attention_plan_free);
FROM_LATER_PHASE(gpu_attention_plan);
FROM_LATER_PHASE(gpu_attention_plan_form);
FROM_LATER_PHASE(gpu_attend);
FROM_LATER_PHASE(gpu_merge_states);
FROM_LATER_PHASE(gpu_finish_states);
FROM_LATER_PHASE(gpu_kv_convert);
FROM_LATER_PHASE(gpu_decode_step);

static const struct {
    const char *name;
    int versions;
} kernels[N_GPU_KERNELS] = {
    {"snap_rows", 2}, {"linear", 4}, {"rmsnorm", 3}, {"add_rmsnorm", 2}, {"rope", 2},
    {"norm_rope", 2}, {"kv_gather", 2}, {"attention", 3}, {"attend", 4},
    {"attention_plan", 2}, {"silu_mul", 2}, {"add", 2}, {"decode_step", 2},
};

/* The versions from `first` on are linked from a phase on. */
static const struct {
    enum gpu_kernel kernel;
    int first, phase;
    bool is_linked;
} later[] = {
    {GPU_ATTENTION, 2, 8, gpu_attention_prompt_mma != NULL},
    {GPU_ATTEND, 1, 8, gpu_attend != NULL},
    {GPU_ATTENTION_PLAN, 1, 8, gpu_attention_plan != NULL},
    {GPU_DECODE_STEP, 1, 8, gpu_decode_step != NULL},
};

/* The phase that this version of a kernel waits for, or 0 when it is linked. */
static int phase_of(int kernel, int version) {
    for (size_t i = 0; i < sizeof later / sizeof *later; i++)
        if (later[i].kernel == kernel && version >= later[i].first && !later[i].is_linked)
            return later[i].phase;
    return 0;
}

static int find_kernel(const char *name) {
    for (int i = 0; i < N_GPU_KERNELS; i++)
        if (!strcmp(kernels[i].name, name))
            return i;
    return -1;
}

static int versions(const char *name) {
    int i = find_kernel(name), n = i < 0 ? 0 : kernels[i].versions;
    while (n && phase_of(i, n))
        n--;
    return n;
}

static int no_versions(const char *name, struct error *err) {
    char names[256] = "";
    for (int i = 0; i < N_GPU_KERNELS; i++) {
        size_t used = strlen(names);
        if (!phase_of(i, 1))
            snprintf(names + used, sizeof names - used, "%s%s", i ? ", " : "", kernels[i].name);
    }
    return error_set(err, NAME ": of \"%s\" there is no version to choose. Ops with versions: %s",
                     name, names);
}

static int set_version(struct device *dev, const char *name, int version, struct error *err) {
    int i = find_kernel(name);
    if (i < 0)
        return no_versions(name, err);
    if (version < 0 || version > kernels[i].versions)
        return error_set(err, "%s has versions 1 to %d, or 0 for the best", name,
                         kernels[i].versions);
    if (phase_of(i, version))
        return error_set(err, "%s has this version from phase %d on: make phase%d", name,
                         phase_of(i, version), phase_of(i, version));
    gpu_of(dev)->version[i] = version;
    return 0;
}

/* ---- memory ----------------------------------------------------------------------------------- */

/* The end of an allocation that found room. */
static bool has_memory(struct gpu_device *gpu, cudaError_t result, struct error *err) {
    gpu_ok(gpu, result, "an allocation");
    if (gpu->failed)
        error_set(err, "%s", gpu->failure.text);
    else
        gpu->memory_changes++;
    return !gpu->failed;
}

static void *allocate(struct device *dev, size_t bytes, const char *what, struct error *err) {
    struct gpu_device *gpu = gpu_of(dev);
    void *data = NULL;
    cudaError_t result = gpu->failed ? cudaSuccess : cudaMalloc(&data, bytes ? bytes : 1);
    if (result == cudaErrorMemoryAllocation) {
        size_t left = 0, all = 0;
        cudaGetLastError(); /* a failed allocation is the caller's to handle, not the next launch's */
        cudaMemGetInfo(&left, &all);
        error_set(err, NAME ": not enough memory for %s (%.2f MB): %.2f of %.2f MB are free. "
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

static void release(struct device *dev, void *data, size_t bytes) {
    if (!data)
        return;
    dev->bytes -= bytes;
    gpu_of(dev)->memory_changes++;
    gpu_ok(gpu_of(dev), cudaFree(data), "cudaFree");
}

/* Memory of the host that the GPU writes to; not counted, as it is none of the GPU's. */
static void *allocate_host_visible(struct device *dev, size_t bytes, const char *what, struct error *err) {
    struct gpu_device *gpu = gpu_of(dev);
    void *data = NULL;
    cudaError_t result = gpu->failed ? cudaSuccess : cudaMallocHost(&data, bytes ? bytes : 1);
    if (result == cudaErrorMemoryAllocation) {
        cudaGetLastError(); /* as in allocate */
        error_set(err, NAME ": not enough memory of the host for %s (%zu bytes). Use a smaller "
                            "model, or --device cpu", what, bytes);
        return NULL;
    }
    return has_memory(gpu, result, err) ? data : NULL;
}

static void release_host_visible(struct device *dev, void *data, size_t) {
    if (!data)
        return;
    gpu_of(dev)->memory_changes++;
    gpu_ok(gpu_of(dev), cudaFreeHost(data), "cudaFreeHost");
}

static long memory_changes(struct device *dev) {
    return gpu_of(dev)->memory_changes;
}

static size_t available(struct device *dev) {
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

static void upload(struct device *dev, void *to, const void *from_host, size_t bytes) {
    transfer(dev, to, from_host, bytes, cudaMemcpyHostToDevice);
}

static void download(struct device *dev, void *to_host, const void *from, size_t bytes) {
    struct gpu_device *gpu = gpu_of(dev);
    transfer(dev, to_host, from, bytes, cudaMemcpyDeviceToHost);
    if (!gpu->failed)
        gpu_ok(gpu, cudaStreamSynchronize(gpu->stream), "waiting for a copy");
    if (gpu->failed)
        memset(to_host, 0, bytes); /* defined, though nobody should look before sync */
}

static void copy(struct device *dev, void *to, const void *from, size_t bytes) {
    transfer(dev, to, from, bytes, cudaMemcpyDeviceToDevice);
}

void *gpu_scratch(struct gpu_device *gpu, enum gpu_scratch which, size_t bytes, const char *op) {
    if (gpu->failed)
        return NULL;
    if (bytes > gpu->scratch[which].bytes || !gpu->scratch[which].data) {
        struct error err;
        release(&gpu->base, gpu->scratch[which].data, gpu->scratch[which].bytes);
        gpu->scratch[which].data = allocate(&gpu->base, bytes, op, &err);
        gpu->scratch[which].bytes = gpu->scratch[which].data ? bytes : 0;
        if (!gpu->scratch[which].data && !gpu->failed) {
            gpu->failure = err;
            gpu->failed = true;
        }
    }
    return gpu->scratch[which].data;
}

static int sync_device(struct device *dev, struct fault *fault, struct error *err) {
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

/* ---- weights: two planes of signed 8-bit digits, as tensor cores want them --------------------- */

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

static void matrix_release(struct device *dev, struct matrix *w) {
    gpu_of(dev)->weights_changes++;
    release(dev, w->mantissas, 2 * plane_bytes(w));
    release(dev, w->exponents, (size_t)w->n);
    memset(w, 0, sizeof *w);
}

static int matrix_create(struct device *dev, struct matrix *w, int n, int k, struct error *err) {
    memset(w, 0, sizeof *w);
    w->n = n;
    w->k = k;
    w->mantissas = allocate(dev, 2 * plane_bytes(w), "weights", err);
    w->exponents = (int8_t *)allocate(dev, (size_t)n, "weights", err);
    if (w->mantissas && w->exponents)
        return 0;
    matrix_release(dev, w);
    return -1;
}

static void matrix_put(struct device *dev, struct matrix *w, int first_row, int n_rows,
                       const int16_t *mantissas, const int8_t *exponents) {
    struct gpu_device *gpu = gpu_of(dev);
    gpu->weights_changes++;
    size_t bytes = sizeof(int16_t) * (size_t)n_rows * (size_t)w->k;
    int16_t *q = (int16_t *)gpu_scratch(gpu, GPU_SCRATCH_X, bytes, "weights");
    if (!q)
        return;
    upload(dev, q, mantissas, bytes);
    upload(dev, w->exponents + first_row, exponents, (size_t)n_rows);
    int8_t *high = (int8_t *)w->mantissas + (size_t)first_row * (size_t)gpu_padded(w->k);
    gpu_split_digits(gpu, high, high + plane_bytes(w), q, n_rows, w->k);
    /* The caller may change its buffers when this returns. */
    if (!gpu->failed)
        gpu_ok(gpu, cudaStreamSynchronize(gpu->stream), "loading weights");
}

/* ---- the device ------------------------------------------------------------------------------- */

static void close_device(struct device *dev) {
    struct gpu_device *gpu = gpu_of(dev);
    if (!gpu)
        return;
    for (int i = 0; i < N_GPU_SCRATCH; i++)
        release(dev, gpu->scratch[i].data, gpu->scratch[i].bytes);
    free(gpu->step.layers);
    cudaFreeHost(gpu->fault);
    if (gpu->blas)
        cublasDestroy(gpu->blas);
    if (gpu->stream)
        cudaStreamDestroy(gpu->stream);
    free(gpu);
}

/* Does this image of the program, the one that the GPU runs, have wgmma? */
#if defined(SAMEBITS_EMU) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
__device__ int image_has_warpgroups = 1;
#else
__device__ int image_has_warpgroups = 0;
#endif

/* Is there a GPU, and one that these kernels run on? If not, gpu->failure says why. */
static bool find_gpu(struct gpu_device *gpu) {
    int count = 0, major = 0, minor = 0;
    struct cudaFuncAttributes built;
    cudaError_t result = cudaGetDeviceCount(&count);
    if (result != cudaSuccess || !count)
        return !error_set(&gpu->failure,
                          NAME ": no usable GPU here (%s). Does nvidia-smi show one? Without, "
                               "use --device cpu",
                          result != cudaSuccess ? cudaGetErrorString(result) : "none found");
    if (!gpu_ok(gpu, cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0),
                "asking the GPU for its kind") ||
        !gpu_ok(gpu, cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0),
                "asking the GPU for its kind") ||
        !gpu_ok(gpu,
                cudaDeviceGetAttribute(&gpu->n_processors, cudaDevAttrMultiProcessorCount, 0),
                "asking the GPU for its size") ||
        !gpu_ok(gpu,
                cudaDeviceGetAttribute(&gpu->most_shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0),
                "asking the GPU for its shared memory") ||
        !gpu_ok(gpu, cudaDeviceGetAttribute(&gpu->cache_bytes, cudaDevAttrL2CacheSize, 0),
                "asking the GPU for its cache"))
        return false;
    if (major * 10 + minor < 75)
        return !error_set(&gpu->failure,
                          NAME ": this GPU is too old: it has compute capability %d.%d, 7.5 or "
                               "newer is needed. Use --device cpu",
                          major, minor);
    result = cudaFuncGetAttributes(&built, split_digits);
    if (result == cudaErrorNoKernelImageForDevice)
        return !error_set(&gpu->failure,
                          NAME ": this build has no kernels for this GPU, compute capability "
                               "%d.%d. Build again with CUDA_ARCH=sm_%d%d, or use --device cpu",
                          major, minor, major, minor);
    /* A newer GPU may run kernels that were compiled for an older one, without tensor cores. */
    gpu->has_mma = major >= 8 && built.ptxVersion >= 80;
    gpu->launches_early = major >= 9 && built.ptxVersion >= 90;
    int warpgroups = 0;
    if (!gpu_ok(gpu, result, "looking at the kernels") ||
        !gpu_ok(gpu, cudaMemcpyFromSymbol(&warpgroups, image_has_warpgroups, sizeof warpgroups),
                "looking at the kernels"))
        return false;
    gpu->has_wgmma = warpgroups && major == 9 && built.ptxVersion >= 90;
    return true;
}

static struct device *open_device(const struct device_options *options, struct error *err) {
#ifdef SAMEBITS_EMU
    emu_set_threads(options->n_threads > 0 ? options->n_threads : 2);
#else
    (void)options;
#endif
    struct gpu_device *gpu = (struct gpu_device *)calloc(1, sizeof *gpu);
    if (!gpu) {
        error_set(err, NAME ": out of memory");
        return NULL;
    }
    gpu->base.ops = &TABLE;
    gpu->failed = !find_gpu(gpu);
    if (!gpu->failed && gpu_ok(gpu, cudaStreamCreate(&gpu->stream), "opening a stream") &&
        gpu_blas_ok(gpu, cublasCreate(&gpu->blas), "starting cuBLAS") &&
        gpu_blas_ok(gpu, cublasSetStream(gpu->blas, gpu->stream), "starting cuBLAS") &&
        gpu_ok(gpu, cudaMallocHost((void **)&gpu->fault, sizeof *gpu->fault), "memory for the fault word"))
        *gpu->fault = ~0ull;
    if (!gpu->failed) {
        gpu->launches = 0;
        return &gpu->base;
    }
    *err = gpu->failure;
    close_device(&gpu->base);
    return NULL;
}

/* Ops that are not linked are NULL. */
const struct ops TABLE = {
    .name = NAME,
    .open = open_device,
    .close = close_device,
    .versions = versions,
    .set_version = set_version,
    .alloc = allocate,
    .free = release,
    .alloc_host_visible = allocate_host_visible,
    .free_host_visible = release_host_visible,
    .available = available,
    .upload = upload,
    .download = download,
    .copy = copy,
    .sync = sync_device,
    .graph_begin = gpu_graph_begin,
    .graph_end = gpu_graph_end,
    .graph_run = gpu_graph_run,
    .graph_free = gpu_graph_free,
    .memory_changes = memory_changes,
    .share_out = NULL,
    .matrix_create = matrix_create,
    .matrix_put = matrix_put,
    .matrix_free = matrix_release,
    .embed = gpu_embed,
    .take_rows = gpu_take_rows,
    .snap_rows = gpu_snap_rows,
    .linear = gpu_linear,
    .linear_parts = gpu_linear_parts,
    .add_bias = gpu_add_bias,
    .rmsnorm = gpu_rmsnorm,
    .add_rmsnorm = gpu_add_rmsnorm,
    .rope = gpu_rope,
    .norm_rope = gpu_norm_rope,
    .kv_append = gpu_kv_append,
    .kv_gather = gpu_kv_gather,
    .attention = gpu_attention,
    .attention_plan_new = gpu_attention_plan_new,
    .attention_plan_free = gpu_attention_plan_free,
    .attention_plan = gpu_attention_plan,
    .attention_plan_form = gpu_attention_plan_form,
    .attend = gpu_attend,
    .merge_states = gpu_merge_states,
    .finish_states = gpu_finish_states,
    .kv_convert = gpu_kv_convert,
    .silu_mul = gpu_silu_mul,
    .add = gpu_add,
    .sample = gpu_sample,
    .decode_step = gpu_decode_step,
};
