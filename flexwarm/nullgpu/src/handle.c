#include "nullgpu.h"

#include <stdlib.h>

enum { BUCKETS = 1024 };
static struct ng_handle *buckets[BUCKETS]; /* under the lock */

static struct ng_handle **bucket_of(const void *handle)
{
    return &buckets[((uintptr_t)handle >> 4) % BUCKETS];
}

void *ng_handle_create(enum ng_handle_kind kind, size_t size)
{
    struct ng_handle *handle = calloc(1, size);
    if (!handle)
        return NULL;
    handle->kind = kind;
    handle->device = ng_current_device();
    ng_lock();
    struct ng_handle **bucket = bucket_of(handle);
    handle->next = *bucket;
    *bucket = handle;
    ng_unlock();
    return handle;
}

/* The link that holds the handle, or the empty link at the end. */
static struct ng_handle **find(const void *handle, enum ng_handle_kind kind)
{
    struct ng_handle **link = bucket_of(handle);
    while (*link && (*link != handle || (*link)->kind != kind))
        link = &(*link)->next;
    return link;
}

bool ng_handle_valid(const void *handle, enum ng_handle_kind kind)
{
    ng_lock();
    bool valid = *find(handle, kind) != NULL;
    ng_unlock();
    return valid;
}

void *ng_handle_take(void *handle, enum ng_handle_kind kind)
{
    ng_lock();
    struct ng_handle **link = find(handle, kind);
    struct ng_handle *taken = *link;
    if (taken)
        *link = taken->next;
    ng_unlock();
    return taken;
}
