"""A launch line runs as if nobody watched, and when it is over, however that came about, nothing of it is left."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import pty
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from flexwarm import reaper
from flexwarm.events import Event, to_line
from tests.conftest import ROOT
from tests.launches import bye, called, program, warm
from tests.unit.test_launch_verdict import hang, held

#: Runs a command as its arguments say, and writes what it came to into a file: the command's output is its own.
DRIVER = """
import json, sys
from pathlib import Path
from flexwarm import command
from flexwarm.errors import FlexwarmError
told = json.loads(Path(sys.argv[1]).read_text())
for name, seconds in told["seconds"].items():
    assert hasattr(command, name)
    setattr(command, name, seconds)
said, ended_with = [], []
try:
    run = command.run_command(
        told["argv"], environ=told["environ"], directory=Path(told["directory"]), run_id=told["run_id"],
        conditions=command.Conditions(**told["conditions"], on_end=ended_with.append),
        on_event=lambda event: said.append(event.KIND),
    )
    answer = {
        "ended_with": ended_with,
        "status": run.status, "ended": run.ended.name, "signum": run.signum, "left": run.left, "said": said,
        "unseen": [[one.pid, one.argv] for one in run.unseen],
        "programs": [[event.KIND for event in one.events] for one in run.programs],
        "messages": [event.message for one in run.programs for event in one.events if event.KIND == "refused"],
        "gone": [one.gone_unix for one in run.programs],
        "silenced": [one.silenced for one in run.programs],
        "compilers": [one.argv for one in run.compilers],
    }
except FlexwarmError as error:
    answer = {"error": type(error).__name__, "message": error.message, "hint": error.hint}
Path(sys.argv[2]).write_text(json.dumps(answer))
"""

TIMEOUT_SECONDS = 60


@dataclass(slots=True)
class Driver:
    """One command, run by another process."""

    base: Path
    seconds: dict[str, float] = field(default_factory=lambda: {"LEFT_SECONDS": 0.2, "LOOK_SECONDS": 0.02})
    run_id: str = field(default_factory=lambda: f"test-{os.getpid()}-{time.monotonic_ns()}")

    @property
    def directory(self) -> Path:
        """Where programs say what they have to say."""
        return self.base / "programs"

    def argv(self, argv: list[str], **conditions: Any) -> list[str]:
        self.directory.mkdir(exist_ok=True)
        environ = {**os.environ, "PYTHONPATH": str(ROOT), "DIR": str(self.directory)}
        told = {
            "argv": argv, "environ": environ, "directory": str(self.directory), "run_id": self.run_id,
            "conditions": conditions, "seconds": self.seconds,
        }  # fmt: skip
        (self.base / "told.json").write_text(json.dumps(told))
        return [sys.executable, "-c", DRIVER, str(self.base / "told.json"), str(self.base / "answer.json")]

    @contextlib.contextmanager
    def started(self, argv: list[str], **conditions: Any) -> Iterator[subprocess.Popen[str]]:
        process = subprocess.Popen(
            self.argv(argv, **conditions),
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()

    def __call__(self, argv: list[str], **conditions: Any) -> tuple[dict[str, Any], str, str]:
        """Run it to its end: the answer, standard output and standard error."""
        with self.started(argv, **conditions) as process:
            out, err = process.communicate(timeout=TIMEOUT_SECONDS)
        assert process.returncode == 0, err
        return self.answer(), out, err

    def shell(self, script: str, **conditions: Any) -> dict[str, Any]:
        return self(["sh", "-c", script], **conditions)[0]

    def answer(self) -> dict[str, Any]:
        data: dict[str, Any] = json.loads((self.base / "answer.json").read_text())
        return data

    def say(self, name: str, *events: Event) -> str:
        """A file with events, and the shell's words that put them into a program's file."""
        source = self.base / f"said-{len(list(self.base.glob('said-*')))}"
        source.write_text("".join(map(to_line, events)))
        return f"cat {shlex.quote(str(source))} >> $DIR/{name}.events.jsonl"


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    return Driver(tmp_path)


def python(script: str) -> list[str]:
    return [sys.executable, "-c", script]


def is_running(pid: int) -> bool:
    return not reaper.is_zombie(pid)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


# ---- as if nobody watched --------------------------------------------------------------------------------------------------


def test_output_passes_through_and_the_status_is_the_commands_own(driver: Driver) -> None:
    answer, out, err = driver(["sh", "-c", "echo out; echo err >&2; exit 3"])
    assert (answer["status"], answer["ended"], answer["signum"], answer["left"]) == (3, "BY_ITSELF", None, [])
    assert (out, err) == ("out\n", "err\n")


def test_a_file_that_the_shell_opened_for_the_command_reaches_it(driver: Driver, tmp_path: Path) -> None:
    argv = driver.argv(["sh", "-c", "echo kept >&3; ls /proc/self/fd"])
    shell = ["sh", "-c", 'exec 3> "$0"; exec "$@"', str(tmp_path / "three"), *argv]
    done = subprocess.run(
        shell, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
    )
    assert (tmp_path / "three").read_text() == "kept\n"
    # The fourth is that of `ls` itself.
    assert done.stdout.split() == ["0", "1", "2", "3", "4"]


def test_a_signal_that_ended_the_command_is_minus_its_number(driver: Driver) -> None:
    assert driver.shell("kill -9 $$")["status"] == -signal.SIGKILL


def test_there_is_no_such_command(driver: Driver) -> None:
    answer = driver(["no-such-command-anywhere", "train.py"])[0]
    assert (answer["error"], answer["message"]) == ("UsageError", "there is no command 'no-such-command-anywhere'")


def test_a_file_that_is_no_program_is_a_usage_error_as_well(driver: Driver, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print(1)\n")
    assert driver([str(tmp_path / "train.py")])[0]["error"] == "UsageError"


#: Says when it is ready, and at a signal which one it was; the number of the signal is its status.
LISTENS = """
import signal, sys
def tell(number, frame):
    print(signal.Signals(number).name, flush=True)
    if number != signal.SIGUSR1:
        sys.exit(int(number))
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1):
    signal.signal(number, tell)
