"""End every process of a run, also those that left their process group; and a tiny process that does so if we are killed.

Run as a script (``python -I -S reaper.py MARKER``) it waits for the end of its standard input. The parent holds the
other end: when the parent dies, however it dies, the reaper kills the workers and all that they started. A worker's own
parent-death signal covers the worker alone; the C++ compiler that it started would run on.

Only the standard library is imported, so that the reaper starts in milliseconds.
"""

from __future__ import annotations

import os
import signal
import sys
import time

#: In the environment of every process of a run, whatever session or group it moves itself to.
MARKER = "FLEXWARM_RUN"


def members(run: str) -> list[int]:
    """Process ids, other than our own, whose environment says that they belong to ``run``."""
    numbers = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [pid for pid in numbers if pid != os.getpid() and _belongs(pid, run)]


def _belongs(pid: int, run: str) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return f"{MARKER}={run}".encode() in file.read().split(b"\0")
    except OSError:  # it ended, or is another user's: neither is ours to end
        return False


def _kill(pid: int, run: str) -> None:
    """Kill one process by a handle of it: between reading and killing, its number may have become another's."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return  # it ended, which is what was wanted
    try:
        if _belongs(pid, run):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
    except ProcessLookupError:
        pass
    finally:
        os.close(handle)


def kill_run(run: str, seconds: float = 5.0) -> list[int]:
    """Kill every process of ``run`` until none is left.

    Returns:
        Process ids still there after ``seconds``: only such as the kernel cannot end.
    """
    deadline = time.monotonic() + seconds
    while True:
        alive = members(run)
        if not alive or time.monotonic() > deadline:
            return alive
        for pid in alive:
            _kill(pid, run)
        time.sleep(0.01)


def main(run: str) -> None:
    # Ctrl-C and a closed terminal are for the parent to handle; the reaper must outlive it.
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    if sys.stdin.buffer.read() != b"done":
        kill_run(run, seconds=30.0)


if __name__ == "__main__":
    main(sys.argv[1])
