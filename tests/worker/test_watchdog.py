"""Threads that wait for each other over torch's compile lock are found and named; one that works is left alone.

In a process of its own, whose processor time is nobody else's. What torch would say of its lock a fake says.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest

from flexwarm.events import Hang, from_line

LIMIT_SECONDS = 1.0
#: Where processor time decides: a share of it must be enough, for the machine may be busy with other things.
BUSY_LIMIT_SECONDS = 2.5

#: Lane 0 holds the lock and does what a test wants; lane 1 waits for it. Both have their seats.
PROGRAM = """
import os, pathlib, signal, subprocess, sys, threading, time
from flexwarm.observer import watchdog
from flexwarm.observer.recorder import Recorder
from flexwarm.request import Purpose


class Tracing:
    owner, waiters, tracing = None, (), ()

    def lock_owner(self):
        return self.owner

    def lock_waiters(self):
        return self.waiters

    def tracing_threads(self):
        return {ident: None for ident in self.tracing}


api, never = Tracing(), threading.Event()
recorder = Recorder(pathlib.Path("events"), Purpose.VERIFY)
lock = threading.RLock()
held = threading.Event()


def hold():
    with recorder.seat("w/r:0.0", "cpu", 0), lock:
        api.owner = threading.get_ident()
        held.set()
        works()
        never.wait()


def want():
    held.wait()
    with recorder.seat("w/r:0.1", "cpu", 1):
        api.waiters = (threading.get_ident(),)
        waits_for_the_lock()


def waits_for_the_lock():
    lock.acquire()


def works():
    pass


%s

for target in (hold, want):
    threading.Thread(target=target, daemon=True).start()
held.wait()
watchdog.watch(api, recorder, %r)
until = time.monotonic() + %r
while time.monotonic() < until and not (until_found and os.path.getsize("events")):
    time.sleep(0.05)
sys.stderr.flush()
os.killpg(0, signal.SIGKILL)  # with all that a script has started
"""


@dataclass(frozen=True, slots=True)
class Watched:
    hangs: list[Hang]
    log: str


def watched(directory: Path, script: str, *, seconds: float, until_found: bool, limit: float = LIMIT_SECONDS) -> Watched:
    """What a watchdog says of a script within so many seconds."""
    scripted = f"until_found = {until_found}\n" + textwrap.dedent(script)
    (directory / "program.py").write_text(PROGRAM % (scripted, limit, seconds))
    argv = [sys.executable, "program.py"]
    done = subprocess.run(argv, cwd=directory, capture_output=True, text=True, timeout=120, start_new_session=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    events = [from_line(line) for line in (directory / "events").read_text().splitlines()]
    assert all(isinstance(event, Hang) for event in events)
    return Watched([event for event in events if isinstance(event, Hang)], done.stderr)


def found(directory: Path, script: str = "") -> Watched:
    return watched(directory, script, seconds=30, until_found=True)


def left_alone(directory: Path, script: str, *, limit: float = LIMIT_SECONDS) -> bool:
    """Nothing was said in twice the limit."""
    return not watched(directory, script, seconds=2 * limit, until_found=False, limit=limit).hangs


def test_two_lanes_that_wait_for_each_other_are_found_within_the_limit_and_named(tmp_path: Path) -> None:
    done = found(tmp_path)
    (hang,) = done.hangs
    assert LIMIT_SECONDS <= hang.seconds < 3 * LIMIT_SECONDS
    assert sorted(hang.jobs) == ["w/r:0.0", "w/r:0.1"]
    assert hang.message.startswith("lane 0 holds torch's compile lock and waits at ")
    assert "threading.py" in hang.message
    assert hang.message.endswith(", while lane 1 (in waits_for_the_lock of program.py) waits for that lock")
    assert {"lane 0", "lane 1", "the main thread"} <= set(hang.stacks)
    assert any("program.py" in line and " in hold: never.wait()" in line for line in hang.stacks["lane 0"])
    assert hang.stacks["lane 1"][-1].endswith("in waits_for_the_lock: lock.acquire()")
    # The log has it too, of all threads.
    assert "in waits_for_the_lock" in done.log
    assert done.log.count("(most recent call first)") >= 4


def test_a_holder_inside_a_backward_pass_waits_for_the_engine(tmp_path: Path) -> None:
    script = """
        block = threading.Lock()
        block.acquire()

        def _engine_run_backward():
            block.acquire()

        def works():
            _engine_run_backward()
    """
    (hang,) = found(tmp_path, script).hangs
    assert "lane 0 holds torch's compile lock and waits for the autograd engine, while lane 1" in hang.message


def test_a_holder_that_stands_still_inside_a_trace_is_said_to(tmp_path: Path) -> None:
    script = """
        def works():
            api.tracing = (threading.get_ident(),)
    """
    (hang,) = found(tmp_path, script).hangs
    assert ", inside a trace, while lane 1" in hang.message


def test_a_thread_that_waits_and_belongs_to_nobody_is_the_engines(tmp_path: Path) -> None:
    script = """
        import _thread

        def engine():
            while not api.waiters:
                time.sleep(0.01)
            api.waiters = api.waiters + (threading.get_ident(),)
            lock.acquire()

        def works():
            _thread.start_new_thread(engine, ())
    """
    (hang,) = found(tmp_path, script).hangs
    assert "of the autograd engine (in engine of program.py)" in hang.message
    assert any(name.endswith("of the autograd engine") for name in hang.stacks)


def test_a_hang_is_said_once(tmp_path: Path) -> None:
    assert len(watched(tmp_path, "", seconds=4 * LIMIT_SECONDS, until_found=False).hangs) == 1


#: One call of C code: the thread is at the same place of its Python function for all that time.
ONE_LONG_CALL = """
    import hashlib

    def works():
        began = time.monotonic()
        hashlib.pbkdf2_hmac("sha256", b"x", b"y", 100_000)
        rounds = int(100_000 * 60 / (time.monotonic() - began))
        hashlib.pbkdf2_hmac("sha256", b"x", b"y", rounds)
