"""What a warm start still costs: measured where it is spent, and said of warm verdicts alone."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from flexwarm.costs import Part
from tests.harness import SMALL, Flexwarm
from tests.unit.test_render import screen_of

pytestmark = [pytest.mark.torch, pytest.mark.xdist_group("costs")]

LANES = SMALL.replace("[[workload]]", '[[role]]\nname = "lanes"\nlanes = 2\n\n[[workload]]')

PROGRAM = """
import sys, threading
import torch

@torch.compile
def work(x):
    return x.sin() * 2 + 1

def call():
    with torch.no_grad():
        work(torch.ones(8))

if "thread" in sys.argv:
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
elif "calls" in sys.argv:
    call()
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Flexwarm:
    base = tmp_path_factory.mktemp("costs")
    (base / "job").mkdir()
    one = Flexwarm(directory=base / "job", store=base / "store")
    one.spec(SMALL)
    one.spec(LANES, "lanes.toml")
    (one.directory / "program.py").write_text(PROGRAM)
    done = one.run_json("build")
    assert done.code == 0, done.out
    costs = done.json["jobs"][0]["costs"]
    assert costs["compile_seconds"] > 0
    assert total(costs) == pytest.approx(costs["whole_seconds"], abs=1e-5)
    return one


def total(costs: dict[str, Any]) -> float:
    parts = {name: seconds for name, seconds in costs.items() if name != "whole_seconds"}
    assert set(parts) == {f"{part.value}_seconds" for part in Part}
    assert all(seconds is None or seconds >= 0 for seconds in parts.values())
    return sum(seconds for seconds in parts.values() if seconds is not None)


def test_the_parts_of_a_warm_start_are_disjoint_and_sum_to_its_first_calls(built: Flexwarm) -> None:
    done = built.run_json("verify")
    assert done.code == 0, done.out
    (job,) = done.json["jobs"]
    costs = job["costs"]
    assert total(costs) == pytest.approx(costs["whole_seconds"], abs=1e-5)
    # Measured around the call by another clock; what is in between is that clock itself.
    assert job["first_call_seconds"] == pytest.approx(costs["whole_seconds"], rel=0.01)
    assert costs["compile_seconds"] == 0
    assert costs["other_seconds"] is None
    for part in ("dynamo", "guards", "aot", "keys", "load", "run"):
        assert costs[f"{part}_seconds"] > 0, part
    assert done.json["workers"][0]["import_seconds"] > 0


def test_people_read_it_under_the_table_and_in_an_explanation_that_has_nothing_to_explain(built: Flexwarm) -> None:
    for name in ("verify", "explain"):
        done = built(name)
        assert done.code == 0, done.out
        lines = done.out.splitlines()
        (said,) = [line for line in lines if line.startswith("a warm start still costs ")]
        assert ": import " in said
        assert "not known" not in said
        assert lines.index(said) == next(at for at, line in enumerate(lines) if line.startswith("verdict: warm")) - 1
        assert not any("first calls" in line for line in lines)
        assert "a warm start" not in built(name, "-q").out
    assert any(line.startswith("  small/default:0: first calls ") for line in built("verify", "-v").out.splitlines())


def test_it_fits_a_narrow_terminal(built: Flexwarm) -> None:
    argv = [sys.executable, "-m", "flexwarm", "verify", "--store", str(built.store)]
    lines = screen_of(argv, built.directory, columns=60)
    assert max(map(len, lines)) <= 60
    said = next(at for at, line in enumerate(lines) if line.startswith("a warm start still costs "))
    assert lines[said + 1].split()  # and goes on below
    assert any(line.startswith("verdict: warm") for line in lines)


def test_a_job_that_was_stopped_at_a_miss_has_no_costs_and_none_are_said(built: Flexwarm) -> None:
    changed = {"TORCHINDUCTOR_PERMUTE_FUSION": "1"}  # a setting that is in the keys
    done = built.run_json("verify", env=changed)
    assert done.code == 1
    (job,) = done.json["jobs"]
    assert job["outcome"] == "missed"
    assert job["costs"] is None
    assert "a warm start" not in built("verify", env=changed).out


def test_each_lane_has_its_own_costs_and_the_wait_for_another_is_said(built: Flexwarm) -> None:
    assert built("build", "lanes.toml").code == 0
    done = built.run_json("verify", "lanes.toml", "--no-drill")
    assert done.code == 0, done.out
    for job in done.json["jobs"]:
        assert total(job["costs"]) == pytest.approx(job["costs"]["whole_seconds"], abs=1e-5)
        assert job["costs"]["whole_seconds"] >= job["first_call_seconds"]
    said = built("verify", "lanes.toml", "--no-drill").out
    assert "on the slowest of 2, rank 0 lane " in said


def test_instructions_that_need_not_be_tried_cost_less_and_enter_the_keys(built: Flexwarm) -> None:
    told = {"TORCHINDUCTOR_VEC_ISA_OK": "1"}
    assert built("verify", env=told).code == 1
    assert built("build", env=told).code == 0
    tried, answered = (built.run_json("verify", env=env).json["jobs"][0]["costs"] for env in ({}, told))
    assert tried["probe_seconds"] > answered["probe_seconds"] >= 0


def line(*arguments: str) -> tuple[str, ...]:
    return ("--", sys.executable, "program.py", *arguments)


@pytest.mark.parametrize("where", ["calls", "thread"])
def test_a_program_of_a_launch_line_says_what_it_spends_before_its_calls_run(built: Flexwarm, where: str) -> None:
    assert built("build", *line(where)).code == 0
    done = built.run_json("verify", *line(where))
    assert done.code == 0, done.out
    costs = done.json["jobs"][0]["costs"]
    assert total(costs) == pytest.approx(costs["whole_seconds"], abs=1e-5)
    for part in ("import", "dynamo", "guards", "aot", "keys", "load"):
        assert costs[f"{part}_seconds"] > 0, part
    assert costs["compile_seconds"] == 0
    assert costs["run_seconds"] is None
    for name in ("verify", "explain"):
        said = built(name, *line(where)).out
        assert "a warm start still costs " in said
        assert " s before its calls run: import " in said


def test_a_run_says_it_at_its_end(built: Flexwarm) -> None:
    assert built("build", *line("calls")).code == 0
    done = built("run", *line("calls"))
    assert done.code == 0
    assert "a warm start still costs " in done.err
    assert "a warm start" not in done.out


def test_a_program_that_another_one_forks_has_the_costs_of_its_own_compiles(built: Flexwarm) -> None:
    (built.directory / "forks.py").write_text(
        "import os, torch\n"
        "@torch.compile\n"
        "def work(x):\n    return x.cos() + 3\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    with torch.no_grad():\n        work(torch.ones(8))\n"
        "else:\n"
        "    assert os.waitpid(child, 0)[1] == 0\n"
    )
    forks = ("--", sys.executable, "forks.py")
    assert built("build", *forks).code == 0
    (job,) = built.run_json("verify", *forks).json["jobs"]
    assert job["outcome"] == "hit"
    assert job["costs"]["dynamo_seconds"] > 0
    assert total(job["costs"]) == pytest.approx(job["costs"]["whole_seconds"], abs=1e-5)
