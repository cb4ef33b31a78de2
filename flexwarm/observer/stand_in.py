"""Which GPUs this process has that are not really there: said by what is loaded, and not by what was asked for."""

from __future__ import annotations

import atexit
import ctypes
import os
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from flexwarm import canonical
from flexwarm.errors import UnsupportedError
from flexwarm.target import NOTHING

_DRIVER = "libcuda.so.1"


@cache
def _driver() -> ctypes.CDLL | None:
    """The null GPU, if it is loaded: it is preloaded, so it is there before anything else or never."""
    try:
        driver = ctypes.CDLL(_DRIVER, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        driver.nullgpu_profile.restype = ctypes.c_char_p  # which no real driver has
    except (OSError, AttributeError):
        return None
    for name, kind in _ANSWERS.items():
        if hasattr(driver, name):
            getattr(driver, name).restype = kind
    return driver


#: What flexwarm asks a null GPU, and what that answers.
_ANSWERS = {
    "nullgpu_unanswered": ctypes.c_char_p,
    "nullgpu_reads": ctypes.c_ulonglong,
    "nullgpu_timings": ctypes.c_ulonglong,
    "nullgpu_on_read": None,
}


def present() -> bool:
    """Whether the GPUs of this process are not really there."""
    return _driver() is not None


def is_own() -> bool:
    """Whether it is a null GPU of this flexwarm: one that answers all that flexwarm asks."""
    driver = _driver()
    return driver is not None and all(hasattr(driver, name) for name in _ANSWERS)


def refuse_others() -> None:
    """Raises:
    UnsupportedError: the null GPU that is there is of another flexwarm, so that nobody sees what it leaves open.
    """
    if present() and not is_own():
        raise UnsupportedError(
            "a null GPU of another flexwarm is preloaded (LD_PRELOAD)", "unset LD_PRELOAD; build --target preloads its own"
        )


def identity() -> str:
    """As :attr:`flexwarm.target.Target.identity`; :data:`flexwarm.target.NOTHING` where the driver is a real one, or none.

    A process that was given a null GPU by its environment alone, without anybody asking flexwarm for it, says so as well: what
    is proven on one is proven of no GPU.
    """
    driver = _driver()
    if driver is None:
        return NOTHING
    if not is_own():
        return "a null GPU of another flexwarm"
    try:
        text = Path(os.fsdecode(driver.nullgpu_profile() or b"")).read_text()
    except OSError:
        return "a null GPU without a profile"
    name = next((line.partition("=")[2].strip() for line in text.splitlines() if line.startswith("name =")), "?")
    return f"{os.environ.get('NULLGPU_COUNT', '?')} x {name} {canonical.digest(text)}"


def without(environ: Mapping[str, str]) -> dict[str, str]:
    """A process's variables as a launch on a real GPU would have them, as far as they can be in a key."""
    preloaded = environ.get("LD_PRELOAD", "").split(":")
    found = next((os.path.dirname(path) for path in preloaded if os.path.basename(path) == _DRIVER), None)
    paths = [path for path in environ.get("LIBRARY_PATH", "").split(":") if path != found]
    others = {name: value for name, value in environ.items() if name != "LIBRARY_PATH"}
    return {**others, "LIBRARY_PATH": ":".join(paths)} if any(paths) else others


def timings() -> int:
    """How often the calling thread has asked a GPU that is not there how long something took."""
    driver = _driver()
    return int(driver.nullgpu_timings()) if driver is not None else 0


def reads() -> int:
    """How often the calling thread has copied something from a GPU that is not there; 0 where there is none such."""
    driver = _driver()
    return int(driver.nullgpu_reads()) if driver is not None else 0


def unanswered() -> str:
    """The last call of this process that a GPU that is not there did not answer, and what does the same; empty if none."""
    driver = _driver()
    return os.fsdecode(driver.nullgpu_unanswered() or b"") if driver is not None else ""


#: What the driver calls, for as long as it may: Python must not let go of it.
_called: list[Any] = []


def on_read(function: Callable[[], None]) -> None:
    """Call ``function`` in each thread that copies something from a GPU that is not there, until Python ends."""
    driver = _driver()
    if driver is None:
        return
    _called.append(ctypes.CFUNCTYPE(None)(function))
    driver.nullgpu_on_read(_called[-1])
    # A thread that outlives Python must not come back to it.
    atexit.register(driver.nullgpu_on_read, None)