print("ready", flush=True)
while True:
    signal.pause()
"""


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_is_passed_on_and_the_command_ends_in_its_own_way(driver: Driver, signum: signal.Signals) -> None:
    with driver.started(python(LISTENS)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signum)
        out, err = process.communicate(timeout=TIMEOUT_SECONDS)
    answer = driver.answer()
    assert out == f"{signum.name}\n", err
    assert (answer["status"], answer["ended"], answer["signum"]) == (int(signum), "INTERRUPTED", int(signum))


def test_signals_that_wait_in_flexwarm_do_not_wait_in_the_command(driver: Driver) -> None:
    """They wait from before its start on: one that came in between would end flexwarm and leave the command."""
    with open("/proc/self/status") as file:
        (ours,) = (line for line in file.read().splitlines() if line.startswith("SigBlk"))
    assert driver(["grep", "SigBlk", "/proc/self/status"])[1].strip() == ours


def test_a_signal_that_asks_for_no_end_is_passed_on_and_changes_nothing(driver: Driver) -> None:
    with driver.started(python(LISTENS)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGUSR1)
        assert process.stdout.readline() == "SIGUSR1\n"
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=TIMEOUT_SECONDS)
    assert driver.answer()["signum"] == signal.SIGTERM


def test_a_real_job_gets_its_signals_and_is_not_ended_for_them(driver: Driver) -> None:
    driver.seconds["GRACE_SECONDS"] = 0.0
    with driver.started(python(LISTENS), patient=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=TIMEOUT_SECONDS)
    answer = driver.answer()
    assert (answer["status"], answer["ended"], answer["signum"]) == (signal.SIGTERM, "BY_ITSELF", None)


#: Does not end at a signal.
STUBBORN = (
    "import signal\nfor n in (signal.SIGTERM, signal.SIGINT):\n    signal.signal(n, lambda *_: print('no', flush=True))\n"
)
STUBBORN += "print('ready', flush=True)\nwhile True:\n    signal.pause()\n"


def test_a_command_that_ignores_the_signal_is_killed_after_its_grace(driver: Driver) -> None:
    driver.seconds["GRACE_SECONDS"] = 0.3
    with driver.started(python(STUBBORN)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=TIMEOUT_SECONDS)
    answer = driver.answer()
    assert out == "no\n"
    assert (answer["status"], answer["ended"], answer["signum"]) == (-signal.SIGKILL, "INTERRUPTED", signal.SIGTERM)


def test_whoever_asks_twice_does_not_wait_for_the_grace(driver: Driver) -> None:
    driver.seconds["GRACE_SECONDS"] = 100 * TIMEOUT_SECONDS
    with driver.started(python(STUBBORN)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "no\n"
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=TIMEOUT_SECONDS)
    assert (driver.answer()["status"], driver.answer()["signum"]) == (-signal.SIGKILL, signal.SIGINT)


#: Counts what Ctrl-C sends; after the first it listens a while for one too many.
COUNTS = """
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
print("foreground", os.tcgetpgrp(0) == os.getpgrp(), flush=True)
print("read", sys.stdin.readline().strip(), flush=True)
signal.sigwait([signal.SIGINT])
again = signal.sigtimedwait([signal.SIGINT], 1.0)
print("interrupts", 1 if again is None else 2, flush=True)
sys.exit(5)
"""


def test_in_a_terminal_the_command_is_in_the_foreground_and_ctrl_c_reaches_it_once(driver: Driver) -> None:
    argv = driver.argv(python(COUNTS))
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ["PYTHONPATH"] = str(ROOT)
        os.execv(argv[0], argv)
    seen = b""

    def read_until(text: bytes) -> None:
        nonlocal seen
        while text not in seen:
            assert b"interrupts 2" not in seen
            assert b"foreground False" not in seen
            seen += os.read(terminal, 1024)

    try:
        read_until(b"foreground True\r\n")
        os.write(terminal, b"hello\n")
        read_until(b"read hello")
        os.write(terminal, b"\x03")
        read_until(b"interrupts 1\r\n")
        while True:  # until its end, which Linux reports as an error
            try:
                seen += os.read(terminal, 1024)
            except OSError:
                break
    finally:
        os.close(terminal)
        os.waitpid(pid, 0)
    answer = driver.answer()
    assert (answer["status"], answer["ended"], answer["signum"]) == (5, "INTERRUPTED", signal.SIGINT)


# ---- nothing is left -------------------------------------------------------------------------------------------------------

#: Leaves its session and empties its environment; says its process id.
DETACHED = "setsid env -i sleep 1000 </dev/null >/dev/null 2>&1 & echo $! > $DIR/pid;"


def test_what_outlives_the_command_is_told_and_ended_also_if_it_left_session_and_environment(driver: Driver) -> None:
    answer = driver.shell(f"{DETACHED} exit 0")
    pid = int((driver.directory / "pid").read_text())
    assert (answer["ended"], answer["left"]) == ("BY_ITSELF", [pid])
    assert not is_running(pid)


def test_a_real_job_may_leave_a_process_behind(driver: Driver) -> None:
    answer = driver.shell(f"{DETACHED} exit 0", patient=True)
    pid = int((driver.directory / "pid").read_text())
    try:
        assert answer["left"] == [pid]
        assert is_running(pid)
    finally:
        os.kill(pid, signal.SIGKILL)


def test_helpers_get_a_moment_to_end_by_themselves(driver: Driver) -> None:
    driver.seconds["LEFT_SECONDS"] = TIMEOUT_SECONDS
    answer = driver.shell("(sleep 0.3; touch $DIR/done) & exit 0")
    assert answer["left"] == []
    assert (driver.directory / "done").exists()


def test_a_signal_ends_what_the_command_started_as_well(driver: Driver) -> None:
    driver.seconds["GRACE_SECONDS"] = 0.2
    with driver.started(["sh", "-c", f"trap '' TERM; {DETACHED} echo ready; sleep 1000"]) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=TIMEOUT_SECONDS)
    assert not is_running(int((driver.directory / "pid").read_text()))
    assert reaper.members(driver.run_id) == []


def test_where_the_parent_is_killed_nothing_is_left_either(driver: Driver) -> None:
    with driver.started(["sh", "-c", "setsid sleep 1000 & echo $!; wait"]) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        process.kill()
        until(lambda: not is_running(pid))
    until(lambda: reaper.members(driver.run_id) == [])


def test_a_command_past_its_limit_is_ended(driver: Driver) -> None:
    answer = driver.shell(f"{DETACHED} sleep 1000", limit_seconds=0.5)
    assert (answer["status"], answer["ended"], answer["signum"]) == (-signal.SIGKILL, "TIMED_OUT", None)
    assert not is_running(int((driver.directory / "pid").read_text()))


# ---- what is said ----------------------------------------------------------------------------------------------------------


def here(**changes: Any) -> Event:
    return program(**{"host": socket.gethostname(), **changes})


def test_what_programs_say_is_read_in_their_order_and_to_the_end(driver: Driver) -> None:
    answer = driver.shell(f"{driver.say('a', *warm()[:3])}; {driver.say('b', *warm())}; {driver.say('a', *warm()[3:])}")
    whole = ["program", "called", "lookup", "lookup", "summary", "bye"]
    assert answer["programs"] == [whole, whole]
    assert sorted(answer["said"]) == sorted(whole * 2)


def test_a_line_that_is_no_event_is_told_and_ends_nobody(driver: Driver) -> None:
    script = f'{driver.say("a", here())}; echo \'{{"event": "loo\' >> $DIR/a.events.jsonl; {driver.say("b", bye())}; exit 4'
    answer = driver.shell(script, patient=True)
    assert (answer["status"], answer["programs"]) == (4, [["program", "refused"], ["bye"]])
    assert "a line that is no event" in answer["messages"][0]


def test_a_line_that_was_cut_short_at_the_end_is_dropped(driver: Driver) -> None:
    answer = driver.shell(f'{driver.say("a", here())}; printf \'{{"event": "loo\' >> $DIR/a.events.jsonl')
    assert answer["programs"] == [["program"]]


def test_a_program_that_could_not_write_any_more_is_told_with_the_error_that_it_left_as_a_sign(driver: Driver) -> None:
    times = f"{driver.say('a', here())}; touch -d @{errno.ENOSPC} $DIR/a.events.jsonl"
    link = f"{driver.say('b', here())}; ln -s {errno.EIO} $DIR/b.events.jsonl.silenced"
    nameless = f"ln -s {errno.EDQUOT} $DIR/c.events.jsonl.silenced; : > $DIR/d.events.jsonl"
    answer = driver.shell(f"{times}; {link}; {nameless}; {driver.say('e', *warm())}; exit 4", patient=True)
    assert answer["status"] == 4
    assert answer["programs"] == [["program"], ["program"], [], ["program", *answer["programs"][3][1:]], []]
    assert answer["silenced"] == [errno.ENOSPC, errno.EIO, None, None, errno.EDQUOT]


def test_whoever_deletes_the_store_does_not_end_a_real_job(driver: Driver) -> None:
    answer = driver.shell(f"{driver.say('a', here())}; sleep 0.3; rm -r $DIR; sleep 0.3; exit 4", patient=True)
    assert (answer["status"], answer["ended"]) == (4, "BY_ITSELF")


def test_a_store_that_cannot_be_read_for_a_moment_does_not_end_a_real_job_and_hides_nothing(driver: Driver) -> None:
    """A directory in the place of a file is an error to open, and its name one to list, whoever asks."""
    away = "mv $DIR $DIR.away; touch $DIR; sleep 0.2; rm $DIR; mv $DIR.away $DIR"
    unreadable = "mkdir $DIR/b.events.jsonl; sleep 0.2; rmdir $DIR/b.events.jsonl"
    script = f"{driver.say('a', here())}; {away}; {unreadable}; {driver.say('b', *warm())}; sleep 0.2; exit 4"
    answer = driver.shell(script, patient=True)
    assert (answer["status"], answer["ended"]) == (4, "BY_ITSELF")
    assert [len(said) for said in answer["programs"]] == [1, 6]


def test_a_line_of_another_flexwarm_is_told_and_breaks_nothing(driver: Driver) -> None:
    foreign = called()
    script = f"{driver.say('a', here(), dataclasses.replace(foreign, call={'graph': 3}))}; exit 4"
    answer = driver.shell(script, patient=True)
    assert (answer["status"], answer["programs"]) == (4, [["program", "refused"]])
    assert "not a compiled call" in answer["messages"][0]


@pytest.mark.parametrize("number", ["USR1", "TERM", "INT"])
def test_a_signal_that_comes_as_a_real_job_ends_changes_nothing_of_its_end(driver: Driver, number: str) -> None:
    answer = driver.shell(f"kill -{number} $PPID; exit 4", patient=True)
    assert (answer["status"], answer["ended"], answer["ended_with"]) == (4, "BY_ITSELF", [4])


def test_a_status_is_told_at_once_only_of_a_command_that_ended_by_itself(driver: Driver) -> None:
    assert driver.shell("exit 4")["ended_with"] == [4]
    assert driver.shell("sleep 60", limit_seconds=0.2)["ended_with"] == []


def test_a_real_job_goes_on_to_its_end_also_where_its_supervision_fails(driver: Driver) -> None:
    argv = driver.argv(["sh", "-c", f"{driver.say('a', here())}; sleep 0.5; touch $DIR/done; exit 4"], patient=True)
    argv[2] = argv[2].replace("said.append(event.KIND)", "1 / 0").replace("ended_with.append)", "print)")
    done = subprocess.run(argv, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60)
    assert "ZeroDivisionError" in done.stderr
    assert (driver.directory / "done").exists()
    assert done.stdout == "4\n"


@pytest.mark.parametrize("patient", [True, False])
def test_a_program_that_is_held_at_a_miss_ends_the_run_once_others_have_said_theirs(driver: Driver, patient: bool) -> None:
    driver.seconds["SETTLE_SECONDS"] = 1.0
    # The other one is held as well, a moment later; both would stand for ever.
    script = f"{driver.say('a', here(), held())}; sleep 0.2; {driver.say('b', here(), held())}; {DETACHED} sleep 1000"
    answer = driver.shell(script, patient=patient)
    assert (answer["status"], answer["ended"]) == (-signal.SIGKILL, "AT_A_MISS")
    assert answer["programs"] == [["program", "held"], ["program", "held"]]
    assert not is_running(int((driver.directory / "pid").read_text()))


def test_a_hang_ends_a_run_at_once(driver: Driver) -> None:
    answer = driver.shell(f"{driver.say('a', here(), hang())}; sleep 1000")
    assert (answer["status"], answer["ended"]) == (-signal.SIGKILL, "HUNG")


def test_a_hang_of_a_real_job_is_for_its_owner_to_end(driver: Driver) -> None:
    answer = driver.shell(f"{driver.say('a', here(), hang())}; sleep 0.5; exit 4", patient=True)
    assert (answer["status"], answer["ended"]) == (4, "BY_ITSELF")


def test_where_programs_run_elsewhere_the_launcher_is_asked_to_end_them(driver: Driver) -> None:
    driver.seconds["SETTLE_SECONDS"] = 0.1
    script = f"trap 'exit 9' TERM; {driver.say('a', program(host='elsewhere'), held())}; while :; do sleep 0.05; done"
    answer = driver.shell(script)
    assert (answer["status"], answer["ended"]) == (9, "AT_A_MISS")


@contextlib.contextmanager
def service(run_id: str, script: str) -> Iterator[subprocess.Popen[bytes]]:
    """A program of a run that does not descend from its command: a service has started it, as Slurm's does for srun."""
    process = subprocess.Popen(python(script), env={**os.environ, reaper.MARKER: run_id})
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_where_a_service_of_this_machine_runs_programs_the_launcher_is_asked_to_end_them(driver: Driver) -> None:
    """The launcher has a loan of the service, such as a job of Slurm's, that nobody else gives back."""
    driver.seconds["SETTLE_SECONDS"] = 0.1
    with service(driver.run_id, WAITS) as ranks:
        answer = driver.shell(f"trap 'exit 9' TERM; {driver.say('a', here(), held())}; while :; do sleep 0.05; done")
        assert (answer["status"], answer["ended"]) == (9, "AT_A_MISS")
        assert ranks.wait(TIMEOUT_SECONDS) == -signal.SIGKILL, "what the launcher does not end is killed after it"


