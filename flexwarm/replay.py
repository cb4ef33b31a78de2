"""Run a spec's jobs inside the ranks that a launcher starts: ``torchrun ... -m flexwarm.replay SPEC``.

``flexwarm build SPEC`` starts the ranks itself, on one machine. Under a launcher each node has ranks of its own:

    flexwarm build -- torchrun --nnodes 2 --nproc-per-node 8 ... -m flexwarm.replay SPEC

The plan is the same one; this process is the worker of its own rank. What differs is the launcher's to decide: the
environment, and which devices a rank sees. Where the spec says otherwise it is refused, for keys would differ. The witnesses
are those of ``flexwarm build --``, ``verify --`` and ``run --``, which are in the process already; without them the jobs run
and their results are checked, and that is all. Ranks meet before they compile and at the end. In a build each compiles beside
the others: who has what another rank has compiled meanwhile does not compile it.

Exit codes: 2 for a spec or a launch that cannot be right, 3 for a device or a torch that is not there, 5 for a job that
raised or gave a wrong result.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from flexwarm import canonical, modules
from flexwarm.attach.recorder import place_by_variables
from flexwarm.errors import ExitCode, FlexwarmError, SpecError, UnsupportedError, UsageError
from flexwarm.events import Event, Hazard, JobFailed, ShapeDone
from flexwarm.observation import VARIABLE, OnMiss
from flexwarm.observer.recorder import Recorder
from flexwarm.plan import Worker, make_plan
from flexwarm.program_events import Raised
from flexwarm.request import Conduct, Guard, JobRequest, Purpose, WorkerRequest
from flexwarm.spec import Spec
from flexwarm.specfile import read_spec
from flexwarm.topology import Role

if TYPE_CHECKING:
    from flexwarm.attach.witnesses import Attached

#: How long a rank waits for what the other nodes have to say before it compiles.
MEETING_SECONDS = 60.0
#: How long ranks that are done wait for those that still compile.
COMPILING = timedelta(days=7)

_USAGE = "start it with a launcher: torchrun --nproc-per-node 2 -m flexwarm.replay SPEC"
_VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """What this process is to do.

    Attributes:
        world_size: ranks of the launch, which are those of the plan.
        local_rank: as the launcher counts it.
    """

    worker: Worker
    role: Role
    world_size: int
    local_rank: int


def assign(spec: Spec, environ: Mapping[str, str]) -> Assignment:
    """The worker of this rank.

    Raises:
        UsageError: no launcher has started this process, or not so many ranks as the spec has.
        SpecError: the spec wants another environment than the launcher gave.
    """
    place = place_by_variables(environ)
    if "rank" not in place or "world_size" not in place:
        raise UsageError("no launcher has said which rank this is", f"{_USAGE}; or use flexwarm build SPEC")
    rank, world_size = place["rank"], place["world_size"]
    # Devices that the launcher shows to a rank are counted from zero there: not for the plan to choose among.
    shown = {name: value for name, value in environ.items() if name != _VISIBLE}
    plan = make_plan(spec, environ=shown, bucket_path="/", cores=1)
    if len(plan.workers) != world_size or rank >= world_size:
        raise UsageError(
            f"the launch has {world_size} ranks (this one is rank {rank}), and the roles of the spec have {len(plan.workers)}",
            "start as many as the spec has, or change processes in the spec",
        )
    worker = plan.workers[rank]
    role = next(role for role in spec.roles if role.name == worker.role)
    for name, value in role.env.items():
        if environ.get(name) != value:
            here = f"is {environ[name]!r}" if name in environ else "is not set"
            raise SpecError(
                f"role {role.name!r}: env.{name} is {value!r}, and in rank {rank} it {here}: keys would differ",
                f"the launcher decides the environment: set it in the launch line, or leave env.{name} out",
            )
    return Assignment(worker=worker, role=role, world_size=world_size, local_rank=place.get("local_rank", worker.local_rank))


def check_devices(assignment: Assignment, count: int) -> None:
    """Refuse devices that this rank does not see; ``count``: how many CUDA devices it does.

    Raises:
        UnsupportedError: names the role, the device and what is there.
    """
    worker, role = assignment.worker, assignment.role
    own = tuple(dict.fromkeys(lane.device for lane in worker.lanes if lane.device.startswith("cuda:")))
    if role.isolate and count != len(own):
        raise UnsupportedError(
            f"role {role.name!r}: isolate = true: rank {worker.rank} is to see {len(own)} devices of its own, and sees {count}",
            f"let the launcher set {_VISIBLE} for each rank, or leave isolate out",
        )
    for device in own:
        if int(device.partition(":")[2]) >= count:
            raise UnsupportedError(
                f"role {role.name!r}: devices: {device} is not there: rank {worker.rank} sees {count} CUDA devices",
                "isolate = true is for a launcher that shows each rank its own devices alone" if count else "",
            )


class Outcome(Recorder):
    """Keeps what went wrong; a hazard is told to the launch's observer, which has the other witnesses."""

    def __init__(self, observer: Recorder | None, purpose: Purpose) -> None:
        super().__init__(Path(os.devnull), purpose)
        self._observer = observer
        #: (job, error, message) of each job that failed.
        self.failures: list[tuple[str, str, str]] = []

    def emit(self, event: Event) -> None:
        match event:
            case JobFailed(job=job, error=error, message=message):
                self.failures.append((job, error, message))
            case ShapeDone(agrees=False, job=job):
                self.failures.append((job, "WrongResult", _disagreement(event)))
            case Hazard() if self._observer is not None:
                self._observer.emit(replace(event, job=self._observer.job))


