"""Which file a job waits for, and which limit a worker is past: what the parent decides without any process."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from flexwarm import spec
from flexwarm.events import (
    DrillDone,
    DrillLock,
    Event,
    Hang,
    Heartbeat,
    JobDone,
    JobFailed,
    JobStopped,
    Phase,
    Progress,
    to_line,
)
from flexwarm.launch import Limits, _gate, _leader_gate, _Process, _start
from flexwarm.plan import Plan, Worker, make_plan
from flexwarm.record import End
from flexwarm.request import Backward, Conduct, Guard, Purpose, WorkerRequest
from flexwarm.topology import LaneContext

WORKLOAD = '[[workload]]\nname = "w"\nq_heads = 4\nhead_dim = 64\nq_len = 256\n'


def plan(role: str, workloads: str = WORKLOAD) -> Plan:
    text = f'schema = 1\n[[role]]\nname = "r"\n{role}\n{workloads}'
    return make_plan(spec.parse(text, "s"), environ={}, bucket_path="/b", cores=2)


def gates(purpose: Purpose, worker: Worker, *, gated: bool) -> list[str | None]:
    return [_gate(Path("/run"), purpose, worker, job, gated) for job in worker.jobs]


def leaders(worker: Worker) -> list[str | None]:
    return [job.leader for job in worker.jobs]


def test_a_leader_in_the_same_rank_has_no_gate_because_lanes_take_turns() -> None:
    (worker,) = plan("lanes = 2").workers
    assert leaders(worker) == [None, "w/r:0.0"]
    assert gates(Purpose.BUILD, worker, gated=False) == [None, None]


def test_a_leader_in_another_rank_opens_a_gate_of_its_own() -> None:
    first, second = plan("processes = 2\nlanes = 2").workers
    assert gates(Purpose.BUILD, first, gated=False) == [None, None]
    assert leaders(second) == ["w/r:0.0", "w/r:0.0"]
    gate = str(_leader_gate(Path("/run"), "w/r:0.0"))
    assert gates(Purpose.BUILD, second, gated=False) == [gate, gate]


def test_each_leader_has_another_gate() -> None:
    _, second = plan('processes = 2\nlanes = 2\ndevices = "cuda:0-1"').workers
    assert leaders(second) == ["w/r:0.0", "w/r:0.1"]
    first_gate, second_gate = gates(Purpose.BUILD, second, gated=False)
    assert first_gate != second_gate
    assert second_gate == str(_leader_gate(Path("/run"), "w/r:0.1"))


def test_an_earlier_workload_of_the_same_rank_that_compiles_the_same_has_no_gate_either() -> None:
    (worker,) = plan("", WORKLOAD + WORKLOAD.replace('"w"', '"x"')).workers
    assert leaders(worker) == [None, "w/r:0"]
    assert gates(Purpose.BUILD, worker, gated=False) == [None, None]


@pytest.mark.parametrize("purpose", [Purpose.VERIFY, Purpose.DRILL])
def test_outside_of_a_build_no_job_waits_for_its_leader(purpose: Purpose) -> None:
    _, second = plan("processes = 2\nlanes = 2").workers
    assert gates(purpose, second, gated=False) == [None, None]
    assert gates(purpose, second, gated=True) == ["/run/gate-start", "/run/gate-start"]


def test_a_worker_is_told_of_its_lanes_and_of_what_is_asked_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (worker,) = plan('lanes = 2\nstagger = 0.5\ncontext = "copy"\ndevices = "cuda:0-1"').workers
    conduct = Conduct(purpose=Purpose.VERIFY, guard=Guard.FIX, backward=Backward.CALLER, hang_seconds=9.0)
    monkeypatch.setattr("flexwarm.launch._START", "pass")
    process = _start(worker, "run-1", conduct, {}, tmp_path, True)
    process.popen.wait(timeout=30)
    request = WorkerRequest.from_json(json.loads((tmp_path / "rank-0.request.json").read_text()))
    assert request.conduct == conduct
    assert (request.lanes, request.stagger_seconds, request.context) == (2, 0.5, LaneContext.COPY)
    assert [(job.id, job.lane, job.device, job.gate) for job in request.jobs] == [
        ("w/r:0.0", 0, "cuda:0", str(tmp_path / "gate-start")),
        ("w/r:0.1", 1, "cuda:1", str(tmp_path / "gate-start")),
    ]


@pytest.fixture
def process(tmp_path: Path) -> Iterator[_Process]:
    """A worker that says what a test writes for it."""
    popen = subprocess.Popen(["sleep", "600"], start_new_session=True)
    (worker,) = plan("lanes = 2").workers
    process = _Process(worker=worker, popen=popen, events_path=tmp_path / "events", log=tmp_path / "log")
    yield process
    process.reap()
    process.close()


def says(process: _Process, *events: Event) -> None:
    with process.events_path.open("a") as file:
        file.writelines(to_line(event) for event in events)
    process.read_events(lambda rank, event: None)


HANG = Hang(t=0, jobs=("w/r:0.0", "w/r:0.1"), message="m", seconds=6.5, stacks={})


def test_a_worker_that_says_that_it_hangs_is_past_its_limit_at_once(process: _Process) -> None:
    limits = Limits(job_seconds=1000, silence_seconds=1000, hang_seconds=6)
    says(process, Progress(t=0, job="w/r:0.0", phase=Phase.TRACE))
    assert process.over_limit(limits) is None
    says(process, HANG, Heartbeat(t=1))
    assert process.over_limit(limits) == (End.HUNG, 6.5)
    process.end_for((End.HUNG, 6.5))
    exit = process.ended()
    assert (exit.end, exit.limit_seconds) == (End.HUNG, 6.5)
    assert exit.status < 0


def test_a_hang_is_said_before_any_other_limit(process: _Process) -> None:
    says(process, Progress(t=0, job="w/r:0.0", phase=Phase.TRACE), HANG)
    process.last_said -= 100
    assert process.busy_since is not None
    process.busy_since -= 100
    assert process.over_limit(Limits(job_seconds=50, silence_seconds=50)) == (End.HUNG, 6.5)


ENDS: list[Event] = [
    JobDone(t=0, job="w/r:0.0", counters={}, seconds=1),
    JobStopped(t=0, job="w/r:0.0", counters={}, seconds=1),
    JobFailed(t=0, job="w/r:0.0", error="E", message="m", traceback=""),
    DrillDone(t=0, job="w/r:0.0", holds=1, calls=1, callers=1, waited=0, unanswered=0),
    DrillLock(t=0, job="w/r:0.0", met=True),
]


@pytest.mark.parametrize("end", ENDS, ids=lambda event: event.KIND)
def test_a_lane_that_is_done_gives_the_others_the_time_of_a_job_anew(process: _Process, end: Event) -> None:
    limits = Limits(job_seconds=50, silence_seconds=1000)
    says(process, Progress(t=0, job="w/r:0.0", phase=Phase.TRACE))
    assert process.busy_since is not None
    process.busy_since -= 100
    assert process.over_limit(limits) == (End.TIMED_OUT, 50)
    says(process, end)
    assert process.over_limit(limits) is None


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase is not Phase.WAIT])
def test_a_phase_gives_a_job_no_more_time(process: _Process, phase: Phase) -> None:
    says(process, Progress(t=0, job="w/r:0.0", phase=Phase.TRACE))
    assert process.busy_since is not None
    process.busy_since -= 100
    says(process, Progress(t=0, job="w/r:0.0", phase=phase), Heartbeat(t=0))
    assert process.over_limit(Limits(job_seconds=50, silence_seconds=1000)) == (End.TIMED_OUT, 50)
