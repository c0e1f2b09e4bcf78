/*
 * controls.h - how much memory the emulated device has, how old it is, and when it breaks. For
 * tests in C and C++; for whole programs through the environment, which is read once, at the start:
 *
 *     SAMEBITS_EMU_MEMORY=30000000  bytes of device memory
 *     SAMEBITS_EMU_LOSE_AT=500      the device is lost at call 500: see emu_lose_device_at
 *     SAMEBITS_EMU_CAPABILITY=70    compute capability 7.0; 0: there is no GPU
 *     SAMEBITS_EMU_BUILT_FOR=90     the kernels are for 9.0 and later
 */
#ifndef SAMEBITS_EMU_CONTROLS_H
#define SAMEBITS_EMU_CONTROLS_H

#include <stddef.h>

/* Tests are linked with a GPU's kernels, too, where nobody calls these. */
#define EMU_CONTROL __attribute__((weak))

#ifdef __cplusplus
extern "C" {
#endif

/* How much device memory there is; the default is 16 GiB. */
EMU_CONTROL void emu_set_memory_limit(size_t bytes);

/* Device memory in use. */
EMU_CONTROL size_t emu_memory_used(void);

/* The n-th runtime call, launch or cuBLAS call from now (1: the next) fails with `error`, a
 * cudaError_t (from the environment: an uncorrectable memory error), as does every later one until
 * cudaDeviceReset(). n = 0 takes it back. */
EMU_CONTROL void emu_lose_device_at(int n, int error);

/* The device's compute capability, ten times (90: 9.0; 0: no device), and the lowest one that the
 * kernels are built for. The defaults are 90 and 80. */
EMU_CONTROL void emu_set_capability(int capability, int built_for);

/* Calls so far that emu_lose_device_at counts. */
EMU_CONTROL long emu_calls(void);

/* cudaDeviceReset(), and the settings above are what they were at the start. */
EMU_CONTROL void emu_reset(void);

#ifdef __cplusplus
}
#endif

#endif
