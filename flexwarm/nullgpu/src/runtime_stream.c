/* The CUDA runtime: streams and events. */
#include "runtime.h"

NG_API int cudaStreamCreateWithPriority(void **stream, unsigned flags, int priority)
{
    return ng_runtime_result(ng_stream_create(stream, flags, priority));
}

NG_API int cudaStreamCreateWithFlags(void **stream, unsigned flags)
{
    return cudaStreamCreateWithPriority(stream, flags, 0);
}

NG_API int cudaStreamCreate(void **stream) { return cudaStreamCreateWithPriority(stream, 0, 0); }

NG_API int cudaStreamDestroy(void *stream) { return ng_runtime_result(ng_stream_destroy(stream)); }
NG_API int cudaStreamQuery(void *stream) { return ng_runtime_result(ng_stream_check(stream)); }
NG_API int cudaStreamSynchronize(void *stream) { return ng_runtime_result(ng_stream_check(stream)); }

NG_API int cudaStreamWaitEvent(void *stream, void *event, unsigned UNUSED(flags))
{
    int status = ng_stream_check(stream);
    return ng_runtime_result(status ? status : ng_event_check(event));
}

NG_API int cudaStreamGetPriority(void *stream, int *priority)
{
    return ng_runtime_result(ng_stream_priority(stream, priority));
}

NG_API int cudaStreamGetFlags(void *stream, unsigned *flags)
{
    return ng_runtime_result(ng_stream_flags(stream, flags));
}

NG_API int cudaStreamGetDevice(void *stream, int *device)
{
    return ng_runtime_result(ng_stream_device(stream, device));
}

NG_API int cudaStreamGetId(void *stream, unsigned long long *id)
{
    *id = (uintptr_t)stream;
    return ng_runtime_result(ng_stream_check(stream));
}

/* Called here and now, as all before it on the stream is done. */
NG_API int cudaLaunchHostFunc(void *stream, void (*function)(void *), void *data)
{
    int status = ng_stream_check(stream);
    if (status == NG_OK)
        function(data);
    return ng_runtime_result(status);
}

NG_API int cudaStreamAddCallback(void *stream, void (*function)(void *, int, void *), void *data,
                                 unsigned UNUSED(flags))
{
    int status = ng_stream_check(stream);
    if (status == NG_OK)
        function(stream, NG_OK, data);
    return ng_runtime_result(status);
}

/* --- capture: no stream is ever captured; beginning one is unanswered ----------------------------- */

enum { CAPTURE_NONE = 0 };

NG_API int cudaStreamIsCapturing(void *stream, int *capture)
{
    *capture = CAPTURE_NONE;
    return ng_runtime_result(ng_stream_check(stream));
}

/* The forms differ in what they give of a capture, which there is none of. */
NG_API int cudaStreamGetCaptureInfo(void *stream, int *capture)
{
    return cudaStreamIsCapturing(stream, capture);
}

NG_API int cudaStreamGetCaptureInfo_v2(void *stream, int *capture)
{
    return cudaStreamIsCapturing(stream, capture);
}

NG_API int cudaStreamGetCaptureInfo_v3(void *stream, int *capture)
{
    return cudaStreamIsCapturing(stream, capture);
}

NG_API int cudaThreadExchangeStreamCaptureMode(int *mode)
{
    static _Thread_local int current;
    int before = current;
    current = *mode;
    *mode = before;
    return NG_OK;
}

/* --- events ---------------------------------------------------------------------------------------- */

NG_API int cudaEventCreateWithFlags(void **event, unsigned flags)
{
    return ng_runtime_result(ng_event_create(event, flags));
}

NG_API int cudaEventCreate(void **event) { return cudaEventCreateWithFlags(event, 0); }
NG_API int cudaEventDestroy(void *event) { return ng_runtime_result(ng_event_destroy(event)); }
NG_API int cudaEventQuery(void *event) { return ng_runtime_result(ng_event_check(event)); }
NG_API int cudaEventSynchronize(void *event) { return ng_runtime_result(ng_event_check(event)); }

NG_API int cudaEventRecord(void *event, void *stream)
{
    return ng_runtime_result(ng_event_record(event, stream));
}

NG_API int cudaEventRecordWithFlags(void *event, void *stream, unsigned UNUSED(flags))
{
    return cudaEventRecord(event, stream);
}

NG_API int cudaEventElapsedTime(float *milliseconds, void *start, void *end)
{
    return ng_runtime_result(ng_event_elapsed(milliseconds, start, end));
}

NG_API int cudaEventElapsedTime_v2(float *milliseconds, void *start, void *end)
{
    return cudaEventElapsedTime(milliseconds, start, end);
}