def test_a_program_that_a_service_has_started_is_looked_at(driver: Driver, library: str) -> None:
    with service(driver.run_id, f"import sys; sys.argv[1:] = [{library!r}]\n{LOADED}{WAITS}") as rank:
        answer = driver.shell("sleep 1")
    assert [pid for pid, _ in answer["unseen"]] == [rank.pid]
    assert answer["left"] == [rank.pid]


def test_words_from_elsewhere_may_come_after_the_end_of_the_command(driver: Driver) -> None:
    driver.seconds["REMOTE_SECONDS"] = TIMEOUT_SECONDS
    late = driver.say("late", bye()).replace("late.events", "a.events")
    answer = driver.shell(f"{driver.say('a', program(host='elsewhere'))}; (sleep 0.5; {late}) & exit 0")
    assert answer["programs"] == [["program", "bye"]]


#: Has torch's library loaded, as far as anybody can see; with an argument it says who it is.
LOADED = """
import mmap, os, sys, time
with open(sys.argv[1], "rb") as file:
    kept = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
"""
WAITS = "import time; time.sleep(1000)\n"


@pytest.fixture
def library(tmp_path: Path) -> str:
    path = tmp_path / "libtorch_python.so"
    path.write_bytes(b"x" * 4096)
    return str(path)


