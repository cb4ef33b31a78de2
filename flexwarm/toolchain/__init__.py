"""Facts about this machine and its toolchain, without importing torch or Triton."""

from __future__ import annotations

import os
import platform
import re
import sysconfig
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from flexwarm.environment import Effect, effect, relevant
from flexwarm.errors import UnsupportedError
from flexwarm.fingerprint import Fingerprint
from flexwarm.target import BUILT_ON, Target
from flexwarm.toolchain import cpu
from flexwarm.toolchain.cxx import CxxCompiler, cxx_compiler, python_headers, require_cxx
from flexwarm.toolchain.digests import sha256
from flexwarm.toolchain.gpu import Gpu, absent_gpus, gpu_class, gpus
from flexwarm.toolchain.torch_install import (
    KNOWN_TORCH,
    TorchInstall,
    TritonInstall,
    find_torch,
    find_triton,
    require_supported,
)

if TYPE_CHECKING:
    from flexwarm.store import Store

__all__ = [
    "KNOWN_TORCH",
    "CxxCompiler",
    "Gpu",
    "TorchInstall",
    "TritonInstall",
    "absent_gpus",
    "cxx_compiler",
    "find_torch",
    "find_triton",
    "fingerprint",
    "gpu_class",
    "gpus",
    "machine",
    "python_headers",
    "require_cxx",
    "require_supported",
]


def fingerprint(environ: Mapping[str, str], *, store: Store | None, target: Target | None = None) -> Fingerprint:
    """What compiled kernels depend on here, now, under ``environ``; with a target, on the machine that has its GPUs.

    Args:
        environ: the environment that the training would run in.
        store: where the digest of Triton's library is remembered; None computes it each time.
        target: GPUs that are not here. Its processor stands in for this one; its torch, Triton and Python must be these.

    Raises:
        UnsupportedError: torch is not installed, a part of the toolchain is there and cannot be read, or is not the target's.
    """
    install = find_torch()
    if install is None:
        raise UnsupportedError("torch is not installed for this Python", "pip install torch")
    if target is not None and not install.cuda:
        raise UnsupportedError(
            f"torch {install.version} is a build without CUDA, which compiles for no NVIDIA GPU, there or not",
            "install the build that the GPU machine has",
        )
    found = absent_gpus(target) if target is not None else gpus()
    host = {**_software(install, store), **_platform(), **_cpu(environ)}
    other = _other_host(target, host) if target is not None else {}
    return Fingerprint(
        select={**host, **other, "gpu.class": gpu_class(found)},
        explain={
            **{f"{BUILT_ON}{name}": host[name] for name in other},
            "torch.path": str(install.path),  # on a CPU it enters the C++ key, as the compiler's -I arguments
            **_gpu_details(found),
            **_cxx_details(environ),
            "host.cores": str(len(os.sched_getaffinity(0))),  # the CPU key's thread count, where OMP_NUM_THREADS is unset
            **_environment(environ),
        },
    )


#: What a machine that builds may have otherwise than the one it builds for: no CUDA kernel depends on it.
_OWN: Final = ("cpu.", "platform.libc")


def _other_host(target: Target, here: Mapping[str, str]) -> dict[str, str]:
    """What the target's machine has otherwise, and may."""
    _refuse_other_platform(target, here)
    found = {}
    for name, value in target.profile.host.items():
        if here.get(name) == value:
            continue
        if name.startswith(_OWN) and name in here:
            found[name] = value
        else:
            raise UnsupportedError(
                f"{name} is {here.get(name, 'unset')} here and {value} on the machine of the profile {target.asked}",
                "build with the same torch, Triton and Python as the GPU machine has: their content is in every key",
            )
    return found


def _refuse_other_platform(target: Target, here: Mapping[str, str]) -> None:
    """Triton compiles small modules for the host, too, and the target's machine must be able to load them.

    Raises:
        UnsupportedError: it has another architecture, or a C library that is older than the one here or of another kind.
    """
    theirs, machine, libc = target.profile.host, "platform.machine", "platform.libc"
    profile = f"the profile {target.asked}"
    if theirs.get(machine, here[machine]) != here[machine]:
        raise UnsupportedError(
            f"this machine is {here[machine]} and that of {profile} {theirs[machine]}: host code from here does not run there",
            f"build on a machine that is {theirs[machine]}",
        )
    if not _loads_with(here[libc], theirs.get(libc, here[libc])):
        raise UnsupportedError(
            f"this machine has {here[libc]} and that of {profile} {theirs[libc]}: host code from here may not load there",
            f"build in a container that has {theirs[libc]}, such as one of that machine's own system",
        )


def _loads_with(linked: str, there: str) -> bool:
    """Whether what was linked with one C library loads with another: with the same, and with a newer one of its kind."""
    if linked == there:
        return True
    (kind, _, version), (other, _, newer) = linked.partition(" "), there.partition(" ")
    numbers = [[int(part) for part in text.split(".")] for text in (version, newer) if re.fullmatch(r"\d+(\.\d+)*", text)]
    return kind == other and len(numbers) == 2 and numbers[0] <= numbers[1]


def machine() -> dict[str, str]:
    """This machine in words, for people who ask where something was built."""
    known = _platform()
    words = (known["platform.system"], known["platform.machine"], known["platform.libc"])
    return {"platform": " ".join(words), "processor": cpu.model() or "unknown"}


def _software(install: TorchInstall, store: Store | None) -> dict[str, str]:
    triton = find_triton()
    return {
        "torch.version": install.version,
        "torch.git": install.git,
        "torch.cuda": install.cuda or "none",
        "torch.hip": install.hip or "none",
        "torch.debug": "yes" if install.debug else "no",
        "triton.version": triton.version if triton else "none",
        "triton.libtriton": sha256(triton.library, store) if triton else "none",
    }


def _platform() -> dict[str, str]:
    return {
        "python.version": platform.python_version(),
        "python.abi": str(sysconfig.get_config_var("SOABI")),
        "platform.system": platform.system(),
        "platform.machine": platform.machine(),
        # A compiled .so wants at least the libc that it was linked with. Equal is the side on which nothing breaks.
        "platform.libc": " ".join(platform.libc_ver()).strip() or "unknown",
    }


def _cpu(environ: Mapping[str, str]) -> dict[str, str]:
    machine, flags, sve_bits = platform.machine(), cpu.flags(), cpu.sve_bits()
    return {
        "cpu.capability": cpu.capability(machine, flags, sve_bits, environ),
        "cpu.vector_isa": cpu.vector_isa(machine, flags, sve_bits, environ),
        "cpu.extensions": cpu.extensions(machine, flags),
    }


def _gpu_details(found: tuple[Gpu, ...]) -> dict[str, str]:
    return {
        "gpu.count": str(len(found)),
        "gpu.driver": found[0].driver if found else "none",
        **{f"gpu.{gpu.index}.name": gpu.name for gpu in found},
    }


def _cxx_details(environ: Mapping[str, str]) -> dict[str, str]:
    compiler, headers = cxx_compiler(environ), python_headers()
    return {
        "cxx.path": str(compiler.path) if compiler else "none",
        "cxx.version": compiler.version if compiler else "none",
        "python.headers": str(headers) if headers else "missing",
    }


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Unset and empty differ, for torch and so for us: a variable that is unset is absent."""
    return {f"env.{name}": _text(value) for name, value in relevant(environ).items() if effect(name) is not Effect.NEUTRAL}


def _text(value: str) -> str:
    """The variable's value as text that has a UTF-8 form: bytes that are none come as ``\\\\xff``."""
    return value.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
