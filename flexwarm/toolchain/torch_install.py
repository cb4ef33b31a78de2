"""The installed torch and Triton, read from their files: importing either is what the parent never does."""

from __future__ import annotations

import ast
import platform
import re
import sysconfig
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from flexwarm.errors import UnsupportedError

#: The minor versions whose private parts were read in their sources; which of them are tested, docs/explanation/design.md says.
KNOWN_TORCH: Final = ((2, 9), (2, 10), (2, 11), (2, 12), (2, 13), (2, 14))

_RELEASE = re.compile(r"(\d+)\.(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchInstall:
    """What ``torch/version.py`` says.

    Attributes:
        path: the package's directory.
        version: with its local part, such as ``2.13.0+cpu``.
        git: the commit it was built from.
        cuda: the CUDA version it was built for, or None.
        hip: the same for ROCm.
        debug: whether it is a debug build.
    """

    path: Path
    version: str
    git: str
    cuda: str | None
    hip: str | None
    debug: bool

    @property
    def minor(self) -> tuple[int, int]:
        """Major and minor version, to be compared with :data:`KNOWN_TORCH`; (0, 0) when it is no version."""
        match = _RELEASE.match(self.version)
        return (int(match[1]), int(match[2])) if match else (0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TritonInstall:
    """The installed Triton.

    Attributes:
        version: its ``__version__``, which is also right for the builds that go by another name on an index.
        library: ``libtriton.so``, whose content enters Triton's key.
    """

    version: str
    library: Path


def find_torch() -> TorchInstall | None:
    """The torch that ``import torch`` would load, or None.

    Raises:
        UnsupportedError: it is there, but does not say its version.
    """
    path = _package("torch")
    if path is None:
        return None
    values = _constants(path / "version.py")
    version = values.get("__version__")
    if not isinstance(version, str):
        raise UnsupportedError(f"{path / 'version.py'} does not name torch's version", "reinstall torch")
    cuda, hip = values.get("cuda"), values.get("hip")
    return TorchInstall(
        path=path,
        version=version,
        git=str(values.get("git_version", "none")),
        cuda=cuda if isinstance(cuda, str) else None,
        hip=hip if isinstance(hip, str) else None,
        debug=values.get("debug") is True,
    )


def find_triton() -> TritonInstall | None:
    """The Triton that ``import triton`` would load, or None.

    Raises:
        UnsupportedError: it is there, but without its version or its library.
    """
    path = _package("triton")
    if path is None:
        return None
    version = _constants(path / "__init__.py").get("__version__")
    library = path / "_C" / "libtriton.so"
    if not isinstance(version, str) or not library.is_file():
        raise UnsupportedError(f"the Triton in {path} is not complete", "reinstall triton")
    return TritonInstall(version=version, library=library)


def require_supported() -> TorchInstall:
    """The installed torch, if flexwarm knows it and this Python and system can run it.

    Raises:
        UnsupportedError: what was found, and what is supported.
    """
    check_platform(platform.system(), free_threaded=bool(sysconfig.get_config_var("Py_GIL_DISABLED")))
    install = find_torch()
    if install is None:
        raise UnsupportedError("torch is not installed for this Python", "pip install torch")
    if install.minor not in KNOWN_TORCH:
        known = ", ".join(f"{major}.{minor}" for major, minor in KNOWN_TORCH)
        raise UnsupportedError(
            f"torch {install.version} ({install.path}) is not one that flexwarm knows: it knows {known}",
            "use one of these, or a flexwarm that knows yours: pip install -U flexwarm",
        )
    return install


def check_platform(system: str, *, free_threaded: bool) -> None:
    """Refuse systems and Pythons on which nothing was ever checked.

    Args:
        system: as ``platform.system()`` names it.
        free_threaded: whether Python was built without the GIL.
    """
    if system != "Linux":
        raise UnsupportedError(f"flexwarm supports Linux, and this is {system}", "run it where the training runs")
    if free_threaded:
        raise UnsupportedError(
            f"this is a free-threaded Python {platform.python_version()}; flexwarm supports Python with the GIL",
            "use the python3 without the t in its name",
        )


def _package(name: str) -> Path | None:
    spec = find_spec(name)  # of a top-level name: it looks for the file, and imports nothing
    if spec is None or spec.origin is None:  # without origin: a directory that only happens to have the name
        return None
    return Path(spec.origin).parent


def _constants(path: Path) -> dict[str, object]:
    """The names that a Python file gives constants to, found without running it."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError) as error:
        raise UnsupportedError(f"cannot read {path}: {error}", f"reinstall {path.parent.name}") from error
    found: dict[str, object] = {}
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=value)):
                found[name] = value
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.Constant(value=value)):
                found[name] = value
    return found
