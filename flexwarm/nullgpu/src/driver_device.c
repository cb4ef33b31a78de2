/* The CUDA driver: start, errors, devices and contexts. */
#define _GNU_SOURCE
#include "nullgpu.h"

#include <stdio.h>
#include <string.h>

NG_API int cuInit(unsigned UNUSED(flags)) { return ng_init(); }

NG_API int cuDriverGetVersion(int *version)
{
    int status = ng_init();
    if (status == NG_OK)
        *version = (int)ng_profile()->driver_version;
    return status;
}

NG_API int cuGetErrorName(int status, const char **name)
{
    *name = ng_error_name(status, true);
    return *name ? NG_OK : NG_INVALID_VALUE;
}

NG_API int cuGetErrorString(int status, const char **text)
{
    *text = ng_error_string(status);
    return *text ? NG_OK : NG_INVALID_VALUE;
}

NG_API int cuGetProcAddress_v2(const char *name, void **entry, int UNUSED(version),
                               uint64_t UNUSED(flags), int *result)
{
    enum { FOUND = 0, NOT_FOUND = 1 }; /* CUdriverProcAddressQueryResult */
    *entry = ng_driver_entry(name);
    if (result)
        *result = *entry ? FOUND : NOT_FOUND;
    return *entry ? NG_OK : NG_NOT_FOUND;
}

NG_API int cuGetProcAddress(const char *name, void **entry, int version, uint64_t flags)
{
    return cuGetProcAddress_v2(name, entry, version, flags, NULL);
}

/* --- devices --------------------------------------------------------------------------------------- */

NG_API int cuDeviceGetCount(int *count)
{
    int status = ng_init();
    *count = status ? 0 : ng_device_count();
    return status;
}

NG_API int cuDeviceGet(int *device, int ordinal)
{
    int status = ng_check_device(ordinal);
    if (status == NG_OK)
        *device = ordinal;
    return status;
}

NG_API int cuDeviceGetName(char *name, int length, int device)
{
    int status = ng_check_device(device);
    if (status == NG_OK && length > 0)
        snprintf(name, (size_t)length, "%s", ng_profile()->name);
    return status;
}

NG_API int cuDeviceGetUuid(unsigned char *uuid, int device)
{
    int status = ng_check_device(device);
    if (status == NG_OK)
        ng_uuid(uuid, ng_physical_device(device));
    return status;
}

NG_API int cuDeviceGetUuid_v2(unsigned char *uuid, int device)
{
    return cuDeviceGetUuid(uuid, device);
}

NG_API int cuDeviceTotalMem_v2(size_t *bytes, int device)
{
    int status = ng_check_device(device);
    if (status == NG_OK)
        *bytes = ng_profile()->total_memory;
    return status;
}

NG_API int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    return ng_get_attribute(value, attribute, device);
}

NG_API int cuDeviceGetPCIBusId(char *text, int length, int device)
{
    int status = ng_check_device(device);
    if (status == NG_OK)
        ng_pci_bus_id(text, length, ng_physical_device(device));
    return status;
}

NG_API int cuDeviceCanAccessPeer(int *can, int device, int peer)
{
    int status = ng_check_device(device);
    if (status == NG_OK)
        status = ng_check_device(peer);
    *can = status == NG_OK && device != peer && ng_profile()->peer_access;
    return status;
}

/* --- contexts: the primary one of each device --------------------------------------------------- */

static char contexts[NG_MAX_DEVICES]; /* only their addresses count */

static void *context_of(int device) { return &contexts[device]; }

/* The context's device, -1 for NULL, -2 for what is no context. */
static int device_of(const void *context)
{
    if (!context)
        return -1;
    uintptr_t at = (uintptr_t)context, first = (uintptr_t)contexts;
    bool known = ng_init() == NG_OK && at >= first && at - first < (uintptr_t)ng_device_count();
    return known ? (int)(at - first) : -2;
}

NG_API int cuDevicePrimaryCtxRetain(void **context, int device)
{
    int status = ng_check_device(device);
    if (status)
        return status;
    ng_make_active(device);
    *context = context_of(device);
    return NG_OK;
}

NG_API int cuDevicePrimaryCtxRelease_v2(int device) { return ng_check_device(device); }

NG_API int cuDevicePrimaryCtxSetFlags_v2(int device, unsigned UNUSED(flags))
{
    return ng_check_device(device);
}

NG_API int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active)
{
    int status = ng_check_device(device);
    if (flags)
        *flags = 0;
    if (active)
        *active = status == NG_OK && ng_device_is_active(device);
    return status;
}

NG_API int cuCtxGetCurrent(void **context)
{
    int status = ng_init();
    *context = status == NG_OK && ng_has_context() ? context_of(ng_current_device()) : NULL;
    return status;
}

NG_API int cuCtxSetCurrent(void *context)
{
    int device = device_of(context);
    if (device == -2)
        return NG_INVALID_CONTEXT;
    ng_set_context(device);
    return NG_OK;
}

enum { CONTEXTS = 32 };
static _Thread_local void *pushed[CONTEXTS]; /* what was current before each push */
static _Thread_local int pushed_count;

NG_API int cuCtxPushCurrent_v2(void *context)
{
    if (device_of(context) < 0 || pushed_count == CONTEXTS)
        return NG_INVALID_CONTEXT;
    cuCtxGetCurrent(&pushed[pushed_count++]);
    return cuCtxSetCurrent(context);
}

NG_API int cuCtxPopCurrent_v2(void **context)
{
    void *current;
    cuCtxGetCurrent(&current);
    if (!current)
        return NG_INVALID_CONTEXT;
    if (context)
        *context = current;
    return cuCtxSetCurrent(pushed_count ? pushed[--pushed_count] : NULL);
}

NG_API int cuCtxGetDevice(int *device)
{
    if (!ng_has_context())
        return NG_INVALID_CONTEXT;
    *device = ng_current_device();
    return NG_OK;
}

NG_API int cuCtxSynchronize(void) { return ng_has_context() ? NG_OK : NG_INVALID_CONTEXT; }

NG_API int cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    int status = ng_activate();
    if (least)
        *least = (int)ng_profile()->lowest_stream_priority;
    if (greatest)
        *greatest = (int)ng_profile()->greatest_stream_priority;
    return status;
}

NG_API int cuCtxGetLimit(size_t *value, int limit) { return ng_get_limit(value, limit); }

NG_API int cuCtxSetLimit(int UNUSED(limit), size_t UNUSED(value))
{
    return ng_has_context() ? NG_OK : NG_INVALID_CONTEXT;
}

NG_API int cuCtxGetFlags(unsigned *flags)
{
    *flags = 0;
    return ng_has_context() ? NG_OK : NG_INVALID_CONTEXT;
}

/* --- the driver's log of errors: taken, and never written to -------------------------------------- */

NG_API int cuLogsRegisterCallback(void *UNUSED(function), void *UNUSED(data), void **handle)
{
    static char registered; /* only its address counts */
    if (handle)
        *handle = &registered;
    return NG_OK;
}

NG_API int cuLogsUnregisterCallback(void *UNUSED(handle)) { return NG_OK; }
