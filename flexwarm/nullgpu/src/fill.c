/* The kernels of torch's that run: filling contiguous memory with a value (torch.full, zeros, ones,
 * fill_, zero_), and those of CUB's that count what is selected (nonzero, masked_select, unique).
 *
 * Inductor folds constants by making them on the device and reading them back, and compiles what it
 * read into kernels: with a fill that does nothing, 1 - beta1 of AdamW became 0. Whatever else is
 * folded needs kernels that are not here: nullgpu_reads() tells of every such reading.
 *
 * A count is read back and is the size of the result, also where a tensor is printed. It is nothing:
 * whatever was there would be a size of billions. */
#include "nullgpu.h"

#include <stdlib.h>
#include <string.h>

struct fill {
    const void *function;
    size_t width;
    int counted; /* the argument that points to a count; 0 for a fill */
};

/* Few: one for each type and vector width. Under the lock. */
static struct fill *fills;
static size_t fill_count, fill_room;

/* The width of a type by its mangled name, which is to end there; 0 for one not known. */
static size_t width_of(const char *mangled)
{
    static const struct { const char *name; size_t width; } types[] = {
        { "bE", 1 }, { "aE", 1 }, { "hE", 1 }, { "sE", 2 }, { "tE", 2 }, { "iE", 4 }, { "jE", 4 },
        { "lE", 8 }, { "mE", 8 }, { "fE", 4 }, { "dE", 8 },
        { "N3c104HalfEE", 2 }, { "N3c108BFloat16EE", 2 }, { "N3c1013Float8_e4m3fnEE", 1 },
        { "N3c1011Float8_e5m2EE", 1 }, { "N3c107complexIfEEE", 8 }, { "N3c107complexIdEEE", 16 },
    };
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (strncmp(mangled, types[i].name, strlen(types[i].name)) == 0)
            return types[i].width;
    return 0;
}

/* vectorized_elementwise_kernel<N, FillFunctor<T>, array<char *, 1>>(int, FillFunctor<T>, array) */
static size_t filled_width(const char *name)
{
    static const char head[] = "_ZN2at6native29vectorized_elementwise_kernelILi";
    static const char functor[] = "ENS0_11FillFunctorI";
    if (strncmp(name, head, sizeof head - 1) != 0)
        return 0;
    const char *type = name + sizeof head - 1;
    type += strspn(type, "0123456789");
    return strncmp(type, functor, sizeof functor - 1) == 0 ? width_of(type + sizeof functor - 1) : 0;
}

/* DeviceReduceSingleTileKernel<policy_hub<int, ...>, ...>(input, int *count, ...), whose policy has
 * another name in CUDA 12, and DeviceCompactInitKernel<..., T *>(state, int, T *count). */
static size_t counted_width(const char *name, int *argument)
{
    if (strstr(name, "28DeviceReduceSingleTileKernelI")
        && (strstr(name, "10policy_hubIi") || strstr(name, "18DeviceReducePolicyIi"))) {
        *argument = 1;
        return sizeof(int);
    }
    if (!strstr(name, "23DeviceCompactInitKernelI"))
        return 0;
    *argument = 2;
    return strstr(name, "EPlE") ? sizeof(long) : sizeof(int);
}

void ng_register_kernel(const void *function, const char *name)
{
    int counted = 0;
    size_t width = filled_width(name);
    if (!width)
        width = counted_width(name, &counted);
    if (!width)
        return;
    ng_lock();
    if (fill_count == fill_room) {
        size_t room = fill_room ? 2 * fill_room : 64;
        struct fill *larger = realloc(fills, room * sizeof *larger);
        if (larger) {
            fills = larger;
            fill_room = room;
        }
    }
    if (fill_count < fill_room)
        fills[fill_count++] = (struct fill){ function, width, counted };
    ng_unlock();
}

int ng_run_kernel(const void *function, void **arguments)
{
    struct fill found = { 0 };
    ng_lock();
    for (size_t i = 0; i < fill_count && !found.width; i++)
        if (fills[i].function == function)
            found = fills[i];
    ng_unlock();
    if (!found.width || !arguments)
        return NG_OK;
    if (found.counted)
        return ng_fill(*(void **)arguments[found.counted], "", 1, found.width);
    int count = *(const int *)arguments[0];
    return ng_fill(*(void **)arguments[2], arguments[1], found.width, (size_t)(count > 0 ? count : 0));
}
