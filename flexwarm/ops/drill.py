"""The drill of a verification: ranks with several lanes, on an empty cache that is thrown away."""

from __future__ import annotations

import dataclasses
import posixpath
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flexwarm import canonical, launch
from flexwarm.canonical import StrEnum
from flexwarm.plan import Job, Plan, Worker, bucket_environment
from flexwarm.record import Record
from flexwarm.request import HOLD_SECONDS, Purpose
from flexwarm.workload import Workload

if TYPE_CHECKING:
    from flexwarm.ops.prepare import Prepared
    from flexwarm.ops.run import RunOptions, Watcher


class DrillState(StrEnum):
    """What became of the drill."""

    RAN = "ran"
    LEFT_OUT = "left out"  # the user said so
    NOT_NEEDED = "not needed"  # every rank has one lane
    NOT_RUN = "not run"  # the verdict was not warm without it, or nothing was started


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillResult:
    """The drill of one verification; ``record`` is there if it ran."""

    state: DrillState
    record: Record | None = None

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(worker.rank for worker in self.record.workers) if self.record else ()

    @property
    def holds(self) -> int:
        """Traces in which a lane was held."""
        return sum(job.drill.holds for job in self.record.jobs.values() if job.drill) if self.record else 0

    @property
    def calls(self) -> int:
        """Warm calls that other lanes made inside these."""
        return sum(job.drill.calls for job in self.record.jobs.values() if job.drill) if self.record else 0


def wanted_state(plan: Plan, options: RunOptions) -> DrillState:
    """What a drill of this plan would be, were it run now."""
    if not drill_plan(plan, "").workers:
        return DrillState.NOT_NEEDED
    return DrillState.RAN if options.drill else DrillState.LEFT_OUT


def drill_plan(plan: Plan, scratch: str) -> Plan:
    """The ranks to drill, in a cache at ``scratch``: one of each layout, with one workload of each kind of call."""
    layouts: dict[str, Worker] = {}
    for worker in plan.workers:
        if len(worker.lanes) > 1:
            layouts.setdefault(canonical.digest(_layout(worker)), worker)
    return Plan(workers=tuple(_drilled(worker, scratch) for worker in layouts.values()))


def _layout(worker: Worker) -> dict[str, object]:
    """What distinguishes a rank for a drill: which lanes share a device, and what they call."""
    devices = [lane.device for lane in worker.lanes]
    return {
        "role": worker.role,
        "context": worker.context.value,
        "shares": [devices.index(device) for device in devices],
        "kinds": sorted({canonical.digest(_kind(job.workload)) for job in worker.jobs}),
    }


def _kind(workload: Workload) -> dict[str, object]:
    """What distinguishes a call for a drill; shapes do not, and a drill compiles without dynamic shapes.

    What a step function calls nobody knows, and its arguments may decide that: each is a kind of its own.
    """
    if workload.step is not None:
        return {"step": workload.step}
    options = dataclasses.replace(workload.compile, dynamic=None)
    return {"call_site": workload.call_site, "grad": workload.grad, "compile": options}


def _drilled(worker: Worker, scratch: str) -> Worker:
    chosen: dict[str, str] = {}
    for job in worker.jobs:
        chosen.setdefault(canonical.digest(_kind(job.workload)), job.workload.name)
    jobs: tuple[Job, ...] = tuple(
        dataclasses.replace(job, leader=None) for job in worker.jobs if job.workload.name in chosen.values()
    )
    # A cache for each rank: what another one had compiled would be hit, and not traced.
    own = bucket_environment(posixpath.join(scratch, f"rank-{worker.rank}"))
    return dataclasses.replace(worker, env={**worker.env, **own}, jobs=jobs)


def run_drill(prepared: Prepared, options: RunOptions, environ: Mapping[str, str], watcher: Watcher) -> DrillResult:
    """Run it, unless it is not needed or was left out; the cache is removed however it ends."""
    from flexwarm.ops.run import run_directory, run_in

    state = wanted_state(prepared.plan, options)
    if state is not DrillState.RAN:
        return DrillResult(state=state)
    conduct = options.conduct(Purpose.DRILL)
    # A lane that is held stands still, and that is no hang.
    conduct = dataclasses.replace(conduct, hang_seconds=max(conduct.hang_seconds, 2 * HOLD_SECONDS))
    with run_directory(prepared.bucket, launch.new_run_id()) as directory:
        scratch = directory / "cache"
        try:
            scratch.mkdir(mode=0o700)
            plan = drill_plan(prepared.plan, str(scratch))
            watcher.notify(f"the drill: {len(plan.workers)} of {len(prepared.plan.workers)} ranks, on an empty cache")
            watcher.on_plan(plan, "drill")
            environ = {**environ, **prepared.child_variables(environ)}
            record = run_in(directory, plan, conduct, environ, options.limits, watcher)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)  # what cannot go goes with the run's directory
    return DrillResult(state=state, record=record)