def test_a_process_that_has_torch_and_says_nothing_is_told_with_its_command_line(driver: Driver, library: str) -> None:
    answer = driver([*python(LOADED + WAITS), library], limit_seconds=2.0)[0]
    ((_, argv),) = answer["unseen"]
    assert argv == [*python(LOADED + WAITS), library]


def test_a_process_that_says_who_it_is_is_none_of_those(driver: Driver, library: str) -> None:
    tell = """
from flexwarm import reaper
from flexwarm.events import to_line
from tests.launches import program
with open(os.environ["DIR"] + "/a.events.jsonl", "a") as file:
    file.write(to_line(program(pid=os.getpid(), started=reaper.started(os.getpid()))))
"""
    answer = driver([*python(LOADED + tell + WAITS), library], limit_seconds=2.0)[0]
    assert (answer["unseen"], answer["programs"]) == ([], [["program"]])


def test_a_child_that_a_program_said_it_forked_is_none_of_those(driver: Driver, library: str) -> None:
    tell = """
from flexwarm import reaper
from flexwarm.events import to_line
from flexwarm.program_events import Forked
from tests.launches import program
def say(event):
    with open(os.environ["DIR"] + "/a.events.jsonl", "a") as file:
        file.write(to_line(event))
say(program(pid=os.getpid(), started=reaper.started(os.getpid())))
if os.fork() == 0:
    say(Forked(t=0, pid=os.getpid(), started=reaper.started(os.getpid())))
"""
    answer = driver([*python(LOADED + tell + WAITS), library], limit_seconds=2.0)[0]
    assert (answer["unseen"], answer["programs"]) == ([], [["program", "forked"]])


