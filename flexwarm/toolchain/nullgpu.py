"""Compile the null GPU with the machine's C compiler, once for each compiler, and say how a process gets it."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from flexwarm import canonical
from flexwarm.errors import StoreError, UnsupportedError
from flexwarm.files import make_directory, store_error, sync_directory, write_atomic
from flexwarm.store import Store
from flexwarm.target import Target, profile_text
from flexwarm.toolchain.digests import sha256
from flexwarm.toolchain.profiles import NULLGPU

#: The driver's name, under which torch and Triton load it; the CUDA runtime's calls are in it as well.
LIBRARY: Final = "libcuda.so.1"
#: The other names that it is looked for under: without a version, and as the library that counts devices.
_LINKS: Final = ("libcuda.so", "libnvidia-ml.so.1")
_FLAGS: Final = (
    *("-std=c11", "-O2", "-fPIC", "-fvisibility=hidden", "-shared", "-pthread"),
    *(f"-Wl,-soname,{LIBRARY}", "-Wl,-z,defs"),
)
_COMPILE_LIMIT_S: Final = 300.0

#: Variables that the library reads.
PROFILE, COUNT = "NULLGPU_PROFILE", "NULLGPU_COUNT"


def c_compiler(environ: Mapping[str, str]) -> Path:
    """``CC`` if set, else gcc, cc or clang.

    Raises:
        UnsupportedError: there is none.
    """
    names = [environ["CC"]] if environ.get("CC") else ["gcc", "cc", "clang"]
    found = next(filter(None, (shutil.which(name, path=environ.get("PATH", os.defpath)) for name in names)), None)
    if found is None:
        raise UnsupportedError(
            f"there is no C compiler ({', '.join(names)}), and --target needs one: it compiles what stands in for the driver",
            "apt install gcc, or name a compiler with CC",
        )
    return Path(found)


def ensure_library(store: Store, environ: Mapping[str, str]) -> Path:
    """The directory with the null GPU, which is compiled if it is not there yet.

    Args:
        store: where it is kept, by the digest of what it was made of.
        environ: names the compiler.

    Raises:
        UnsupportedError: there is no compiler, or it fails.
        StoreError: it cannot be kept.
    """
    compiler = c_compiler(environ)
    status = compiler.stat()
    made_of = {
        "sources": {path.name: sha256(path, None) for path in sorted((NULLGPU / "src").iterdir()) if path.is_file()},
        "compiler": [str(compiler), str(status.st_size), str(status.st_mtime_ns)],
        "flags": list(_FLAGS),
    }
    directory = store.nullgpu / canonical.digest(made_of)
    if directory.is_dir():
        return directory
    make_directory(store.nullgpu)
    staged = store.stage("nullgpu")
    make_directory(staged)
    try:
        _compile(compiler, staged / LIBRARY, environ)
        # With umask 002 the linker would let the group write it, and it is run as code.
        os.chmod(staged / LIBRARY, 0o755)
        for name in _LINKS:
            os.symlink(LIBRARY, staged / name)
        os.rename(staged, directory)
        sync_directory(store.nullgpu)
    except OSError as error:
        if not directory.is_dir():  # else another process was first, with the same
            raise store_error(error, f"keep the null GPU in {directory}") from error
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    return directory


def _compile(compiler: Path, output: Path, environ: Mapping[str, str]) -> None:
    sources = sorted(str(path) for path in (NULLGPU / "src").glob("*.c"))
    try:
        done = subprocess.run(
            [str(compiler), *_FLAGS, *sources, "-o", str(output), "-ldl"],
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_COMPILE_LIMIT_S,
        )
    except OSError as error:
        raise UnsupportedError(f"cannot start the C compiler {compiler}: {error.strerror}", "name another with CC") from error
    except subprocess.TimeoutExpired as error:
        message = f"the C compiler {compiler} did not compile the null GPU in {_COMPILE_LIMIT_S:.0f} s"
        raise UnsupportedError(message, "name another with CC") from error
    if done.returncode != 0:
        said = next((line for line in done.stderr.splitlines() if "error" in line), f"status {done.returncode}")
        raise UnsupportedError(f"the C compiler {compiler} cannot compile the null GPU: {said}", "apt install gcc libc6-dev")


def environment(target: Target, store: Store, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables with which a process has the target's GPUs: of children only, never of this process.

    Raises:
        UnsupportedError: the library cannot be compiled.
        StoreError: it, or the profile, cannot be kept.
    """
    directory = ensure_library(store, environ)
    text = profile_text(target.profile)
    profile = store.nullgpu / f"{canonical.digest(text)}.profile"
    if not profile.exists():
        write_atomic(profile, text.encode())
    if any(letter.isspace() or letter == ":" for letter in str(directory)):
        # The loader separates what it preloads by both.
        raise StoreError(
            f"--target cannot use a store with a space or a colon in its path: {store.root}", "name another with --store DIR"
        )
    return {
        "LD_PRELOAD": _first(str(directory / LIBRARY), environ.get("LD_PRELOAD")),
        "LD_LIBRARY_PATH": _first(str(directory), environ.get("LD_LIBRARY_PATH")),
        # Triton keys its host module by where the driver is: there, and not here. The linker finds this one all the same.
        "TRITON_LIBCUDA_PATH": environ.get("TRITON_LIBCUDA_PATH") or target.profile.driver_path or _usual_driver_path(),
        "LIBRARY_PATH": _first(str(directory), environ.get("LIBRARY_PATH")),
        PROFILE: str(profile),
        COUNT: str(target.count),
    }


def _usual_driver_path() -> str:
    """Where the packages of Debian and Ubuntu, and NVIDIA's containers, put the driver's library."""
    return f"/lib/{sysconfig.get_config_var('MULTIARCH') or f'{platform.machine()}-linux-gnu'}"


def _first(path: str, others: str | None) -> str:
    return f"{path}:{others}" if others else path
