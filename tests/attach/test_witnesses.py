"""The observer of a real program: whatever goes wrong in it is told, and the program goes on and ends as it would have."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flexwarm.observation import Observation, OnMiss
from flexwarm.request import Backward, Guard
from tests.conftest import ROOT

pytestmark = pytest.mark.torch

#: A program whose observer has a fault: it raises where the program calls it.
BEGIN = """
import json, os, sys
from pathlib import Path
import torch
from flexwarm.attach import witnesses
witnesses.attach(json.loads(Path("told.json").read_text()))
here = witnesses.here()
def fails(*args, **kwargs):
    raise LookupError("a fault of the observer")
"""


def run(
    base: Path, script: str, *, before: str = ""
) -> tuple[subprocess.CompletedProcess[str], dict[str, list[dict[str, Any]]]]:
    """The program, and what each of its processes said; ``before`` it imports torch."""
    observation = Observation(
        run="r", directory=str(base / "words"), site="/site", home=str(ROOT), on_miss=OnMiss.ALLOW, guard=Guard.REPORT,
        backward=Backward.ENGINE, hang_seconds=60.0, variables={},
    )  # fmt: skip
    (base / "told.json").write_text(json.dumps(observation.to_json()))
    (base / "words").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", before + BEGIN + script],
        env={**os.environ, "PYTHONPATH": str(ROOT), "TORCHINDUCTOR_CACHE_DIR": str(base / "cache")},
        cwd=base,
        capture_output=True,
        text=True,
        timeout=120,
    )
    files = (base / "words").glob("*.events.jsonl")
    return done, {file.name: [json.loads(line) for line in file.read_text().splitlines()] for file in files}


def test_a_program_ends_with_its_own_status_where_the_observer_fails_at_its_end(tmp_path: Path) -> None:
    done, files = run(tmp_path, "here._follow_variables = fails\nos._exit(3)\n")
    assert (done.returncode, done.stderr) == (3, "")
    (said,) = files.values()
    assert [event["event"] for event in said] == ["program", "refused", "bye"]
    assert "a fault of the observer" in said[1]["message"]


def test_a_compile_goes_on_where_the_observer_fails_to_read_it(tmp_path: Path) -> None:
    script = "torch.compile(lambda x: x + 1)(torch.ones(4))\nprint('went on')\n"
    done, files = run(tmp_path, "here._follow_place = fails\n" + script)
    (said,) = files.values()
    assert (done.returncode, done.stdout) == (0, "went on\n"), done.stderr
    assert "a fault of the observer" in next(event for event in said if event["event"] == "refused")["message"]


def test_an_error_that_cannot_say_what_it_is_ends_the_program_as_always(tmp_path: Path) -> None:
    script = "class Odd(Exception):\n    def __str__(self):\n        raise LookupError\nraise Odd()\n"
    done, files = run(tmp_path, script)
    (said,) = files.values()
    assert done.returncode == 1
    assert "Odd: <exception str() failed>" in done.stderr
    assert "Error in sys.excepthook" not in done.stderr
    (raised,) = (event for event in said if event["event"] == "raised")
    assert (raised["error"], raised["message"]) == ("Odd", "")


@pytest.mark.parametrize(
    ("script", "how", "status"),
    [
        ("sys.exit(3)", "exit", 3),
        ("exit(3)", "exit", 3),
        ("import argparse\nargparse.ArgumentParser().error('no such option')", "exit", 2),
        ("os._exit(3)", "os._exit", 3),
        ("raise SystemExit(3)", "exit", None),
        ("int('x')", "exit", 1),
    ],
)
def test_a_program_says_with_which_status_it_ends(tmp_path: Path, script: str, how: str, status: int | None) -> None:
    done, files = run(tmp_path, script)
    (said,) = files.values()
    summary = next(event for event in said if event["event"] == "summary")
    assert (summary["how"], summary["status"]) == (how, status)
    assert done.returncode == (status if status is not None else 3)
    assert not any(event["event"] == "refused" for event in said)


def test_a_program_of_multiprocessing_says_for_which_error_it_left(tmp_path: Path) -> None:
    """torch's own keeps the error for the parent, and leaves with a status; the end of its process asks for that once more."""
    (tmp_path / "work.py").write_text(
        "import json, sys\nfrom pathlib import Path\nimport torch\nfrom flexwarm.attach import witnesses\n"
        "def job(number):\n"
        "    witnesses.attach(json.loads(Path('told.json').read_text()))\n"
        "    raise ValueError('no data')\n"
    )
    script = (
        "import torch.multiprocessing as mp\nsys.path.insert(0, '.')\nimport work\n"
        "if __name__ == '__main__':\n    mp.start_processes(work.job, (), 1, start_method='spawn')\n"
    )
    done, files = run(tmp_path, script)
    assert done.returncode == 1
    summaries = [next(event for event in said if event["event"] == "summary") for said in files.values()]
    (child,) = (one for one in summaries if "no data" in one["why"])
    assert child["status"] == 1
    assert child["why"].startswith("ValueError at ")


def test_what_functions_of_atexit_do_after_the_end_was_told_is_told_as_well(tmp_path: Path) -> None:
    """Those that a program registered before it imported torch run after the observer's own."""
    late = "atexit.register(lambda: here.recorder.compiled('cxx', 'g++ a.cpp'))\n"
    last = "atexit.register(lambda: witnesses.end())\n"  # as sitecustomize does, before all
    done, files = run(tmp_path, "", before=f"import atexit\n{last}{late}")
    (said,) = files.values()
    assert done.returncode == 0, done.stderr
    assert [event["event"] for event in said] == ["program", "summary", "bye", "compiled", "summary", "bye"]


