/* Device memory is host memory that is reserved and not committed: it reads as zeros and takes
 * room only where the program writes, and kernels never do. */
#define _GNU_SOURCE
#include "nullgpu.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096 }; /* the step for finding zeros; a larger real page only makes it coarser */

/* Sorted by base, under the lock. A memmove for each insertion is cheap: torch allocates
 * large blocks and seldom. */
static struct ng_range *ranges;
static size_t range_count, range_room;

static uint64_t used_now[NG_MAX_DEVICES], used_peak[NG_MAX_DEVICES];

static _Thread_local unsigned long long reads;
static void (*_Atomic on_read)(void);
enum { OFTEN = 256 };

size_t ng_page_round(size_t size)
{
    return (size + PAGE - 1) / PAGE * PAGE;
}

/* The index of the first range that ends after the address. */
static size_t first_after(const char *address)
{
    size_t low = 0, high = range_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (ranges[middle].base + ranges[middle].size <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

int ng_table_add(struct ng_range range)
{
    if (range_count == range_room) {
        size_t room = range_room ? 2 * range_room : 256;
        struct ng_range *larger = realloc(ranges, room * sizeof *larger);
        if (!larger)
            return NG_OUT_OF_MEMORY;
        ranges = larger;
        range_room = room;
    }
    size_t at = first_after(range.base);
    memmove(ranges + at + 1, ranges + at, (range_count - at) * sizeof *ranges);
    ranges[at] = range;
    range_count++;
    return NG_OK;
}

bool ng_table_first_in(const void *base, size_t size, struct ng_range *range)
{
    size_t at = first_after(base);
    if (at == range_count || ranges[at].base >= (const char *)base + size)
        return false;
    *range = ranges[at];
    return true;
}

bool ng_table_find(const void *pointer, struct ng_range *range)
{
    return ng_table_first_in(pointer, 1, range);
}

void ng_table_remove(const void *base)
{
    size_t at = first_after(base);
    range_count--;
    memmove(ranges + at, ranges + at + 1, (range_count - at) * sizeof *ranges);
}

bool ng_find_range(const void *pointer, struct ng_range *range)
{
    ng_lock();
    bool found = ng_table_find(pointer, range);
    ng_unlock();
    return found;
}

int ng_account_take(int device, size_t size)
{
    uint64_t total = ng_profile()->total_memory;
    if (size > total || used_now[device] > total - size)
        return NG_OUT_OF_MEMORY;
    used_now[device] += size;
    if (used_peak[device] < used_now[device])
        used_peak[device] = used_now[device];
    return NG_OK;
}

void ng_account_give(int device, size_t size)
{
    used_now[device] -= size;
}

void ng_memory_used(int device, uint64_t *now, uint64_t *peak)
{
    ng_lock();
    *now = used_now[device];
    *peak = used_peak[device];
    ng_unlock();
}

static int allocate_locked(struct ng_range *range)
{
    bool counted = range->kind != NG_HOST;
    int status = counted ? ng_account_take(range->device, range->size) : NG_OK;
    if (status)
        return status;
    range->base = mmap(NULL, range->size, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (range->base == MAP_FAILED)
        status = NG_OUT_OF_MEMORY;
    else if (ng_table_add(*range) != NG_OK) {
        munmap(range->base, range->size);
        status = NG_OUT_OF_MEMORY;
    }
    if (status && counted)
        ng_account_give(range->device, range->size);
    return status;
}

int ng_allocate(void **pointer, size_t size, enum ng_memory_kind kind)
{
    int status = ng_activate();
    if (status)
        return status;
    *pointer = NULL;
    if (size == 0)
        return NG_OK;
    if (size > SIZE_MAX / 2)
        return NG_OUT_OF_MEMORY;
    struct ng_range range = {
        .size = ng_page_round(size), .kind = kind, .device = ng_current_device()
    };
    ng_lock();
    status = allocate_locked(&range);
    ng_unlock();
    if (status == NG_OK)
        *pointer = range.base;
    return status;
}

int ng_free(void *pointer, bool host)
{
    int status = ng_activate();
    if (status || !pointer)
        return status;
    struct ng_range range;
    ng_lock();
    if (!ng_table_find(pointer, &range) || range.base != pointer || range.borrowed || range.mapped
        || (range.kind == NG_HOST) != host) {
        status = NG_INVALID_VALUE;
    } else {
        ng_table_remove(pointer);
        munmap(range.base, range.size);
        if (range.kind != NG_HOST)
            ng_account_give(range.device, range.size);
    }
    ng_unlock();
    return status;
}

int ng_register_host(void *pointer, size_t size)
{
    int status = ng_activate();
    if (status)
        return status;
    if (!pointer || !size)
        return NG_INVALID_VALUE;
    struct ng_range range = {
        .base = pointer, .size = size, .kind = NG_HOST, .device = ng_current_device(),
        .borrowed = true,
    }, other;
    ng_lock();
    status = ng_table_first_in(pointer, size, &other) ? NG_HOST_ALREADY_REGISTERED
                                                      : ng_table_add(range);
    ng_unlock();
    return status;
}

int ng_unregister_host(void *pointer)
{
    struct ng_range range;
    int status = NG_OK;
    ng_lock();
    if (ng_table_find(pointer, &range) && range.base == pointer && range.borrowed)
        ng_table_remove(pointer);
    else
        status = NG_HOST_NOT_REGISTERED;
    ng_unlock();
    return status;
}

/* --- copies ---------------------------------------------------------------------------------- */

/* Whether all of it lies in one allocation; memory that we did not hand out is taken on trust. */
static bool in_bounds(const void *pointer, size_t size, bool *ours)
{
    struct ng_range range;
    bool known = ng_find_range(pointer, &range);
    *ours = known && !range.borrowed && range.kind != NG_HOST;
    if (!known || range.mapped) /* a segment is mapped in pieces */
        return true;
    return size <= range.size - (size_t)((const char *)pointer - range.base);
}

static bool is_zero(const void *memory, size_t size)
{
    const char *bytes = memory;
    return bytes[0] == 0 && memcmp(bytes, bytes + 1, size - 1) == 0;
}

/* Zeroes whole pages of an anonymous private mapping by dropping them. */
static void drop_pages(char *from, size_t size)
{
    /* The kernel rounds the size up to its own page, which may be larger, and takes what follows. */
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (size && (size % page || madvise(from, size, MADV_DONTNEED) != 0))
        memset(from, 0, size);
}

static size_t to_page(const char *pointer)
{
    return (size_t)(-(uintptr_t)pointer % PAGE);
}

static void copy_sparse(char *target, const char *source, size_t size)
{
    size_t head = to_page(target);
    if (head > size)
        head = size;
    memcpy(target, source, head);
    size_t at = head, zeros = 0;
    for (; size - at >= PAGE; at += PAGE) {
        if (is_zero(source + at, PAGE)) {
            zeros += PAGE;
            continue;
        }
        drop_pages(target + at - zeros, zeros);
        zeros = 0;
        memcpy(target + at, source + at, PAGE);
    }
    drop_pages(target + at - zeros, zeros);
    memcpy(target + at, source + at, size - at);
}

/* Not of each: Python takes signals where it is called, and what a handler raises there is lost. */
static void tell_of_read(void)
{
    static atomic_ullong seen;
    unsigned long long number = atomic_fetch_add(&seen, 1);
    void (*function)(void) = atomic_load(&on_read);
    if (function && (number < OFTEN || (number & (number - 1)) == 0))
        function();
}

int ng_copy(void *target, const void *source, size_t size)
{
    int status = ng_activate();
    if (status || size == 0)
        return status;
    bool to_device, from_device;
    if (!target || !source || !in_bounds(target, size, &to_device)
        || !in_bounds(source, size, &from_device))
        return NG_INVALID_VALUE;
    uintptr_t to = (uintptr_t)target, from = (uintptr_t)source;
    if (from_device && !to_device) {
        reads++;
        tell_of_read();
    }
    if (to_device && (to + size <= from || from + size <= to))
        copy_sparse(target, source, size);
    else
        memmove(target, source, size);
    return NG_OK;
}

int ng_fill(void *target, const void *value, size_t width, size_t count)
{
    int status = ng_activate();
    if (status || count == 0)
        return status;
    bool ours;
    char *bytes = target;
    size_t size = width * count;
    if (!target || !in_bounds(target, size, &ours))
        return NG_INVALID_VALUE;
    if (is_zero(value, width)) {
        if (ours && size >= 2 * PAGE) {
            size_t head = to_page(bytes), pages = (size - head) / PAGE * PAGE;
            memset(bytes, 0, head);
            drop_pages(bytes + head, pages);
            bytes += head + pages;
            size -= head + pages;
        }
        memset(bytes, 0, size);
    } else if (width == 1) {
        memset(bytes, *(const unsigned char *)value, size);
    } else {
        for (size_t at = 0; at < size; at += width)
            memcpy(bytes + at, value, width);
    }
    return NG_OK;
}

/* How often this thread has copied from a device to the host: what it got are no results. */
NG_API unsigned long long nullgpu_reads(void) { return reads; }

/* To be called at the first such copies and at some of the later ones, in their threads and under no
 * lock; none if NULL. */
NG_API void nullgpu_on_read(void (*function)(void)) { atomic_store(&on_read, function); }
