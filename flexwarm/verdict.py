"""From a record to a verdict, with reasons from a closed list. Pure: the first law, no false green, is held here.

A job is ``warm`` only when every witness says so and each has said something: absence of an error is not evidence.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from flexwarm.canonical import StrEnum
from flexwarm.errors import ExitCode
from flexwarm.events import Answer, JobFailed, JobStopped, Layer
from flexwarm.plan import Job
from flexwarm.record import End, Exit, JobRecord, Record, WorkerRecord


class Kind(StrEnum):
    """The verdict on a run."""

    WARM = "warm"  # proven in new processes: a launch compiles nothing
    BUILT = "built"  # everything is stored; not proven in new processes yet
    COLD = "cold"  # something would compile
    UNSAFE = "unsafe"  # warm, but a call would run dense
    BROKEN = "broken"  # a job, a worker or a file failed
    UNKNOWN = "unknown"  # the evidence is missing or disagrees


class Code(StrEnum):
    """Why a job or a bucket is not warm. Each has one verdict."""

    NO_BUCKET = "no-bucket"
    NOT_BUILT = "not-built"
    FINGERPRINT_CHANGED = "fingerprint-changed"
    ENV_CHANGED = "env-changed"
    CONFIG_CHANGED = "config-changed"
    SOURCE_CHANGED = "source-changed"
    CACHE_DISABLED = "cache-disabled"
    AOT_MISS = "aot-miss"
    FX_MISS = "fx-miss"
    TRITON_MISS = "triton-miss"
    AOT_BYPASS = "aot-bypass"
    FX_BYPASS = "fx-bypass"
    COMPILED = "compiled"
    KEY_NOT_SEEN = "key-not-seen"
    KEY_NOT_LISTED = "key-not-listed"
    NOT_STORED = "not-stored"
    DISK_CHANGED = "disk-changed"
    NO_EVIDENCE = "no-evidence"
    WITNESSES_DISAGREE = "witnesses-disagree"
    NOT_PROVEN = "not-proven"
    DENSE_FALLBACK = "dense-fallback"
    WRONG_RESULT = "wrong-result"
    RAISED = "raised"
    LEADER_FAILED = "leader-failed"
    CRASHED = "crashed"
    TIMED_OUT = "timed-out"
    SILENT = "silent"
    REFUSED = "refused"
    TOOLCHAIN_MISMATCH = "toolchain-mismatch"
    CORRUPT_FILE = "corrupt-file"
    NOT_RUN = "not-run"


_COLD = (Kind.COLD, ExitCode.NOT_WARM)
_UNKNOWN = (Kind.UNKNOWN, ExitCode.NOT_WARM)
_FAILED = (Kind.BROKEN, ExitCode.JOB_FAILED)
_DIED = (Kind.BROKEN, ExitCode.WORKER_DIED)

#: Reason -> the verdict and exit code that it alone would give.
MEANING: Mapping[Code, tuple[Kind, ExitCode]] = {
    Code.NO_BUCKET: _COLD,
    Code.NOT_BUILT: _COLD,
    Code.FINGERPRINT_CHANGED: _COLD,
    Code.ENV_CHANGED: _COLD,
    Code.CONFIG_CHANGED: _COLD,
    Code.SOURCE_CHANGED: _COLD,
    Code.CACHE_DISABLED: _COLD,
    Code.AOT_MISS: _COLD,
    Code.FX_MISS: _COLD,
    Code.TRITON_MISS: _COLD,
    Code.AOT_BYPASS: _COLD,
    Code.FX_BYPASS: _COLD,
    Code.COMPILED: _COLD,
    Code.NOT_STORED: _COLD,
    Code.KEY_NOT_SEEN: _UNKNOWN,
    Code.KEY_NOT_LISTED: _COLD,
    Code.DISK_CHANGED: _UNKNOWN,
    Code.NO_EVIDENCE: _UNKNOWN,
    Code.WITNESSES_DISAGREE: _UNKNOWN,
    Code.NOT_PROVEN: _UNKNOWN,
    Code.NOT_RUN: _UNKNOWN,
    Code.DENSE_FALLBACK: (Kind.UNSAFE, ExitCode.UNSAFE),
    Code.WRONG_RESULT: _FAILED,
    Code.RAISED: _FAILED,
    Code.LEADER_FAILED: _FAILED,
    Code.CRASHED: _DIED,
    Code.TIMED_OUT: _DIED,
    Code.SILENT: _DIED,
    Code.REFUSED: (Kind.BROKEN, ExitCode.UNSUPPORTED),
    Code.TOOLCHAIN_MISMATCH: _UNKNOWN,
    Code.CORRUPT_FILE: (Kind.BROKEN, ExitCode.CORRUPT),
}

#: Where several apply, the first of these is the exit code.
_EXIT_ORDER = (
    ExitCode.CORRUPT,
    ExitCode.WORKER_DIED,
    ExitCode.JOB_FAILED,
    ExitCode.UNSUPPORTED,
    ExitCode.UNSAFE,
    ExitCode.NOT_WARM,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """One cause: its code, one sentence, and what to do."""

    code: Code
    message: str
    hint: str = ""


class Outcome(StrEnum):
    """What became of one job."""

    HIT = "hit"
    COMPILED = "compiled"
    MISSED = "missed"
    BYPASSED = "bypassed"
    DENSE = "dense"
    WRONG = "wrong"
    FAILED = "failed"
    CRASHED = "crashed"
    TIMED_OUT = "timed_out"
    SKIPPED = "skipped"
    NOT_RUN = "not_run"
    UNPROVEN = "unproven"


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
    if not every:
        return Verdict(kind=best, exit_code=ExitCode.OK, jobs=tuple(jobs), reasons=())
    meanings = [MEANING[reason.code] for reason in every]
    exit_code = next(code for code in _EXIT_ORDER if any(code is meaning[1] for meaning in meanings))
    kinds = [kind for kind, code in meanings if code is exit_code]
    # Cold is a fact and unknown the lack of one: a run with both is cold.
    kind = Kind.COLD if Kind.COLD in kinds else kinds[0]
    return Verdict(kind=kind, exit_code=exit_code, jobs=tuple(jobs), reasons=tuple(reasons))


def judge_verify(
    record: Record,
    expected: Mapping[str, frozenset[tuple[str, str]]],
    notes: Mapping[str, Sequence[Reason]],
    disk: Sequence[str],
    parent_components: Mapping[str, str],
    run_reasons: Sequence[Reason] = (),
) -> Verdict:
    """The verdict of a verification.

    Args:
        expected: job id -> the keys that its build recorded, each of which must hit.
        notes: job id -> why it might miss (an environment that changed); they count only for a job that did.
        disk: files of the bucket that differ before and after; none for a warm run.
        parent_components: what the parent read from files, to be held against what each worker sees.
        run_reasons: reasons already known, such as corrupt files.
    """
    jobs = tuple(
        _judge_verified_job(job_record, record.worker_of(job_record.job), expected, notes)
        for job_record in record.jobs.values()
    )
    reasons = [*run_reasons, *_worker_reasons(record, parent_components)]
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
    jobs = tuple(_judge_built_job(r, record.worker_of(r.job), stored) for r in record.jobs.values())
    only_hits = all(job.outcome is Outcome.HIT for job in jobs) and not newly_written
    return conclude(jobs, _worker_reasons(record, parent_components), best=Kind.WARM if only_hits else Kind.BUILT)


def _judge_verified_job(
    record: JobRecord,
    worker: WorkerRecord,
    expected: Mapping[str, frozenset[tuple[str, str]]],
    notes: Mapping[str, Sequence[Reason]],
) -> JobVerdict:
    job = record.job
    reasons = _layer_reasons(record)
    reasons += [
        Reason(code=Code.COMPILED, message=f"{event.what} compiler started: {event.detail[:120]}") for event in record.compiled
    ]
    missed = bool(reasons)
    reasons += _end_reasons(record, worker)
    if not missed and record.ran_to_end:
        reasons += _key_reasons(record, expected.get(job.id, frozenset()))
    if missed or any(reason.code is Code.KEY_NOT_LISTED for reason in reasons):
        reasons += notes.get(job.id, ())
    reasons += _result_reasons(record)
    return JobVerdict(job=job, outcome=_outcome(record, reasons), reasons=tuple(reasons), record=record)


def _judge_built_job(record: JobRecord, worker: WorkerRecord, stored: frozenset[tuple[str, str]]) -> JobVerdict:
    bypasses = [reason for reason in _layer_reasons(record) if reason.code in (Code.AOT_BYPASS, Code.FX_BYPASS)]
    reasons = bypasses + _end_reasons(record, worker)
    if record.ran_to_end:
        if not record.keys and not bypasses:
            reasons.append(_no_lookups())
        for layer, key in sorted(record.keys - stored):
            reasons.append(
                Reason(
                    code=Code.NOT_STORED,
                    message=f"torch compiled {layer} entry {_short(key)} and stored nothing for it",
                    hint="a launch would compile it again; run with TORCH_LOGS=+inductor to see why",
                )
            )
        if record.job.leader is not None and record.answers(Answer.MISS):
            missed = record.answers(Answer.MISS)[0]
            reasons.append(
                Reason(
                    code=Code.WITNESSES_DISAGREE,
                    message=f"{record.job.leader} had compiled the same job, and {missed.layer.value} key "
                    f"{_short(missed.key)} missed all the same: keys are not stable between processes",
                )
            )
    reasons += _result_reasons(record)
    return JobVerdict(job=record.job, outcome=_outcome(record, reasons), reasons=tuple(reasons), record=record)


_MISSES = {Layer.AOT: Code.AOT_MISS, Layer.FX: Code.FX_MISS, Layer.TRITON: Code.TRITON_MISS}
_BYPASSES = {Layer.AOT: Code.AOT_BYPASS, Layer.FX: Code.FX_BYPASS}
_LAYER_NAMES = {Layer.AOT: "AOTAutograd", Layer.FX: "FX graph", Layer.TRITON: "Triton"}


def _layer_reasons(record: JobRecord) -> list[Reason]:
    reasons = []
    for lookup in record.lookups:
        name = _LAYER_NAMES[lookup.layer]
        if lookup.answer is Answer.MISS:
            detail = f" ({lookup.reason})" if lookup.reason else ""
            reasons.append(
                Reason(code=_MISSES[lookup.layer], message=f"{name} key {_short(lookup.key)} is not in the bucket{detail}")
            )
        elif lookup.answer is Answer.BYPASS:
            reasons.append(Reason(code=_BYPASSES[lookup.layer], message=f"{name} cache was bypassed: {lookup.reason}"))
    return reasons


def _end_reasons(record: JobRecord, worker: WorkerRecord) -> list[Reason]:
    job = record.job
    match record.end:
        case JobFailed() as failed:
            return [Reason(code=Code.RAISED, message=f"{failed.error}: {failed.message}")]
        case JobStopped():
            # Stopped at a miss that no layer reported would be our own fault, and must not be silence.
            if record.compiled or record.answers(Answer.MISS) or record.answers(Answer.BYPASS):
                return []
            return [Reason(code=Code.NO_EVIDENCE, message="the job was stopped, and no layer said why")]
        case None:
            return [_missing_end(job, record, worker)]
        case _:
            if record.ran_to_end:
                return []
            done, planned = len(record.shapes), len(job.workload.shapes)
            return [Reason(code=Code.NO_EVIDENCE, message=f"only {done} of {planned} shapes were checked")]


def _missing_end(job: Job, record: JobRecord, worker: WorkerRecord) -> Reason:
    exit = worker.exit
    if worker.refused is not None:
        return Reason(code=Code.REFUSED, message=worker.refused.message, hint=worker.refused.hint)
    if exit is None:
        return Reason(code=Code.NOT_RUN, message="its worker was never started")
    if exit.end is End.FINISHED and worker.said_bye:
        leader = job.leader or "the job before it"
        return Reason(code=Code.LEADER_FAILED, message=f"not run, because {leader} did not compile")
    where = f"in phase {record.phase.value}" if record.phase else "before it began"
    hint = f"log: {exit.log}"
    match exit.end:
        case End.TIMED_OUT:
            return Reason(
                code=Code.TIMED_OUT,
                message=f"ran past {exit.limit_seconds:g} s {where}; its stacks are in the log",
                hint=f"{hint}; --job-timeout changes the limit",
            )
        case End.SILENT:
            return Reason(
                code=Code.SILENT,
                message=f"said nothing for {exit.limit_seconds:g} s {where}; its stacks are in the log",
                hint=f"{hint}; --silence-timeout changes the limit",
            )
        case _:
            return Reason(code=Code.CRASHED, message=f"its worker {describe_status(exit)} {where}", hint=hint)


def describe_status(exit: Exit) -> str:
    """``was killed by SIGSEGV`` or ``exited with status 3``."""
    import signal

    if exit.status < 0:
        try:
            name = signal.Signals(-exit.status).name
        except ValueError:
            name = f"signal {-exit.status}"
        return f"was killed by {name}"
    return f"exited with status {exit.status}"


def _key_reasons(record: JobRecord, expected: frozenset[tuple[str, str]]) -> list[Reason]:
    """The expected keys, each of them, must have hit, and no other may have been asked for."""
    hits = frozenset((x.layer.value, x.key) for x in record.answers(Answer.HIT) if x.layer is not Layer.TRITON)
    reasons = []
    if not hits:
        return [_no_lookups()]
    for layer, key in sorted(hits - expected):
        reasons.append(
            Reason(code=Code.KEY_NOT_LISTED, message=f"{layer} key {_short(key)} hit, but no build of this job recorded it")
        )
    for layer, key in sorted(expected - hits):
        reasons.append(
            Reason(code=Code.KEY_NOT_SEEN, message=f"{layer} key {_short(key)} was recorded by the build and not asked for")
        )
    counters = record.end.counters if record.end and not isinstance(record.end, JobFailed) else {}
    for layer, counter in ((Layer.FX, "inductor.fxgraph_cache"), (Layer.AOT, "aot_autograd.autograd_cache")):
        seen = sum(x.layer is layer for x in record.answers(Answer.HIT))
        counted = {answer: counters.get(f"{counter}_{answer.value}", 0) for answer in Answer}
        if counted[Answer.HIT] != seen or counted[Answer.MISS] or counted[Answer.BYPASS]:
            told = ", ".join(f"{count} {answer.value}" for answer, count in counted.items())
            reasons.append(
                Reason(
                    code=Code.WITNESSES_DISAGREE,
                    message=f"{seen} {layer.value} lookups were seen to hit, torch's counters say: {told}",
                )
            )
    return reasons


def _result_reasons(record: JobRecord) -> list[Reason]:
    reasons = []
    for done in record.shapes:
        if not done.agrees:
            shape = record.job.workload.shapes[done.shape]
            error = "is not finite" if done.error is None else f"differs by {done.error:.3g}, allowed {done.tolerance:g}"
            reasons.append(
                Reason(code=Code.WRONG_RESULT, message=f"{shape}: the result {error} from dense attention in float32")
            )
    if record.dense:
        first = record.dense[0]
        where = f", called from {first.stack[-1]}" if first.stack else ""
        reasons.append(
            Reason(
                code=Code.DENSE_FALLBACK,
                message=f"{len(record.dense)} calls materialised the score matrix of a query {first.shape}{where}",
                hint="call flex_attention through torch.compile and keep within recompile_limit",
            )
        )
    return reasons


def _no_lookups() -> Reason:
    return Reason(
        code=Code.NO_EVIDENCE,
        message="it ran, and no cache layer was asked for anything",
        hint="is torch.compile switched off (TORCH_COMPILE_DISABLE, TORCHDYNAMO_DISABLE)?",
    )


def _worker_reasons(record: Record, parent_components: Mapping[str, str]) -> list[Reason]:
    """What belongs to a worker and not to a job: another toolchain than the parent read, compiles outside of jobs."""
    reasons = []
    for worker in record.workers:
        for event in worker.stray_compiles:
            reasons.append(
                Reason(code=Code.COMPILED, message=f"rank {worker.rank}: {event.what} compiler started outside of a job")
            )
        if worker.hello is None:
            continue
        for name, seen in worker.hello.components.items():
            read = parent_components.get(name, "")
            if read != seen:
                reasons.append(
                    Reason(
                        code=Code.TOOLCHAIN_MISMATCH,
                        message=f"rank {worker.rank} sees {name} = {seen}, the fingerprint says {read}",
                    )
                )
    return reasons


_OUTCOMES: Mapping[Outcome, tuple[Code, ...]] = {
    Outcome.CRASHED: (Code.CRASHED, Code.SILENT),
    Outcome.TIMED_OUT: (Code.TIMED_OUT,),
    Outcome.FAILED: (Code.RAISED, Code.REFUSED),
    Outcome.SKIPPED: (Code.LEADER_FAILED,),
    Outcome.WRONG: (Code.WRONG_RESULT,),
    Outcome.DENSE: (Code.DENSE_FALLBACK,),
    Outcome.MISSED: (Code.AOT_MISS, Code.FX_MISS, Code.TRITON_MISS, Code.COMPILED, Code.KEY_NOT_LISTED),
    Outcome.BYPASSED: (Code.AOT_BYPASS, Code.FX_BYPASS),
    Outcome.NOT_RUN: (Code.NOT_RUN, Code.NOT_BUILT, Code.NO_BUCKET),
}


def _outcome(record: JobRecord, reasons: Iterable[Reason]) -> Outcome:
    codes = {reason.code for reason in reasons}
    for outcome, causes in _OUTCOMES.items():
        if codes.intersection(causes):
            return outcome
    if codes:
        return Outcome.UNPROVEN
    return Outcome.COMPILED if record.answers(Answer.MISS) or record.compiled else Outcome.HIT


def _short(key: str) -> str:
    return key[:12] + "…" if len(key) > 12 else key
