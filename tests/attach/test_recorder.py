"""Each process of a program has a file of its own, and whatever befalls that file, the program goes on."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from flexwarm.attach.recorder import HELD_STATUS, place_by_variables
from flexwarm.observation import Observation, OnMiss
from flexwarm.request import Backward, Guard
from tests.conftest import ROOT

#: A program with a recorder and a torch that it does not need.
BEGIN = """
import json, os, socket, sys, threading, time
from pathlib import Path
from flexwarm import reaper
from flexwarm.attach import recorder as module
from flexwarm.events import Bye, Layer, Answer, Lookup
from flexwarm.observation import Observation
from tests.launches import program
observation = Observation.from_json(json.loads(Path("told.json").read_text()))
def describe(parent):
    return program(pid=os.getpid(), started=reaper.started(os.getpid()), forked_from=parent)
def name():
    return f"{socket.gethostname()}-{os.getpid()}-{reaper.started(os.getpid())}.events.jsonl"
def bye():
    return Bye(t=0.0)
"""
MAKE = "made = module.ProgramRecorder(observation, describe)\n"


@dataclass(slots=True)
class Bench:
    base: Path

    def run(self, script: str, *, on_miss: OnMiss = OnMiss.ALLOW, begin: str = BEGIN + MAKE, **env: str) -> Any:
        observation = Observation(
            run="r", directory=str(self.base / "words"), site="/site", home=str(ROOT), on_miss=on_miss, guard=Guard.REPORT,
            backward=Backward.ENGINE, hang_seconds=60.0, variables={},
        )  # fmt: skip
        (self.base / "told.json").write_text(json.dumps(observation.to_json()))
        (self.base / "words").mkdir(exist_ok=True)
        return subprocess.run(
            [sys.executable, "-c", begin + script],
            env={**os.environ, "PYTHONPATH": str(ROOT), **env},
            cwd=self.base,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def said(self) -> dict[int, list[dict[str, Any]]]:
        """Process id -> what it said."""
        files = sorted((self.base / "words").glob("*.events.jsonl"))
        lines = [[json.loads(line) for line in file.read_text().splitlines()] for file in files if file.is_file()]
        return {events[0]["pid"]: events for events in lines}

    def kinds(self) -> list[list[str]]:
        return [[event["event"] for event in events] for events in self.said().values()]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.mark.parametrize(
    ("environ", "place"),
    [
        ({}, {}),
        ({"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}, (3, 1, 4, 2)),
        (
            {
                "OMPI_COMM_WORLD_RANK": "3",
                "OMPI_COMM_WORLD_LOCAL_RANK": "1",
                "OMPI_COMM_WORLD_SIZE": "4",
                "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
            },
            (3, 1, 4, 2),
        ),
        ({"SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_NTASKS": "4"}, (3, 1, 4, None)),
        ({"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}, (3, 1, 4, 2)),
        # torchrun under srun: torchrun says who the rank is.
        ({"SLURM_PROCID": "0", "RANK": "3", "WORLD_SIZE": "4"}, (3, None, 4, None)),
        ({"RANK": "", "WORLD_SIZE": "many"}, {}),
        ({"RANK": "-1"}, {}),
    ],
)
def test_who_a_process_is_comes_from_its_launchers_variables(environ: Mapping[str, str], place: Any) -> None:
    names = ("rank", "local_rank", "world_size", "local_world_size")
    expected = place if isinstance(place, dict) else {n: v for n, v in zip(names, place, strict=True) if v is not None}
    assert place_by_variables(environ) == expected


def test_a_program_says_who_it_is_first(bench: Bench) -> None:
    bench.run("made.emit(bye())")
    assert bench.kinds() == [["program", "bye"]]


def test_a_fork_is_one_line_of_its_parent_until_it_says_something_itself(bench: Bench) -> None:
    done = bench.run(
        "os.register_at_fork(after_in_child=made.after_fork)\n"
        "quiet = os.fork()\n"
        "if not quiet:\n    assert not made.has_a_file\n    os._exit(0)\n"
        "loud = os.fork()\n"
        "if not loud:\n"
        "    made.emit(bye())\n    assert made.has_a_file\n"
        "    inner = os.fork()\n"
        "    if not inner:\n        made.emit(bye())\n        os._exit(0)\n"
        "    os.waitpid(inner, 0)\n    made.emit(bye())\n    os._exit(0)\n"
        "for pid in (quiet, loud):\n    assert os.waitpid(pid, 0)[1] == 0\n"
        "made.emit(bye())\n"
    )
    assert done.returncode == 0, done.stderr
    said = bench.said()
    assert len(said) == 3
    (top,) = (events for events in said.values() if events[0]["forked_from"] is None)
    (child,) = (events for events in said.values() if events[0]["forked_from"] == top[0]["pid"])
    (inner,) = (events for events in said.values() if events[0]["forked_from"] == child[0]["pid"])
    assert [event["event"] for event in top] == ["program", "forked", "forked", "bye"]
    assert [event["event"] for event in child] == ["program", "bye", "forked", "bye"]
    assert [event["event"] for event in inner] == ["program", "bye"]
    assert child[2]["pid"] == inner[0]["pid"]


#: A file on a disk that is full: the kernel takes nothing.
FULL = "os.symlink('/dev/full', Path('words') / name())\n"


def test_a_disk_that_is_full_from_the_beginning_ends_no_program(bench: Bench) -> None:
    done = bench.run(FULL + MAKE + "made.emit(bye())\nprint('done')", begin=BEGIN)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    (sign,) = (bench.base / "words").glob("*.silenced")
    assert int(os.readlink(sign)) == errno.ENOSPC


def test_who_could_not_say_something_says_nothing_more_and_so_not_how_it_ended(bench: Bench) -> None:
    """What is missing in between could have been a hazard."""
    text = (
        "import resource\nfree = resource.getrlimit(resource.RLIMIT_FSIZE)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1, free[1]))\nmade.emit(bye())\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, free)\nmade.emit(bye())\nprint('done')"
    )
    done = bench.run(text)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    assert bench.kinds() == [["program"]]
    (file,) = (bench.base / "words").iterdir()
    assert file.stat().st_mtime == errno.EFBIG


#: Something else lies where the file of this process belongs.
TAKEN = "own = Path('words') / name()\nown.unlink(missing_ok=True)\nown.mkdir()\n"


def test_a_file_that_cannot_be_opened_anew_leaves_a_sign_beside_it(bench: Bench) -> None:
    done = bench.run(TAKEN + "os.closerange(3, 64)\nmade.emit(bye())\nmade.emit(bye())\nprint('done')")
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    (sign,) = (bench.base / "words").glob("*.silenced")
    assert int(os.readlink(sign)) == errno.EISDIR


def test_a_forked_child_that_can_have_no_file_is_told_of_in_its_parents(bench: Bench) -> None:
    """Nothing that it does is known, and its parent has said that it is no stranger."""
    done = bench.run(
        "os.register_at_fork(after_in_child=made.after_fork)\npid = os.fork()\n"
        "if not pid:\n"
        + "".join(f"    {line}\n" for line in TAKEN.splitlines())
        + "    made.emit(bye())\n    made.emit(bye())\n    os._exit(0)\n"
        "assert os.waitpid(pid, 0)[1] == 0\nmade.emit(bye())\nprint('done')\n"
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    ((_, forked, silenced, end),) = bench.said().values()
    assert (silenced["event"], silenced["pid"], silenced["error"]) == ("silenced", forked["pid"], errno.EISDIR)
    assert end["event"] == "bye"


def test_a_program_that_cannot_say_that_it_is_held_waits_for_nobody(bench: Bench) -> None:
    done = bench.run(FULL + MAKE + "made.stop_if_verifying()\nprint('went on')\n", begin=BEGIN, on_miss=OnMiss.FAIL)
    assert (done.returncode, done.stdout) == (HELD_STATUS, ""), done.stderr


#: As a daemon does, and then opens a file of its own, which gets the first number that is free.
CLOSED = "os.closerange(3, 64)\nown = [os.open('own', os.O_RDWR | os.O_CREAT) for _ in range(8)]\n"


def test_a_program_that_closes_all_its_files_finds_nothing_of_ours_in_its_own(bench: Bench) -> None:
    done = bench.run(CLOSED + "made.emit(bye())\nmade.emit(bye())\nprint(os.path.getsize('own'))")
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr
    assert bench.kinds() == [["program", "bye", "bye"]]


def test_a_forked_child_that_closes_all_its_files_keeps_its_own(bench: Bench) -> None:
    done = bench.run(
        "os.register_at_fork(after_in_child=made.after_fork)\npid = os.fork()\n"
        "if not pid:\n"
        + "".join(f"    {line}\n" for line in CLOSED.splitlines())
        + "    made.emit(bye())\n    for fd in own:\n        os.fstat(fd)\n"
        "    assert not os.path.getsize('own')\n    os._exit(0)\n"
        "assert os.waitpid(pid, 0)[1] == 0\n"
    )
    assert done.returncode == 0, done.stderr
    assert sorted(bench.kinds()) == [["program", "bye"], ["program", "forked"]]


def test_a_fork_whose_directory_is_gone_ends_no_program(bench: Bench) -> None:
    done = bench.run(
        "import shutil\nshutil.rmtree('words')\npid = os.fork()\n"
        "if not pid:\n    made.emit(bye())\n    os._exit(0)\n"
        "assert os.waitpid(pid, 0)[1] == 0\nprint('done')\n"
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


def test_a_miss_that_is_allowed_is_nothing(bench: Bench) -> None:
    done = bench.run("made.stop_if_verifying()\nprint('on')")
    assert (done.stdout, done.stderr) == ("on\n", "")
    assert bench.kinds() == [["program"]]


def test_a_miss_is_warned_of_once_for_each_call_with_the_rank(bench: Bench) -> None:
    done = bench.run(
        "for made.subject_here in (lambda: 'attend of 128', lambda: 'attend of 128', lambda: 'attend of 256'):\n"
        "    made.stop_if_verifying()\n",
        on_miss=OnMiss.WARN,
        RANK="3",
    )
    assert done.returncode == 0
    assert done.stderr.splitlines() == [
        "flexwarm: rank 3 compiles attend of 128, which is not in the bucket",
        "flexwarm: rank 3 compiles attend of 256, which is not in the bucket",
    ]


def test_a_warning_that_nobody_can_read_ends_no_program(bench: Bench) -> None:
    text = "sys.stderr.close()\nmade.stop_if_verifying()\nsys.stderr = None\n"
    text += "made.subject_here = lambda: 'another'\nmade.stop_if_verifying()\nprint('on')"
    assert bench.run(text, on_miss=OnMiss.WARN).stdout == "on\n"


def test_a_program_that_is_held_says_so_and_ends_itself_for_want_of_a_parent(bench: Bench) -> None:
    text = "module.HELD_SECONDS = 0.0\nmade.graph_here = lambda: '0/1'\n"
    text += "try:\n    made.stop_if_verifying()\nexcept BaseException:\n    print('caught')\nprint('went on')\n"
    done = bench.run(text, on_miss=OnMiss.FAIL)
    assert (done.returncode, done.stdout) == (HELD_STATUS, "")
    (events,) = bench.said().values()
    assert (events[-1]["event"], events[-1]["graph"], events[-1]["job"]) == ("held", "0/1", "lane-0")


def test_a_seat_is_numbered_by_threads_as_they_come_and_free_again_when_they_end(bench: Bench) -> None:
    done = bench.run(
        "seen = []\n"
        "def look():\n    made.own_seat.checks += 1\n    seen.append(made.job)\n"
        "for _ in range(2):\n    thread = threading.Thread(target=look)\n    thread.start()\n    thread.join()\n"
        "look()\n"
        "inside, out = threading.Event(), threading.Event()\n"
        "def stay():\n    look()\n    inside.set()\n    out.wait()\n"
        "first = threading.Thread(target=stay)\nfirst.start()\ninside.wait()\n"
        "second = threading.Thread(target=look)\nsecond.start()\nsecond.join()\nout.set()\nfirst.join()\n"
        "print(json.dumps([seen, made.checks()]))\n"
    )
    seen, checks = json.loads(done.stdout)
    assert seen == ["lane-1", "lane-1", "lane-0", "lane-1", "lane-2"]
    assert checks == {"lane-0": 1, "lane-1": 3, "lane-2": 1}


def test_a_thread_of_autograds_has_no_seat_and_is_looked_at_once(bench: Bench) -> None:
    done = bench.run(
        "import _thread\n"
        "looks, look = [], module.threads.is_engines\n"
        "module.threads.is_engines = lambda ident: looks.append(ident) or look(ident)\n"
        "seen, over = [], threading.Event()\n"
        "def work():\n"
        "    for _ in range(3):\n        seen.append([made.own_seat, made.has_seat])\n"
        "    made.here.seat.checks += 5\n    over.set()\n"
        "for _ in range(2):\n    _thread.start_new_thread(work, ())\n    assert over.wait(30)\n    over.clear()\n"
        "print(json.dumps([seen, len(looks), made.checks(), [made.own_seat.job, made.has_seat, made.checks()]]))\n"
    )
    seen, looks, checks, main = json.loads(done.stdout)
    assert seen == [[None, False]] * 6
    assert (looks, checks) == (2, {})
    assert main == ["lane-0", True, {"lane-0": 0}]


def test_a_child_that_autograds_thread_forks_has_a_seat(bench: Bench) -> None:
    done = bench.run(
        "import _thread\n"
        "over = threading.Event()\n"
        "def work():\n"
        "    assert made.own_seat is None\n"
        "    pid = os.fork()\n"
        "    if not pid:\n"
        "        made.after_fork()\n        made.forget_engine()\n"
        "        print(made.own_seat.job, made.has_seat, flush=True)\n        os._exit(0)\n"
        "    os.waitpid(pid, 0)\n    made.forget_engine()\n    print(made.own_seat, flush=True)\n    over.set()\n"
        "_thread.start_new_thread(work, ())\nassert over.wait(30)\nprint(made.own_seat.job)\n"
    )
    assert done.stdout == "lane-0 True\nNone\nlane-0\n", done.stderr
