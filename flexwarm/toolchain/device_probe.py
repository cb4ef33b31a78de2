"""Ask the NVIDIA driver for everything that it knows of each device, and print it as JSON. Run as a script, in a child.

No torch and no CUDA context: only ``cuInit`` and the questions. Standard library alone, so that it starts in milliseconds.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys

#: CUDA 13's driver answers up to 150; one that it does not know is an error, and left out.
_LAST_ATTRIBUTE = 200


def main() -> None:
    cuda = ctypes.CDLL("libcuda.so.1")
    if hasattr(cuda, "nullgpu_profile"):
        raise SystemExit("the driver here is flexwarm's own, which stands in for a GPU that is not there")

    def call(name: str, *arguments: object) -> None:
        status = getattr(cuda, name)(*arguments)
        if status:
            raise SystemExit(f"{name} failed with status {status}")

    call("cuInit", 0)
    version, count = ctypes.c_int(), ctypes.c_int()
    call("cuDriverGetVersion", ctypes.byref(version))
    call("cuDeviceGetCount", ctypes.byref(count))
    devices = []
    for index in range(count.value):
        device, memory, name = ctypes.c_int(), ctypes.c_size_t(), ctypes.create_string_buffer(256)
        call("cuDeviceGet", ctypes.byref(device), index)
        call("cuDeviceGetName", name, len(name), device)
        call("cuDeviceTotalMem_v2", ctypes.byref(memory), device)
        attributes = {}
        for number in range(1, _LAST_ATTRIBUTE):
            value = ctypes.c_int()
            if cuda.cuDeviceGetAttribute(ctypes.byref(value), number, device) == 0:
                attributes[str(number)] = value.value
        devices.append({"name": name.value.decode(), "total_memory_bytes": memory.value, "attributes": attributes})
    json.dump({"driver_version": version.value, "driver_path": ":".join(_driver_directories()), "devices": devices}, sys.stdout)


def _driver_directories() -> list[str]:
    """Where the driver's library lies, as Triton 3.5 to 3.9 find it: by their variable, the loader's list, or the path."""
    if os.environ.get("TRITON_LIBCUDA_PATH"):
        return [os.environ["TRITON_LIBCUDA_PATH"]]
    try:
        listed = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, errors="replace").stdout
    except OSError:
        return []
    found = [os.path.dirname(line.split()[-1]) for line in listed.splitlines() if "libcuda.so.1" in line]
    named = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    return found or [path for path in named if path and os.path.exists(os.path.join(path, "libcuda.so.1"))]


if __name__ == "__main__":
    main()
