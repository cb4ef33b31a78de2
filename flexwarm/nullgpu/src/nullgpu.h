/* What the files of the null GPU share. Everything here is hidden from other libraries; only
 * what is marked NG_API is seen outside, and that is NVIDIA's names.
 *
 * CUDA's own headers are not used: the CUDA 12 and 13 ones cannot be included together, the
 * pip packages ship them incomplete, and a machine that only runs torch has none. The calls
 * take opaque handles and integers, so only the few structures in abi.h have a layout to keep. */
#ifndef NULLGPU_H
#define NULLGPU_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NG_API __attribute__((visibility("default")))
#define NG_PRINTF(text, first) __attribute__((format(printf, text, first)))
#define UNUSED(parameter) parameter __attribute__((unused))

/* The runtime (cudaError_t) and the driver (CUresult) use the same numbers for these. */
enum ng_status {
    NG_OK = 0,
    NG_INVALID_VALUE = 1,
    NG_OUT_OF_MEMORY = 2,
    NG_NOT_INITIALIZED = 3,
    NG_NO_DEVICE = 100,
    NG_INVALID_DEVICE = 101,
    NG_INVALID_CONTEXT = 201,
    NG_FILE_NOT_FOUND = 301,
    NG_INVALID_HANDLE = 400,
    NG_NOT_FOUND = 500,
    NG_NOT_READY = 600,
    NG_PEER_ALREADY_ENABLED = 704,
    NG_PEER_NOT_ENABLED = 705,
    NG_HOST_ALREADY_REGISTERED = 712,
    NG_HOST_NOT_REGISTERED = 713,
    NG_NOT_SUPPORTED = 801,
};

/* --- state.c: the one lock, safe over fork ------------------------------------------------ */

void ng_lock(void);
void ng_unlock(void);

/* --- log.c: one line for what is not answered, and the text of this thread's last failure -- */

/* Writes "nullgpu[pid]: ..." to the file NULLGPU_LOG, or to stderr. */
void ng_log(const char *format, ...) NG_PRINTF(1, 2);

/* Keeps the text for the status's error string, and returns the status. */
int ng_fail(int status, const char *format, ...) NG_PRINTF(2, 3);

/* The text kept by this thread's last failure if it had this status, else NULL. */
const char *ng_failure_text(int status);

struct ng_call {
    const char *library, *name;
    atomic_flag logged;
};

/* A call that the library does not answer: logged by name, once for a process and call. */
int ng_unanswered(struct ng_call *call, int status);

/* --- profile.c: the kind of GPU, read from the file NULLGPU_PROFILE ------------------------ */

enum ng_attribute_number {
#define REQUIRED(number, key) NG_##key = number,
#define COMMON(number, key, value) NG_##key = number,
#define REFUSED(number, key) NG_##key = number,
#include "attributes.def"
#undef REQUIRED
#undef COMMON
#undef REFUSED
    NG_ATTRIBUTES = 256, /* room for the ones that later drivers add */
};

struct ng_profile {
    char name[256];
    uint64_t total_memory; /* bytes on each device */
    int64_t driver_version;
    int64_t uuid_seed;
    int64_t peer_access; /* 1: every device reaches every other's memory */
    int64_t max_cluster_size;
    int64_t lowest_stream_priority;
    int64_t greatest_stream_priority;
    int attribute[NG_ATTRIBUTES];
    bool has_attribute[NG_ATTRIBUTES];
};

int ng_read_profile(const char *path, struct ng_profile *profile);

/* --- device.c: devices, the current one of each thread ------------------------------------- */

enum { NG_MAX_DEVICES = 64 };

/* Reads the environment once. Every other call here needs it to have returned NG_OK. */
int ng_init(void);
const struct ng_profile *ng_profile(void);
int ng_device_count(void);   /* those that CUDA_VISIBLE_DEVICES leaves */
int ng_physical_count(void); /* NULLGPU_COUNT */
int ng_physical_device(int device);
int ng_check_device(int device);

int ng_current_device(void);
int ng_set_device(int device);
/* ng_init, and the current device's context made, as any call that does work does. */
int ng_activate(void);
/* Whether the device has its primary context, and giving it one. */
bool ng_device_is_active(int device);
void ng_make_active(int device);
/* Whether the driver sees a current context on this thread. */
bool ng_has_context(void);
void ng_set_context(int device); /* a negative one: none */

int ng_get_attribute(int *value, int attribute, int device);
int ng_get_limit(size_t *value, int limit);
void ng_uuid(unsigned char uuid[16], int physical);
enum { NG_UUID_TEXT = 41 }; /* "GPU-8-4-4-4-12" */
void ng_uuid_text(char text[NG_UUID_TEXT], int physical);
void ng_pci_bus_id(char *text, int length, int physical);

