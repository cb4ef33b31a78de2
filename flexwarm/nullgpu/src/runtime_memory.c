/* The CUDA runtime: memory. What is asynchronous is done at once. */
#include "runtime.h"
#include "abi.h"

#include <string.h>

/* --- allocations ---------------------------------------------------------------------------------- */

NG_API int cudaMalloc(void **pointer, size_t size)
{
    return ng_runtime_result(ng_allocate(pointer, size, NG_DEVICE));
}

NG_API int cudaMallocManaged(void **pointer, size_t size, unsigned UNUSED(flags))
{
    return ng_runtime_result(ng_allocate(pointer, size, NG_MANAGED));
}

NG_API int cudaFree(void *pointer) { return ng_runtime_result(ng_free(pointer, false)); }

NG_API int cudaHostAlloc(void **pointer, size_t size, unsigned UNUSED(flags))
{
    return ng_runtime_result(ng_allocate(pointer, size, NG_HOST));
}

NG_API int cudaMallocHost(void **pointer, size_t size) { return cudaHostAlloc(pointer, size, 0); }
NG_API int cudaFreeHost(void *pointer) { return ng_runtime_result(ng_free(pointer, true)); }

NG_API int cudaHostRegister(void *pointer, size_t size, unsigned UNUSED(flags))
{
    return ng_runtime_result(ng_register_host(pointer, size));
}

NG_API int cudaHostUnregister(void *pointer)
{
    return ng_runtime_result(ng_unregister_host(pointer));
}

NG_API int cudaHostGetDevicePointer(void **device_pointer, void *host_pointer,
                                    unsigned UNUSED(flags))
{
    struct ng_range range;
    bool known = ng_find_range(host_pointer, &range) && range.kind == NG_HOST;
    *device_pointer = known ? host_pointer : NULL;
    return ng_runtime_result(known ? NG_OK : NG_INVALID_VALUE);
}

NG_API int cudaMemGetInfo(size_t *available, size_t *total)
{
    int status = ng_activate();
    if (status)
        return ng_runtime_result(status);
    uint64_t used, peak;
    ng_memory_used(ng_current_device(), &used, &peak);
    *total = ng_profile()->total_memory;
    *available = *total - used;
    return NG_OK;
}

NG_API int cudaPointerGetAttributes(struct ng_pointer_attributes *attributes, const void *pointer)
{
    int status = ng_init();
    if (status)
        return ng_runtime_result(status);
    struct ng_range range;
    if (!ng_find_range(pointer, &range)) {
        *attributes = (struct ng_pointer_attributes){
            .type = NG_UNREGISTERED, .device = -2, .hostPointer = (void *)(uintptr_t)pointer
        };
        return NG_OK;
    }
    void *address = (void *)(uintptr_t)pointer;
    *attributes = (struct ng_pointer_attributes){
        .type = (int)range.kind,
        .device = range.device,
        .devicePointer = address,
        .hostPointer = range.kind == NG_DEVICE ? NULL : address,
    };
    return NG_OK;
}

/* --- copies and fills --------------------------------------------------------------------------- */

NG_API int cudaMemcpy(void *to, const void *from, size_t size, int UNUSED(kind))
{
    return ng_runtime_result(ng_copy(to, from, size));
}

NG_API int cudaMemcpyAsync(void *to, const void *from, size_t size, int UNUSED(kind), void *stream)
{
    int status = ng_stream_check(stream);
    return ng_runtime_result(status ? status : ng_copy(to, from, size));
}

NG_API int cudaMemcpyPeer(void *to, int to_device, const void *from, int from_device, size_t size)
{
    int status = ng_check_device(to_device);
    if (status == NG_OK)
        status = ng_check_device(from_device);
    return ng_runtime_result(status ? status : ng_copy(to, from, size));
}

NG_API int cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device,
                               size_t size, void *stream)
{
    int status = ng_stream_check(stream);
    return ng_runtime_result(status ? status
                                    : cudaMemcpyPeer(to, to_device, from, from_device, size));
}

NG_API int cudaMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                        size_t width, size_t height, int UNUSED(kind))
{
    int status = width > to_pitch || width > from_pitch ? NG_INVALID_VALUE : NG_OK;
    for (size_t row = 0; row < height && status == NG_OK; row++)
        status = ng_copy((char *)to + row * to_pitch, (const char *)from + row * from_pitch, width);
    return ng_runtime_result(status);
}

NG_API int cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                             size_t width, size_t height, int kind, void *stream)
{
    int status = ng_stream_check(stream);
    if (status)
        return ng_runtime_result(status);
    return cudaMemcpy2D(to, to_pitch, from, from_pitch, width, height, kind);
}

NG_API int cudaMemset(void *to, int value, size_t size)
{
    unsigned char byte = (unsigned char)value;
    return ng_runtime_result(ng_fill(to, &byte, 1, size));
}

NG_API int cudaMemsetAsync(void *to, int value, size_t size, void *stream)
{
    int status = ng_stream_check(stream);
    return status ? ng_runtime_result(status) : cudaMemset(to, value, size);
}

