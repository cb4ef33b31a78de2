/* NVML, which torch asks for the count of devices and, when memory runs out, for processes: beside
 * a real driver its answers would be of the real GPUs. Loaded under its own name by a link
 * libnvidia-ml.so.1 to this library. It sees all devices, whatever CUDA_VISIBLE_DEVICES says. */
#define _GNU_SOURCE
#include "nullgpu.h"

#include <stdio.h>
#include <string.h>

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_FOUND = 6 };

static char devices[NG_MAX_DEVICES]; /* only their addresses count */

static int start(void)
{
    int status = ng_init();
    return status == NG_OK || status == NG_NO_DEVICE ? SUCCESS : UNINITIALIZED;
}

static int index_of(const void *device)
{
    uintptr_t at = (uintptr_t)device, first = (uintptr_t)devices;
    return at >= first && at - first < (uintptr_t)ng_physical_count() ? (int)(at - first) : -1;
}

NG_API int nvmlInit(void) { return start(); }
NG_API int nvmlInit_v2(void) { return start(); }
NG_API int nvmlInitWithFlags(unsigned UNUSED(flags)) { return start(); }
NG_API int nvmlShutdown(void) { return SUCCESS; }

NG_API const char *nvmlErrorString(int status)
{
    return status == SUCCESS ? "Success" : status == 3 ? "Not Supported" : "null GPU: NVML error";
}

NG_API int nvmlSystemGetCudaDriverVersion(int *version)
{
    *version = (int)ng_profile()->driver_version;
    return start();
}

NG_API int nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    return nvmlSystemGetCudaDriverVersion(version);
}

NG_API int nvmlDeviceGetCount_v2(unsigned *count)
{
    int status = start();
    *count = status ? 0 : (unsigned)ng_physical_count();
    return status;
}

NG_API int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device)
{
    if (start() != SUCCESS || index >= (unsigned)ng_physical_count())
        return INVALID_ARGUMENT;
    *device = &devices[index];
    return SUCCESS;
}

NG_API int nvmlDeviceGetHandleByPciBusId_v2(const char *text, void **device)
{
    unsigned domain, bus, slot, ours[3];
    if (start() != SUCCESS || sscanf(text, "%x:%x:%x", &domain, &bus, &slot) != 3)
        return INVALID_ARGUMENT;
    for (int i = 0; i < ng_physical_count(); i++) {
        char id[32];
        ng_pci_bus_id(id, sizeof id, i);
        if (sscanf(id, "%x:%x:%x", &ours[0], &ours[1], &ours[2]) == 3 && ours[0] == domain
            && ours[1] == bus && ours[2] == slot) {
            *device = &devices[i];
            return SUCCESS;
        }
    }
    return NOT_FOUND;
}

NG_API int nvmlDeviceGetIndex(void *device, unsigned *index)
{
    int at = index_of(device);
    if (at < 0)
        return INVALID_ARGUMENT;
    *index = (unsigned)at;
    return SUCCESS;
}

NG_API int nvmlDeviceGetName(void *device, char *name, unsigned length)
{
    if (index_of(device) < 0)
        return INVALID_ARGUMENT;
    snprintf(name, length, "%s", ng_profile()->name);
    return SUCCESS;
}

NG_API int nvmlDeviceGetUUID(void *device, char *text, unsigned length)
{
    if (index_of(device) < 0)
        return INVALID_ARGUMENT;
    char uuid[NG_UUID_TEXT];
    ng_uuid_text(uuid, index_of(device));
    snprintf(text, length, "%s", uuid);
    return SUCCESS;
}

NG_API int nvmlDeviceGetHandleByUUID(const char *text, void **device)
{
    for (int i = 0; start() == SUCCESS && i < ng_physical_count(); i++) {
        char uuid[NG_UUID_TEXT];
        ng_uuid_text(uuid, i);
        if (strcmp(uuid, text) == 0) {
            *device = &devices[i];
            return SUCCESS;
        }
    }
    return NOT_FOUND;
}

NG_API int nvmlDeviceGetMemoryInfo(void *device, unsigned long long memory[3])
{
    int at = index_of(device);
    if (at < 0)
        return INVALID_ARGUMENT;
    uint64_t used = 0, peak;
    for (int i = 0; i < ng_device_count(); i++)
        if (ng_physical_device(i) == at)
            ng_memory_used(i, &used, &peak);
    memory[0] = ng_profile()->total_memory; /* total, free, used */
    memory[1] = memory[0] - used;
    memory[2] = used;
    return SUCCESS;
}

/* Only this process's memory is known, and torch tells of that itself. */
NG_API int nvmlDeviceGetComputeRunningProcesses(void *device, unsigned *count)
{
    *count = 0;
    return index_of(device) < 0 ? INVALID_ARGUMENT : SUCCESS;
}

NG_API int nvmlDeviceGetComputeRunningProcesses_v2(void *device, unsigned *count)
{
    return nvmlDeviceGetComputeRunningProcesses(device, count);
}

NG_API int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count)
{
    return nvmlDeviceGetComputeRunningProcesses(device, count);
}
