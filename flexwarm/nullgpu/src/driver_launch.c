/* The CUDA driver: streams, events, modules and launches. */
#include "nullgpu.h"
#include "abi.h"

#include <string.h>

/* --- streams ----------------------------------------------------------------------------------------- */

NG_API int cuStreamCreate(void **stream, unsigned flags)
{
    return ng_stream_create(stream, flags, 0);
}

NG_API int cuStreamCreateWithPriority(void **stream, unsigned flags, int priority)
{
    return ng_stream_create(stream, flags, priority);
}

NG_API int cuStreamDestroy_v2(void *stream) { return ng_stream_destroy(stream); }
NG_API int cuStreamQuery(void *stream) { return ng_stream_check(stream); }
NG_API int cuStreamSynchronize(void *stream) { return ng_stream_check(stream); }

NG_API int cuStreamWaitEvent(void *stream, void *event, unsigned UNUSED(flags))
{
    int status = ng_stream_check(stream);
    return status ? status : ng_event_check(event);
}

NG_API int cuStreamGetPriority(void *stream, int *priority)
{
    return ng_stream_priority(stream, priority);
}

NG_API int cuStreamGetFlags(void *stream, unsigned *flags)
{
    return ng_stream_flags(stream, flags);
}

/* As cudaStreamIsCapturing: never. */
NG_API int cuStreamIsCapturing(void *stream, int *capture)
{
    *capture = 0;
    return ng_stream_check(stream);
}

NG_API int cuStreamGetCaptureInfo_v2(void *stream, int *capture)
{
    return cuStreamIsCapturing(stream, capture);
}

NG_API int cuStreamGetCaptureInfo_v3(void *stream, int *capture)
{
    return cuStreamIsCapturing(stream, capture);
}

NG_API int cuLaunchHostFunc(void *stream, void (*function)(void *), void *data)
{
    int status = ng_stream_check(stream);
    if (status == NG_OK)
        function(data);
    return status;
}

/* --- events ------------------------------------------------------------------------------------------ */

NG_API int cuEventCreate(void **event, unsigned flags) { return ng_event_create(event, flags); }
NG_API int cuEventDestroy_v2(void *event) { return ng_event_destroy(event); }
NG_API int cuEventQuery(void *event) { return ng_event_check(event); }
NG_API int cuEventSynchronize(void *event) { return ng_event_check(event); }
NG_API int cuEventRecord(void *event, void *stream) { return ng_event_record(event, stream); }

NG_API int cuEventElapsedTime(float *milliseconds, void *start, void *end)
{
    return ng_event_elapsed(milliseconds, start, end);
}

NG_API int cuEventElapsedTime_v2(float *milliseconds, void *start, void *end)
{
    return ng_event_elapsed(milliseconds, start, end);
}

/* --- modules and functions ----------------------------------------------------------------------- */

NG_API int cuModuleLoadData(void **module, const void *image)
{
    return ng_module_load(module, image);
}

NG_API int cuModuleLoadDataEx(void **module, const void *image, unsigned UNUSED(count),
                              int *UNUSED(options), void **UNUSED(values))
{
    return ng_module_load(module, image);
}

NG_API int cuModuleLoad(void **module, const char *path) { return ng_module_load_file(module, path); }
NG_API int cuModuleUnload(void *module) { return ng_module_unload(module); }

NG_API int cuModuleGetFunction(void **function, void *module, const char *name)
{
    return ng_module_function(function, module, name);
}

NG_API int cuFuncGetAttribute(int *value, int attribute, void *function)
{
    return ng_function_attribute(value, attribute, function);
}

NG_API int cuFuncSetAttribute(void *function, int attribute, int value)
{
    return ng_function_set_attribute(function, attribute, value);
}

NG_API int cuFuncSetCacheConfig(void *function, int UNUSED(config))
{
    return ng_handle_valid(function, NG_FUNCTION) ? NG_OK : NG_INVALID_HANDLE;
}

/* --- launches ---------------------------------------------------------------------------------------- */

NG_API int cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                          unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                          void *stream, void **UNUSED(parameters), void **UNUSED(extra))
{
    return ng_function_launch(function, (unsigned[]){ grid_x, grid_y, grid_z },
                              (unsigned[]){ block_x, block_y, block_z }, shared, stream);
}

NG_API int cuLaunchCooperativeKernel(void *function, unsigned grid_x, unsigned grid_y,
                                     unsigned grid_z, unsigned block_x, unsigned block_y,
                                     unsigned block_z, unsigned shared, void *stream,
                                     void **parameters)
{
    return cuLaunchKernel(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared,
                          stream, parameters, NULL);
}

NG_API int cuLaunchKernelEx(const struct ng_driver_launch_config *config, void *function,
                            void **UNUSED(parameters), void **UNUSED(extra))
{
    return ng_function_launch(function, config->grid, config->block, config->shared,
                              config->stream);
}

NG_API int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, void *function, int threads,
                                                       size_t shared)
{
    enum { SHARED_SIZE_BYTES = 1, NUM_REGS = 4 };
    int fixed, registers, status = ng_function_attribute(&fixed, SHARED_SIZE_BYTES, function);
    if (status == NG_OK)
        status = ng_function_attribute(&registers, NUM_REGS, function);
    if (status)
        return status;
    return ng_blocks_per_multiprocessor(blocks, threads, registers, shared + (size_t)fixed);
}

NG_API int cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, void *function,
                                                                int threads, size_t shared,
                                                                unsigned UNUSED(flags))
{
    return cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks, function, threads, shared);
}

NG_API int cuOccupancyMaxActiveClusters(int *count, void *function,
                                        const struct ng_driver_launch_config *config)
{
    int blocks, threads = (int)(config->block[0] * config->block[1] * config->block[2]);
    int status = cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, threads,
                                                             config->shared);
    if (status == NG_OK)
        *count = blocks * ng_profile()->attribute[NG_multiprocessor_count]
               / (int)ng_profile()->max_cluster_size;
    return status;
}

/* --- tensor maps: 128 bytes that only a kernel reads -------------------------------------------------- */

enum { TENSOR_MAP_SIZE = 128 };

NG_API int cuTensorMapEncodeTiled(void *map)
{
    memset(map, 0, TENSOR_MAP_SIZE);
    return NG_OK;
}

NG_API int cuTensorMapEncodeIm2col(void *map)
{
    memset(map, 0, TENSOR_MAP_SIZE);
    return NG_OK;
}
