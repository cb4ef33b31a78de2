/* Virtual memory management, for torch's expandable segments: an address range is reserved
 * without access, and what is mapped into it becomes readable and writable.
 *
 * The bytes belong to the address, not to the physical handle: a handle mapped at a second place
 * would not show the same bytes there, so that is refused. */
#define _GNU_SOURCE
#include "nullgpu.h"
#include "abi.h"

#include <stdlib.h>
#include <sys/mman.h>

enum { GRANULARITY = 2 << 20, ACCESS_NONE = 0 };

struct physical {
    struct ng_handle head;
    struct ng_allocation_properties properties;
    size_t size;
    int references; /* of the program and of the mapping, under the lock */
    bool mapped;
};

NG_API int cuMemGetAllocationGranularity(size_t *granularity, const void *UNUSED(properties),
                                         int UNUSED(option))
{
    *granularity = GRANULARITY;
    return ng_init();
}

NG_API int cuMemAddressReserve(uintptr_t *address, size_t size, size_t alignment,
                               uintptr_t UNUSED(wish), unsigned long long UNUSED(flags))
{
    int status = ng_activate();
    if (status)
        return status;
    if (size == 0 || size % GRANULARITY || size > SIZE_MAX / 2)
        return NG_INVALID_VALUE;
    if (alignment < GRANULARITY)
        alignment = GRANULARITY;
    if (alignment & (alignment - 1))
        return NG_INVALID_VALUE;
    char *base = mmap(NULL, size + alignment, PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED)
        return NG_OUT_OF_MEMORY;
    size_t before = (size_t)(-(uintptr_t)base & (alignment - 1));
    if (before)
        munmap(base, before);
    if (alignment - before)
        munmap(base + before + size, alignment - before);
    *address = (uintptr_t)(base + before);
    return NG_OK;
}

NG_API int cuMemAddressFree(uintptr_t address, size_t size)
{
    struct ng_range range;
    ng_lock();
    bool in_use = ng_table_first_in((void *)address, size, &range);
    ng_unlock();
    return in_use || munmap((void *)address, size) != 0 ? NG_INVALID_VALUE : NG_OK;
}

NG_API int cuMemCreate(void **handle, size_t size,
                       const struct ng_allocation_properties *properties,
                       unsigned long long UNUSED(flags))
{
    int status = ng_check_device(properties->location.id);
    if (status)
        return status;
    if (size == 0 || size % GRANULARITY)
        return NG_INVALID_VALUE;
    ng_lock();
    status = ng_account_take(properties->location.id, size);
    ng_unlock();
    if (status)
        return status;
    struct physical *created = ng_handle_create(NG_PHYSICAL_MEMORY, sizeof *created);
    if (!created) {
        ng_lock();
        ng_account_give(properties->location.id, size);
        ng_unlock();
        return NG_OUT_OF_MEMORY;
    }
    created->head.device = properties->location.id;
    created->properties = *properties;
    created->size = size;
    created->references = 1;
    *handle = created;
    return NG_OK;
}

static void drop_reference(struct physical *memory)
{
    ng_lock();
    bool last = --memory->references == 0;
    if (last)
        ng_account_give(memory->head.device, memory->size);
    ng_unlock();
    if (last)
        free(ng_handle_take(memory, NG_PHYSICAL_MEMORY));
}

NG_API int cuMemRelease(void *handle)
{
    if (!ng_handle_valid(handle, NG_PHYSICAL_MEMORY))
        return NG_INVALID_VALUE;
    drop_reference(handle);
    return NG_OK;
}

NG_API int cuMemMap(uintptr_t address, size_t size, size_t offset, void *handle,
                    unsigned long long UNUSED(flags))
{
    if (!ng_handle_valid(handle, NG_PHYSICAL_MEMORY))
        return NG_INVALID_VALUE;
    struct physical *memory = handle;
    struct ng_range other, range = {
        .base = (char *)address, .size = size, .kind = NG_DEVICE,
        .device = memory->head.device, .mapped = handle,
    };
    int status = NG_OK;
    ng_lock();
    if (memory->mapped)
        status = ng_fail(NG_NOT_SUPPORTED, "the null GPU does not answer cuMemMap of one handle at "
                                           "two places");
    else if (offset || size != memory->size || ng_table_first_in(range.base, size, &other))
        status = NG_INVALID_VALUE;
    else
        status = ng_table_add(range);
    if (status == NG_OK) {
        memory->mapped = true;
        memory->references++;
    }
    ng_unlock();
    return status;
}

NG_API int cuMemSetAccess(uintptr_t address, size_t size, const struct ng_access *access,
                          size_t count)
{
    bool any = false;
    for (size_t i = 0; i < count; i++)
        any = any || access[i].flags != ACCESS_NONE;
    int protection = any ? PROT_READ | PROT_WRITE : PROT_NONE;
    return mprotect((void *)address, size, protection) == 0 ? NG_OK : NG_INVALID_VALUE;
}

NG_API int cuMemUnmap(uintptr_t address, size_t size)
{
    for (;;) {
        struct ng_range range;
        ng_lock();
        bool found = ng_table_first_in((void *)address, size, &range) && range.mapped;
        if (found) {
            ng_table_remove(range.base);
            ((struct physical *)range.mapped)->mapped = false;
        }
        ng_unlock();
        if (!found)
            break;
        drop_reference((struct physical *)range.mapped);
    }
    /* Mapped anew rather than only closed, so that the pages go back to the system. */
    void *closed = mmap((void *)address, size, PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    return closed == MAP_FAILED ? NG_INVALID_VALUE : NG_OK;
}

NG_API int cuMemRetainAllocationHandle(void **handle, void *address)
{
    struct ng_range range;
    int status = NG_INVALID_VALUE;
    ng_lock();
    if (ng_table_find(address, &range) && range.mapped) {
        ((struct physical *)range.mapped)->references++;
        *handle = range.mapped;
        status = NG_OK;
    }
    ng_unlock();
    return status;
}

NG_API int cuMemGetAllocationPropertiesFromHandle(struct ng_allocation_properties *properties,
                                                  void *handle)
{
    if (!ng_handle_valid(handle, NG_PHYSICAL_MEMORY))
        return NG_INVALID_VALUE;
    *properties = ((struct physical *)handle)->properties;
    return NG_OK;
}
