"""The C++ compiler, Python's headers and openssl: what Inductor starts on a CPU, and what is missing of it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from flexwarm.errors import UnsupportedError
from flexwarm.toolchain.torch_install import find_torch

_VERSION_LIMIT_S: Final = 10.0

#: From here on, TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS=0 keeps a warm run from preprocessing torch's headers.
_HEADERS_SWITCH: Final = (2, 12)


@dataclass(frozen=True, slots=True, kw_only=True)
class CxxCompiler:
    """The compiler that Inductor would start.

    Attributes:
        path: where it was found.
        version: the first line that it says for ``--version``.
    """

    path: Path
    version: str


def cxx_compiler(environ: Mapping[str, str]) -> CxxCompiler | None:
    """``CXX`` if set, else ``g++``, as Inductor looks for it on Linux; there is no other name that it tries.

    ``CXX`` is one program: with arguments in it, as ``CXX="ccache g++"``, Inductor finds nothing, and neither do we.

    Raises:
        UnsupportedError: the compiler is there but cannot be started, or does not end.
    """
    found = shutil.which(environ.get("CXX", "g++"), path=environ.get("PATH", os.defpath))
    if found is None:
        return None
    try:
        answer = subprocess.run(
            [found, "--version"], env=dict(environ), stdin=subprocess.DEVNULL, capture_output=True, timeout=_VERSION_LIMIT_S
        )
    except OSError as error:
        raise UnsupportedError(
            f"cannot start the C++ compiler {found}: {error.strerror}", "name another one with CXX"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise UnsupportedError(
            f"the C++ compiler {found} did not answer --version in {_VERSION_LIMIT_S:.0f} s", "name another one with CXX"
        ) from error
    if answer.returncode != 0:  # Inductor takes this as no compiler
        return None
    lines = answer.stdout.decode(errors="replace").splitlines()
    return CxxCompiler(path=Path(found), version=lines[0] if lines else "unknown")


def python_headers() -> Path | None:
    """``Python.h`` of this Python, or None."""
    path = Path(sysconfig.get_path("include")) / "Python.h"
    return path if path.is_file() else None


def require_cxx(environ: Mapping[str, str], *, building: bool, headers: Path | None) -> CxxCompiler:
    """The compiler, if all that a compiled function needs on a CPU is there.

    Measured on torch 2.13 and 2.14: a CPU run whose every cache hits still asks g++ for its version, preprocesses torch's
    and Python's headers with ``g++ -E`` and hashes the result with ``openssl``. So what is missing for a build is missing for a
    warm run as well, unless ``TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS=0``, which leaves only the question for the version.

    Args:
        environ: the environment of the run.
        building: whether something is to be compiled, or only loaded.
        headers: what :func:`python_headers` found.

    Raises:
        UnsupportedError: what is missing, and which layers would still be served.
    """
    compiler = cxx_compiler(environ)
    if compiler is None:
        asked = environ.get("CXX")
        what = f"CXX={asked} is not a C++ compiler" if asked is not None else "there is no C++ compiler: no g++ in PATH"
        raise UnsupportedError(
            f"{what}; on a CPU no layer of a cache would be served, because torch asks for its version even when warm",
            "apt install g++, or name one program with CXX (arguments do not belong in it)",
        )
    missing = _missing_for_headers(environ, headers)
    if not missing or not (building or _preprocesses_headers(environ)):
        return compiler
    served = (
        "no layer of a cache would be served either, because torch preprocesses its headers even when warm"
        if _preprocesses_headers(environ)
        else "a warm bucket would still be served"
    )
    names = " and no ".join(name for name, _ in missing)
    raise UnsupportedError(f"there is no {names}; {served}", "; ".join(hint for _, hint in missing))


def _missing_for_headers(environ: Mapping[str, str], headers: Path | None) -> list[tuple[str, str]]:
    missing = []
    if headers is None:
        missing.append(
            (f"Python.h in {sysconfig.get_path('include')}", "apt install python3-dev, or a Python with its headers")
        )
    if _preprocesses_headers(environ) and shutil.which("openssl", path=environ.get("PATH", os.defpath)) is None:
        missing.append(("openssl in PATH", "apt install openssl"))
    return missing


def _preprocesses_headers(environ: Mapping[str, str]) -> bool:
    install = find_torch()
    if install is None or install.minor < _HEADERS_SWITCH:
        return True
    return environ.get("TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS", "1") == "1"
