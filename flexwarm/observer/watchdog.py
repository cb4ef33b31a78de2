"""Finds threads of a rank that wait for each other over torch's compile lock, and names the cycle.

The holder of the lock waits for autograd, whose thread waits for the lock; or for another lane that does. Nothing would
ever move again, and no error is raised. A slow compile is not a hang: its thread, or a compiler it started, uses the
processor.
"""

from __future__ import annotations

import faulthandler
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from flexwarm import reaper
from flexwarm.events import Hang
from flexwarm.observer import threads
from flexwarm.observer.recorder import Recorder
from flexwarm.observer.torch_api.tracing import TracingApi

#: Processor seconds that the process and its children may use between two looks and still count as standing still: the
#: watchdog, the heartbeat and idle lanes poll.
IDLE_SECONDS = 0.05
LOOKS = 10
#: In these functions a thread waits for the autograd engine.
_ENGINE_CALL = "_engine_run_backward"


@dataclass(frozen=True, slots=True)
class _Look:
    """What the threads that matter were doing: the holder's and the waiters' innermost frames, and where in them."""

    owner: int
    waiters: tuple[int, ...]
    places: tuple[tuple[int, int], ...]


def watch(api: TracingApi, recorder: Recorder, limit_seconds: float) -> None:
    """Start a thread that says so once at a hang, dumps all stacks into the log, and leaves the rest to the parent."""

    def run() -> None:
        pause = limit_seconds / LOOKS
        last: _Look | None = None
        since = used = 0.0
        while True:
            time.sleep(pause)
            look, now, seconds = _look(api), time.monotonic(), _processor_seconds()
            idle = seconds - used < IDLE_SECONDS * max(1.0, pause)
            used = seconds
            if look is None or look != last or not idle:
                last, since = look, now
                continue
            if now - since >= limit_seconds:
                recorder.emit(_hang(api, recorder, look, now - since))
                faulthandler.dump_traceback(all_threads=True)
                return

    threading.Thread(target=run, name="flexwarm-watchdog", daemon=True).start()


def _look(api: TracingApi) -> _Look | None:
    owner = api.lock_owner()
    waiters = api.lock_waiters()
    if owner is None or not waiters:
        return None
    frames = [threads.frame_of(ident) for ident in (owner, *waiters)]
    return _Look(owner=owner, waiters=waiters, places=tuple(_place(frame) for frame in frames))


def _place(frame: FrameType | None) -> tuple[int, int]:
    return (0, 0) if frame is None else (id(frame), frame.f_lasti)


def _processor_seconds() -> float:
    """Of this process and of all its descendants that live, or that it has waited for."""
    times = os.times()
    used = times.user + times.system + times.children_user + times.children_system
    return used + sum(_of_process(pid) for pid in reaper.descendants(os.getpid()))


def _of_process(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0  # it has just ended
    # Its own, and of the children that it has waited for: a build tool's many short compilers.
    return sum(int(field) for field in fields[11:15]) / os.sysconf("SC_CLK_TCK")


def _hang(api: TracingApi, recorder: Recorder, look: _Look, seconds: float) -> Hang:
    holder = recorder.name_of(look.owner)
    waits = "waits for the autograd engine" if _in_engine(look.owner) else f"waits at {_innermost(look.owner)}"
    if look.owner in api.tracing_threads() and not _in_engine(look.owner):
        waits = f"{waits}, inside a trace"
    waiters = [f"{recorder.name_of(ident)} ({_doing(ident)})" for ident in look.waiters]
    message = (
        f"{holder} holds torch's compile lock and {waits}, while {' and '.join(waiters)} "
        f"wait{'s' if len(waiters) == 1 else ''} for that lock"
    )
    everyone = {thread.ident for thread in threading.enumerate() if thread.ident} | {look.owner, *look.waiters}
    return Hang(
        t=time.time(),
        jobs=tuple(seat.job for seat in recorder.seats()),
        message=message,
        seconds=round(seconds, 1),
        stacks={recorder.name_of(ident): threads.every_line(threads.frame_of(ident)) for ident in sorted(everyone)},
    )


def _in_engine(ident: int) -> bool:
    frame = threads.frame_of(ident)
    return any(f.f_code.co_name == _ENGINE_CALL for f in [frame, frame.f_back if frame else None] if f)


def _innermost(ident: int) -> str:
    frame = threads.frame_of(ident)
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}" if frame else "its end"


def _doing(ident: int) -> str:
    frame = threads.frame_of(ident)
    return f"in {frame.f_code.co_name} of {os.path.basename(frame.f_code.co_filename)}" if frame else "ended"
