"""From a record to a verdict, with reasons from a closed list. Pure: the first law, no false green, is held here.

A job is ``warm`` only when every witness says so and each has said something: absence of an error is not evidence.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from flexwarm import evidence, lookups, tuning
from flexwarm.canonical import StrEnum
from flexwarm.errors import ExitCode
from flexwarm.events import Answer
from flexwarm.hazards import HazardCode
from flexwarm.plan import Job
from flexwarm.reasons import Code, Kind, Reason, weigh
from flexwarm.record import JobRecord, Record


class Outcome(StrEnum):
    """What became of one job."""

    HIT = "hit"
    COMPILED = "compiled"
    MISSED = "missed"
    BYPASSED = "bypassed"
    DENSE = "dense"
    UNSAFE = "unsafe"
    WRONG = "wrong"
    FAILED = "failed"
    CRASHED = "crashed"
    TIMED_OUT = "timed_out"
    HUNG = "hung"
    SKIPPED = "skipped"
    NOT_RUN = "not_run"
    UNPROVEN = "unproven"
    UNTUNED = "untuned"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobVerdict:
    """One job's outcome, and the reasons why it is not warm; none when it is."""

    job: Job
    outcome: Outcome
    reasons: tuple[Reason, ...]
    record: JobRecord | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The verdict on a run and the process's exit code.

    Attributes:
        reasons: those that belong to no single job.
    """

    kind: Kind
    exit_code: ExitCode
    jobs: tuple[JobVerdict, ...]
    reasons: tuple[Reason, ...]


def conclude(jobs: Sequence[JobVerdict], reasons: Sequence[Reason], *, best: Kind) -> Verdict:
    """The verdict that all reasons together give; ``best`` where there is none and at least one job."""
    every = [*reasons, *(reason for job in jobs for reason in job.reasons)]
    if not jobs and not every:
        every = [Reason(code=Code.NO_EVIDENCE, message="no job was run")]
        reasons = every
    kind, exit_code = weigh(every, best=best)
    return Verdict(kind=kind, exit_code=exit_code, jobs=tuple(jobs), reasons=tuple(reasons))


def judge_verify(
    record: Record,
    expected: Mapping[str, frozenset[tuple[str, str]]],
    notes: Mapping[str, Sequence[Reason]],
    disk: Sequence[str],
    parent_components: Mapping[str, str],
    left_open: Mapping[str, Sequence[Reason]] | None = None,
) -> Verdict:
    """The verdict of a verification.

    Args:
        expected: job id -> the keys that its build recorded, each of which must hit.
        notes: job id -> why it might miss (an environment that changed); they count only for a job that did.
        disk: files of the bucket that differ before and after; none for a warm run.
        parent_components: what the parent read from files, to be held against what each worker sees.
        left_open: job id -> what its build left to a GPU, so that it has no key of: such a job is not warm whatever hits.
    """
    open_of = left_open or {}
    jobs = tuple(
        _judge_verified_job(job_record, record, expected, notes, open_of.get(job_record.job.id, ()))
        for job_record in record.jobs.values()
    )
    reasons = evidence.worker_reasons(record, parent_components)
    if disk:
        compiled = any(reason.code in _COMPILING for job in jobs for reason in job.reasons)
        names = ", ".join(disk[:3]) + (f" and {len(disk) - 3} more" if len(disk) > 3 else "")
        if not compiled:
            reasons.append(
                Reason(
                    code=Code.DISK_CHANGED,
                    message=f"the bucket changed during a run that says it compiled nothing: {names}",
                    hint="another process may be using the bucket; verify again when it is idle",
                )
            )
    return conclude(jobs, reasons, best=Kind.WARM)


_COMPILING = (Code.AOT_MISS, Code.FX_MISS, Code.TRITON_MISS, Code.AOT_BYPASS, Code.FX_BYPASS, Code.COMPILED)


def judge_build(
    record: Record, stored: frozenset[tuple[str, str]], parent_components: Mapping[str, str], newly_written: bool
) -> Verdict:
    """The verdict of a build: ``built`` when all is stored, ``warm`` when in addition nothing had to be compiled.

    Args:
        stored: (layer, key) of the entries that are in the bucket after the run.
        newly_written: the run added or altered files.
    """
    jobs = tuple(_judge_built_job(job_record, record, stored) for job_record in record.jobs.values())
    only_hits = all(job.outcome is Outcome.HIT for job in jobs) and not newly_written
    return conclude(jobs, evidence.worker_reasons(record, parent_components), best=Kind.WARM if only_hits else Kind.BUILT)


def with_drill(verdict: Verdict, drill: Record) -> Verdict:
    """A warm or unsafe verdict after its drill: what the drill found is added to the jobs that it drilled."""
    found = {job_id: evidence.drill_reasons(job_record, drill) for job_id, job_record in drill.jobs.items()}
    jobs = []
    for job in verdict.jobs:
        reasons = (*job.reasons, *found.get(job.job.id, ()))
        outcome = _outcome(job.record, reasons) if job.record is not None else job.outcome
        jobs.append(dataclasses.replace(job, reasons=reasons, outcome=outcome))
    return conclude(jobs, [*verdict.reasons, *evidence.drilled_worker_reasons(drill)], best=verdict.kind)


def notes(record: Record) -> list[str]:
    """What is to be known beside the reasons, one sentence each."""
    jobs = record.jobs.values()
    untuned = [x for job in jobs for x in job.untuned]
    return tuning.notes(untuned, record.tuned, [(job.job.id, read) for job in jobs for read in job.reads])


def _judge_verified_job(
    job_record: JobRecord,
    record: Record,
    expected: Mapping[str, frozenset[tuple[str, str]]],
    notes: Mapping[str, Sequence[Reason]],
    left_open: Sequence[Reason],
) -> JobVerdict:
    job = job_record.job
    reasons = lookups.layer_reasons(job_record)
    reasons += [lookups.compiled_reason(event) for event in job_record.compiled]
    missed = bool(reasons)
    reasons += lookups.recompiled_reasons(job_record.recompiled)
    reasons += evidence.hazard_reasons(job_record)
    reasons += evidence.end_reasons(job_record, record.worker_of(job))
    lanes = record.round_of(job)
    if job_record.ran_to_end:
        reasons += evidence.check_reasons(job_record)
    if all(lane.ran_to_end and not _missed(lane) for lane in lanes):
        reasons += evidence.layer_evidence_reasons(lanes)
        reasons += evidence.key_reasons(lanes, frozenset().union(*(expected.get(x.job.id, frozenset()) for x in lanes)))
    if missed or any(reason.code is Code.KEY_NOT_LISTED for reason in reasons):
        reasons += notes.get(job.id, ())
    reasons += [reason for reason in left_open if reason not in reasons]
    reasons += evidence.result_reasons(job_record, record.worker_of(job))
    reasons += tuning.untuned_reasons(job_record.untuned)
    return JobVerdict(job=job, outcome=_outcome(job_record, reasons), reasons=tuple(reasons), record=job_record)


def _missed(job_record: JobRecord) -> bool:
    return bool(job_record.compiled or job_record.answers(Answer.MISS) or job_record.answers(Answer.BYPASS))


def _judge_built_job(job_record: JobRecord, record: Record, stored: frozenset[tuple[str, str]]) -> JobVerdict:
    job = job_record.job
    bypasses = [r for r in lookups.layer_reasons(job_record) if r.code in (Code.AOT_BYPASS, Code.FX_BYPASS)]
    reasons = bypasses + evidence.hazard_reasons(job_record) + evidence.end_reasons(job_record, record.worker_of(job))
    lanes = record.round_of(job)
    if job_record.ran_to_end:
        reasons += evidence.check_reasons(job_record)
        left_out = frozenset[tuple[str, str]]().union(*(lane.left_out for lane in lanes))
        reasons += evidence.not_stored_reasons(job_record.keys - stored - left_out)
        # Another lane of the same process may have asked while its leader had not stored yet; another process waited.
        waited = job.leader is not None and job.leader not in {lane.job.id for lane in lanes}
        missed = [x for x in job_record.answers(Answer.MISS) if (x.layer.value, x.key) not in left_out]
        if waited and missed:
            reasons.append(
                Reason(
                    code=Code.WITNESSES_DISAGREE,
                    message=f"{job.leader} had compiled the same job, and {missed[0].layer.value} key "
                    f"{lookups.short(missed[0].key)} missed all the same: keys are not stable between processes",
                    hint=""
                    if job.workload.step is None
                    else "a step that depends on the rank needs a role for each kind of rank",
                )
            )
    if all(lane.ran_to_end for lane in lanes):
        reasons += evidence.layer_evidence_reasons(lanes)
    reasons += evidence.result_reasons(job_record, record.worker_of(job))
    reasons += tuning.untuned_reasons(job_record.untuned)
    return JobVerdict(job=job, outcome=_outcome(job_record, reasons), reasons=tuple(reasons), record=job_record)


_OUTCOMES: Mapping[Outcome, tuple[Code, ...]] = {
    Outcome.CRASHED: (Code.CRASHED, Code.SILENT),
    Outcome.HUNG: (Code.HUNG,),
    Outcome.TIMED_OUT: (Code.TIMED_OUT,),
    Outcome.FAILED: (Code.RAISED, Code.REFUSED),
    Outcome.SKIPPED: (Code.LEADER_FAILED,),
    Outcome.WRONG: (Code.WRONG_RESULT,),
    Outcome.DENSE: (Code.DENSE_FALLBACK,),
    Outcome.UNSAFE: tuple(Code(hazard.value) for hazard in HazardCode),
    Outcome.MISSED: (*(Code.AOT_MISS, Code.FX_MISS, Code.TRITON_MISS, Code.COMPILED, Code.KEY_NOT_LISTED, Code.CACHE_MOVED),),
    Outcome.BYPASSED: (Code.AOT_BYPASS, Code.FX_BYPASS),
    Outcome.NOT_RUN: (Code.NOT_RUN, Code.NOT_BUILT, Code.NO_BUCKET),
}


def _outcome(record: JobRecord, reasons: Iterable[Reason]) -> Outcome:
    compiled = bool(record.answers(Answer.MISS) or record.compiled)
    return outcome_of(reasons, compiled=compiled, untuned=tuning.left_to_the_gpu(record.untuned))


def outcome_of(reasons: Iterable[Reason], *, compiled: bool, untuned: bool) -> Outcome:
    """What became of a job, by its worst reason; without any, whether it ``compiled`` something, or left that to the GPU."""
    codes = {reason.code for reason in reasons}
    for outcome, causes in _OUTCOMES.items():
        if codes.intersection(causes):
            return outcome
    if codes:
        return Outcome.UNPROVEN
    if untuned:
        return Outcome.UNTUNED
    return Outcome.COMPILED if compiled else Outcome.HIT
