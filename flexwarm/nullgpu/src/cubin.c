/* Reads from a cubin what a driver would tell of a kernel: torch decides by it. Inductor tries a
 * smaller reduction block where a kernel takes many registers, and drops candidates that spill;
 * with zeros it would compile fewer kernels here than on the GPU. */
#include "nullgpu.h"

#include <elf.h>
#include <string.h>

/* Records of the section .nv.info: format, attribute, size, and (symbol, value) for these. Neither
 * is documented; the numbers are as cuobjdump -elf names them, and on an H200 what is read here
 * was what cuFuncGetAttribute said of 19 kernels of Triton's. */
enum {
    FORMAT_SIZED = 4,
    INFO_FRAME_SIZE = 0x11,
    INFO_MIN_STACK_SIZE = 0x12,
    INFO_REGISTERS = 0x2f,
};

bool ng_is_cubin(const void *image)
{
    const unsigned char *head = image;
    return memcmp(head, ELFMAG, SELFMAG) == 0 && head[EI_CLASS] == ELFCLASS64;
}

static const Elf64_Shdr *section_table(const void *cubin)
{
    const Elf64_Ehdr *head = cubin;
    return (const void *)((const char *)cubin + head->e_shoff);
}

size_t ng_cubin_size(const void *cubin)
{
    const Elf64_Ehdr *head = cubin;
    const Elf64_Shdr *sections = section_table(cubin);
    size_t end = head->e_shoff + (size_t)head->e_shnum * sizeof *sections;
    for (int i = 0; i < head->e_shnum; i++)
        if (sections[i].sh_type != SHT_NOBITS && end < sections[i].sh_offset + sections[i].sh_size)
            end = sections[i].sh_offset + sections[i].sh_size;
    size_t programs = head->e_phoff + (size_t)head->e_phnum * sizeof(Elf64_Phdr);
    return end < programs ? programs : end;
}

static const char *name_in(const void *cubin, const Elf64_Shdr *names, Elf64_Word at)
{
    return (const char *)cubin + names->sh_offset + at;
}

/* The section "<prefix><kernel>", or NULL. */
static const Elf64_Shdr *find_section(const void *cubin, const char *prefix, const char *kernel)
{
    const Elf64_Ehdr *head = cubin;
    const Elf64_Shdr *sections = section_table(cubin);
    size_t length = strlen(prefix);
    for (int i = 0; i < head->e_shnum; i++) {
        const char *name = name_in(cubin, &sections[head->e_shstrndx], sections[i].sh_name);
        if (strncmp(name, prefix, length) == 0 && strcmp(name + length, kernel) == 0)
            return &sections[i];
    }
    return NULL;
}

static bool symbol_is(const void *cubin, uint32_t index, const char *name)
{
    const Elf64_Shdr *table = find_section(cubin, ".symtab", "");
    if (!table || index >= table->sh_size / sizeof(Elf64_Sym))
        return false;
    const Elf64_Sym *symbols = (const void *)((const char *)cubin + table->sh_offset);
    const Elf64_Shdr *names = section_table(cubin) + table->sh_link;
    return strcmp(name_in(cubin, names, symbols[index].st_name), name) == 0;
}

static int kernel_info(const void *cubin, const char *kernel, int attribute)
{
    const Elf64_Shdr *info = find_section(cubin, ".nv.info", "");
    if (!info)
        return 0;
    const unsigned char *at = (const unsigned char *)cubin + info->sh_offset;
    const unsigned char *end = at + info->sh_size;
    while (end - at >= 4) {
        size_t size = at[0] == FORMAT_SIZED ? (size_t)(at[2] | at[3] << 8) : 0;
        uint32_t record[2]; /* symbol, value */
        if (at[1] == attribute && size == sizeof record && (size_t)(end - at) >= 4 + size) {
            memcpy(record, at + 4, sizeof record);
            if (symbol_is(cubin, record[0], kernel))
                return (int)record[1];
        }
        at += 4 + size;
    }
    return 0;
}

bool ng_cubin_kernel(const void *cubin, const char *kernel, struct ng_kernel_resources *resources)
{
    if (!find_section(cubin, ".text.", kernel))
        return false;
    const Elf64_Shdr *shared = find_section(cubin, ".nv.shared.", kernel);
    int frame = kernel_info(cubin, kernel, INFO_FRAME_SIZE);
    int stack = kernel_info(cubin, kernel, INFO_MIN_STACK_SIZE);
    int reserved = ng_profile()->attribute[NG_reserved_shared_memory_per_block];
    resources->registers = kernel_info(cubin, kernel, INFO_REGISTERS);
    resources->local_bytes = frame > stack ? frame : stack;
    /* The section begins with what the driver reserves, which it does not count. */
    resources->shared_bytes = shared && (int)shared->sh_size > reserved
                                ? (int)shared->sh_size - reserved : 0;
    return true;
}
