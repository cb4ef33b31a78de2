#define _GNU_SOURCE
#include "nullgpu.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static _Thread_local int failure_status;
static _Thread_local char failure_text[512];

void ng_log(const char *format, ...)
{
    char line[768];
    int head = snprintf(line, sizeof line, "nullgpu[%ld]: ", (long)getpid());
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line + head, sizeof line - (size_t)head - 1, format, arguments);
    va_end(arguments);
    size_t length = strlen(line);
    line[length++] = '\n';

    /* Opened for each line: no descriptor for a fork to share or a program to close. One
     * write to a file opened for appending keeps lines of many processes whole. */
    const char *path = getenv("NULLGPU_LOG");
    bool to_file = path && *path && strcmp(path, "stderr") != 0;
    int file = to_file ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666) : -1;
    ssize_t written = write(file < 0 ? STDERR_FILENO : file, line, length);
    (void)written; /* there is nobody left to tell */
    if (file >= 0)
        close(file);
}

int ng_fail(int status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(failure_text, sizeof failure_text, format, arguments);
    va_end(arguments);
    failure_status = status;
    return status;
}

const char *ng_failure_text(int status)
{
    return status != NG_OK && status == failure_status ? failure_text : NULL;
}

/* What does the same and is answered. */
static const char *instead_of(const char *library)
{
    static const struct { const char *library, *instead; } known[] = {
        { "nccl", "; use the gloo backend" },
        { "cudnn", "; use another implementation, such as flex_attention, or compile it" },
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(known[i].library, library) == 0)
            return known[i].instead;
    return "";
}

int ng_unanswered(const char *library, const char *call, int status, atomic_flag *logged)
{
    if (!atomic_flag_test_and_set(logged))
        ng_log("unanswered: %s %s%s", library, call, instead_of(library));
    return ng_fail(status, "the null GPU does not answer %s", call);
}
