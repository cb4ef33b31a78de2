/* Streams and events. Work is done at once, so a stream is always idle and an event, once
 * recorded, has always happened. */
#include "nullgpu.h"

#include <stdlib.h>

struct stream {
    struct ng_handle head;
    unsigned flags;
    int priority;
};

enum { EVENT_DISABLE_TIMING = 2 };

struct event {
    struct ng_handle head;
    unsigned flags;
    _Atomic uint64_t milliseconds; /* 0: never recorded */
};

/* Time is counted in recorded events, a millisecond each: it rises strictly, no difference is
 * zero, and a benchmark's outcome does not depend on how busy this machine is. Every kernel
 * takes as long as any other, so of equals the first is chosen, every time. */
static _Atomic uint64_t clock_milliseconds;

static bool is_default_stream(const void *stream)
{
    return (uintptr_t)stream <= 2; /* NULL, cudaStreamLegacy, cudaStreamPerThread */
}

int ng_stream_create(void **stream, unsigned flags, int priority)
{
    int status = ng_activate();
    if (status)
        return status;
    struct stream *created = ng_handle_create(NG_STREAM, sizeof *created);
    if (!created)
        return NG_OUT_OF_MEMORY;
    const struct ng_profile *profile = ng_profile();
    if (priority > profile->lowest_stream_priority)
        priority = (int)profile->lowest_stream_priority;
    if (priority < profile->greatest_stream_priority)
        priority = (int)profile->greatest_stream_priority;
    created->flags = flags;
    created->priority = priority;
    *stream = created;
    return NG_OK;
}

int ng_stream_destroy(void *stream)
{
    struct stream *taken = ng_handle_take(stream, NG_STREAM);
    if (!taken)
        return NG_INVALID_HANDLE;
    free(taken);
    return NG_OK;
}

int ng_stream_check(void *stream)
{
    int status = ng_activate();
    if (status)
        return status;
    return is_default_stream(stream) || ng_handle_valid(stream, NG_STREAM) ? NG_OK
                                                                           : NG_INVALID_HANDLE;
}

int ng_stream_device(void *stream, int *device)
{
    int status = ng_stream_check(stream);
    if (status == NG_OK)
        *device = is_default_stream(stream) ? ng_current_device()
                                            : ((struct stream *)stream)->head.device;
    return status;
}

int ng_stream_priority(void *stream, int *priority)
{
    int status = ng_stream_check(stream);
    if (status == NG_OK)
        *priority = is_default_stream(stream) ? 0 : ((struct stream *)stream)->priority;
    return status;
}

int ng_stream_flags(void *stream, unsigned *flags)
{
    int status = ng_stream_check(stream);
    if (status == NG_OK)
        *flags = is_default_stream(stream) ? 0 : ((struct stream *)stream)->flags;
    return status;
}

int ng_event_create(void **event, unsigned flags)
{
    int status = ng_activate();
    if (status)
        return status;
    struct event *created = ng_handle_create(NG_EVENT, sizeof *created);
    if (!created)
        return NG_OUT_OF_MEMORY;
    created->flags = flags;
    *event = created;
    return NG_OK;
}

int ng_event_destroy(void *event)
{
    struct event *taken = ng_handle_take(event, NG_EVENT);
    if (!taken)
        return NG_INVALID_HANDLE;
    free(taken);
    return NG_OK;
}

int ng_event_check(void *event)
{
    return ng_handle_valid(event, NG_EVENT) ? NG_OK : NG_INVALID_HANDLE;
}

int ng_event_record(void *event, void *stream)
{
    int device, status = ng_stream_device(stream, &device);
    if (status)
        return status;
    if (ng_event_check(event))
        return NG_INVALID_HANDLE;
    struct event *recorded = event;
    if (recorded->head.device != device) /* CUDA refuses it too */
        return NG_INVALID_HANDLE;
    atomic_store(&recorded->milliseconds, atomic_fetch_add(&clock_milliseconds, 1) + 1);
    return NG_OK;
}

static _Thread_local unsigned long long timings;

/* How often this thread has asked how long something took. */
NG_API unsigned long long nullgpu_timings(void) { return timings; }

int ng_event_elapsed(float *milliseconds, void *start, void *end)
{
    timings++;
    if (ng_event_check(start) || ng_event_check(end))
        return NG_INVALID_HANDLE;
    struct event *first = start, *last = end;
    uint64_t from = atomic_load(&first->milliseconds), to = atomic_load(&last->milliseconds);
    if (!from || !to || ((first->flags | last->flags) & EVENT_DISABLE_TIMING))
        return NG_INVALID_HANDLE;
    *milliseconds = (float)((double)to - (double)from);
    return NG_OK;
}
