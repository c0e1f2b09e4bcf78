/* host_api.cpp - see host_api.h: memory and errors of the emulated device. */
#include "gpu/emu/engine.h"

#include <map>
#include <mutex>
#include <stdio.h>
#include <stdlib.h>

namespace emu {

enum { DEVICE_ALIGNMENT = 256 };

struct allocation {
    size_t bytes;
    bool on_host; /* cudaMallocHost: both sides may use it, and it takes no device memory */
};

static size_t setting(const char *variable, size_t otherwise) {
    const char *text = getenv(variable);
    return text ? strtoull(text, NULL, 10) : otherwise;
}

/* What the environment says: see controls.h. */
struct settings {
    size_t limit = setting("SAMEBITS_EMU_MEMORY", (size_t)16 << 30);
    int calls_until_lost = (int)setting("SAMEBITS_EMU_LOSE_AT", 0); /* 0: never */
    cudaError_t lost_error = cudaErrorECCUncorrectable;
    int capability = (int)setting("SAMEBITS_EMU_CAPABILITY", 90);
    int built_for = (int)setting("SAMEBITS_EMU_BUILT_FOR", 90);
};

/* The one device. */
static struct : settings {
    std::recursive_mutex mutex;
    std::map<uintptr_t, struct allocation> allocations;
    std::map<const void *, size_t> shared_limits; /* of kernels with cudaFuncSetAttribute */
    size_t used;
    long calls;
    cudaError_t last, sticky;
} device;

typedef std::lock_guard<std::recursive_mutex> guard;

/* ---- errors --------------------------------------------------------------------------------- */

cudaError_t enter_api(void) {
    guard lock(device.mutex);
    device.calls++;
    if (device.calls_until_lost > 0 && --device.calls_until_lost == 0)
        device.sticky = device.lost_error;
    return device.sticky;
}

cudaError_t set_error(cudaError_t error) {
    guard lock(device.mutex);
    if (error != cudaSuccess)
        device.last = error;
    return error;
}

void set_sticky_error(cudaError_t error) {
    guard lock(device.mutex);
    device.sticky = error;
}

/* ---- memory --------------------------------------------------------------------------------- */

struct address_range device_range(const void *address, size_t bytes) {
    guard lock(device.mutex);
    uintptr_t begin = (uintptr_t)address;
    auto after = device.allocations.upper_bound(begin);
    if (after == device.allocations.begin())
        return {0, 0};
    auto found = std::prev(after);
    uintptr_t end = found->first + found->second.bytes;
    return begin + bytes <= end ? address_range{found->first, end} : address_range{0, 0};
}

struct place device_neighbour(const void *address) {
    guard lock(device.mutex);
    struct place place = {""};
    uintptr_t a = (uintptr_t)address;
    auto after = device.allocations.upper_bound(a);
    const size_t near = 65536;
    if (after != device.allocations.begin()) {
        auto before = std::prev(after);
        size_t offset = a - before->first;
        if (offset < before->second.bytes + near)
            snprintf(place.text, sizeof place.text, " (byte %zu of an allocation of %zu bytes)",
                     offset, before->second.bytes);
    } else if (after != device.allocations.end() && after->first - a < near) {
        snprintf(place.text, sizeof place.text, " (%zu bytes before an allocation of %zu bytes)",
                 (size_t)(after->first - a), after->second.bytes);
    }
    return place;
}

static bool is_device_memory(const void *data, size_t bytes) {
    struct address_range r = device_range(data, bytes);
    return bytes == 0 || r.begin != r.end;
}

/* For a call that does something at once. */
static cudaError_t enter_outside_of_capture(void) {
    cudaError_t error = enter_api();
    return error == cudaSuccess ? refuse_in_capture() : error;
}

static cudaError_t allocate(void **data, size_t bytes, bool on_host) {
    cudaError_t error = enter_outside_of_capture();
    if (error != cudaSuccess)
        return error;
    guard lock(device.mutex);
    *data = NULL;
    if (bytes == 0)
        return cudaSuccess;
    size_t rounded = (bytes + DEVICE_ALIGNMENT - 1) / DEVICE_ALIGNMENT * DEVICE_ALIGNMENT;
    size_t left = device.limit - min(device.used, device.limit);
    bool fits = rounded >= bytes && (on_host || rounded <= left);
    if (!fits || posix_memalign(data, DEVICE_ALIGNMENT, bytes) != 0)
        return set_error(cudaErrorMemoryAllocation);
    fill_with_junk(*data, bytes);
    device.allocations[(uintptr_t)*data] = {bytes, on_host};
    device.used += on_host ? 0 : rounded;
    return cudaSuccess;
}

/* A lost device's memory is free again, too, though the call fails. */
static cudaError_t release(void *data, bool on_host) {
    cudaError_t error = enter_outside_of_capture();
    if (!data)
        return error;
    guard lock(device.mutex);
    auto found = device.allocations.find((uintptr_t)data);
    if (found == device.allocations.end() || found->second.on_host != on_host)
        return set_error(cudaErrorInvalidValue);
    if (!on_host)
        device.used -=
            (found->second.bytes + DEVICE_ALIGNMENT - 1) / DEVICE_ALIGNMENT * DEVICE_ALIGNMENT;
    device.allocations.erase(found);
    free(data);
    return error;
}

size_t dynamic_shared_limit(const void *kernel) {
    guard lock(device.mutex);
    auto found = device.shared_limits.find(kernel);
    return found == device.shared_limits.end() ? (size_t)DEFAULT_SHARED : found->second;
}

bool kernels_fit_device(void) {
    return device.capability >= device.built_for;
}

int built_for(void) {
    return device.built_for;
}

} // namespace emu

