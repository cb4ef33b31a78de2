"""The fold of a run's events: what each job and each worker did, with nothing judged yet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from flexwarm.canonical import StrEnum
from flexwarm.costs import LaneCosts, StartCosts, total, with_imports
from flexwarm.events import (
    Answer,
    Bye,
    Compiled,
    Costs,
    Dense,
    DrillDone,
    DrillLock,
    Event,
    Hang,
    Hazard,
    Hello,
    JobDone,
    JobFailed,
    JobStopped,
    Layer,
    LeftOut,
    Lookup,
    Phase,
    Progress,
    Read,
    Recompiled,
    Refused,
    Settings,
    ShapeDone,
    Sources,
    StepDone,
    Tuned,
    Untuned,
    costs_of,
    told_modes,
)
from flexwarm.key_parts import Key, told
from flexwarm.plan import Job, Plan


class End(StrEnum):
    """How a worker process came to its end."""

    FINISHED = "finished"  # said bye, or said why it refused
    DIED = "died"  # ended by itself without saying so: a signal or an exit
    TIMED_OUT = "timed_out"  # a job ran past its limit; we ended it
    SILENT = "silent"  # the interpreter stopped running; we ended it
    HUNG = "hung"  # its threads waited for each other; we ended it


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """The end of one worker. ``status``: its exit status, or minus the signal that ended it."""

    end: End
    status: int
    log: str
    limit_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """What one job did, in order of time.

    Attributes:
        missed_keys: what went into the keys that a cache did not have.
        recompiled: why the graphs of some of them are of functions that were compiled before.
        costs: of its first calls; None if none of them has returned.
        modes: settings of torch beside Inductor's; empty if it never said.
    """

    job: Job
    phase: Phase | None
    lookups: tuple[Lookup, ...]
    compiled: tuple[Compiled, ...]
    untuned: tuple[Untuned, ...]
    left_out: frozenset[tuple[str, str]]
    tuned: tuple[Tuned, ...]
    reads: tuple[Read, ...]
    dense: tuple[Dense, ...]
    hazards: tuple[Hazard, ...]
    drill: DrillDone | None
    drill_lock: DrillLock | None
    shapes: tuple[ShapeDone, ...]
    steps: tuple[StepDone, ...]
    end: JobDone | JobStopped | JobFailed | None
    settings: Settings | None
    sources: Sources | None
    missed_keys: tuple[Key, ...] = ()
    recompiled: tuple[Recompiled, ...] = ()
    costs: StartCosts | None = None
    modes: Mapping[str, str] = field(default_factory=dict)

    @property
    def ran_to_end(self) -> bool:
        """Every shape was called and checked, or every call of a step returned, and the job said that it was done."""
        if not isinstance(self.end, JobDone):
            return False
        workload = self.job.workload
        if workload.step is None:
            return len(self.shapes) == len(workload.shapes)
        return [step.number for step in self.steps] == list(range(workload.steps))

    @property
    def keys(self) -> frozenset[tuple[str, str]]:
        """(layer, key) of each lookup of the two graph caches."""
        return frozenset((x.layer.value, x.key) for x in self.lookups if x.layer is not Layer.TRITON and x.key)

    def answers(self, answer: Answer) -> tuple[Lookup, ...]:
        return tuple(lookup for lookup in self.lookups if lookup.answer is answer)

    @property
    def first_seconds(self) -> float | None:
        """Seconds of the first call of each shape together, or of a step; compiling or loading included."""
        if self.steps:
            return self.steps[0].seconds
        return sum(shape.first_seconds for shape in self.shapes) if self.shapes else None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRecord:
    """What one worker did."""

    rank: int
    hello: Hello | None
    refused: Refused | None
    said_bye: bool
    exit: Exit | None
    hang: Hang | None
    stray_compiles: tuple[Compiled, ...]
    stray_tuned: tuple[Tuned, ...]
    stray_hazards: tuple[Hazard, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One run."""

    workers: tuple[WorkerRecord, ...]
    jobs: Mapping[str, JobRecord]

    def settings_of(self, job: Job) -> tuple[str, Mapping[str, str]]:
        """Digest and content of Inductor's settings in which a job was compiled or loaded; empty if it never said."""
        own, hello = self.jobs[job.id].settings, self.worker_of(job).hello
        said = own or hello
        return (said.config_digest, said.config) if said else ("", {})

    def round_of(self, job: Job) -> tuple[JobRecord, ...]:
        """The job and those of the other lanes of its rank that share its compiled function: they run beside each other.

        What one of them compiled serves the others, so keys and torch's own counters are of all of them together.
        """
        return tuple(
            record
            for record in self.jobs.values()
            if record.job.rank == job.rank and record.job.workload.name == job.workload.name
        )

    @property
    def starts(self) -> tuple[LaneCosts, ...]:
        """What each lane has cost whose process said what its imports took, of the jobs that ran to their ends."""
        found = []
        for rank, lane in dict.fromkeys((record.job.rank, record.job.lane) for record in self.jobs.values()):
            jobs = [record for record in self.jobs.values() if (record.job.rank, record.job.lane) == (rank, lane)]
            hello = next(worker.hello for worker in self.workers if worker.rank == rank)
            costs = [record.costs for record in jobs if record.costs is not None and record.ran_to_end]
            calls = total(costs)
            if hello is not None and calls is not None:
                found.append(LaneCosts(rank=rank, lane=lane, costs=with_imports(calls, hello.import_seconds)))
        return tuple(found)

    @property
    def tuned(self) -> tuple[Tuned, ...]:
        """All that was timed, also by threads that worked for no job any more."""
        of_jobs = [event for job in self.jobs.values() for event in job.tuned]
        return (*of_jobs, *(event for worker in self.workers for event in worker.stray_tuned))

    def worker_of(self, job: Job) -> WorkerRecord:
        return next(worker for worker in self.workers if worker.rank == job.rank)