#: Says that it is observed, as a parent does of a forked child, and puts a program that is not in its place.
REPLACED = """
import os, subprocess, sys
from flexwarm import reaper
from flexwarm.events import to_line
from flexwarm.program_events import Forked
from tests.launches import program
def say(event):
    with open(os.environ["DIR"] + "/a.events.jsonl", "a") as file:
        file.write(to_line(event))
def who():
    me = os.getpid()
    return {"pid": me, "started": reaper.started(me), "image": reaper.image(me)}
say(program(**who()))
blind = [sys.executable, "-c", sys.argv[1], sys.argv[2]]
"""


@pytest.mark.parametrize(
    "start",
    [
        "os.execv(blind[0], blind)",
        "subprocess.run(blind, preexec_fn=lambda: say(Forked(t=0, **who())))",
    ],
)
def test_a_program_that_an_observed_one_puts_in_its_place_is_not_observed_by_that(
    driver: Driver, library: str, start: str
) -> None:
    answer = driver([*python(REPLACED + start), LOADED + WAITS, library], limit_seconds=3.0)[0]
    assert [argv for _, argv in answer["unseen"]] == [[*python(LOADED + WAITS), library]]


def test_a_program_is_told_by_where_its_stack_is_unless_that_is_the_same_for_all() -> None:
    def image_of(*argv: str) -> int:
        with subprocess.Popen([*argv, "sleep", "1000"]) as process:
            until(lambda: "sleep" in (Path(f"/proc/{process.pid}/comm").read_text()))
            found = reaper.image(process.pid)
            process.kill()
        return found

    assert len({reaper.image(os.getpid()), image_of("env"), image_of("env")}) == 3
    assert reaper.image(os.getpid()) == reaper.image(os.getpid()) != 0
    assert image_of("setarch", "-R") == 0
    assert reaper.image(2**22 + 1) == 0