using namespace emu;

void emu_set_memory_limit(size_t bytes) {
    device.limit = bytes;
}

size_t emu_memory_used(void) {
    return device.used;
}

long emu_calls(void) {
    return device.calls;
}

void emu_lose_device_at(int n, int error) {
    guard lock(device.mutex);
    device.calls_until_lost = n;
    device.lost_error = (cudaError_t)error;
}

void emu_set_capability(int capability, int built_for) {
    device.capability = capability;
    device.built_for = built_for;
}

void emu_reset(void) {
    cudaDeviceReset();
    static_cast<struct settings &>(device) = settings();
}

cudaError_t cudaGetLastError(void) {
    cudaError_t error = cudaPeekAtLastError();
    device.last = cudaSuccess;
    return error;
}

cudaError_t cudaPeekAtLastError(void) {
    guard lock(device.mutex);
    return device.sticky != cudaSuccess ? device.sticky : device.last;
}

static const struct {
    cudaError_t error;
    const char *text;
} error_texts[] = {
    {cudaSuccess, "no error"},
    {cudaErrorInvalidValue, "invalid argument"},
    {cudaErrorMemoryAllocation, "out of memory"},
    {cudaErrorInvalidConfiguration, "invalid configuration argument"},
    {cudaErrorInvalidMemcpyDirection, "invalid copy direction for memcpy"},
    {cudaErrorNoDevice, "no device"},
    {cudaErrorInvalidDevice, "invalid device ordinal"},
    {cudaErrorNoKernelImageForDevice, "no kernel image is available for execution on the device"},
    {cudaErrorECCUncorrectable, "uncorrectable ECC error"},
    {cudaErrorIllegalState, "the operation cannot be performed in the present state"},
    {cudaErrorIllegalAddress, "illegal memory access"},
    {cudaErrorLaunchFailure, "launch failure"},
    {cudaErrorStreamCaptureUnsupported, "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureInvalidated, "operation failed due to a previous error during capture"},
};

const char *cudaGetErrorString(cudaError_t error) {
    for (const auto &e : error_texts)
        if (e.error == error)
            return e.text;
    return "unrecognized error code";
}

/* ---- devices -------------------------------------------------------------------------------- */

cudaError_t cudaGetDeviceCount(int *count) {
    cudaError_t error = enter_api();
    *count = device.capability > 0;
    return error == cudaSuccess && !*count ? set_error(cudaErrorNoDevice) : error;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int number) {
    cudaError_t error = enter_api();
    if (error != cudaSuccess)
        return error;
    if (number != 0 || device.capability <= 0)
        return set_error(cudaErrorInvalidDevice);
    switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
        *value = 4;
        return cudaSuccess;
    case cudaDevAttrL2CacheSize:
        *value = 1 << 20;
        return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
        *value = device.capability / 10;
        return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
        *value = device.capability % 10;
        return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        *value = MAX_SHARED;
        return cudaSuccess;
    }
    return set_error(cudaErrorInvalidValue);
}

