/* Every call that torch, Triton or NVIDIA's runtime and driver know and that nothing here answers
 * fails by name. The definitions are weak: a file that answers a call overrides its line in
 * unanswered.def, so the list is the whole of the symbols and never needs weeding. What remains
 * weak in the library (nm -D, type W) is what is unanswered. */
#include "runtime.h"

#include <string.h>

/* Each library's own "not supported". */
enum {
    STATUS_cuda_runtime = NG_NOT_SUPPORTED,
    STATUS_cuda_driver = NG_NOT_SUPPORTED,
    STATUS_cublas = 15,      /* CUBLAS_STATUS_NOT_SUPPORTED */
    STATUS_cublasLt = 15,    /* the same */
    STATUS_cudnn = 3000,     /* CUDNN_STATUS_NOT_SUPPORTED */
    STATUS_cufft = 16,       /* CUFFT_NOT_SUPPORTED */
    STATUS_cufile = 5011,    /* CU_FILE_PLATFORM_NOT_SUPPORTED, in a structure of two ints */
    STATUS_cupti = 27,       /* CUPTI_ERROR_NOT_SUPPORTED */
    STATUS_cusolver = 9,     /* CUSOLVER_STATUS_NOT_SUPPORTED */
    STATUS_cusparse = 10,    /* CUSPARSE_STATUS_NOT_SUPPORTED */
    STATUS_cusparseLt = 10,  /* the same */
    STATUS_nccl = 5,         /* ncclInvalidUsage */
    STATUS_nvml = 3,         /* NVML_ERROR_NOT_SUPPORTED */
    STATUS_nvshmem = 3,      /* NVSHMEMX_ERROR_NOT_SUPPORTED */
};

static int unanswered(struct ng_call *call, int status)
{
    ng_unanswered(call, status);
    return strcmp(call->library, "cuda_runtime") == 0 ? ng_runtime_result(status) : status;
}

/* Defined without the parameters, which a callee that reads none may do in the calling
 * conventions of our hosts: the caller passes and removes them. */
#define UNANSWERED(library, call)                                                           \
    NG_API __attribute__((weak)) int call(void)                                             \
    {                                                                                       \
        static struct ng_call called = { #library, #call, ATOMIC_FLAG_INIT };               \
        return unanswered(&called, STATUS_##library);                                       \
    }
#include "unanswered.def"
#undef UNANSWERED

/* --- the texts that torch puts in its exceptions ---------------------------------------------- */

NG_API const char *ncclGetLastError(void *UNUSED(communicator))
{
    const char *text = ng_failure_text(STATUS_nccl);
    return text ? text : "";
}

NG_API const char *cudnnGetErrorString(int status)
{
    const char *text = ng_failure_text(status);
    return text ? text : status ? "cuDNN error" : "CUDNN_STATUS_SUCCESS";
}