def test_an_end_that_is_told_once_is_not_told_again(tmp_path: Path) -> None:
    script = "import atexit\natexit.register(lambda: os._exit(int(sys.argv[1])))\natexit.register(lambda: witnesses.end())\n"
    done, files = run(tmp_path, "sys.argv.append('0')", before=f"import os, sys\n{script}")
    (said,) = files.values()
    assert (done.returncode, [event["event"] for event in said].count("bye")) == (0, 1)


def test_another_status_than_the_one_that_was_told_is_told_at_last(tmp_path: Path) -> None:
    done, files = run(tmp_path, "", before="import atexit, os\natexit.register(lambda: os._exit(3))\n")
    (said,) = files.values()
    assert [event["status"] for event in said if event["event"] == "summary"] == [0, 3]
    assert (done.returncode, said[-1]["event"]) == (3, "bye")


def test_a_lane_that_dies_is_told_and_a_thread_that_makes_no_compiled_call_is_not(tmp_path: Path) -> None:
    script = (
        "import threading\n"
        "def lane():\n    here.recorder.own_seat\n    raise ValueError('no data')\n"
        "def other():\n    raise KeyError('not ours')\n"
        "for target in (lane, other):\n    thread = threading.Thread(target=target)\n    thread.start()\n    thread.join()\n"
    )
    done, files = run(tmp_path, script)
    (said,) = files.values()
    assert done.returncode == 0
    assert done.stderr.count("Exception in thread") == 2
    (raised,) = (event for event in said if event["event"] == "raised")
    assert (raised["error"], raised["message"]) == ("ValueError", "no data")


def test_dense_attention_of_a_long_run_is_told_of_its_first_calls_and_not_of_each(tmp_path: Path) -> None:
    # The call is told before it is made, and what it is made of does not matter.
    script = (
        "import contextlib\nimport torch._higher_order_ops.flex_attention\n"
        "call = sys.modules['torch._higher_order_ops.flex_attention'].math_attention\n"
        "for _ in range(60):\n    with contextlib.suppress(TypeError):\n        call(torch.ones(1, 1, 4, 4))\n"
    )
    done, files = run(tmp_path, script)
    (said,) = files.values()
    assert done.returncode == 0, done.stderr
    assert sum(event["event"] == "dense" for event in said) == 50


def test_a_forked_child_counts_its_own_lookups_and_not_those_of_its_parent(tmp_path: Path) -> None:
    """It says nothing until it has something to say; here, that it is there."""
    script = (
        "from torch._dynamo.utils import counters\n"
        "counters['inductor']['fxgraph_cache_hit'] += 3\n"
        "if os.fork() == 0:\n"
        "    counters['inductor']['fxgraph_cache_hit'] += 1\n"
        "    here.recorder.compiled('cxx', 'g++ a.cpp')\n"
        "    os._exit(0)\n"
        "os.wait()\n"
    )
    done, said = run(tmp_path, script)
    assert done.returncode == 0, done.stderr
    counted = {one[0]["forked_from"] is None: one[-2]["counters"]["inductor.fxgraph_cache_hit"] for one in said.values()}
    assert counted == {True: 3, False: 1}


@pytest.mark.parametrize("sets", ["cache.dir = 'elsewhere'", "cache.manager_class = Kept"])
def test_a_cache_that_is_moved_on_triton_itself_is_told_and_not_one_that_stays(tmp_path: Path, sets: str) -> None:
    script = (
        "import triton\nfrom triton import knobs\nfrom triton.runtime.cache import FileCacheManager\n"
        "class Kept(FileCacheManager): ...\n"
        "knobs.propagate_env = False\n"
    )
    done, files = run(tmp_path, script + f"knobs.{sets}\n")
    (said,) = files.values()
    assert done.returncode == 0, done.stderr
    (moved,) = (event for event in said if event["event"] == "moved")
    name, _, value = sets.partition(" = ")
    assert moved["name"] == f"triton.knobs.{name}"
    assert value.strip("'") in moved["new"]
    assert moved["old"] not in ("", moved["new"])
    (tmp_path / "again").mkdir()
    (said,) = run(tmp_path / "again", script)[1].values()
    assert [event["event"] for event in said] == ["program", "summary", "bye"]


@pytest.mark.parametrize(
    ("script", "status"),
    [
        ("import atexit, os\natexit.register(os._exit, 7)\n", 7),
        ("import _thread, os, time\n_thread.start_new_thread(os._exit, (5,))\ntime.sleep(60)\n", 5),
        ("import atexit, sys\natexit.register(sys.exit, 3)\n", 0),
    ],
)
def test_a_program_leaves_as_it_asks_for_also_where_no_python_asks(tmp_path: Path, script: str, status: int) -> None:
    done, files = run(tmp_path, script)
    assert done.returncode == status
    assert "call stack" not in done.stderr
    (said,) = files.values()
    assert said[-1]["event"] == "bye"
    assert not [event for event in said if event["event"] == "refused"]


def test_what_objects_do_at_their_end_they_do_when_they_always_did(tmp_path: Path) -> None:
    """At the end of the main module, while there still is a standard output."""
    script = (
        "from flexwarm.attach import witnesses\nimport atexit\natexit._clear()\natexit.register(witnesses.end)\n"
        "class Last:\n    def __del__(self):\n        print('the last words', flush=True)\n"
        "last = Last()\n"
    )
    done, _ = run(tmp_path, script)
    assert (done.returncode, done.stdout) == (0, "the last words\n"), done.stderr
