/* The CUDA driver: memory. What is asynchronous is done at once. */
#include "nullgpu.h"

#include <string.h>

typedef uintptr_t device_pointer; /* CUdeviceptr */

int cuDevicePrimaryCtxRetain(void **context, int device);

NG_API int cuMemAlloc_v2(device_pointer *pointer, size_t size)
{
    void *allocated = NULL;
    int status = size ? ng_allocate(&allocated, size, NG_DEVICE) : NG_INVALID_VALUE;
    if (status == NG_OK)
        *pointer = (device_pointer)allocated;
    return status;
}

NG_API int cuMemFree_v2(device_pointer pointer) { return ng_free((void *)pointer, false); }

NG_API int cuMemHostAlloc(void **pointer, size_t size, unsigned UNUSED(flags))
{
    return size ? ng_allocate(pointer, size, NG_HOST) : NG_INVALID_VALUE;
}

NG_API int cuMemAllocHost_v2(void **pointer, size_t size)
{
    return cuMemHostAlloc(pointer, size, 0);
}

NG_API int cuMemFreeHost(void *pointer) { return ng_free(pointer, true); }

NG_API int cuMemHostRegister_v2(void *pointer, size_t size, unsigned UNUSED(flags))
{
    return ng_register_host(pointer, size);
}

NG_API int cuMemHostUnregister(void *pointer) { return ng_unregister_host(pointer); }

NG_API int cuMemHostGetDevicePointer_v2(device_pointer *pointer, void *host, unsigned UNUSED(flags))
{
    struct ng_range range;
    if (!ng_find_range(host, &range) || range.kind != NG_HOST)
        return NG_INVALID_VALUE;
    *pointer = (device_pointer)host;
    return NG_OK;
}

NG_API int cuMemGetInfo_v2(size_t *available, size_t *total)
{
    if (!ng_has_context())
        return NG_INVALID_CONTEXT;
    uint64_t used, peak;
    ng_memory_used(ng_current_device(), &used, &peak);
    *total = ng_profile()->total_memory;
    *available = *total - used;
    return NG_OK;
}

NG_API int cuMemGetAddressRange_v2(device_pointer *base, size_t *size, device_pointer pointer)
{
    struct ng_range range;
    if (!ng_find_range((void *)pointer, &range))
        return NG_NOT_FOUND;
    if (base)
        *base = (device_pointer)range.base;
    if (size)
        *size = range.size;
    return NG_OK;
}

enum { /* CUpointer_attribute */
    POINTER_CONTEXT = 1, POINTER_MEMORY_TYPE, POINTER_DEVICE_POINTER, POINTER_HOST_POINTER,
    POINTER_SYNC_MEMOPS = 6, POINTER_BUFFER_ID, POINTER_IS_MANAGED, POINTER_DEVICE_ORDINAL,
    POINTER_IS_LEGACY_IPC_CAPABLE, POINTER_RANGE_START, POINTER_RANGE_SIZE, POINTER_MAPPED,
};

NG_API int cuPointerGetAttribute(void *value, int attribute, device_pointer pointer)
{
    struct ng_range range;
    if (!ng_find_range((void *)pointer, &range))
        return NG_INVALID_VALUE;
    unsigned memory_type = range.kind == NG_HOST ? 1 : 2;
    unsigned long long id = (unsigned long long)(uintptr_t)range.base;
    switch (attribute) {
    case POINTER_CONTEXT: return cuDevicePrimaryCtxRetain(value, range.device);
    case POINTER_MEMORY_TYPE: memcpy(value, &memory_type, sizeof memory_type); return NG_OK;
    case POINTER_HOST_POINTER:
        if (range.kind == NG_DEVICE)
            return NG_INVALID_VALUE;
        memcpy(value, &pointer, sizeof pointer);
        return NG_OK;
    case POINTER_DEVICE_POINTER: memcpy(value, &pointer, sizeof pointer); return NG_OK;
    case POINTER_BUFFER_ID: memcpy(value, &id, sizeof id); return NG_OK;
    case POINTER_DEVICE_ORDINAL: memcpy(value, &range.device, sizeof range.device); return NG_OK;
    case POINTER_RANGE_START: memcpy(value, &range.base, sizeof range.base); return NG_OK;
    case POINTER_RANGE_SIZE: memcpy(value, &range.size, sizeof range.size); return NG_OK;
    case POINTER_IS_MANAGED: *(unsigned *)value = range.kind == NG_MANAGED; return NG_OK;
    case POINTER_MAPPED: *(unsigned *)value = 1; return NG_OK;
    case POINTER_SYNC_MEMOPS:
    case POINTER_IS_LEGACY_IPC_CAPABLE: *(unsigned *)value = 0; return NG_OK;
    default:
        ng_log("unanswered: pointer attribute %d", attribute);
        return ng_fail(NG_NOT_SUPPORTED, "the null GPU does not answer pointer attribute %d",
                       attribute);
    }
}

/* --- copies ---------------------------------------------------------------------------------------- */

static int copy(device_pointer to, device_pointer from, size_t size)
{
    return ng_copy((void *)to, (const void *)from, size);
}

static int copy_on(void *stream, device_pointer to, device_pointer from, size_t size)
{
    int status = ng_stream_check(stream);
    return status ? status : copy(to, from, size);
}

/* One address space, and a pointer is as wide as a CUdeviceptr: all directions are one. */
#define COPY(name)                                                                          \
    NG_API int name(device_pointer to, device_pointer from, size_t size)                    \
    {                                                                                       \
        return copy(to, from, size);                                                        \
    }
#define COPY_ON_STREAM(name)                                                                \
    NG_API int name(device_pointer to, device_pointer from, size_t size, void *stream)      \
    {                                                                                       \
        return copy_on(stream, to, from, size);                                             \
    }
COPY(cuMemcpy)
COPY(cuMemcpyHtoD_v2)
COPY(cuMemcpyDtoH_v2)
COPY(cuMemcpyDtoD_v2)
COPY_ON_STREAM(cuMemcpyAsync)
COPY_ON_STREAM(cuMemcpyHtoDAsync_v2)
COPY_ON_STREAM(cuMemcpyDtoHAsync_v2)
COPY_ON_STREAM(cuMemcpyDtoDAsync_v2)

/* --- fills ------------------------------------------------------------------------------------------- */

#define FILL(bits, type)                                                                    \
    NG_API int cuMemsetD##bits##_v2(device_pointer to, type value, size_t count)            \
    {                                                                                       \
        return ng_fill((void *)to, &value, bits / 8, count);                                \
    }                                                                                       \
    NG_API int cuMemsetD##bits##Async(device_pointer to, type value, size_t count,          \
                                      void *stream)                                         \
    {                                                                                       \
        int status = ng_stream_check(stream);                                               \
        return status ? status : ng_fill((void *)to, &value, bits / 8, count);              \
    }
FILL(8, unsigned char)
FILL(16, unsigned short)
FILL(32, unsigned)

NG_API int cuStreamWriteValue32_v2(void *stream, device_pointer to, uint32_t value,
                                   unsigned UNUSED(flags))
{
    int status = ng_stream_check(stream);
    return status ? status : ng_fill((void *)to, &value, sizeof value, 1);
}