def fold(plan: Plan, events: Mapping[int, Sequence[Event]], exits: Mapping[int, Exit]) -> Record:
    """The record of a run.

    Args:
        events: by rank, in the order in which the worker wrote them.
        exits: by rank; a rank that never started has none.
    """
    jobs: dict[str, JobRecord] = {}
    workers = []
    for worker in plan.workers:
        said = events.get(worker.rank, ())
        workers.append(_fold_worker(worker.rank, said, exits.get(worker.rank)))
        missed, modes = told(said), dict(told_modes(said))
        for job in worker.jobs:
            of_job = [e for e in said if getattr(e, "job", None) == job.id]
            jobs[job.id] = _fold_job(job, of_job, missed.get(job.id, ()), modes.get(job.id, {}))
    return Record(workers=tuple(workers), jobs=jobs)


def _fold_worker(rank: int, said: Sequence[Event], exit: Exit | None) -> WorkerRecord:
    return WorkerRecord(
        rank=rank,
        hello=_last(Hello, said),
        refused=_last(Refused, said),
        said_bye=_last(Bye, said) is not None,
        exit=exit,
        hang=_last(Hang, said),
        stray_compiles=tuple(e for e in said if isinstance(e, Compiled) and e.job is None),
        stray_tuned=tuple(e for e in said if isinstance(e, Tuned) and e.job is None),
        stray_hazards=tuple(e for e in said if isinstance(e, Hazard) and e.job is None),
    )


def _fold_job(job: Job, said: Sequence[Event], missed_keys: tuple[Key, ...], modes: Mapping[str, str]) -> JobRecord:
    progress = _last(Progress, said)
    ends = [e for e in said if isinstance(e, (JobDone, JobStopped, JobFailed))]
    return JobRecord(
        job=job,
        phase=progress.phase if progress else None,
        lookups=tuple(e for e in said if isinstance(e, Lookup)),
        compiled=tuple(e for e in said if isinstance(e, Compiled)),
        untuned=tuple(e for e in said if isinstance(e, Untuned)),
        left_out=frozenset((e.layer.value, e.key) for e in said if isinstance(e, LeftOut)),
        tuned=tuple(e for e in said if isinstance(e, Tuned)),
        reads=tuple(e for e in said if isinstance(e, Read)),
        dense=tuple(e for e in said if isinstance(e, Dense)),
        hazards=tuple(e for e in said if isinstance(e, Hazard)),
        drill=_last(DrillDone, said),
        drill_lock=_last(DrillLock, said),
        shapes=tuple(e for e in said if isinstance(e, ShapeDone)),
        steps=tuple(e for e in said if isinstance(e, StepDone)),
        end=ends[-1] if ends else None,
        settings=_last(Settings, said),
        sources=_last(Sources, said),
        missed_keys=missed_keys,
        recompiled=tuple(e for e in said if isinstance(e, Recompiled)),
        costs=total(costs_of(e) for e in said if isinstance(e, Costs)),
        modes=modes,
    )


def _last(kind: type, said: Iterable[Event]):  # type: ignore[no-untyped-def]
    found = None
    for event in said:
        if isinstance(event, kind):
            found = event
    return found
