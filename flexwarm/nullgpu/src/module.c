#include "nullgpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* CUfunction_attribute */
enum {
    MAX_THREADS_PER_BLOCK = 0,
    SHARED_SIZE_BYTES = 1,
    CONST_SIZE_BYTES = 2,
    LOCAL_SIZE_BYTES = 3,
    NUM_REGS = 4,
    PTX_VERSION = 5,
    BINARY_VERSION = 6,
    CACHE_MODE_CA = 7,
    MAX_DYNAMIC_SHARED_SIZE_BYTES = 8,
    PREFERRED_SHARED_MEMORY_CARVEOUT = 9,
    NON_PORTABLE_CLUSTER_SIZE_ALLOWED = 14,
    CLUSTER_SCHEDULING_POLICY_PREFERENCE = 15,
};

struct module {
    struct ng_handle head;
    struct function *functions;
    void *cubin; /* a copy: the caller may free its own; NULL if the image was something else */
};

struct function {
    struct ng_handle head;
    struct function *next;
    struct ng_kernel_resources resources;
    int dynamic_shared;
    int carveout;
    int non_portable_cluster;
};

static int shared_for_all(void)
{
    return ng_profile()->attribute[NG_max_shared_memory_per_block];
}

static int shared_opt_in(void)
{
    return ng_profile()->attribute[NG_max_shared_memory_per_block_optin];
}

int ng_module_load(void **module, const void *image)
{
    int status = ng_activate();
    if (status)
        return status;
    if (!image)
        return NG_INVALID_VALUE;
    struct module *created = ng_handle_create(NG_MODULE, sizeof *created);
    if (!created)
        return NG_OUT_OF_MEMORY;
    if (ng_is_cubin(image)) {
        size_t size = ng_cubin_size(image);
        created->cubin = malloc(size);
        if (!created->cubin) {
            ng_module_unload(created);
            return NG_OUT_OF_MEMORY;
        }
        memcpy(created->cubin, image, size);
    }
    *module = created;
    return NG_OK;
}

int ng_module_load_file(void **module, const char *path)
{
    FILE *file = fopen(path, "re");
    if (!file)
        return NG_FILE_NOT_FOUND;
    int status = NG_OUT_OF_MEMORY;
    long size = fseek(file, 0, SEEK_END) == 0 ? ftell(file) : -1;
    char *image = size > 0 ? calloc(1, (size_t)size + 1) : NULL;
    rewind(file);
    if (image && fread(image, 1, (size_t)size, file) == (size_t)size)
        status = ng_module_load(module, image);
    free(image);
    fclose(file);
    return status;
}

int ng_module_unload(void *module)
{
    struct module *taken = ng_handle_take(module, NG_MODULE);
    if (!taken)
        return NG_INVALID_HANDLE;
    for (struct function *function = taken->functions, *next; function; function = next) {
        next = function->next;
        free(ng_handle_take(function, NG_FUNCTION));
    }
    free(taken->cubin);
    free(taken);
    return NG_OK;
}

int ng_module_function(void **function, void *module, const char *name)
{
    if (!ng_handle_valid(module, NG_MODULE))
        return NG_INVALID_HANDLE;
    struct module *owner = module;
    struct ng_kernel_resources resources = { 0 };
    if (owner->cubin && !ng_cubin_kernel(owner->cubin, name, &resources))
        return NG_NOT_FOUND;
    struct function *created = ng_handle_create(NG_FUNCTION, sizeof *created);
    if (!created)
        return NG_OUT_OF_MEMORY;
    created->resources = resources;
    created->dynamic_shared = shared_for_all() - resources.shared_bytes;
    created->carveout = -1;
    ng_lock();
    created->next = owner->functions;
    owner->functions = created;
    ng_unlock();
    *function = created;
    return NG_OK;
}

/* As many as the registers last for: a thread's come in eights, and a block's in four warps'. */
static int threads_for(int registers)
{
    const int *device = ng_profile()->attribute;
    int most = device[NG_max_threads_per_block], unit = 4 * device[NG_warp_size];
    if (registers == 0)
        return most;
    int fit = device[NG_max_registers_per_block] / ((registers + 7) / 8 * 8) / unit * unit;
    return fit < most ? fit : most;
}

