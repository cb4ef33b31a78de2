#define _GNU_SOURCE
#include "nullgpu.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Written once, by initialize(), and read after pthread_once. */
static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct ng_profile profile;
static int physical_count;
static int visible_count;
static int visible[NG_MAX_DEVICES];
static int init_status;
static char init_text[512];

static atomic_bool active[NG_MAX_DEVICES];
static atomic_bool attribute_logged[NG_ATTRIBUTES];

static _Thread_local int current;
static _Thread_local bool has_context;

/* The device that an entry of CUDA_VISIBLE_DEVICES names, or -1. */
static int device_of_entry(const char *entry)
{
    char *end;
    long number = strtol(entry, &end, 10);
    if (end != entry && !*end)
        return number >= 0 && number < physical_count ? (int)number : -1;
    int found = -1;
    for (int i = 0; i < physical_count && strlen(entry) > 4; i++) {
        char uuid[NG_UUID_TEXT];
        ng_uuid_text(uuid, i);
        if (strncmp(uuid, entry, strlen(entry)) == 0)
            found = found < 0 ? i : -1;
    }
    return found;
}

/* As the driver does: the list ends at the first entry that names no device, and a list that
 * names one twice is empty. */
static void read_visible(void)
{
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    if (!list) {
        for (visible_count = 0; visible_count < physical_count; visible_count++)
            visible[visible_count] = visible_count;
        return;
    }
    char copy[4096], *rest = copy, *entry;
    snprintf(copy, sizeof copy, "%s", list);
    while ((entry = strsep(&rest, ",")) && visible_count < NG_MAX_DEVICES) {
        entry += strspn(entry, " ");
        entry[strcspn(entry, " ")] = '\0';
        int device = device_of_entry(entry);
        if (device < 0)
            return;
        for (int i = 0; i < visible_count; i++) {
            if (visible[i] == device) {
                visible_count = 0;
                return;
            }
        }
        visible[visible_count++] = device;
    }
}

static int read_environment(void)
{
    const char *count = getenv("NULLGPU_COUNT");
    char *end = NULL;
    long number = count ? strtol(count, &end, 10) : 1;
    if (count && (end == count || *end || number < 0 || number > NG_MAX_DEVICES))
        return ng_fail(NG_NOT_INITIALIZED, "NULLGPU_COUNT is no number from 0 to %d: %.80s",
                       NG_MAX_DEVICES, count);
    physical_count = (int)number;

    const char *path = getenv("NULLGPU_PROFILE");
    if (!path || !*path)
        return ng_fail(NG_NOT_INITIALIZED, "NULLGPU_PROFILE does not name a profile");
    int status = ng_read_profile(path, &profile);
    if (status)
        return status;
    read_visible();
    if (visible_count == 0)
        return ng_fail(NG_NO_DEVICE, "no CUDA-capable device is detected");
    return NG_OK;
}

static void initialize(void)
{
    init_status = read_environment();
    if (init_status) {
        snprintf(init_text, sizeof init_text, "%s", ng_failure_text(init_status));
        ng_log("not started: %s", init_text);
    }
}

int ng_init(void)
{
    pthread_once(&once, initialize);
    return init_status ? ng_fail(init_status, "%s", init_text) : NG_OK;
}

const struct ng_profile *ng_profile(void) { return &profile; }
int ng_device_count(void) { return visible_count; }
int ng_physical_count(void) { return physical_count; }
int ng_physical_device(int device) { return visible[device]; }

int ng_check_device(int device)
{
    int status = ng_init();
    if (status)
        return status;
    return device >= 0 && device < visible_count ? NG_OK : NG_INVALID_DEVICE;
}

int ng_current_device(void) { return current; }
bool ng_has_context(void) { return has_context; }
bool ng_device_is_active(int device) { return atomic_load(&active[device]); }

void ng_make_active(int device) { atomic_store(&active[device], true); }

void ng_set_context(int device)
{
    has_context = device >= 0;
    if (device >= 0) {
        current = device;
        ng_make_active(device);
    }
}

int ng_set_device(int device)
{
    int status = ng_check_device(device);
    if (status == NG_OK)
        ng_set_context(device);
    return status;
}

int ng_activate(void)
{
    int status = ng_init();
    if (status == NG_OK && !has_context)
        ng_set_context(current);
    return status;
}

int ng_get_attribute(int *value, int attribute, int device)
{
    int status = ng_check_device(device);
    if (status)
        return status;
    if (attribute < 0 || attribute >= NG_ATTRIBUTES || !profile.has_attribute[attribute]) {
        /* Not zero: what asks may divide by it. */
        int slot = attribute < 0 || attribute >= NG_ATTRIBUTES ? 0 : attribute;
        if (!atomic_exchange(&attribute_logged[slot], true))
            ng_log("unanswered: device attribute %d", attribute);
        return ng_fail(NG_INVALID_VALUE, "the null GPU's profile has no attribute %d", attribute);
    }
    *value = profile.attribute[attribute];
    if (attribute == NG_pci_bus_id)
        *value += visible[device]; /* each device has a slot of its own */
    return NG_OK;
}

/* What a driver says before anybody changes it (cudaLimit, CUlimit). */
int ng_get_limit(size_t *value, int limit)
{
    static const size_t limits[] = {
        1024,    /* stack of a thread */
        7 << 20, /* printf's buffer */
        8 << 20, /* malloc's heap */
        2,       /* depth of synchronization */
        2048,    /* pending launches */
        64,      /* L2's fetch granularity */
        0,       /* persisting L2 */
    };
    int status = ng_activate();
    if (status)
        return status;
    if (limit < 0 || (size_t)limit >= sizeof limits / sizeof *limits)
        return NG_INVALID_VALUE;
    *value = limits[limit];
    return NG_OK;
}

/* The same for the same seed and device, in every process: libraries compare it over ranks. */
void ng_uuid(unsigned char uuid[16], int physical)
{
    uint64_t state = (uint64_t)profile.uuid_seed * 1000003u + (uint64_t)physical;
    for (int i = 0; i < 16; i += 8) { /* splitmix64 */
        uint64_t word = state += UINT64_C(0x9e3779b97f4a7c15);
        word = (word ^ (word >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
        word = (word ^ (word >> 27)) * UINT64_C(0x94d049bb133111eb);
        word ^= word >> 31;
        memcpy(uuid + i, &word, sizeof word);
    }
}

void ng_uuid_text(char text[NG_UUID_TEXT], int physical)
{
    unsigned char uuid[16];
    ng_uuid(uuid, physical);
    char *at = text + sprintf(text, "GPU-");
    for (int i = 0; i < 16; i++)
        at += sprintf(at, i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", uuid[i]);
}

void ng_pci_bus_id(char *text, int length, int physical)
{
    snprintf(text, (size_t)length, "%04x:%02x:%02x.0",
             (unsigned)profile.attribute[NG_pci_domain_id],
             (unsigned)(profile.attribute[NG_pci_bus_id] + physical),
             (unsigned)profile.attribute[NG_pci_device_id]);
}

/* The file that describes the devices, or NULL. Nothing of NVIDIA's has this name, so asking for it
 * also tells that the driver is this one. */
NG_API const char *nullgpu_profile(void) { return getenv("NULLGPU_PROFILE"); }
