"""Python stacks of threads as text, for hazards and hangs."""

from __future__ import annotations

import itertools
import linecache
import os
import sys
import sysconfig
import threading
import traceback
from collections.abc import Iterator
from types import FrameType

#: Lines of a stack that a hazard keeps.
KEPT = 12

_OBSERVER = os.path.dirname(os.path.abspath(__file__)) + os.sep
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_LIBRARIES = (_PACKAGE, *(sysconfig.get_path(name) + os.sep for name in ("stdlib", "purelib", "platlib")))
_TORCH = f"{os.sep}torch{os.sep}"


def lines(frame: FrameType | None, *, limit: int = KEPT) -> tuple[str, ...]:
    """``file:line in function`` of a frame and its callers, outermost first: the innermost ``limit`` that are not torch's.

    The innermost frame that is not the observer's is kept also if it is torch's.
    """
    found = [(f.f_code.co_filename, number, f.f_code.co_name) for f, number in _walk(frame)]
    walked = list(itertools.dropwhile(lambda item: item[0].startswith(_OBSERVER), found))
    shown = [f"{name}:{number} in {function}" for name, number, function in walked[1:] if _TORCH not in name]
    innermost = [f"{name}:{number} in {function}" for name, number, function in walked[:1]]
    return tuple(reversed([*innermost, *shown][:limit]))


def place_of(frame: FrameType | None) -> str:
    """``file:line in function`` of the innermost of a frame and its callers that is the user's; empty if none is.

    Frames of packages, of Python, of flexwarm and of what Inductor has generated are not.
    """
    generated = os.environ.get("TORCHINDUCTOR_CACHE_DIR") or _PACKAGE
    for f, number in _walk(frame):
        name = f.f_code.co_filename
        if not name.startswith((*_LIBRARIES, generated, "<")):
            return f"{name}:{number} in {f.f_code.co_name}"
    return ""


def every_line(frame: FrameType | None, *, limit: int = 60) -> tuple[str, ...]:
    """All of a stack, torch's frames too, outermost first, with the text of each line."""
    walked = []
    for f, number in _walk(frame):
        name = f.f_code.co_filename
        text = linecache.getline(name, number).strip()
        walked.append(f"{name}:{number} in {f.f_code.co_name}" + (f": {text}" if text else ""))
    return tuple(reversed(walked[:limit]))


def _walk(frame: FrameType | None) -> Iterator[tuple[FrameType, int]]:
    """A frame and its callers; nothing for a thread that has ended, where ``walk_stack`` would give the asker's own."""
    return iter(()) if frame is None else traceback.walk_stack(frame)


def frame_of(ident: int) -> FrameType | None:
    """Where a thread is now."""
    return sys._current_frames().get(ident)


def is_engines(ident: int) -> bool:
    """Whether a thread is one that Python did not start: autograd's own, which work for others."""
    thread = next((thread for thread in threading.enumerate() if thread.ident == ident), None)
    return thread is None or thread.name.startswith("Dummy-")