def test_a_process_that_loads_torch_late_is_looked_at_still(driver: Driver, library: str) -> None:
    driver.seconds |= {"OFTEN_SECONDS": 0.1, "RARELY_SECONDS": 0.2}
    answer = driver([*python("import time\ntime.sleep(1)\n" + LOADED + WAITS), library], limit_seconds=3.0)[0]
    assert len(answer["unseen"]) == 1


def test_a_process_that_has_torch_only_on_its_way_to_another_program_is_none_of_those(driver: Driver, library: str) -> None:
    """Between fork and exec every compiler that a program starts looks like that program."""
    replaced = "if os.fork() == 0:\n    time.sleep(0.3)\n    os.execvp('sleep', ['sleep', '1000'])\n"
    assert driver([*python(REPLACED + LOADED + replaced + WAITS), library, ""], limit_seconds=2.0)[0]["unseen"] == []


def test_an_observer_that_could_not_begin_is_known_by_the_name_of_its_file(driver: Driver, library: str) -> None:
    tell = "open(f\"{os.environ['DIR']}/{os.getpid()}.refused.jsonl\", 'w').close()\n"
    assert driver([*python(LOADED + tell + WAITS), library], limit_seconds=2.0)[0]["unseen"] == []


def test_of_each_program_it_is_told_when_it_was_gone_in_the_order_in_which_they_ended(driver: Driver) -> None:
    """A rank that dies first is the cause, and one that dies after it a consequence."""
    tell = """
import os, socket, sys, time
from flexwarm import reaper
from flexwarm.events import to_line
from tests.launches import program
child = os.fork()
me = os.getpid()
with open(f"{os.environ['DIR']}/{'parent' if child else 'child'}.events.jsonl", "a") as file:
    file.write(to_line(program(pid=me, started=reaper.started(me), host=socket.gethostname())))
time.sleep(0.5)
if child == 0:
    os._exit(0)
os.waitpid(child, 0)
time.sleep(0.5)
"""
    child, parent = driver(python(tell))[0]["gone"]
    assert child < parent