def _disagreement(event: ShapeDone) -> str:
    if event.error is None:
        return f"shape {event.shape}: the result is not finite where dense attention is"
    if event.error <= event.tolerance:
        return f"shape {event.shape}: the result differs from dense attention, or a gradient is not finite"
    return (
        f"shape {event.shape}: the result differs from dense attention by {event.error:.3g} ({event.tolerance:.3g} is allowed)"
    )


def replay(assignment: Assignment) -> list[tuple[str, str, str]]:
    """Run the jobs of this rank, beside the other ranks; what failed.

    Raises:
        UnsupportedError: a device or a part of torch is not there.
        UsageError: the ranks cannot meet.
    """
    # As in a worker: what torch has learnt of shapes in another run must not decide what is compiled.
    os.environ["TORCH_DYNAMO_AUTOMATIC_DYNAMIC_LOCAL_PGO"] = "0"
    import torch
    import torch._dynamo

    observer = _observer()
    check_devices(assignment, torch.cuda.device_count())
    distributed = _join(assignment)
    if observer is not None:
        observer.meeting.wait(MEETING_SECONDS)
    distributed.barrier()
    failures = _run(assignment, observer)
    try:
        distributed.barrier()
        distributed.destroy_process_group()
    except RuntimeError as error:
        failures = [*failures, ("the end", type(error).__name__, f"another rank did not come to it: {_first_line(error)}")]
    return failures


def _observer() -> Attached | None:
    """The observer of this process, if there is one; to look is not to load it."""
    loaded = sys.modules.get("flexwarm.attach.witnesses")
    found: Attached | None = loaded.here() if loaded is not None else None
    return found


def _join(assignment: Assignment) -> ModuleType:
    """The launcher's rendezvous. A job of one rank needs none."""
    import torch.distributed as distributed

    if not distributed.is_available():
        raise UnsupportedError("this torch is built without torch.distributed, and ranks cannot meet", "flexwarm build SPEC")
    if distributed.is_initialized():
        return distributed  # type: ignore[no-any-return]
    rank, world_size = assignment.worker.rank, assignment.world_size
    try:
        if world_size == 1:
            distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
        else:
            distributed.init_process_group("gloo", rank=rank, world_size=world_size, timeout=COMPILING)
    except (RuntimeError, ValueError) as error:
        hint = "MASTER_ADDR and MASTER_PORT say where, as for training; torchrun sets them"
        raise UsageError(f"rank {rank} cannot meet the others: {_first_line(error)}", hint) from error
    return distributed  # type: ignore[no-any-return]