cudaError_t cudaDeviceSynchronize(void) {
    return enter_outside_of_capture();
}

cudaError_t cudaDeviceReset(void) {
    guard lock(device.mutex);
    forget_capture();
    for (const auto &a : device.allocations)
        free((void *)a.first);
    device.allocations.clear();
    device.shared_limits.clear();
    device.used = 0;
    device.calls_until_lost = 0;
    device.last = device.sticky = cudaSuccess;
    return cudaSuccess;
}

/* ---- memory --------------------------------------------------------------------------------- */

cudaError_t emu_malloc(void **data, size_t bytes) {
    return allocate(data, bytes, false);
}

cudaError_t emu_malloc_host(void **data, size_t bytes) {
    return allocate(data, bytes, true);
}

cudaError_t cudaFree(void *data) {
    return release(data, false);
}

cudaError_t cudaFreeHost(void *data) {
    return release(data, true);
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
    *free_bytes = device.limit - min(device.used, device.limit);
    *total_bytes = device.limit;
    return enter_api();
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
    cudaError_t error = enter_outside_of_capture();
    if (error != cudaSuccess)
        return error;
    if ((unsigned)kind > cudaMemcpyDefault)
        return set_error(cudaErrorInvalidMemcpyDirection);
    bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    if ((to_device && !is_device_memory(to, bytes)) ||
        (from_device && !is_device_memory(from, bytes)))
        return set_error(cudaErrorInvalidValue);
    if (bytes > 0)
        memmove(to, from, bytes);
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t) {
    return cudaMemcpy(to, from, bytes, kind);
}

cudaError_t cudaMemset(void *data, int value, size_t bytes) {
    cudaError_t error = enter_outside_of_capture();
    if (error != cudaSuccess)
        return error;
    if (!is_device_memory(data, bytes))
        return set_error(cudaErrorInvalidValue);
    if (bytes > 0)
        memset(data, value, bytes);
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *data, int value, size_t bytes, cudaStream_t) {
    return cudaMemset(data, value, bytes);
}

cudaError_t emu_copy_symbol(void *to, const void *from, size_t bytes, size_t symbol_bytes) {
    cudaError_t error = enter_api();
    if (error != cudaSuccess)
        return error;
    if (bytes > symbol_bytes)
        return set_error(cudaErrorInvalidValue);
    memcpy(to, from, bytes);
    return cudaSuccess;
}

/* ---- kernels -------------------------------------------------------------------------------- */

cudaError_t emu_set_function_attribute(const void *function, enum cudaFuncAttribute attribute,
                                       int value) {
    cudaError_t error = enter_api();
    if (error != cudaSuccess || attribute == cudaFuncAttributePreferredSharedMemoryCarveout)
        return error;
    if (value < 0 || value > MAX_SHARED)
        return set_error(cudaErrorInvalidValue);
    guard lock(device.mutex);
    device.shared_limits[function] = max((size_t)value, (size_t)DEFAULT_SHARED);
    return cudaSuccess;
}

cudaError_t emu_function_attributes(struct cudaFuncAttributes *attributes) {
    cudaError_t error = enter_api();
    *attributes = {MAX_THREADS, device.built_for, device.capability};
    if (error == cudaSuccess && !kernels_fit_device())
        error = set_error(cudaErrorNoKernelImageForDevice);
    return error;
}
