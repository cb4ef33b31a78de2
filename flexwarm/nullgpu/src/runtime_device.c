/* The CUDA runtime: errors, devices and their properties. */
#define _GNU_SOURCE
#include "runtime.h"
#include "abi.h"

#include <stdio.h>
#include <string.h>

static _Thread_local int last_error;

int ng_runtime_result(int status)
{
    if (status)
        last_error = status;
    return status;
}

NG_API int cudaPeekAtLastError(void) { return last_error; }

NG_API int cudaGetLastError(void)
{
    int status = last_error;
    last_error = NG_OK;
    return status;
}

NG_API const char *cudaGetErrorName(int status)
{
    const char *name = ng_error_name(status, false);
    return name ? name : "unrecognized error code";
}

NG_API const char *cudaGetErrorString(int status)
{
    const char *text = ng_error_string(status);
    return text ? text : "unrecognized error code";
}

NG_API int cudaDriverGetVersion(int *version)
{
    int status = ng_init();
    *version = status ? 0 : (int)ng_profile()->driver_version;
    return NG_OK; /* as without a driver: version 0 and no error */
}

NG_API int cudaGetDeviceCount(int *count)
{
    int status = ng_init();
    *count = status ? 0 : ng_device_count();
    return ng_runtime_result(status);
}

NG_API int cudaGetDevice(int *device)
{
    int status = ng_init();
    *device = ng_current_device();
    return ng_runtime_result(status);
}

NG_API int cudaSetDevice(int device) { return ng_runtime_result(ng_set_device(device)); }

NG_API int cudaInitDevice(int device, unsigned UNUSED(device_flags), unsigned UNUSED(flags))
{
    return ng_runtime_result(ng_check_device(device));
}

NG_API int cudaSetDeviceFlags(unsigned UNUSED(flags)) { return ng_runtime_result(ng_init()); }

NG_API int cudaGetDeviceFlags(unsigned *flags)
{
    *flags = 0;
    return ng_runtime_result(ng_init());
}

NG_API int cudaDeviceSynchronize(void) { return ng_runtime_result(ng_activate()); }
NG_API int cudaProfilerStart(void) { return NG_OK; }
NG_API int cudaProfilerStop(void) { return NG_OK; }

NG_API int cudaDeviceGetAttribute(int *value, int attribute, int device)
{
    return ng_runtime_result(ng_get_attribute(value, attribute, device));
}

NG_API int cudaDeviceGetPCIBusId(char *text, int length, int device)
{
    int status = ng_check_device(device);
    if (status == NG_OK)
        ng_pci_bus_id(text, length, ng_physical_device(device));
    return ng_runtime_result(status);
}

NG_API int cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    int status = ng_activate();
    if (least)
        *least = (int)ng_profile()->lowest_stream_priority;
    if (greatest)
        *greatest = (int)ng_profile()->greatest_stream_priority;
    return ng_runtime_result(status);
}

/* --- peers: access is a matter of the profile; memory is one address space anyhow ------------- */

static _Atomic uint64_t peers[NG_MAX_DEVICES]; /* a bit for each peer that is enabled */

NG_API int cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
    int status = ng_check_device(device);
    if (status == NG_OK)
        status = ng_check_device(peer);
    *can = status == NG_OK && device != peer && ng_profile()->peer_access;
    return ng_runtime_result(status);
}

NG_API int cudaDeviceEnablePeerAccess(int peer, unsigned UNUSED(flags))
{
    int can, device = ng_current_device();
    int status = cudaDeviceCanAccessPeer(&can, device, peer);
    if (status == NG_OK && !can)
        status = NG_INVALID_DEVICE;
    uint64_t bit = UINT64_C(1) << (peer & 63);
    if (status == NG_OK && (atomic_fetch_or(&peers[device], bit) & bit))
        status = NG_PEER_ALREADY_ENABLED;
    return ng_runtime_result(status);
}

