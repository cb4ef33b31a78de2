"""Writes unanswered.def and blas.def: the symbols of NVIDIA's libraries that torch and Triton use.

    python list_symbols.py SITE_PACKAGES...

Give the site-packages of every torch to be covered (CUDA 12 and 13 builds alike). The runtime is
listed whole, by what its library exports, and the driver by what its header declares, so that an
extension's calls have names as well; of the others what torch's libraries leave undefined.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

LIBRARIES = {
    "cuda_runtime": "libcudart.so",
    "cublas": "libcublas.so",
    "cublasLt": "libcublasLt.so",
    "cudnn": "libcudnn.so",
    "cufft": "libcufft.so",
    "cufile": "libcufile.so",
    "cupti": "libcupti.so",
    "cusolver": "libcusolver.so",
    "cusparse": "libcusparse.so",
    "cusparseLt": "libcusparseLt.so",
    "nccl": "libnccl.so",
    "nvshmem": "libnvshmem_host.so",
}

# Left to NVIDIA's library: they need no device, or return no status that a stub could give.
LEFT = re.compile(
    r".*(GetVersion|GetCudartVersion|GetErrorString|GetErrorName|GetStatusString|GetStatusName"
    r"|GetResultString|GetProperty|GetLastError(String)?|GetCallbackName)$"
    r"|cuda(RuntimeGetVersion|CreateChannelDesc|SetDoubleFor(Device|Host)|GetExportTable)"
    r"|__cuda(Register.*|Unregister.*|InitModule|PushCall.*|PopCall.*|GetProcAddress)"
    r"|cuFile(Read|Write)"
    r"|nvshmem_(?!n).*|nvshmem_n_pes|nvshmem_team.*|nvshmemid_init_status"
)
BLAS_KEPT = re.compile(
    r"cublas(Lt)?(Create|Destroy|[GS]et(Stream|PointerMode|MathMode|AtomicsMode|SmCountTarget)|Mat.*(Create|Destroy|GetHeuristic|AlgoCheck|ConfigGetAttribute)$).*"
)

NVML = (
    *("DeviceGetP2PStatus", "DeviceGetNvLinkRemoteDeviceType", "DeviceGetNvLinkRemotePciInfo_v2", "DeviceGetGpuFabricInfoV"),
    *("DeviceGetUtilizationRates", "DeviceGetTemperature", "DeviceGetPowerUsage", "DeviceGetClockInfo"),
    *("DeviceGetTopologyCommonAncestor", "DeviceGetMemoryInfo_v2", "SystemGetDriverVersion", "DeviceGetPciInfo_v3"),
    *("DeviceGetCudaComputeCapability", "DeviceGetNvLinkState", "DeviceGetMigMode"),
)


def symbols(path: Path, *options: str) -> Iterator[str]:
    """The dynamic symbols of a library."""
    lines = subprocess.run(["nm", "-D", *options, path], capture_output=True, text=True).stdout
    for line in lines.splitlines():
        kind, name = line.split()[-2:]
        if kind != "A":
            yield name.split("@")[0]


def driver_calls(header: Path) -> Iterator[str]:
    """The driver calls that NVIDIA's header declares, and those that it renames."""
    text = header.read_text()
    yield from re.findall(r"^CUresult CUDAAPI (cu\w+)\(", text, re.M)
    yield from re.findall(r"^ *#define +cu[A-Z]\w+ +(?:__CUDA_API_PT[DS][SZ]\()?(cu[A-Z]\w+)", text, re.M)


def main(roots: Sequence[str]) -> None:
    found: dict[str, set[str]] = {library: set() for library in [*LIBRARIES, "cuda_driver", "nvml"]}
    found["nvml"] = {"nvml" + name for name in NVML}
    for root in map(Path, roots):
        used: set[str] = set()
        for path in [*root.glob("torch/lib/lib*.so"), *root.glob("triton/_C/*.so")]:
            used.update(symbols(path, "--undefined-only"))
        for library, stem in LIBRARIES.items():
            for path in root.glob(f"nvidia/*/lib/{stem}.*"):
                exported = set(symbols(path, "--defined-only"))
                found[library] |= exported if library == "cuda_runtime" else exported & used
        for header in root.glob("nvidia/*/include/cuda.h"):
            found["cuda_driver"].update(driver_calls(header))
        found["cuda_driver"].update(name for name in used if re.match(r"cu(?!File)[A-Z]", name))

    taken: set[str] = set()
    with open("unanswered.def", "w") as out:
        out.write("/* Made by tools/list_symbols.py. UNANSWERED(library, call) */\n")
        for library, names in sorted(found.items()):
            for name in sorted(names - taken):
                blas = library.startswith("cublas")
                public = re.fullmatch(r"_*(cu|nccl|nv)\w+", name) and not name.startswith("_Z")
                if public and not LEFT.fullmatch(name) and not blas:
                    taken.add(name)
                    out.write(f"UNANSWERED({library}, {name})\n")
    with open("blas.def", "w") as out:
        out.write("/* Made by tools/list_symbols.py: what succeeds and does nothing. */\n")
        for name in sorted(found["cublas"] | found["cublasLt"]):
            if name.startswith("cublas") and not LEFT.fullmatch(name) and not BLAS_KEPT.fullmatch(name):
                out.write(f"NOTHING({name})\n")


if __name__ == "__main__":
    main(sys.argv[1:])
