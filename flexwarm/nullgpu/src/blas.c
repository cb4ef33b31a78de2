/* cuBLAS and cuBLASLt: every computation succeeds and leaves its output as it is. What is set is
 * kept, as torch reads it back. Calls that need no device, like the versions, are left to NVIDIA's
 * library. */
#include "nullgpu.h"
#include "abi.h"

#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, ALLOCATION_FAILED = 3, INVALID_VALUE = 7 };

#define NOTHING(name) \
    NG_API int name(void) { return SUCCESS; }
#include "blas.def"
#undef NOTHING

/* --- cuBLAS ------------------------------------------------------------------------------------------- */

struct blas {
    void *stream;
    int pointer_mode, math_mode, atomics_mode, multiprocessors;
};

NG_API int cublasCreate_v2(void **handle)
{
    *handle = calloc(1, sizeof(struct blas));
    return *handle ? SUCCESS : ALLOCATION_FAILED;
}

NG_API int cublasDestroy_v2(void *handle)
{
    free(handle);
    return SUCCESS;
}

#define PROPERTY(suffix, type, member)                            \
    NG_API int cublasSet##suffix(struct blas *handle, type value) \
    {                                                             \
        handle->member = value;                                   \
        return SUCCESS;                                           \
    }                                                             \
    NG_API int cublasGet##suffix(struct blas *handle, type *value) \
    {                                                             \
        *value = handle->member;                                  \
        return SUCCESS;                                           \
    }
PROPERTY(Stream_v2, void *, stream)
PROPERTY(PointerMode_v2, int, pointer_mode)
PROPERTY(MathMode, int, math_mode)
PROPERTY(AtomicsMode, int, atomics_mode)
PROPERTY(SmCountTarget, int, multiprocessors)

/* --- cuBLASLt ------------------------------------------------------------------------------------------ */

static int create(void **object)
{
    *object = calloc(1, 1); /* an address of its own */
    return *object ? SUCCESS : ALLOCATION_FAILED;
}

static int destroy(void *object)
{
    free(object);
    return SUCCESS;
}

NG_API int cublasLtCreate(void **handle) { return create(handle); }
NG_API int cublasLtDestroy(void *handle) { return destroy(handle); }
NG_API int cublasLtMatmulDescCreate(void **description) { return create(description); }
NG_API int cublasLtMatmulDescDestroy(void *description) { return destroy(description); }
NG_API int cublasLtMatmulPreferenceCreate(void **preference) { return create(preference); }
NG_API int cublasLtMatmulPreferenceDestroy(void *preference) { return destroy(preference); }
NG_API int cublasLtMatrixLayoutCreate(void **layout) { return create(layout); }
NG_API int cublasLtMatrixLayoutDestroy(void *layout) { return destroy(layout); }

NG_API int cublasLtMatmulAlgoConfigGetAttribute(const void *UNUSED(algorithm),
                                                int UNUSED(attribute), void *value, size_t size,
                                                size_t *written)
{
    memset(value, 0, size);
    if (written)
        *written = size;
    return SUCCESS;
}

/* One algorithm, which needs no workspace: torch takes the first, and fails if there is none. */
NG_API int cublasLtMatmulAlgoGetHeuristic(void *UNUSED(handle), void *UNUSED(description),
                                          void *UNUSED(a), void *UNUSED(b), void *UNUSED(c),
                                          void *UNUSED(d), void *UNUSED(preference), int wanted,
                                          struct ng_matmul_heuristic *results, int *found)
{
    if (wanted < 1)
        return INVALID_VALUE;
    memset(results, 0, sizeof *results);
    results->waves = 1;
    *found = 1;
    return SUCCESS;
}

NG_API int cublasLtMatmulAlgoCheck(void *UNUSED(handle), void *UNUSED(description),
                                   void *UNUSED(a), void *UNUSED(b), void *UNUSED(c),
                                   void *UNUSED(d), const void *UNUSED(algorithm),
                                   struct ng_matmul_heuristic *result)
{
    memset(result, 0, sizeof *result);
    result->waves = 1;
    return SUCCESS;
}
