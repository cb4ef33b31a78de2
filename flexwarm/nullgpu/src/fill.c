/* The one kernel of torch's that runs: filling contiguous memory with a value (torch.full, zeros,
 * ones, fill_, zero_).
 *
 * Inductor folds constants by making them on the device and reading them back, and compiles what it
 * read into kernels: with a fill that does nothing, 1 - beta1 of AdamW became 0. Whatever else is
 * folded needs kernels that are not here: nullgpu_reads() tells of every such reading. */
#include "nullgpu.h"

#include <stdlib.h>
#include <string.h>

struct fill {
    const void *function;
    size_t width;
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
void ng_register_kernel(const void *function, const char *name)
{
    static const char head[] = "_ZN2at6native29vectorized_elementwise_kernelILi";
    static const char functor[] = "ENS0_11FillFunctorI";
    if (strncmp(name, head, sizeof head - 1) != 0)
        return;
    const char *type = name + sizeof head - 1;
    type += strspn(type, "0123456789");
    size_t width = strncmp(type, functor, sizeof functor - 1) == 0
                     ? width_of(type + sizeof functor - 1) : 0;
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
        fills[fill_count++] = (struct fill){ function, width };
    ng_unlock();
}

int ng_run_kernel(const void *function, void **arguments)
{
    size_t width = 0;
    ng_lock();
    for (size_t i = 0; i < fill_count && !width; i++)
        if (fills[i].function == function)
            width = fills[i].width;
    ng_unlock();
    if (!width || !arguments)
        return NG_OK;
    int count = *(const int *)arguments[0];
    return ng_fill(*(void **)arguments[2], arguments[1], width, (size_t)(count > 0 ? count : 0));
}