NG_API int cudaDeviceDisablePeerAccess(int peer)
{
    int status = ng_check_device(peer);
    uint64_t bit = UINT64_C(1) << (peer & 63);
    if (status == NG_OK && !(atomic_fetch_and(&peers[ng_current_device()], ~bit) & bit))
        status = NG_PEER_NOT_ENABLED;
    return ng_runtime_result(status);
}

/* --- limits and cache preferences: taken, and without effect ----------------------------------- */

NG_API int cudaDeviceSetLimit(int UNUSED(limit), size_t UNUSED(value))
{
    return ng_runtime_result(ng_activate());
}

NG_API int cudaDeviceGetLimit(size_t *value, int limit)
{
    return ng_runtime_result(ng_get_limit(value, limit));
}

NG_API int cudaDeviceSetCacheConfig(int UNUSED(config)) { return ng_runtime_result(ng_activate()); }
NG_API int cudaCtxResetPersistingL2Cache(void) { return ng_runtime_result(ng_activate()); }

/* --- properties --------------------------------------------------------------------------------- */

#define ATTRIBUTE(name) (profile->attribute[NG_##name])
#define FILL_COMMON(p)                                                                          \
    do {                                                                                        \
        memset((p), 0, sizeof *(p));                                                            \
        memcpy((p)->name, profile->name, sizeof (p)->name);                                     \
        ng_uuid((p)->uuid, ng_physical_device(device));                                         \
        (p)->totalGlobalMem = profile->total_memory;                                            \
        (p)->sharedMemPerBlock = (size_t)ATTRIBUTE(max_shared_memory_per_block);                \
        (p)->regsPerBlock = ATTRIBUTE(max_registers_per_block);                                 \
        (p)->warpSize = ATTRIBUTE(warp_size);                                                   \
        (p)->memPitch = (size_t)ATTRIBUTE(max_pitch);                                           \
        (p)->maxThreadsPerBlock = ATTRIBUTE(max_threads_per_block);                             \
        (p)->maxThreadsDim[0] = ATTRIBUTE(max_block_dim_x);                                     \
        (p)->maxThreadsDim[1] = ATTRIBUTE(max_block_dim_y);                                     \
        (p)->maxThreadsDim[2] = ATTRIBUTE(max_block_dim_z);                                     \
        (p)->maxGridSize[0] = ATTRIBUTE(max_grid_dim_x);                                        \
        (p)->maxGridSize[1] = ATTRIBUTE(max_grid_dim_y);                                        \
        (p)->maxGridSize[2] = ATTRIBUTE(max_grid_dim_z);                                        \
        (p)->totalConstMem = (size_t)ATTRIBUTE(total_constant_memory);                          \
        (p)->major = ATTRIBUTE(compute_capability_major);                                       \
        (p)->minor = ATTRIBUTE(compute_capability_minor);                                       \
        (p)->textureAlignment = (size_t)ATTRIBUTE(texture_alignment);                           \
        (p)->texturePitchAlignment = (size_t)ATTRIBUTE(texture_pitch_alignment);                \
        (p)->multiProcessorCount = ATTRIBUTE(multiprocessor_count);                             \
        (p)->integrated = ATTRIBUTE(integrated);                                                \
        (p)->canMapHostMemory = ATTRIBUTE(can_map_host_memory);                                 \
        (p)->maxTexture1D = ATTRIBUTE(maximum_texture1d_width);                                 \
        (p)->maxTexture1DMipmap = ATTRIBUTE(maximum_texture1d_mipmapped_width);                 \
        (p)->maxTexture2D[0] = ATTRIBUTE(maximum_texture2d_width);                              \
        (p)->maxTexture2D[1] = ATTRIBUTE(maximum_texture2d_height);                             \
        (p)->maxTexture2DMipmap[0] = ATTRIBUTE(maximum_texture2d_mipmapped_width);              \
        (p)->maxTexture2DMipmap[1] = ATTRIBUTE(maximum_texture2d_mipmapped_height);             \
        (p)->maxTexture2DLinear[0] = ATTRIBUTE(maximum_texture2d_linear_width);                 \
        (p)->maxTexture2DLinear[1] = ATTRIBUTE(maximum_texture2d_linear_height);                \
        (p)->maxTexture2DLinear[2] = ATTRIBUTE(maximum_texture2d_linear_pitch);                 \
        (p)->maxTexture2DGather[0] = ATTRIBUTE(maximum_texture2d_gather_width);                 \
        (p)->maxTexture2DGather[1] = ATTRIBUTE(maximum_texture2d_gather_height);                \
        (p)->maxTexture3D[0] = ATTRIBUTE(maximum_texture3d_width);                              \
        (p)->maxTexture3D[1] = ATTRIBUTE(maximum_texture3d_height);                             \
        (p)->maxTexture3D[2] = ATTRIBUTE(maximum_texture3d_depth);                              \
        (p)->maxTexture3DAlt[0] = ATTRIBUTE(maximum_texture3d_width_alternate);                 \
        (p)->maxTexture3DAlt[1] = ATTRIBUTE(maximum_texture3d_height_alternate);                \
        (p)->maxTexture3DAlt[2] = ATTRIBUTE(maximum_texture3d_depth_alternate);                 \
        (p)->maxTextureCubemap = ATTRIBUTE(maximum_texturecubemap_width);                       \
        (p)->maxTexture1DLayered[0] = ATTRIBUTE(maximum_texture1d_layered_width);               \
        (p)->maxTexture1DLayered[1] = ATTRIBUTE(maximum_texture1d_layered_layers);              \
        (p)->maxTexture2DLayered[0] = ATTRIBUTE(maximum_texture2d_layered_width);               \
        (p)->maxTexture2DLayered[1] = ATTRIBUTE(maximum_texture2d_layered_height);              \
        (p)->maxTexture2DLayered[2] = ATTRIBUTE(maximum_texture2d_layered_layers);              \
        (p)->maxTextureCubemapLayered[0] = ATTRIBUTE(maximum_texturecubemap_layered_width);     \
        (p)->maxTextureCubemapLayered[1] = ATTRIBUTE(maximum_texturecubemap_layered_layers);    \
        (p)->maxSurface1D = ATTRIBUTE(maximum_surface1d_width);                                 \
        (p)->maxSurface2D[0] = ATTRIBUTE(maximum_surface2d_width);                              \
        (p)->maxSurface2D[1] = ATTRIBUTE(maximum_surface2d_height);                             \
        (p)->maxSurface3D[0] = ATTRIBUTE(maximum_surface3d_width);                              \
        (p)->maxSurface3D[1] = ATTRIBUTE(maximum_surface3d_height);                             \
        (p)->maxSurface3D[2] = ATTRIBUTE(maximum_surface3d_depth);                              \
        (p)->maxSurface1DLayered[0] = ATTRIBUTE(maximum_surface1d_layered_width);               \
        (p)->maxSurface1DLayered[1] = ATTRIBUTE(maximum_surface1d_layered_layers);              \
        (p)->maxSurface2DLayered[0] = ATTRIBUTE(maximum_surface2d_layered_width);               \
        (p)->maxSurface2DLayered[1] = ATTRIBUTE(maximum_surface2d_layered_height);              \
        (p)->maxSurface2DLayered[2] = ATTRIBUTE(maximum_surface2d_layered_layers);              \
        (p)->maxSurfaceCubemap = ATTRIBUTE(maximum_surfacecubemap_width);                       \
        (p)->maxSurfaceCubemapLayered[0] = ATTRIBUTE(maximum_surfacecubemap_layered_width);     \
        (p)->maxSurfaceCubemapLayered[1] = ATTRIBUTE(maximum_surfacecubemap_layered_layers);    \
        (p)->surfaceAlignment = (size_t)ATTRIBUTE(surface_alignment);                           \
        (p)->concurrentKernels = ATTRIBUTE(concurrent_kernels);                                 \
        (p)->ECCEnabled = ATTRIBUTE(ecc_enabled);                                               \
        (p)->pciBusID = ATTRIBUTE(pci_bus_id) + ng_physical_device(device);                     \
        (p)->pciDeviceID = ATTRIBUTE(pci_device_id);                                            \
        (p)->pciDomainID = ATTRIBUTE(pci_domain_id);                                            \
        (p)->tccDriver = ATTRIBUTE(tcc_driver);                                                 \
        (p)->asyncEngineCount = ATTRIBUTE(async_engine_count);                                  \
        (p)->unifiedAddressing = ATTRIBUTE(unified_addressing);                                 \
        (p)->memoryBusWidth = ATTRIBUTE(global_memory_bus_width);                               \
        (p)->l2CacheSize = ATTRIBUTE(l2_cache_size);                                            \
        (p)->persistingL2CacheMaxSize = ATTRIBUTE(max_persisting_l2_cache_size);                \
        (p)->maxThreadsPerMultiProcessor = ATTRIBUTE(max_threads_per_multiprocessor);           \
        (p)->streamPrioritiesSupported = ATTRIBUTE(stream_priorities_supported);                \
        (p)->globalL1CacheSupported = ATTRIBUTE(global_l1_cache_supported);                     \
        (p)->localL1CacheSupported = ATTRIBUTE(local_l1_cache_supported);                       \
        (p)->sharedMemPerMultiprocessor =                                                       \
            (size_t)ATTRIBUTE(max_shared_memory_per_multiprocessor);                            \
        (p)->regsPerMultiprocessor = ATTRIBUTE(max_registers_per_multiprocessor);               \
        (p)->managedMemory = ATTRIBUTE(managed_memory);                                         \
        (p)->isMultiGpuBoard = ATTRIBUTE(multi_gpu_board);                                      \
        (p)->multiGpuBoardGroupID = ATTRIBUTE(multi_gpu_board_group_id);                        \
        (p)->hostNativeAtomicSupported = ATTRIBUTE(host_native_atomic_supported);               \
        (p)->pageableMemoryAccess = ATTRIBUTE(pageable_memory_access);                          \
        (p)->concurrentManagedAccess = ATTRIBUTE(concurrent_managed_access);                    \
        (p)->computePreemptionSupported = ATTRIBUTE(compute_preemption_supported);              \
        (p)->canUseHostPointerForRegisteredMem =                                                \
            ATTRIBUTE(can_use_host_pointer_for_registered_mem);                                 \
        (p)->cooperativeLaunch = ATTRIBUTE(cooperative_launch);                                 \
        (p)->sharedMemPerBlockOptin = (size_t)ATTRIBUTE(max_shared_memory_per_block_optin);     \
        (p)->pageableMemoryAccessUsesHostPageTables =                                           \
            ATTRIBUTE(pageable_memory_access_uses_host_page_tables);                            \
        (p)->directManagedMemAccessFromHost =                                                   \
            ATTRIBUTE(direct_managed_mem_access_from_host);                                     \
        (p)->maxBlocksPerMultiProcessor = ATTRIBUTE(max_blocks_per_multiprocessor);             \
        (p)->accessPolicyMaxWindowSize = ATTRIBUTE(max_access_policy_window_size);              \
        (p)->reservedSharedMemPerBlock = (size_t)ATTRIBUTE(reserved_shared_memory_per_block);   \
        (p)->hostRegisterSupported = ATTRIBUTE(host_register_supported);                        \
        (p)->sparseCudaArraySupported = ATTRIBUTE(sparse_cuda_array_supported);                 \
        (p)->hostRegisterReadOnlySupported = ATTRIBUTE(read_only_host_register_supported);      \
        (p)->timelineSemaphoreInteropSupported =                                                \
            ATTRIBUTE(timeline_semaphore_interop_supported);                                    \
        (p)->memoryPoolsSupported = ATTRIBUTE(memory_pools_supported);                          \
        (p)->gpuDirectRDMASupported = ATTRIBUTE(gpu_direct_rdma_supported);                     \
        (p)->gpuDirectRDMAFlushWritesOptions =                                                  \
            (unsigned)ATTRIBUTE(gpu_direct_rdma_flush_writes_options);                          \
        (p)->gpuDirectRDMAWritesOrdering = ATTRIBUTE(gpu_direct_rdma_writes_ordering);          \
        (p)->memoryPoolSupportedHandleTypes =                                                   \
            (unsigned)ATTRIBUTE(mempool_supported_handle_types);                                \
        (p)->deferredMappingCudaArraySupported =                                                \
            ATTRIBUTE(deferred_mapping_cuda_array_supported);                                   \
        (p)->ipcEventSupported = ATTRIBUTE(ipc_event_supported);                                \
        (p)->clusterLaunch = ATTRIBUTE(cluster_launch);                                         \
        (p)->unifiedFunctionPointers = ATTRIBUTE(unified_function_pointers);                    \
    } while (0)