"""


def test_a_holder_that_uses_the_processor_does_not_hang(tmp_path: Path) -> None:
    assert left_alone(tmp_path, ONE_LONG_CALL, limit=BUSY_LIMIT_SECONDS)


@pytest.mark.parametrize("start", ["[sys.executable, '-c', spin]", "['sh', '-c', f'{sys.executable} -c \"{spin}\"; true']"])
def test_a_holder_whose_compiler_uses_the_processor_does_not_hang(tmp_path: Path, start: str) -> None:
    script = f"""
        spin = "while True: pass"

        def works():
            subprocess.run({start})
    """
    assert left_alone(tmp_path, script, limit=BUSY_LIMIT_SECONDS)


#: A driver whose compilers come and go, each of them shorter than the watchdog's pause, as a build of many files.
MANY_SHORT = """
    spin = "import time; began = time.process_time()\\nwhile time.process_time() < began + 0.03: pass"
    driver = f"while true; do {sys.executable} -S -c '{spin}'; done"

    def works():
        subprocess.run(["sh", "-c", driver])
"""


def test_a_holder_whose_compilers_come_and_go_does_not_hang(tmp_path: Path) -> None:
    assert left_alone(tmp_path, MANY_SHORT, limit=BUSY_LIMIT_SECONDS)


def test_a_holder_that_nobody_waits_for_does_not_hang(tmp_path: Path) -> None:
    script = """
        def waits_for_the_lock():
            api.waiters = ()
    """
    assert left_alone(tmp_path, script)


def test_a_lock_that_nobody_holds_is_no_hang(tmp_path: Path) -> None:
    script = """
        def works():
            api.owner = None
    """
    assert left_alone(tmp_path, script)


def test_a_holder_that_moves_on_does_not_hang(tmp_path: Path) -> None:
    # Without using the processor to speak of: it reads, or waits for a device.
    script = "def works():\n" + "".join(f"    time.sleep({0.3 * LIMIT_SECONDS}); step = {n}\n" for n in range(60))
    assert left_alone(tmp_path, script)


def test_a_wait_that_ends_before_the_limit_is_no_hang_and_the_next_is_timed_anew(tmp_path: Path) -> None:
    script = f"""
        def works():
            owner = api.owner
            while True:
                time.sleep({0.4 * LIMIT_SECONDS})
                api.owner = None
                time.sleep({0.3 * LIMIT_SECONDS})
                api.owner = owner
    """
    assert left_alone(tmp_path, script)