def _run(assignment: Assignment, observer: Attached | None) -> list[tuple[str, str, str]]:
    import torch

    from flexwarm.observer.guard import GuardWatch
    from flexwarm.observer.torch_api import resolve
    from flexwarm.observer.torch_api.tracing import enter_fake_mode, resolve_tracing
    from flexwarm.worker import lanes

    worker = assignment.worker
    verifies = observer is not None and observer.observation.on_miss is OnMiss.FAIL
    # Lanes that compile beside each other may deadlock: they take turns wherever something may be compiled.
    purpose = Purpose.VERIFY if verifies else Purpose.BUILD
    outcome = Outcome(observer.recorder if observer is not None else None, purpose)
    outcome.device_here = lambda: f"cuda:{torch.cuda.current_device()}" if torch.cuda.is_initialized() else ""
    api, tracing = resolve(), resolve_tracing(autotune=False)
    several = len(worker.lanes) > 1
    if several:
        enter_fake_mode()
    guard = observer.guard if observer is not None else None
    bench = lanes.Bench(
        request=_request(worker, purpose, observer),
        api=api,
        recorder=outcome,
        tracing=tracing,
        guard=guard or GuardWatch(tracing, outcome),  # not started: it reports nothing
        settled=canonical.digest(lanes.read_settings(api)),
        baseline=frozenset(sys.modules),
        # What a step is told: the role's name is the spec's, and who the rank is the launcher's.
        environ={
            **os.environ,
            "ROLE_NAME": worker.role,
            "LOCAL_RANK": str(assignment.local_rank),
            "WORLD_SIZE": str(assignment.world_size),
        },
        began_unix=time.time(),
    )
    for jobs in lanes.rounds(bench.request.jobs):
        lanes.run(bench, jobs, several=several)
    return outcome.failures


def _request(worker: Worker, purpose: Purpose, observer: Attached | None) -> WorkerRequest:
    guard = observer.observation.guard if observer is not None else Guard.REPORT
    return WorkerRequest(
        run="replay",
        conduct=Conduct(purpose=purpose, guard=guard),
        rank=worker.rank,
        parent=os.getppid(),
        events=os.devnull,
        lanes=len(worker.lanes),
        stagger_seconds=worker.stagger_seconds,
        context=worker.context,
        jobs=tuple(
            JobRequest(id=job.id, lane=job.lane, device=job.device, workload=job.workload, gate=None) for job in worker.jobs
        ),
    )


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


def _tell(error: str, message: str, place: str) -> None:
    """To the observer, whose verdict then says why the command failed. It comes with torch, which may not be loaded yet."""
    if VARIABLE in os.environ:
        import torch  # noqa: F401
    if (observer := _observer()) is not None:
        observer.recorder.emit(Raised(t=time.time(), error=error, message=message, place=place))


def main(arguments: Sequence[str]) -> int:
    try:
        if len(arguments) != 1 or arguments[0].startswith("-"):
            raise UsageError("one spec file is needed", _USAGE)
        found = read_spec(Path(arguments[0]))
        modules.check_functions(found, modules.search_path(os.environ))
        failures = replay(assign(found, os.environ))
    except FlexwarmError as error:
        _say(f"{error.message}\n  next: {error.hint}" if error.hint else error.message)
        _tell(type(error).__name__, error.message, "flexwarm.replay")
        return error.exit_code
    for job, kind, message in failures:
        _say(f"{job}: {kind}: {message}")
    if failures:
        job, kind, message = failures[0]
        _tell(kind, message, f"job {job}")
    return ExitCode.JOB_FAILED if failures else ExitCode.OK


def _say(message: str) -> None:
    try:
        sys.stderr.write(f"flexwarm: {message}\n")
    except (OSError, ValueError):
        pass  # standard error is closed: the exit code still says it


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
