"""End every process of a run, also those that left their process group; and a tiny process that does so if we are killed.

A process of a run is known by a variable in its environment. One that emptied its environment is known by its ancestry: the
parent adopts what its children leave behind (:func:`adopt_orphans`).

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

#: How long the processes of a run have for their end when they are asked to, before they are killed.
ASKED_SECONDS = 2.0

_PR_SET_CHILD_SUBREAPER = 36
_ADDR_NO_RANDOMIZE = 0x0040000


def members(run: str) -> list[int]:
    """Process ids, other than our own, whose environment says that they belong to ``run``."""
    numbers = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [pid for pid in numbers if pid != os.getpid() and _belongs(pid, run)]


def adopt_orphans() -> None:
    """From now on a process whose parent dies becomes a child of this one, and not of init."""
    import ctypes  # the script that waits for our end does without

    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def children(pid: int) -> list[int]:
    """Direct children; none for a process that has ended."""
    found = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as file:
                found += [int(text) for text in file.read().split()]
    except FileNotFoundError:
        if not os.path.exists(f"/proc/self/task/{os.getpid()}/children"):
            return [child for child, parent in _parents().items() if parent == pid]  # a kernel that does not list them
    except OSError:
        pass  # it has just ended
    return found


def descendants(pid: int) -> list[int]:
    """Children, their children, and so on; each after its parent."""
    found = children(pid)
    for child in found:  # it grows while it is walked
        found += children(child)
    return found


def _parents() -> dict[int, int]:
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat") as file:
                    found[int(name)] = int(file.read().rpartition(")")[2].split()[1])
            except OSError:
                pass  # it has just ended
    return found


def reap_adopted(but: frozenset[int]) -> None:
    """Let adopted children that have ended go; of those in ``but``, and of running ones, nothing is taken."""
    for pid in children(os.getpid()):
        if pid not in but:
            try:
                os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                pass  # its parent is another thread's business, or it was taken meanwhile


def kill_descendants(but: frozenset[int], seconds: float = 5.0) -> list[int]:
    """Kill every descendant of this process until none is left; without ``but`` and what descends from it.

    Returns:
        Process ids still there after ``seconds``: only such as the kernel cannot end.
    """
    deadline = time.monotonic() + seconds
    while True:
        mine = [child for child in children(os.getpid()) if child not in but]
        alive = [pid for child in mine for pid in (child, *descendants(child)) if not is_zombie(pid)]
        if not alive or time.monotonic() > deadline:
            return alive
        for pid in alive:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass  # it ended, which is what was wanted
        time.sleep(0.01)


def started(pid: int) -> int:
    """When the kernel started a process, in clock ticks since boot: with the pid it names one process. 0 if it is gone."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return int(file.read().rpartition(")")[2].split()[19])
    except OSError:
        return 0


def image(pid: int) -> int:
    """Where the kernel put the stack of the program that a process runs: a forked child has the same, and what it puts in its
    place with ``exec`` another one. 0 if that cannot be known, or where addresses are not random.
    """
    try:
        with open(f"/proc/{pid}/personality") as file:
            fixed = int(file.read(), 16) & _ADDR_NO_RANDOMIZE
        with open("/proc/sys/kernel/randomize_va_space") as file:
            fixed = fixed or file.read().strip() == "0"
        with open(f"/proc/{pid}/stat") as file:
            return 0 if fixed else int(file.read().rpartition(")")[2].split()[25])
    except OSError:
        return 0


def is_zombie(pid: int) -> bool:
    """Whether a process has ended, taken by its parent or not."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True  # gone


def _belongs(pid: int, run: str) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return f"{MARKER}={run}".encode() in file.read().split(b"\0")
    except OSError:  # it ended, or is another user's: neither is ours to end
        return False


def _signal(pid: int, run: str, signum: int) -> None:
    """Send it by a handle of the process: between reading and killing, its number may have become another's."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return  # it ended, which is what was wanted
    try:
        if _belongs(pid, run):
            signal.pidfd_send_signal(handle, signum)
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
            _signal(pid, run, signal.SIGKILL)
        time.sleep(0.01)


def main(run: str) -> None:
    # Ctrl-C and a closed terminal are for the parent to handle; the reaper must outlive it.
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    if sys.stdin.buffer.read() != b"done":
        # Asked first: a launcher has reserved what only it gives back, such as a job of Slurm's.
        for pid in members(run):
            _signal(pid, run, signal.SIGTERM)
        deadline = time.monotonic() + ASKED_SECONDS
        while members(run) and time.monotonic() < deadline:
            time.sleep(0.01)
        kill_run(run, seconds=30.0)


if __name__ == "__main__":
    main(sys.argv[1])
