/* cuDNN's graph interface, which torch uses for attention and convolutions: a graph of any shape
 * has one engine, which needs no workspace and does nothing. The older interface (recurrent
 * layers, batch normalization) is unanswered. */
#include "nullgpu.h"

#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, BAD_PARAM = 2000, ALLOCATION_FAILED = 2003 };

struct cudnn {
    void *stream;
};

NG_API int cudnnCreate(void **handle)
{
    *handle = calloc(1, sizeof(struct cudnn));
    return *handle ? SUCCESS : ALLOCATION_FAILED;
}

NG_API int cudnnDestroy(void *handle)
{
    free(handle);
    return SUCCESS;
}

NG_API int cudnnSetStream(struct cudnn *handle, void *stream)
{
    handle->stream = stream;
    return SUCCESS;
}

NG_API int cudnnGetStream(struct cudnn *handle, void **stream)
{
    *stream = handle->stream;
    return SUCCESS;
}

/* --- descriptors: what is set is not kept, as nothing asks for it ------------------------------- */

NG_API int cudnnBackendCreateDescriptor(int UNUSED(type), void **descriptor)
{
    *descriptor = calloc(1, 1); /* an address of its own */
    return *descriptor ? SUCCESS : ALLOCATION_FAILED;
}

NG_API int cudnnBackendDestroyDescriptor(void *descriptor)
{
    free(descriptor);
    return SUCCESS;
}

NG_API int cudnnBackendInitialize(void *UNUSED(descriptor)) { return SUCCESS; }
NG_API int cudnnBackendFinalize(void *UNUSED(descriptor)) { return SUCCESS; }

NG_API int cudnnBackendSetAttribute(void *UNUSED(descriptor), int UNUSED(attribute),
                                    int UNUSED(type), int64_t UNUSED(count),
                                    const void *UNUSED(elements))
{
    return SUCCESS;
}

NG_API int cudnnBackendExecute(void *UNUSED(handle), void *UNUSED(plan), void *UNUSED(pack))
{
    return SUCCESS;
}

enum { /* cudnnBackendAttributeType_t */
    TYPE_HANDLE = 0, TYPE_BOOLEAN = 2, TYPE_INT64 = 3, TYPE_DOUBLE = 5, TYPE_VOID_PTR = 6,
    TYPE_NUMERICAL_NOTE = 11, TYPE_BACKEND_DESCRIPTOR = 15, TYPE_BEHAVIOR_NOTE = 19,
    TYPE_CHAR = 24, TYPE_FRACTION = 26,
};
enum { KNOB_CHOICES = 302, KNOB_INFO = 1302 };

static size_t size_of(int type)
{
    switch (type) {
    case TYPE_BOOLEAN:
    case TYPE_CHAR: return 1;
    case TYPE_HANDLE:
    case TYPE_INT64:
    case TYPE_DOUBLE:
    case TYPE_VOID_PTR: return 8;
    case TYPE_FRACTION: return 16;
    default: return 4;
    }
}

/* One of everything, and that is zero: one engine, number 0, workspace 0. None of what may be
 * absent: notes and knobs. Descriptors are the caller's own, to be filled in: they stay. */
NG_API int cudnnBackendGetAttribute(const void *UNUSED(descriptor), int attribute, int type,
                                    int64_t wanted, int64_t *count, void *elements)
{
    bool none = type == TYPE_NUMERICAL_NOTE || type == TYPE_BEHAVIOR_NOTE
             || attribute == KNOB_CHOICES || attribute == KNOB_INFO;
    if (wanted < 0)
        return BAD_PARAM;
    if (count)
        *count = none ? 0 : 1;
    if (elements && wanted && !none && type != TYPE_BACKEND_DESCRIPTOR)
        memset(elements, 0, size_of(type));
    return SUCCESS;
}
