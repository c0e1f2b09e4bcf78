/*
 * The CUDA device: opened and closed, its errors, the versions of its kernels, the table of its
 * ops. Compiled for the emulation it is the device "emu".
 */
#include "gpu/blas.h"
#include "gpu/fast/prompt/prompt.h"
#include "ref/threads.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#ifdef SAMEBITS_EMU
#define TABLE emu_ops
#else
#define TABLE gpu_ops
#endif
#define NAME GPU_NAME

bool gpu_failed(struct gpu_device *gpu, const char *what, const char *why) {
    if (!gpu->failed)
        error_set(&gpu->failure, NAME ": %s: %s. Start again; if it fails again, use --device cpu",
                  what, why);
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

/* ---- versions ------------------------------------------------------------------------------- */

/* The ops of phase 8 and later: NULL in a program that is linked without them. */
#define OP(name)
#define LATER_OP(name) extern decltype(gpu_##name) gpu_##name LINKED_LATER;
GPU_OPS(OP, LATER_OP)
#undef OP
#undef LATER_OP

static const struct {
    const char *name;
    int versions;
} kernels[N_GPU_KERNELS] = {
    {"snap_rows", 3},      {"linear", 6},    {"rmsnorm", 3},       {"add_rmsnorm", 2},
    {"norm_rope", 2},      {"kv_gather", 2}, {"attention", 3},     {"attend", 4},
    {"attention_plan", 2}, {"silu_mul", 2},  {"silu_mul_snap", 2}, {"add", 2},
    {"decode_step", 2},
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

/* ---- the device ----------------------------------------------------------------------------- */

static void close_device(struct device *dev) {
    struct gpu_device *gpu = gpu_of(dev);
    if (!gpu)
        return;
    for (int i = 0; i < N_GPU_SCRATCH; i++)
        gpu_free(dev, gpu->scratch[i].data, gpu->scratch[i].bytes);
    ref_threads_free(gpu->threads);
    free(gpu->step.layers);
    cudaFreeHost(gpu->fault);
    if (gpu->hash_copied)
        cudaEventDestroy(gpu->hash_copied);
    if (gpu->hash_stream)
        cudaStreamDestroy(gpu->hash_stream);
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

__global__ static void any_kernel(void) {
}

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
    const struct {
        int *value;
        enum cudaDeviceAttr attribute;
    } asked[] = {
        {&major, cudaDevAttrComputeCapabilityMajor},
        {&minor, cudaDevAttrComputeCapabilityMinor},
        {&gpu->n_processors, cudaDevAttrMultiProcessorCount},
        {&gpu->most_shared, cudaDevAttrMaxSharedMemoryPerBlockOptin},
        {&gpu->cache_bytes, cudaDevAttrL2CacheSize},
    };
    for (const auto &a : asked)
        if (!gpu_ok(gpu, cudaDeviceGetAttribute(a.value, a.attribute, 0), "asking what the GPU is"))
            return false;
    if (major * 10 + minor < 75)
        return !error_set(&gpu->failure,
                          NAME ": this GPU is too old: it has compute capability %d.%d, 7.5 or "
                               "newer is needed. Use --device cpu",
                          major, minor);
    result = cudaFuncGetAttributes(&built, any_kernel);
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
#endif
    struct gpu_device *gpu = (struct gpu_device *)calloc(1, sizeof *gpu);
    if (!gpu) {
        error_set(err, NAME ": out of memory");
        return NULL;
    }
    gpu->base.ops = &TABLE;
    gpu->n_threads = options->n_threads;
    gpu->failed = !find_gpu(gpu);
    if (!gpu->failed &&
        gpu_ok(gpu, cudaStreamCreateWithPriority(&gpu->stream, cudaStreamDefault, -1),
               "opening a stream") &&
        gpu_blas_ok(gpu, cublasCreate(&gpu->blas), "starting cuBLAS") &&
        gpu_blas_ok(gpu, cublasSetStream(gpu->blas, gpu->stream), "starting cuBLAS") &&
        gpu_ok(gpu, cudaMallocHost((void **)&gpu->fault, sizeof *gpu->fault),
               "memory for the fault word"))
        *gpu->fault = ~0ull;
    if (!gpu->failed) {
        gpu->launches = 0;
        return &gpu->base;
    }
    *err = gpu->failure;
    close_device(&gpu->base);
    return NULL;
}

/* The threads are started when they are wanted first. Without, the caller does it all. */
static void share_out(struct device *dev, int n_items, void (*run)(void *, int), void *context) {
    enum { MOST_THREADS = 8 }; /* then the host's memory is the limit */
    struct gpu_device *gpu = gpu_of(dev);
    int n = gpu->n_threads > 0 ? gpu->n_threads : (int)sysconf(_SC_NPROCESSORS_ONLN);
    if (!gpu->threads)
        gpu->threads = ref_threads_new(n < 1 ? 1 : n < MOST_THREADS ? n : MOST_THREADS);
    if (gpu->threads)
        ref_threads_share(gpu->threads, n_items, run, context);
    else
        for (int i = 0; i < n_items; i++)
            run(context, i);
}

/* Ops that are not linked are NULL. */
#define OP(op) .op = gpu_##op,
const struct ops TABLE = {.name = NAME,
                          .open = open_device,
                          .close = close_device,
                          .versions = versions,
                          .set_version = set_version,
                          .share_out = share_out,
                          GPU_RUNTIME(OP) GPU_OPS(OP, OP)};
