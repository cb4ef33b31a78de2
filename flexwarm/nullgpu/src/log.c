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

/* What does the same and is answered; of a library, or of one call of it. */
static const char *instead_of(const char *library, const char *call)
{
    static const char elsewhere[] = "; compute that on the CPU, or leave it to the GPU";
    static const struct { const char *library, *call, *instead; } known[] = {
        { "nccl", "", "; use the gloo backend" },
        { "cudnn", "", "; use another implementation, such as flex_attention, or compile it" },
        { "cuda_runtime", "cudaStreamBeginCapture", "; use a mode of torch.compile without CUDA graphs" },
        { "cufft", "", elsewhere },
        { "cusolver", "", elsewhere },
        { "cusparse", "", elsewhere },
        { "cusparseLt", "", elsewhere },
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(known[i].library, library) == 0
            && strncmp(known[i].call, call, strlen(known[i].call)) == 0)
            return known[i].instead;
    return "";
}

/* The last call that was not answered, and by which process: a forked child has made none. */
static _Atomic(const struct ng_call *) last_unanswered;
static _Atomic pid_t last_unanswered_by;

static void describe(const struct ng_call *call, char *text, size_t room)
{
    snprintf(text, room, "%s %s%s", call->library, call->name, instead_of(call->library, call->name));
}

int ng_unanswered(struct ng_call *call, int status)
{
    atomic_store(&last_unanswered, call);
    atomic_store(&last_unanswered_by, getpid());
    if (!atomic_flag_test_and_set(&call->logged)) {
        char text[256];
        describe(call, text, sizeof text);
        ng_log("unanswered: %s", text);
    }
    return ng_fail(status, "the null GPU does not answer %s", call->name);
}

/* What the log says of the last such call of the process; "" if there was none. */
NG_API const char *nullgpu_unanswered(void)
{
    static _Thread_local char text[256];
    const struct ng_call *call = atomic_load(&last_unanswered);
    text[0] = '\0';
    if (call && atomic_load(&last_unanswered_by) == getpid())
        describe(call, text, sizeof text);
    return text;
}
