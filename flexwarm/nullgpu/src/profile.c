#define _GNU_SOURCE
#include "nullgpu.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct number_key {
    const char *name;
    size_t offset; /* of an int64_t in struct ng_profile */
    int64_t least;
    int64_t fallback;
    bool required;
};

#define FIELD(field) #field, offsetof(struct ng_profile, field)
static const struct number_key numbers[] = {
    { FIELD(total_memory), 1, 0, true },
    { FIELD(driver_version), 1000, 13000, false },
    { FIELD(uuid_seed), INT64_MIN, 0, false },
    { FIELD(peer_access), 0, 1, false },
    { FIELD(max_cluster_size), 1, 8, false },
    { FIELD(lowest_stream_priority), INT_MIN, 0, false },
    { FIELD(greatest_stream_priority), INT_MIN, -5, false },
};
enum { NUMBERS = sizeof numbers / sizeof *numbers };
#undef FIELD

static const char *const attribute_names[NG_ATTRIBUTES] = {
#define REQUIRED(number, key) [number] = #key,
#define COMMON(number, key, value) [number] = #key,
#define REFUSED(number, key) [number] = #key,
#include "attributes.def"
#undef REQUIRED
#undef COMMON
#undef REFUSED
};

static const bool attribute_required[NG_ATTRIBUTES] = {
#define REQUIRED(number, key) [number] = true,
#define COMMON(number, key, value)
#define REFUSED(number, key)
#include "attributes.def"
#undef REQUIRED
#undef COMMON
#undef REFUSED
};

static const bool attribute_refused[NG_ATTRIBUTES] = {
#define REQUIRED(number, key)
#define COMMON(number, key, value)
#define REFUSED(number, key) [number] = true,
#include "attributes.def"
#undef REQUIRED
#undef COMMON
#undef REFUSED
};

static void set_common(struct ng_profile *profile)
{
    memset(profile, 0, sizeof *profile);
    for (int i = 0; i < NUMBERS; i++)
        memcpy((char *)profile + numbers[i].offset, &numbers[i].fallback, sizeof(int64_t));
#define REQUIRED(number, key)
#define COMMON(number, key, value)         \
    profile->attribute[number] = (value); \
    profile->has_attribute[number] = true;
#define REFUSED(number, key) profile->has_attribute[number] = true;
#include "attributes.def"
#undef REQUIRED
#undef COMMON
#undef REFUSED
}

static bool read_integer(const char *text, int64_t least, int64_t most, int64_t *value)
{
    char *end;
    errno = 0;
    long long number = strtoll(text, &end, 10);
    if (errno || end == text || *end || number < least || number > most)
        return false;
    *value = number;
    return true;
}

/* The number of the attribute with this key: its name, or "attribute.N" for one that has no
 * name here. -1 for none. */
static int attribute_of_key(const char *key)
{
    for (int i = 0; i < NG_ATTRIBUTES; i++)
        if (attribute_names[i] && strcmp(attribute_names[i], key) == 0)
            return i;
    int64_t number;
    if (strncmp(key, "attribute.", 10) == 0 && read_integer(key + 10, 1, NG_ATTRIBUTES - 1, &number)
        && !attribute_names[number])
        return (int)number;
    return -1;
}

static int64_t least_of(int attribute)
{
    if (!attribute_required[attribute])
        return INT_MIN;
    switch (attribute) {
    case NG_compute_capability_minor:
    case NG_reserved_shared_memory_per_block:
    case NG_max_persisting_l2_cache_size:
        return 0;
    default:
        return 1; /* a size or a count: zero would be divided by, somewhere far from here */
    }
}

/* NULL, or what is wrong. */
static const char *set_key(struct ng_profile *profile, bool given[NUMBERS], const char *key,
                           const char *value)
{
    static const char bad_value[] = "the value is no integer in range";
    int64_t number;

    if (strcmp(key, "name") == 0) {
        if (!*value || strlen(value) >= sizeof profile->name)
            return "the name is empty or too long";
        strcpy(profile->name, value);
        return NULL;
    }
    for (int i = 0; i < NUMBERS; i++) {
        if (strcmp(numbers[i].name, key) != 0)
            continue;
        if (!read_integer(value, numbers[i].least, INT64_MAX, &number))
            return bad_value;
        memcpy((char *)profile + numbers[i].offset, &number, sizeof number);
        given[i] = true;
        return NULL;
    }
    int attribute = attribute_of_key(key);
    if (attribute < 0)
        return "unknown key";
    if (!read_integer(value, least_of(attribute), INT_MAX, &number))
        return bad_value;
    profile->attribute[attribute] = attribute_refused[attribute] ? 0 : (int)number;
    profile->has_attribute[attribute] = true;
    return NULL;
}

static char *trim(char *text)
{
    text += strspn(text, " \t");
    size_t length = strlen(text);
    while (length && strchr(" \t\r\n", text[length - 1]))
        text[--length] = '\0';
    return text;
}

static int check_complete(const char *path, const struct ng_profile *profile,
                          const bool given[NUMBERS])
{
    const char *missing = profile->name[0] ? NULL : "name";
    for (int i = 0; i < NUMBERS && !missing; i++)
        if (numbers[i].required && !given[i])
            missing = numbers[i].name;
    for (int i = 0; i < NG_ATTRIBUTES && !missing; i++)
        if (attribute_required[i] && !profile->has_attribute[i])
            missing = attribute_names[i];
    if (missing)
        return ng_fail(NG_NOT_INITIALIZED, "the profile %s lacks the key %s", path, missing);
    return NG_OK;
}

int ng_read_profile(const char *path, struct ng_profile *profile)
{
    FILE *file = fopen(path, "re");
    if (!file)
        return ng_fail(NG_NOT_INITIALIZED, "cannot open the profile %s: %s", path, strerror(errno));

    set_common(profile);
    bool given[NUMBERS] = { false };
    char line[512];
    int status = NG_OK;
    for (int number = 1; status == NG_OK && fgets(line, sizeof line, file); number++) {
        char *key = trim(line);
        if (!*key || *key == '#')
            continue;
        char *equals = strchr(key, '=');
        if (!equals) {
            status = ng_fail(NG_NOT_INITIALIZED, "%s:%d: no key=value: %.80s", path, number, key);
            break;
        }
        *equals = '\0';
        key = trim(key);
        const char *problem = set_key(profile, given, key, trim(equals + 1));
        if (problem)
            status = ng_fail(NG_NOT_INITIALIZED, "%s:%d: %s: %.80s", path, number, problem, key);
    }
    fclose(file);
    return status ? status : check_complete(path, profile, given);
}
