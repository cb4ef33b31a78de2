#ifndef NULLGPU_RUNTIME_H
#define NULLGPU_RUNTIME_H

#include "nullgpu.h"

/* Keeps a failure for cudaGetLastError, and returns it. */
int ng_runtime_result(int status);

#endif
