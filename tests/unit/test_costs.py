"""Seconds of a start: what is not known stays unknown, nothing is lost in a sum, and the line for people adds up."""

from __future__ import annotations

from typing import Any

import pytest

from flexwarm import spec
from flexwarm.costs import LaneCosts, Part, StartCosts, slowest, total, with_imports
from flexwarm.errors import ExitCode
from flexwarm.events import Costs, Event, Hello, JobDone, ShapeDone, costs_of
from flexwarm.ops.run import RunResult
from flexwarm.plan import make_plan
from flexwarm.reasons import Kind
from flexwarm.record import End, Exit, fold
from flexwarm.render.costs import _parts, cost_lines, costs_json
from flexwarm.verdict import JobVerdict, Outcome, Verdict


def costs(**parts: float) -> StartCosts:
    return StartCosts(whole_seconds=sum(parts.values()), parts={Part(name): seconds for name, seconds in parts.items()})


def test_calls_are_added_part_by_part() -> None:
    found = total([costs(dynamo=1.0, load=0.5), costs(dynamo=2.0, load=0.25)])
    assert found == costs(dynamo=3.0, load=0.75)


def test_of_no_call_nothing_is_known() -> None:
    assert total([]) is None
    assert costs_json(None) is None
    assert slowest([]) is None


def test_a_part_that_one_call_does_not_know_is_not_known_and_its_seconds_are_not_lost() -> None:
    found = total([costs(dynamo=1.0, load=0.5), costs(load=0.25, other=2.0)])
    assert found is not None
    assert found.parts == {Part.LOAD: 0.75, Part.OTHER: 3.0}
    assert found.whole_seconds == 3.75 == sum(found.parts.values())


def test_what_a_process_imported_before_its_calls_is_a_part_of_its_start() -> None:
    assert with_imports(costs(load=0.5), 2.0) == costs(load=0.5, **{"import": 2.0})
    assert with_imports(costs(load=0.5, **{"import": 1.0}), 2.0) == costs(load=0.5, **{"import": 3.0})


def test_a_launch_waits_for_the_slowest_lane() -> None:
    starts = [LaneCosts(rank=rank, lane=0, costs=costs(load=seconds)) for rank, seconds in enumerate((1.0, 3.0, 2.0))]
    assert slowest(starts) == starts[1]


def test_a_part_of_another_flexwarm_counts_as_another() -> None:
    event = Costs(t=0.0, job=None, whole_seconds=1.5, parts={"load": 1.0, "magic": 0.5})
    assert costs_of(event).parts == {Part.LOAD: 1.0, Part.OTHER: 0.5}


def test_json_has_each_part_and_null_for_one_that_is_not_known() -> None:
    found = costs_json(costs(load=0.5, run=0.25))
    assert found is not None
    assert set(found) == {"whole_seconds", *(f"{part.value}_seconds" for part in Part)}
    assert (found["whole_seconds"], found["load_seconds"], found["dynamo_seconds"]) == (0.75, 0.5, None)


EVERY = {part.value: 0.0 for part in Part if part is not Part.OTHER}


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ({"import": 7.21, "dynamo": 0.8, "run": 0.44}, "import 7.2, Dynamo 0.8, first run 0.4"),
        # What is too small to be shown is not lost where it comes to something.
        ({"import": 2.0, "load": 0.04, "keys": 0.04, "aot": 0.04}, "import 2.0, the rest 0.1"),
        ({"load": 0.01}, "no part of it takes 0.1 s"),
    ],
)
def test_parts_as_people_read_them(parts: dict[str, float], text: str) -> None:
    assert _parts(costs(**{**EVERY, **parts})) == text


def test_people_are_told_which_parts_are_not_known_and_that_lanes_wait_for_each_other() -> None:
    known = {name: seconds for name, seconds in EVERY.items() if name not in ("dynamo", "guards", "run")}
    assert _parts(costs(**known, other=1.0)) == "other 1.0 (not known: Dynamo, guards)"
    assert _parts(costs(**{**EVERY, "run": 1.0}), waits=True) == "first run and waiting for other lanes 1.0"


SPEC = """schema = 1
[[role]]
name = "r"
processes = 2
devices = "cpu"
[[workload]]
name = "w"
q_heads = 1
head_dim = 16
q_len = [16, 32]
"""


def result(kind: Kind = Kind.WARM, **changes: Any) -> RunResult:
    """Of two ranks with two first calls each; rank 1 imports slowly. ``changes`` go over the fields."""
    plan = make_plan(spec.parse(SPEC, "s"), environ={}, bucket_path="/b", cores=2)
    said: dict[int, list[Event]] = {}
    for job in plan.jobs:
        hello = Hello(t=0, pid=1, host="h", components={}, config_digest="", config={}, import_seconds=2.0 + 5 * job.rank)
        said[job.rank] = [hello]
        for shape in (0, 1):
            said[job.rank] += [
                Costs(t=0, job=job.id, whole_seconds=1.0, parts={**EVERY, "dynamo": 0.75, "run": 0.25}),
                ShapeDone(
                    t=0,
                    job=job.id,
                    shape=shape,
                    calls=2,
                    checks=2,
                    first_seconds=1.0,
                    repeat_seconds=0.1,
                    error=0.0,
                    tolerance=0.1,
                    agrees=True,
                ),
            ]
        said[job.rank].append(JobDone(t=0, job=job.id, counters={}, seconds=2.0))
    record = fold(plan, said, {rank: Exit(end=End.FINISHED, status=0, log="l") for rank in said})
    jobs = tuple(JobVerdict(job=job, outcome=Outcome.HIT, reasons=(), record=record.jobs[job.id]) for job in plan.jobs)
    values = {
        "verdict": Verdict(kind=kind, exit_code=ExitCode.OK, jobs=jobs, reasons=()),
        "bucket": "0" * 20,
        "bucket_path": "/b",
        "plan": plan,
        "record": record,
        "cold_seconds": {},
        "seconds": 1.0,
    }
    return RunResult(**{**values, **changes})


def test_the_line_is_of_the_rank_that_a_launch_waits_for_and_more_of_it_has_each_job() -> None:
    line = "a warm start still costs 9.0 s on the slowest of 2, rank 1: import 7.0, Dynamo 1.5, first run 0.5"
    assert cost_lines(result(), 0) == [line]
    calls = "first calls 2.0 s: Dynamo 1.5, first run 0.5"
    assert cost_lines(result(), 1) == [line, f"  w/r:0: {calls}", f"  w/r:1: {calls}"]


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind is not Kind.WARM])
def test_of_what_is_not_warm_no_start_is_told(kind: Kind) -> None:
    assert cost_lines(result(kind), 1) == []


def test_of_a_gpu_that_is_not_there_no_start_is_told() -> None:
    assert cost_lines(result(target="NVIDIA H200"), 1) == []


def test_a_verification_that_started_nothing_has_nothing_to_tell() -> None:
    assert cost_lines(result(record=None), 1) == []
