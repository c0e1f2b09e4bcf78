/* blas.h - cuBLAS, for the files that call it: a compiler takes longer for its header than for
 * everything else in gpu.h. */
#ifndef SAMEBITS_GPU_BLAS_H
#define SAMEBITS_GPU_BLAS_H

#include "gpu/gpu.h"

#ifndef SAMEBITS_EMU
#include <cublas_v2.h>
#endif

/* gpu_ok for a call of cuBLAS, which counts as a launch. */
bool gpu_blas_ok(struct gpu_device *gpu, cublasStatus_t result, const char *what);

#endif