# ---- compilers -------------------------------------------------------------------------------------------------------------

#: The standard library's regular expressions take a compiler longer than a look does.
SOURCE = '#include <regex>\nint main() { return std::regex_match("a", std::regex("a")); }\n'


@pytest.mark.parametrize("seconds", [0.02, 1000.0])
def test_compilers_under_a_build_tool_are_seen(driver: Driver, seconds: float) -> None:
    """Also where a look at the processes is rare: from a build tool on it is not."""
    driver.seconds["LOOK_SECONDS"] = seconds
    (driver.base / "a.cpp").write_text(SOURCE)
    # With make in the place of the shell it is there at the first look.
    (driver.base / "Makefile").write_text("all:\n\tg++ -O2 a.cpp -o a\n")
    answer = driver(["make", "-C", str(driver.base)])[0]
    assert answer["status"] == 0
    assert ["g++", "-O2", "a.cpp", "-o", "a"] in answer["compilers"]


def test_a_shell_that_may_compile_and_does_not_is_no_compiler(driver: Driver) -> None:
    (driver.base / "a.cpp").write_text(SOURCE)
    answer = driver.shell(f"cd {shlex.quote(str(driver.base))}; test -e a.cpp || g++ a.cpp -o a; g++ --version; sleep 0.5")
    assert (answer["status"], answer["compilers"]) == (0, [])


def test_a_compiler_that_a_shell_becomes_is_seen(driver: Driver) -> None:
    (driver.base / "a.cpp").write_text(SOURCE)
    answer = driver.shell(f"sleep 0.2; cd {shlex.quote(str(driver.base))}; exec g++ a.cpp -o a")
    assert ["g++", "a.cpp", "-o", "a"] in answer["compilers"]
