"""Which ranks are drilled: each kind of layout and of call once, on a cache that is not the bucket's."""

from __future__ import annotations

from pathlib import Path

import pytest

from flexwarm import spec
from flexwarm.events import Bye, DrillDone, Event
from flexwarm.launch import Limits
from flexwarm.ops.drill import DrillResult, DrillState, drill_plan, wanted_state
from flexwarm.ops.run import RunOptions
from flexwarm.plan import Plan, bucket_environment, make_plan
from flexwarm.record import End, Exit, fold

SCRATCH = "/runs/r/cache"


def workload(name: str, lines: str = "", length: int = 256) -> str:
    return f'[[workload]]\nname = "{name}"\nq_heads = 4\nhead_dim = 64\nq_len = {length}\n{lines}\n'


def role(lines: str, name: str = "r") -> str:
    return f'[[role]]\nname = "{name}"\n{lines}\n'


def plan(roles: str, workloads: str = workload("w")) -> Plan:
    text = "schema = 1\n" + roles + workloads
    return make_plan(spec.parse(text, "s"), environ={"HOME": "/h"}, bucket_path="/bucket", cores=8)


def ranks(found: Plan) -> list[int]:
    return [worker.rank for worker in drill_plan(found, SCRATCH).workers]


def workloads(found: Plan) -> list[str]:
    (worker,) = drill_plan(found, SCRATCH).workers
    return [job.workload.name for job in worker.jobs if job.lane == 0]


def test_ranks_of_one_lane_are_not_drilled() -> None:
    assert drill_plan(plan(role("processes = 4")), SCRATCH) == Plan(workers=())
    assert ranks(plan(role("processes = 2") + role("lanes = 2", "s"))) == [2]


def test_of_ranks_that_are_laid_out_alike_the_first_is_drilled() -> None:
    assert ranks(plan(role("processes = 3\nlanes = 2"))) == [0]
    # Which devices they are does not matter, only which lanes share one.
    assert ranks(plan(role('processes = 2\nlanes = 2\ndevices = "cuda:0-3"\nisolate = true'))) == [0]
    assert ranks(plan(role('processes = 2\nlanes = 2\ndevices = "cuda:0-3"'))) == [0]


def test_ranks_whose_lanes_share_devices_in_another_way_are_drilled_each() -> None:
    # cuda:0 and cuda:1; cuda:2 twice; cuda:0 and cuda:1 again.
    devices = 'devices = ["cuda:0", "cuda:1", "cuda:2", "cuda:2"]'
    assert ranks(plan(role(f"processes = 3\nlanes = 2\n{devices}"))) == [0, 1]


def test_roles_are_drilled_each_also_where_they_look_alike() -> None:
    assert ranks(plan(role("lanes = 2") + role('lanes = 2\nenv = { A = "1" }', "s"))) == [0, 1]
    assert ranks(plan(role("lanes = 2") + role('lanes = 2\ncontext = "copy"', "s"))) == [0, 1]


def test_of_workloads_that_are_called_alike_the_first_is_drilled_on_every_lane() -> None:
    found = plan(role("lanes = 2"), workload("a") + workload("b", length=512) + workload("c", 'mask_mod = "causal"'))
    (worker,) = drill_plan(found, SCRATCH).workers
    assert [job.id for job in worker.jobs] == ["a/r:0.0", "a/r:0.1"]


@pytest.mark.parametrize(
    "other",
    [
        'call_site = "module"',
        "grad = true",
        "compile = { fullgraph = true }",
        'compile = { mode = "max-autotune" }',
        "compile = { options = { max_autotune = true } }",
    ],
)
def test_each_kind_of_call_is_drilled(other: str) -> None:
    found = plan(role('lanes = 2\ndevices = "cuda:0"'), workload("a") + workload("b", other) + workload("c", other))
    assert workloads(found) == ["a", "b"]


def test_dynamic_shapes_make_no_kind_of_their_own_for_the_drill_has_none() -> None:
    found = plan(role("lanes = 2"), workload("a") + workload("b", "compile = { dynamic = true }"))
    assert workloads(found) == ["a"]


def test_a_drilled_rank_uses_the_scratch_cache_and_nothing_of_the_bucket() -> None:
    found = plan(role('lanes = 2\nenv = { MINE = "1" }'))
    (worker,) = drill_plan(found, SCRATCH).workers
    # Of its own: what another rank had compiled would be hit, and not traced.
    scratch = bucket_environment(f"{SCRATCH}/rank-{worker.rank}")
    assert {name: worker.env[name] for name in scratch} == scratch
    assert not any("/bucket" in value for value in worker.env.values())
    # All else is as in the rank that it stands for.
    original = found.workers[0]
    assert {k: v for k, v in worker.env.items() if k not in scratch} == {
        k: v for k, v in original.env.items() if k not in scratch
    }
    assert (worker.rank, worker.lanes, worker.context) == (original.rank, original.lanes, original.context)


def test_a_drilled_job_waits_for_no_leader_because_nothing_is_stored_for_it() -> None:
    found = plan(role("processes = 2\nlanes = 2"))
    assert [job.leader for job in found.workers[0].jobs] == [None, "w/r:0.0"]
    assert [job.leader for job in drill_plan(found, SCRATCH).jobs] == [None, None]


def options(*, drill: bool) -> RunOptions:
    return RunOptions(
        spec=Path("s"), root=None, trust_shared=False, limits=Limits(hang_seconds=7), lock_wait_seconds=1, drill=drill
    )


@pytest.mark.parametrize(
    ("lanes", "drill", "state"),
    [
        (1, True, DrillState.NOT_NEEDED),
        (1, False, DrillState.NOT_NEEDED),
        (2, True, DrillState.RAN),
        (2, False, DrillState.LEFT_OUT),
    ],
)
def test_a_drill_is_wanted_where_a_rank_has_lanes_and_nobody_said_no(lanes: int, drill: bool, state: DrillState) -> None:
    assert wanted_state(plan(role(f"lanes = {lanes}")), options(drill=drill)) is state


def test_the_result_of_a_drill_counts_what_was_held_and_called_in_all_lanes() -> None:
    found = drill_plan(plan(role("processes = 2\nlanes = 2")), SCRATCH)
    said: list[Event] = [
        DrillDone(t=0, job="w/r:0.0", holds=3, calls=3, callers=1, waited=0, unanswered=0),
        DrillDone(t=0, job="w/r:0.1", holds=4, calls=2, callers=1, waited=2, unanswered=0),
        Bye(t=0),
    ]
    result = DrillResult(state=DrillState.RAN, record=fold(found, {0: said}, {0: Exit(end=End.FINISHED, status=0, log="/log")}))
    assert (result.ranks, result.holds, result.calls) == ((0,), 7, 5)


@pytest.mark.parametrize("state", list(DrillState))
def test_a_drill_that_has_no_record_held_nobody(state: DrillState) -> None:
    result = DrillResult(state=state)
    assert (result.ranks, result.holds, result.calls) == ((), 0, 0)
