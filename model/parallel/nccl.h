/*
 * nccl.h - what ranks say to each other, from GPU to GPU: NCCL's calls in place of MPI's for device
 * memory (NVIDIA Collective Communications Library, version 2). MPI is still what starts the ranks,
 * compares them and tells them the time.
 *
 * Results stay on the GPU, so that what all have heard is not compared at the end of a pass; what
 * they were given and what they have drawn is.
 */
#ifndef SAMEBITS_NCCL_H
#define SAMEBITS_NCCL_H

#include "model/parallel.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Gives p calls over the memory of dev, a GPU of its own for each rank. Returns 0, or -1 with err
 * set. NULL in a program that is linked without it. */
int nccl_join(struct parallel *p, struct device *dev, struct error *err) __attribute__((weak));

#ifdef __cplusplus
}
#endif

#endif