/* CUDA 13 under its plain name; CUDA 12's header maps the plain name to this version. */
NG_API int cudaGetDeviceProperties(struct ng_device_properties_13 *properties, int device)
{
    int status = ng_check_device(device);
    if (status)
        return ng_runtime_result(status);
    const struct ng_profile *profile = ng_profile();
    FILL_COMMON(properties);
    properties->deviceNumaConfig = ATTRIBUTE(numa_config);
    properties->deviceNumaId = ATTRIBUTE(numa_id);
    properties->mpsEnabled = ATTRIBUTE(mps_enabled);
    properties->hostNumaId = ATTRIBUTE(host_numa_id);
    properties->gpuPciDeviceID = (unsigned)ATTRIBUTE(gpu_pci_device_id);
    properties->gpuPciSubsystemID = (unsigned)ATTRIBUTE(gpu_pci_subsystem_id);
    properties->hostNumaMultinodeIpcSupported = ATTRIBUTE(host_numa_multinode_ipc_supported);
    return NG_OK;
}

NG_API int cudaGetDeviceProperties_v2(struct ng_device_properties_12 *properties, int device)
{
    int status = ng_check_device(device);
    if (status)
        return ng_runtime_result(status);
    const struct ng_profile *profile = ng_profile();
    FILL_COMMON(properties);
    properties->clockRate = ATTRIBUTE(clock_rate);
    properties->deviceOverlap = ATTRIBUTE(gpu_overlap);
    properties->kernelExecTimeoutEnabled = ATTRIBUTE(kernel_exec_timeout);
    properties->computeMode = ATTRIBUTE(compute_mode);
    properties->maxTexture1DLinear = ATTRIBUTE(maximum_texture1d_linear_width);
    properties->memoryClockRate = ATTRIBUTE(memory_clock_rate);
    properties->singleToDoublePrecisionPerfRatio =
        ATTRIBUTE(single_to_double_precision_perf_ratio);
    properties->cooperativeMultiDeviceLaunch = ATTRIBUTE(cooperative_multi_device_launch);
    return NG_OK;
}

/* --- the driver's calls -------------------------------------------------------------------------- */

enum { ENTRY_FOUND = 0, ENTRY_NOT_FOUND = 1 }; /* cudaDriverEntryPointQueryResult */

NG_API int cudaGetDriverEntryPointByVersion(const char *name, void **entry,
                                            unsigned UNUSED(version),
                                            unsigned long long UNUSED(flags), int *result)
{
    *entry = ng_driver_entry(name);
    if (result)
        *result = *entry ? ENTRY_FOUND : ENTRY_NOT_FOUND;
    return ng_runtime_result(*entry || result ? NG_OK : NG_NOT_FOUND);
}

NG_API int cudaGetDriverEntryPoint(const char *name, void **entry, unsigned long long flags,
                                   int *result)
{
    return cudaGetDriverEntryPointByVersion(name, entry, 0, flags, result);
}
