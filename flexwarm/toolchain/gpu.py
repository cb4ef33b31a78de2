"""The machine's NVIDIA GPUs, from the driver's own interface: no CUDA context is made."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from flexwarm.errors import UnsupportedError
from flexwarm.target import Target

_DRIVER_LIBRARY = "libnvidia-ml.so.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One physical GPU.

    Attributes:
        index: in the driver's order (by PCI bus). CUDA's own may differ, see ``CUDA_DEVICE_ORDER``.
        name: as torch reports it, such as ``NVIDIA H200``.
        capability: compute capability, such as ``9.0``.
        uuid: as ``CUDA_VISIBLE_DEVICES`` takes it.
        driver: version of the driver.
    """

    index: int
    name: str
    capability: str
    uuid: str
    driver: str


def gpus() -> tuple[Gpu, ...]:
    """All GPUs of the machine, whatever ``CUDA_VISIBLE_DEVICES`` says; none where there is no driver.

    Raises:
        UnsupportedError: there is a driver, and it does not answer.
    """
    try:
        library = ctypes.CDLL(_DRIVER_LIBRARY)
    except OSError:
        return ()  # no driver on this machine; saves importing its binding too
    if hasattr(library, "nullgpu_profile") or hasattr(ctypes.CDLL(None), "nullgpu_profile"):
        raise UnsupportedError(
            "the NVIDIA driver here stands in for a GPU that is not there", "unset LD_PRELOAD and LD_LIBRARY_PATH, or --target"
        )
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError_DriverNotLoaded:
        return ()  # the library is there without its kernel module, as in a CUDA image that runs on a machine without GPU
    except pynvml.NVMLError as error:
        raise _no_answer(error) from error
    try:
        return tuple(_read(index) for index in range(pynvml.nvmlDeviceGetCount()))
    except pynvml.NVMLError as error:
        raise _no_answer(error) from error
    finally:
        pynvml.nvmlShutdown()


def _no_answer(error: Exception) -> UnsupportedError:
    return UnsupportedError(
        f"the NVIDIA driver does not answer: {error}", "nvidia-smi shows the same; reload the driver or restart"
    )


def _read(index: int) -> Gpu:
    import pynvml as nvml

    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    return Gpu(
        index=index,
        name=str(nvml.nvmlDeviceGetName(handle)),
        capability=f"{major}.{minor}",
        uuid=str(nvml.nvmlDeviceGetUUID(handle)),
        driver=str(nvml.nvmlSystemGetDriverVersion()),
    )


def absent_gpus(target: Target) -> tuple[Gpu, ...]:
    """The target's GPUs as if they were here."""
    profile = target.profile
    return tuple(
        Gpu(index=index, name=profile.name, capability=profile.capability, uuid=f"absent-{index}", driver="none")
        for index in range(target.count)
    )


def gpu_class(found: tuple[Gpu, ...]) -> str:
    """The kinds of GPU, each once: ``NVIDIA H200 cc9.0``, or ``none``."""
    return ", ".join(sorted({f"{gpu.name} cc{gpu.capability}" for gpu in found})) or "none"