int ng_function_attribute(int *value, int attribute, void *handle)
{
    if (!ng_handle_valid(handle, NG_FUNCTION))
        return NG_INVALID_HANDLE;
    const struct function *function = handle;
    const int *device = ng_profile()->attribute;
    switch (attribute) {
    case MAX_THREADS_PER_BLOCK: *value = threads_for(function->resources.registers); return NG_OK;
    case SHARED_SIZE_BYTES: *value = function->resources.shared_bytes; return NG_OK;
    case CONST_SIZE_BYTES: *value = 0; return NG_OK;
    case LOCAL_SIZE_BYTES: *value = function->resources.local_bytes; return NG_OK;
    case NUM_REGS: *value = function->resources.registers; return NG_OK;
    case PTX_VERSION:
    case BINARY_VERSION:
        *value = 10 * device[NG_compute_capability_major] + device[NG_compute_capability_minor];
        return NG_OK;
    case CACHE_MODE_CA: *value = 0; return NG_OK;
    case MAX_DYNAMIC_SHARED_SIZE_BYTES: *value = function->dynamic_shared; return NG_OK;
    case PREFERRED_SHARED_MEMORY_CARVEOUT: *value = function->carveout; return NG_OK;
    case NON_PORTABLE_CLUSTER_SIZE_ALLOWED: *value = function->non_portable_cluster; return NG_OK;
    case CLUSTER_SCHEDULING_POLICY_PREFERENCE: *value = 0; return NG_OK;
    default: return NG_INVALID_VALUE;
    }
}

int ng_function_set_attribute(void *handle, int attribute, int value)
{
    if (!ng_handle_valid(handle, NG_FUNCTION))
        return NG_INVALID_HANDLE;
    struct function *function = handle;
    switch (attribute) {
    case MAX_DYNAMIC_SHARED_SIZE_BYTES:
        if (value < 0 || value > shared_opt_in() - function->resources.shared_bytes)
            return NG_INVALID_VALUE;
        function->dynamic_shared = value;
        return NG_OK;
    case PREFERRED_SHARED_MEMORY_CARVEOUT: function->carveout = value; return NG_OK;
    case NON_PORTABLE_CLUSTER_SIZE_ALLOWED: function->non_portable_cluster = value; return NG_OK;
    case CLUSTER_SCHEDULING_POLICY_PREFERENCE: return NG_OK;
    default: return NG_INVALID_VALUE; /* Triton asks for one that drivers before 13.3 refuse */
    }
}

int ng_launch(const unsigned grid[3], const unsigned block[3], size_t shared, size_t shared_limit,
              void *stream)
{
    int status = ng_stream_check(stream);
    if (status)
        return status;
    const int *limit = ng_profile()->attribute;
    static const int block_limits[3] = { NG_max_block_dim_x, NG_max_block_dim_y,
                                         NG_max_block_dim_z };
    static const int grid_limits[3] = { NG_max_grid_dim_x, NG_max_grid_dim_y, NG_max_grid_dim_z };
    unsigned long long threads = 1;
    for (int i = 0; i < 3; i++) {
        if (!grid[i] || grid[i] > (unsigned)limit[grid_limits[i]] || !block[i]
            || block[i] > (unsigned)limit[block_limits[i]])
            return NG_INVALID_VALUE;
        threads *= block[i];
    }
    if (threads > (unsigned)limit[NG_max_threads_per_block] || shared > shared_limit)
        return NG_INVALID_VALUE;
    return NG_OK;
}

int ng_function_launch(void *handle, const unsigned grid[3], const unsigned block[3],
                       size_t shared, void *stream)
{
    if (!ng_handle_valid(handle, NG_FUNCTION))
        return NG_INVALID_HANDLE;
    const struct function *function = handle;
    return ng_launch(grid, block, shared, (size_t)function->dynamic_shared, stream);
}

/* By the limits for threads, blocks and shared memory; the registers' allocation unit, which only
 * matters close to the limit, is 256 for a warp on every architecture that torch still builds. */
int ng_blocks_per_multiprocessor(int *blocks, int threads, int registers, size_t shared)
{
    int status = ng_activate();
    if (status)
        return status;
    const int *limit = ng_profile()->attribute;
    if (threads <= 0)
        return NG_INVALID_VALUE;
    int warp = limit[NG_warp_size], warps = (threads + warp - 1) / warp;
    int most = limit[NG_max_threads_per_multiprocessor] / (warps * warp);
    if (most > limit[NG_max_blocks_per_multiprocessor])
        most = limit[NG_max_blocks_per_multiprocessor];
    int for_warp = (registers * warp + 255) / 256 * 256;
    if (for_warp && most > limit[NG_max_registers_per_multiprocessor] / (for_warp * warps))
        most = limit[NG_max_registers_per_multiprocessor] / (for_warp * warps);
    size_t for_block = shared + (size_t)limit[NG_reserved_shared_memory_per_block];
    size_t of_all = (size_t)limit[NG_max_shared_memory_per_multiprocessor];
    if (for_block && (size_t)most > of_all / for_block)
        most = (int)(of_all / for_block);
    *blocks = threads > limit[NG_max_threads_per_block] ? 0 : most;
    return NG_OK;
}
