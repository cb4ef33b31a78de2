/* The CUDA runtime: the kernels that nvcc compiled into torch. They are registered and launched by
 * the address of a host function, and do nothing, but for the one in fill.c. */
#include "runtime.h"
#include "abi.h"

#include <string.h>

enum { INVALID_CONFIGURATION = 9, INVALID_DEVICE_FUNCTION = 98 };

/* --- what the compiler's start-up code calls ------------------------------------------------------ */

static void *fat_binary; /* only its address counts: torch has one for each source file */

NG_API void **__cudaRegisterFatBinary(void *UNUSED(binary)) { return &fat_binary; }
NG_API void __cudaRegisterFatBinaryEnd(void **UNUSED(handle)) {}
NG_API void __cudaUnregisterFatBinary(void **UNUSED(handle)) {}
NG_API char __cudaInitModule(void **UNUSED(handle)) { return 1; }

NG_API void __cudaRegisterFunction(void **UNUSED(handle), const char *host_function,
                                   char *UNUSED(device_function), const char *name,
                                   int UNUSED(thread_limit), void *UNUSED(thread),
                                   void *UNUSED(block), void *UNUSED(block_dim),
                                   void *UNUSED(grid_dim), int *UNUSED(warp_size))
{
    ng_register_kernel(host_function, name);
}

NG_API void __cudaRegisterVar(void **UNUSED(handle), char *UNUSED(host_variable),
                              char *UNUSED(address), const char *UNUSED(name), int UNUSED(external),
                              size_t UNUSED(size), int UNUSED(constant), int UNUSED(global))
{
}

/* Between <<<...>>> and the launch of a kernel's host function the configuration is kept here. A
 * kernel's arguments may be computed by code that launches others, hence a stack. */
enum { CONFIGURATIONS = 16 };
static _Thread_local struct configuration {
    struct ng_dim3 grid, block;
    size_t shared;
    void *stream;
} configurations[CONFIGURATIONS];
static _Thread_local int configuration_count;

NG_API unsigned __cudaPushCallConfiguration(struct ng_dim3 grid, struct ng_dim3 block,
                                            size_t shared, void *stream)
{
    if (configuration_count == CONFIGURATIONS)
        return (unsigned)ng_runtime_result(NG_INVALID_VALUE);
    configurations[configuration_count++] = (struct configuration){ grid, block, shared, stream };
    return NG_OK;
}

NG_API int __cudaPopCallConfiguration(struct ng_dim3 *grid, struct ng_dim3 *block, size_t *shared,
                                      void **stream)
{
    if (configuration_count == 0)
        return ng_runtime_result(NG_INVALID_VALUE);
    const struct configuration *top = &configurations[--configuration_count];
    *grid = top->grid;
    *block = top->block;
    *shared = top->shared;
    *stream = top->stream;
    return NG_OK;
}

NG_API int __cudaGetKernel(void **kernel, const void *function)
{
    *kernel = (void *)(uintptr_t)function;
    return NG_OK;
}

NG_API int cudaGetKernel(void **kernel, const void *function)
{
    return __cudaGetKernel(kernel, function);
}

/* --- launches --------------------------------------------------------------------------------------- */

NG_API int cudaLaunchKernel(const void *function, struct ng_dim3 grid, struct ng_dim3 block,
                            void **arguments, size_t shared, void *stream)
{
    if (!function)
        return ng_runtime_result(INVALID_DEVICE_FUNCTION);
    int status = ng_stream_check(stream);
    if (status)
        return ng_runtime_result(status);
    size_t limit = (size_t)ng_profile()->attribute[NG_max_shared_memory_per_block_optin];
    status = ng_launch((unsigned[]){ grid.x, grid.y, grid.z },
                       (unsigned[]){ block.x, block.y, block.z }, shared, limit, stream);
    if (status == NG_INVALID_VALUE && shared <= limit)
        status = INVALID_CONFIGURATION;
    return ng_runtime_result(status ? status : ng_run_kernel(function, arguments));
}

NG_API int __cudaLaunchKernel(const void *kernel, struct ng_dim3 grid, struct ng_dim3 block,
                              void **arguments, size_t shared, void *stream)
{
    return cudaLaunchKernel(kernel, grid, block, arguments, shared, stream);
}

NG_API int cudaLaunchCooperativeKernel(const void *function, struct ng_dim3 grid,
                                       struct ng_dim3 block, void **arguments, size_t shared,
                                       void *stream)
{
    return cudaLaunchKernel(function, grid, block, arguments, shared, stream);
}

NG_API int cudaLaunchKernelExC(const struct ng_launch_config *config, const void *function,
                               void **arguments)
{
    return cudaLaunchKernel(function, config->grid, config->block, arguments, config->shared,
                            config->stream);
}

/* --- attributes and occupancy ---------------------------------------------------------------------- */

/* torch's own kernels are not read, so they use no registers: they are already compiled, and
 * nothing that is compiled depends on them. */
NG_API int cudaFuncGetAttributes(struct ng_function_attributes *attributes, const void *function)
{
    int status = ng_activate();
    if (status == NG_OK && !function)
        status = INVALID_DEVICE_FUNCTION;
    if (status)
        return ng_runtime_result(status);
    const int *device = ng_profile()->attribute;
    memset(attributes, 0, sizeof *attributes);
    attributes->maxThreadsPerBlock = device[NG_max_threads_per_block];
    attributes->ptxVersion = 10 * device[NG_compute_capability_major]
                           + device[NG_compute_capability_minor];
    attributes->binaryVersion = attributes->ptxVersion;
    attributes->maxDynamicSharedSizeBytes = device[NG_max_shared_memory_per_block];
    attributes->preferredShmemCarveout = -1;
    return NG_OK;
}

NG_API int cudaFuncSetAttribute(const void *function, int attribute, int value)
{
    enum { MAX_DYNAMIC_SHARED_SIZE = 8 };
    int status = ng_activate();
    if (status == NG_OK && !function)
        status = INVALID_DEVICE_FUNCTION;
    if (status == NG_OK && attribute == MAX_DYNAMIC_SHARED_SIZE
        && (value < 0 || value > ng_profile()->attribute[NG_max_shared_memory_per_block_optin]))
        status = NG_INVALID_VALUE;
    return ng_runtime_result(status);
}

NG_API int cudaFuncSetCacheConfig(const void *UNUSED(function), int UNUSED(config))
{
    return ng_runtime_result(ng_activate());
}

NG_API int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks,
                                                                  const void *UNUSED(function),
                                                                  int threads, size_t shared,
                                                                  unsigned UNUSED(flags))
{
    return ng_runtime_result(ng_blocks_per_multiprocessor(blocks, threads, 0, shared));
}

NG_API int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *function,
                                                         int threads, size_t shared)
{
    return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, threads, shared,
                                                                  0);
}

NG_API int cudaOccupancyMaxPotentialClusterSize(int *size, const void *UNUSED(function),
                                                const struct ng_launch_config *UNUSED(config))
{
    int status = ng_activate();
    *size = status ? 0 : (int)ng_profile()->max_cluster_size;
    return ng_runtime_result(status);
}

NG_API int cudaOccupancyMaxActiveClusters(int *count, const void *UNUSED(function),
                                          const struct ng_launch_config *config)
{
    int blocks = 0, threads = (int)(config->block.x * config->block.y * config->block.z);
    int status = ng_blocks_per_multiprocessor(&blocks, threads, 0, config->shared);
    if (status == NG_OK)
        *count = blocks * ng_profile()->attribute[NG_multiprocessor_count]
               / (int)ng_profile()->max_cluster_size;
    return ng_runtime_result(status);
}
