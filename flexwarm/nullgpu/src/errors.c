#include "nullgpu.h"

static const struct error {
    int number;
    const char *runtime_name, *driver_name, *text;
} errors[] = {
#define ERROR(number, runtime, driver, text) { number, #runtime, #driver, text },
#include "errors.def"
#undef ERROR
};

static const struct error *find(int number)
{
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].number == number)
            return &errors[i];
    return NULL;
}

const char *ng_error_name(int status, bool driver)
{
    const struct error *error = find(status);
    return !error ? NULL : driver ? error->driver_name : error->runtime_name;
}

/* The reason where this thread's last failure had one, so that torch's exception says it. */
const char *ng_error_string(int status)
{
    const char *reason = ng_failure_text(status);
    const struct error *error = find(status);
    return reason ? reason : error ? error->text : NULL;
}