/* --- memory.c: device memory is reserved host memory --------------------------------------- */

enum ng_memory_kind { NG_UNREGISTERED, NG_HOST, NG_DEVICE, NG_MANAGED }; /* = cudaMemoryType */

struct ng_range {
    char *base;
    size_t size;
    enum ng_memory_kind kind;
    int device;
    bool borrowed;            /* the program's own memory, registered with us */
    struct ng_handle *mapped; /* what cuMemMap put here, or NULL */
};

int ng_allocate(void **pointer, size_t size, enum ng_memory_kind kind);
int ng_free(void *pointer, bool host);
int ng_register_host(void *pointer, size_t size);
int ng_unregister_host(void *pointer);
bool ng_find_range(const void *pointer, struct ng_range *range);
void ng_memory_used(int device, uint64_t *now, uint64_t *peak);
/* Both keep untouched pages untouched: zeros are given back to the system, not written. */
int ng_copy(void *target, const void *source, size_t size);
int ng_fill(void *target, const void *value, size_t width, size_t count);

/* For vmm.c, which holds the lock: the table and the account of memory.c. */
int ng_table_add(struct ng_range range);
bool ng_table_find(const void *pointer, struct ng_range *range);
void ng_table_remove(const void *base);
bool ng_table_first_in(const void *base, size_t size, struct ng_range *range);
int ng_account_take(int device, size_t size);
void ng_account_give(int device, size_t size);
size_t ng_page_round(size_t size);

/* --- handle.c: every handle that was given out, so that a wrong one is an error ------------ */

enum ng_handle_kind { NG_STREAM, NG_EVENT, NG_MODULE, NG_FUNCTION, NG_PHYSICAL_MEMORY };

struct ng_handle { /* the first member of what it heads */
    struct ng_handle *next;
    enum ng_handle_kind kind;
    int device;
};

/* A zeroed object of this size with its head filled in, or NULL. */
void *ng_handle_create(enum ng_handle_kind kind, size_t size);
bool ng_handle_valid(const void *handle, enum ng_handle_kind kind);
/* Takes it out of the table; the caller frees it. NULL if it is none of this kind. */
void *ng_handle_take(void *handle, enum ng_handle_kind kind);

/* --- stream.c: streams and events ----------------------------------------------------------- */

int ng_stream_create(void **stream, unsigned flags, int priority);
int ng_stream_destroy(void *stream);
int ng_stream_check(void *stream);
int ng_stream_device(void *stream, int *device);
int ng_stream_priority(void *stream, int *priority);
int ng_stream_flags(void *stream, unsigned *flags);

int ng_event_create(void **event, unsigned flags);
int ng_event_destroy(void *event);
int ng_event_check(void *event);
int ng_event_record(void *event, void *stream);
int ng_event_elapsed(float *milliseconds, void *start, void *end);

/* --- module.c, cubin.c: kernels, which do nothing ------------------------------------------- */

struct ng_kernel_resources {
    int registers;     /* for a thread */
    int local_bytes;   /* for a thread: the stack, with what is spilled */
    int shared_bytes;  /* static, for a block */
};

int ng_module_load(void **module, const void *image);
int ng_module_load_file(void **module, const char *path);
int ng_module_unload(void *module);
int ng_module_function(void **function, void *module, const char *name);
int ng_function_attribute(int *value, int attribute, void *function);
int ng_function_set_attribute(void *function, int attribute, int value);
int ng_launch(const unsigned grid[3], const unsigned block[3], size_t shared, size_t shared_limit,
              void *stream);
int ng_function_launch(void *function, const unsigned grid[3], const unsigned block[3],
                       size_t shared, void *stream);
int ng_blocks_per_multiprocessor(int *blocks, int threads, int registers, size_t shared);

/* Whether the image is a cubin, and if so whether it has the kernel. */
bool ng_is_cubin(const void *image);
size_t ng_cubin_size(const void *cubin);
bool ng_cubin_kernel(const void *cubin, const char *kernel, struct ng_kernel_resources *resources);

/* --- fill.c: the one kernel of torch's own that runs ------------------------------------------- */

void ng_register_kernel(const void *function, const char *name);
int ng_run_kernel(const void *function, void **arguments);

/* --- entry.c: calls by name, for cudaGetDriverEntryPoint and cuGetProcAddress --------------- */

void *ng_driver_entry(const char *name);

const char *ng_error_name(int status, bool driver);
const char *ng_error_string(int status);

#endif
