/* The structures of CUDA whose layout the null GPU must keep, as CUDA 12 and CUDA 13 have them on
 * 64-bit Linux; compared with the headers of CUDA 12.8 and 13.0. */
#ifndef NULLGPU_ABI_H
#define NULLGPU_ABI_H

#include <stddef.h>

struct ng_dim3 { unsigned x, y, z; };

/* What follows the name, up to where CUDA 12 and 13 part, is in both; the lines that only
 * CUDA 12 has are marked. */
#define NG_DEVICE_PROPERTIES(only_12)                                                           \
    char name[256];                                                                             \
    unsigned char uuid[16];                                                                     \
    char luid[8];                                                                               \
    unsigned luidDeviceNodeMask;                                                                \
    size_t totalGlobalMem, sharedMemPerBlock;                                                   \
    int regsPerBlock, warpSize;                                                                 \
    size_t memPitch;                                                                            \
    int maxThreadsPerBlock, maxThreadsDim[3], maxGridSize[3];                                   \
    only_12(int clockRate;)                                                                     \
    size_t totalConstMem;                                                                       \
    int major, minor;                                                                           \
    size_t textureAlignment, texturePitchAlignment;                                             \
    only_12(int deviceOverlap;)                                                                 \
    int multiProcessorCount;                                                                    \
    only_12(int kernelExecTimeoutEnabled;)                                                      \
    int integrated, canMapHostMemory;                                                           \
    only_12(int computeMode;)                                                                   \
    int maxTexture1D, maxTexture1DMipmap;                                                       \
    only_12(int maxTexture1DLinear;)                                                            \
    int maxTexture2D[2], maxTexture2DMipmap[2], maxTexture2DLinear[3], maxTexture2DGather[2];   \
    int maxTexture3D[3], maxTexture3DAlt[3], maxTextureCubemap;                                 \
    int maxTexture1DLayered[2], maxTexture2DLayered[3], maxTextureCubemapLayered[2];            \
    int maxSurface1D, maxSurface2D[2], maxSurface3D[3];                                         \
    int maxSurface1DLayered[2], maxSurface2DLayered[3];                                         \
    int maxSurfaceCubemap, maxSurfaceCubemapLayered[2];                                         \
    size_t surfaceAlignment;                                                                    \
    int concurrentKernels, ECCEnabled, pciBusID, pciDeviceID, pciDomainID, tccDriver;           \
    int asyncEngineCount, unifiedAddressing;                                                    \
    only_12(int memoryClockRate;)                                                               \
    int memoryBusWidth, l2CacheSize, persistingL2CacheMaxSize, maxThreadsPerMultiProcessor;     \
    int streamPrioritiesSupported, globalL1CacheSupported, localL1CacheSupported;               \
    size_t sharedMemPerMultiprocessor;                                                          \
    int regsPerMultiprocessor, managedMemory, isMultiGpuBoard, multiGpuBoardGroupID;            \
    int hostNativeAtomicSupported;                                                              \
    only_12(int singleToDoublePrecisionPerfRatio;)                                              \
    int pageableMemoryAccess, concurrentManagedAccess, computePreemptionSupported;              \
    int canUseHostPointerForRegisteredMem, cooperativeLaunch;                                   \
    only_12(int cooperativeMultiDeviceLaunch;)                                                  \
    size_t sharedMemPerBlockOptin;                                                              \
    int pageableMemoryAccessUsesHostPageTables, directManagedMemAccessFromHost;                 \
    int maxBlocksPerMultiProcessor, accessPolicyMaxWindowSize;                                  \
    size_t reservedSharedMemPerBlock;                                                           \
    int hostRegisterSupported, sparseCudaArraySupported, hostRegisterReadOnlySupported;         \
    int timelineSemaphoreInteropSupported, memoryPoolsSupported, gpuDirectRDMASupported;        \
    unsigned gpuDirectRDMAFlushWritesOptions;                                                   \
    int gpuDirectRDMAWritesOrdering;                                                            \
    unsigned memoryPoolSupportedHandleTypes;                                                    \
    int deferredMappingCudaArraySupported, ipcEventSupported, clusterLaunch;                    \
    int unifiedFunctionPointers;

#define NG_KEEP(...) __VA_ARGS__
#define NG_DROP(...)

struct ng_device_properties_12 {
    NG_DEVICE_PROPERTIES(NG_KEEP)
    int reserved[63];
};

struct ng_device_properties_13 {
    NG_DEVICE_PROPERTIES(NG_DROP)
    int deviceNumaConfig, deviceNumaId, mpsEnabled, hostNumaId;
    unsigned gpuPciDeviceID, gpuPciSubsystemID;
    int hostNumaMultinodeIpcSupported;
    int reserved[56];
};

_Static_assert(sizeof(struct ng_device_properties_12) == 1032, "cudaDeviceProp of CUDA 12");
_Static_assert(sizeof(struct ng_device_properties_13) == 1008, "cudaDeviceProp of CUDA 13");
_Static_assert(offsetof(struct ng_device_properties_12, major) == 360, "cudaDeviceProp of CUDA 12");

/* CUDA 13 adds reserved members, which are left as the caller has them: writing them would
 * overrun the structure of CUDA 12. */
struct ng_pointer_attributes {
    int type, device;
    void *devicePointer, *hostPointer;
};

struct ng_function_attributes {
    size_t sharedSizeBytes, constSizeBytes, localSizeBytes;
    int maxThreadsPerBlock, numRegs, ptxVersion, binaryVersion, cacheModeCA;
    int maxDynamicSharedSizeBytes, preferredShmemCarveout;
    int clusterDimMustBeSet, requiredClusterWidth, requiredClusterHeight, requiredClusterDepth;
    int clusterSchedulingPolicyPreference, nonPortableClusterSizeAllowed;
    int reserved[16];
};
_Static_assert(sizeof(struct ng_function_attributes) == 144, "cudaFuncAttributes");

struct ng_launch_config { /* cudaLaunchConfig_t */
    struct ng_dim3 grid, block;
    size_t shared;
    void *stream;
    void *attributes;
    unsigned attribute_count;
};
_Static_assert(sizeof(struct ng_launch_config) == 56, "cudaLaunchConfig_t");

struct ng_driver_launch_config { /* CUlaunchConfig */
    unsigned grid[3], block[3], shared;
    void *stream;
    void *attributes;
    unsigned attribute_count;
};
_Static_assert(sizeof(struct ng_driver_launch_config) == 56, "CUlaunchConfig");

struct ng_memory_location { int type, id; }; /* CUmemLocation, cudaMemLocation */

struct ng_allocation_properties { /* CUmemAllocationProp */
    int type, handle_types;
    struct ng_memory_location location;
    void *metadata;
    unsigned char flags[8];
};
_Static_assert(sizeof(struct ng_allocation_properties) == 32, "CUmemAllocationProp");

struct ng_access { /* CUmemAccessDesc */
    struct ng_memory_location location;
    int flags;
};

struct ng_matmul_heuristic { /* cublasLtMatmulHeuristicResult_t */
    unsigned char algorithm[64];
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
};
_Static_assert(sizeof(struct ng_matmul_heuristic) == 96, "cublasLtMatmulHeuristicResult_t");

#endif