NG_API int cudaMemset2D(void *to, size_t pitch, int value, size_t width, size_t height)
{
    unsigned char byte = (unsigned char)value;
    int status = width > pitch ? NG_INVALID_VALUE : NG_OK;
    for (size_t row = 0; row < height && status == NG_OK; row++)
        status = ng_fill((char *)to + row * pitch, &byte, 1, width);
    return ng_runtime_result(status);
}

NG_API int cudaMemset2DAsync(void *to, size_t pitch, int value, size_t width, size_t height,
                             void *stream)
{
    int status = ng_stream_check(stream);
    return status ? ng_runtime_result(status) : cudaMemset2D(to, pitch, value, width, height);
}

/* --- __device__ and __constant__ variables ----------------------------------------------------- */

/* The compiler keeps a host variable of the same size for each, whose address is the symbol. It
 * stands for the variable on every device. */

NG_API int cudaGetSymbolAddress(void **address, const void *symbol)
{
    *address = (void *)(uintptr_t)symbol;
    return ng_runtime_result(ng_activate());
}

NG_API int cudaMemcpyToSymbol(const void *symbol, const void *from, size_t size, size_t offset,
                              int UNUSED(kind))
{
    return ng_runtime_result(ng_copy((char *)(uintptr_t)symbol + offset, from, size));
}

NG_API int cudaMemcpyToSymbolAsync(const void *symbol, const void *from, size_t size,
                                   size_t offset, int kind, void *UNUSED(stream))
{
    return cudaMemcpyToSymbol(symbol, from, size, offset, kind);
}

NG_API int cudaMemcpyFromSymbol(void *to, const void *symbol, size_t size, size_t offset,
                                int UNUSED(kind))
{
    return ng_runtime_result(ng_copy(to, (const char *)symbol + offset, size));
}

/* --- pools: the default one of each device, which holds nothing back --------------------------- */

static char pools[NG_MAX_DEVICES]; /* only their addresses count */

enum { POOL_REUSE_LAST = 3, POOL_THRESHOLD = 4, POOL_RESERVED = 5, POOL_RESERVED_HIGH = 6,
       POOL_USED = 7, POOL_USED_HIGH = 8 };

static int device_of_pool(const void *pool)
{
    uintptr_t at = (uintptr_t)pool, first = (uintptr_t)pools;
    return at >= first && at - first < NG_MAX_DEVICES ? (int)(at - first) : -1;
}

NG_API int cudaDeviceGetDefaultMemPool(void **pool, int device)
{
    int status = ng_check_device(device);
    if (status == NG_OK)
        *pool = &pools[device];
    return ng_runtime_result(status);
}

NG_API int cudaDeviceGetMemPool(void **pool, int device)
{
    return cudaDeviceGetDefaultMemPool(pool, device);
}

NG_API int cudaMallocAsync(void **pointer, size_t size, void *stream)
{
    int status = ng_stream_check(stream);
    return ng_runtime_result(status ? status : ng_allocate(pointer, size, NG_DEVICE));
}

NG_API int cudaMallocFromPoolAsync(void **pointer, size_t size, void *pool, void *stream)
{
    int status = device_of_pool(pool) < 0 ? NG_INVALID_VALUE : NG_OK;
    return status ? ng_runtime_result(status) : cudaMallocAsync(pointer, size, stream);
}

NG_API int cudaFreeAsync(void *pointer, void *stream)
{
    int status = ng_stream_check(stream);
    return ng_runtime_result(status ? status : ng_free(pointer, false));
}

NG_API int cudaMemPoolGetAttribute(void *pool, int attribute, void *value)
{
    int device = device_of_pool(pool);
    if (device < 0 || attribute < 1 || attribute > POOL_USED_HIGH)
        return ng_runtime_result(NG_INVALID_VALUE);
    uint64_t now, peak, answer = 0;
    ng_memory_used(device, &now, &peak);
    if (attribute == POOL_RESERVED || attribute == POOL_USED)
        answer = now;
    else if (attribute == POOL_RESERVED_HIGH || attribute == POOL_USED_HIGH)
        answer = peak;
    if (attribute <= POOL_REUSE_LAST)
        *(int *)value = 1;
    else
        memcpy(value, &answer, sizeof answer);
    return NG_OK;
}

NG_API int cudaMemPoolSetAttribute(void *pool, int UNUSED(attribute), void *UNUSED(value))
{
    return ng_runtime_result(device_of_pool(pool) < 0 ? NG_INVALID_VALUE : NG_OK);
}

NG_API int cudaMemPoolSetAccess(void *pool, const void *UNUSED(access), size_t UNUSED(count))
{
    return ng_runtime_result(device_of_pool(pool) < 0 ? NG_INVALID_VALUE : NG_OK);
}

NG_API int cudaMemPoolTrimTo(void *pool, size_t UNUSED(keep))
{
    return ng_runtime_result(device_of_pool(pool) < 0 ? NG_INVALID_VALUE : NG_OK);
}
