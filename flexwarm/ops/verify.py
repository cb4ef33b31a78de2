"""Prove in new processes that a launch compiles nothing. Never compiles, and writes nothing that a launch would read."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence

from flexwarm import environment, inventory, launch, ledger, locks, manifest, proof
from flexwarm.errors import CorruptError, ExitCode, StoreError
from flexwarm.explanation import Explained
from flexwarm.inventory import Fault, FaultKind
from flexwarm.manifest import JobEntry, Manifest
from flexwarm.ops import before_launch, explaining, known_faults, publish, surroundings
from flexwarm.ops.differences import changes_since_proof, differences_since_build, never_built, no_bucket
from flexwarm.ops.drill import DrillResult, DrillState, drill_plan, run_drill, wanted_state
from flexwarm.ops.prepare import (
    DRILL,
    NO_TUNING,
    TUNING,
    TUNING_LEFT,
    Prepared,
    context,
    foreign_cache,
    prepare,
    worker_components,
)
from flexwarm.ops.run import RunOptions, RunResult, Watcher, run_workers
from flexwarm.plan import COMPILE_THREADS, Job, Plan
from flexwarm.proof import JobProof, Proof
from flexwarm.reasons import Code, Kind, Reason, is_hazard
from flexwarm.record import Record
from flexwarm.request import Purpose, Tuning
from flexwarm.store import Bucket
from flexwarm.tuning import AT_EACH_LAUNCH
from flexwarm.verdict import JobVerdict, Outcome, Verdict, conclude, judge_verify, with_drill
from flexwarm.verdict import notes as notes_of


def verify(options: RunOptions, environ: Mapping[str, str], watcher: Watcher, *, fast: bool) -> RunResult:
    """The verdict on the spec's bucket.

    Args:
        fast: start no worker; ask whether anything changed since the last full verification.

    Raises:
        FlexwarmError: it could not begin. Anything that is wrong with the bucket is a verdict, not raised.
    """
    started = time.perf_counter()
    prepared = prepare(
        options.spec,
        environ=environ,
        root=options.root,
        trust_shared=options.trust_shared,
        building=False,
        create=False,
        target=options.target,
    )
    decided = _decide(prepared, options, environ, watcher, fast=fast)
    known = decided.known
    had = known if known is not None else surroundings.manifest_of(prepared.bucket)
    matches = {job.id: _match(job, had) for job in prepared.plan.jobs} if had is not None else {}
    cold = {job.id: _cold_seconds(known, job) for job in prepared.plan.jobs}
    return RunResult(
        verdict=decided.verdict,
        bucket=prepared.bucket.digest,
        bucket_path=str(prepared.bucket.path),
        plan=prepared.plan,
        record=decided.record,
        cold_seconds={job: seconds for job, seconds in cold.items() if seconds is not None},
        seconds=time.perf_counter() - started,
        fast=fast,
        bucket_bytes=sum(entry.size_bytes for entry in known.files) if known else None,
        bucket_files=len(known.files) if known else None,
        target=prepared.target.title if prepared.target is not None else None,
        built_for=publish.origins(known),
        remedy=options.conduct(Purpose.VERIFY).remedy,
        tuning=options.tuning,
        tuning_left=decided.tuning_left,
        drill=decided.drill,
        notes=decided.notes,
        explained=decided.explained,
        faults=known_faults.of_plan(prepared.plan, environ),
        environment=surroundings.of_spec(prepared, had, matches, decided.record, environ),
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Decision:
    """The verdict; and what it rests on, as :class:`flexwarm.ops.run.RunResult` has it."""

    verdict: Verdict
    drill: DrillResult
    record: Record | None = None
    known: Manifest | None = None
    tuning_left: bool = False
    notes: Sequence[str] = ()
    explained: Mapping[str, Sequence[Explained]] = dataclasses.field(default_factory=dict)


def _decide(prepared: Prepared, options: RunOptions, environ: Mapping[str, str], watcher: Watcher, *, fast: bool) -> _Decision:
    plan, bucket = prepared.plan, prepared.bucket
    not_run = DrillResult(state=DrillState.NOT_RUN if drill_plan(plan, "").workers else DrillState.NOT_NEEDED)

    def not_decided(reasons: Sequence[Reason], known: Manifest | None = None) -> _Decision:
        return _Decision(verdict=_none_run(plan, reasons, Outcome.NOT_RUN), drill=not_run, known=known)

    disabled = disabled_caches(environ, bucket)
    if disabled:
        return not_decided(disabled)
    if not bucket.exists():
        return not_decided([no_bucket(prepared)])
    with locks.share_if_writable(
        bucket.lock,
        holder=bucket.holder,
        command="verify",
        wait_seconds=options.lock_wait_seconds,
        notify=watcher.notify,
    ):
        try:
            known = manifest.load(bucket)
            read = proof.manifest_digest(bucket) if known is not None else ""
        except CorruptError as error:
            return not_decided([corrupt(error.message)])
        if known is None:
            reason = before_launch.no_build_finished(bucket, "flexwarm build")
            return not_decided([reason])
        if left := before_launch.unfinished_reasons(bucket, known):
            return not_decided(left, known)
        shapes = publish.other_shapes(known.jobs.values(), prepared.target) if prepared.target is not None or not fast else []
        if shapes:
            return not_decided(shapes, known)
        matches = {job.id: _match(job, known) for job in plan.jobs}
        if fast:
            verdict, drilled, tuning = _fast(prepared, known, matches, options, environ)
            notes = [f"when this was proven, kernels were tuned: {AT_EACH_LAUNCH}"] if tuning == TUNING_LEFT else []
            drill = DrillResult(state=drilled or not_run.state)
            return _Decision(verdict=verdict, drill=drill, known=known, notes=notes, tuning_left=bool(notes))
        verdict, record, state, explained = _full(prepared, known, matches, options, environ, watcher)
        drill = not_run
        if _only_hazards(verdict) and record is not None:
            drill = run_drill(prepared, options, environ, watcher)
            verdict = with_drill(verdict, drill.record) if drill.record is not None else verdict
        if verdict.kind is Kind.WARM and record is not None and options.keeps_proof:
            tuned = TUNING_LEFT if record.tuned else NO_TUNING
            remedy = options.conduct(Purpose.VERIFY).remedy
            now = context(prepared, environ, guard=remedy, drill=drill.state.value, tuning=tuned)
            _remember(prepared, read, state, record, now, watcher)
        notes = notes_of(record) if record is not None else []
        return _Decision(
            verdict=verdict,
            drill=drill,
            record=record,
            known=known,
            tuning_left=record is not None and bool(record.tuned),
            notes=notes,
            explained=explained,
        )


def disabled_caches(environ: Mapping[str, str], bucket: Bucket) -> list[Reason]:
    """The variables with which a launch cannot find what lies in the bucket."""
    disabled = [
        Reason(
            code=Code.CACHE_DISABLED,
            message=f"{name}={environ[name]} turns a cache off, so a launch compiles",
            hint=f"unset {name}",
        )
        for name in environment.disabling(environ)
    ]
    if name := foreign_cache(environ, bucket):
        message = f"{name}={environ[name]} keeps compiled kernels outside of the bucket, so a launch does not find it"
        disabled.append(Reason(code=Code.CACHE_DISABLED, message=message, hint=f"unset {name}"))
    return disabled


def _only_hazards(verdict: Verdict) -> bool:
    """Whether everything is warm, hazards aside: for one that is cold a drill would change nothing."""
    return all(is_hazard(reason) for reason in [*verdict.reasons, *(x for job in verdict.jobs for x in job.reasons)])


def _full(
    prepared: Prepared,
    known: Manifest,
    matches: Mapping[str, JobEntry | None],
    options: RunOptions,
    environ: Mapping[str, str],
    watcher: Watcher,
) -> tuple[Verdict, Record | None, str, Mapping[str, Sequence[Explained]]]:
    """The verdict, what was seen, the state of the bucket's files before the jobs ran, and the misses."""
    bucket = prepared.bucket
    runnable = _only_jobs(prepared.plan, [job_id for job_id, entry in matches.items() if entry is not None])
    missing = [_not_built(job, known) for job in prepared.plan.jobs if matches[job.id] is None]
    if not runnable.workers:
        return conclude(missing, [], best=Kind.WARM), None, "", {}
    faults: list[Fault] = []
    before: list[inventory.Snapshot] = []
    states: list[str] = []

    def check_bucket() -> bool:
        """While the workers import torch: nothing of a bucket that is not what was built may be loaded, it is code."""
        # First: what changes after its content was read must be seen, also by --fast.
        before.append(inventory.snapshot(bucket))
        states.append(inventory.state(bucket, known))
        faults.extend(inventory.check(bucket, known, deep=True))
        return not faults

    record = run_workers(
        prepared,
        _one_compile_thread(runnable),
        conduct=options.conduct(Purpose.VERIFY),
        environ=environ,
        limits=options.limits,
        watcher=watcher,
        run_id=launch.new_run_id(),
        before_jobs=check_bucket,
    )
    if faults:
        return _none_run(prepared.plan, [fault_reason(fault) for fault in faults], Outcome.NOT_RUN), record, "", {}
    disk = [change.path for change in inventory.changed(before[0], inventory.snapshot(bucket))]
    built = {job_id: entry for job_id, entry in matches.items() if entry is not None}
    missed = {job.id: record.jobs[job.id].missed_keys for job in runnable.jobs}
    own = {job_id: frozenset(key.key for key in entry.keys) for job_id, entry in built.items()}
    explained = explaining.explain_misses(bucket, known, missed, own, watcher.notify)
    notes = {}
    for job in runnable.jobs:
        differences = differences_since_build(prepared, known, job, built[job.id], record, environ)
        why = explained.get(job.id, ())
        notes[job.id] = [*explaining.reasons(why), *explaining.unless_explained(differences, why)]
    verdict = judge_verify(
        record,
        expected={job_id: frozenset((key.layer, key.key) for key in entry.keys) for job_id, entry in built.items()},
        notes=notes,
        disk=disk,
        parent_components=worker_components(prepared, options.conduct(Purpose.VERIFY)),
        left_open={job_id: publish.left_out(entry) for job_id, entry in built.items()},
    )
    return conclude([*verdict.jobs, *missing], verdict.reasons, best=Kind.WARM), record, states[0], explained


def _fast(
    prepared: Prepared,
    known: Manifest,
    matches: Mapping[str, JobEntry | None],
    options: RunOptions,
    environ: Mapping[str, str],
) -> tuple[Verdict, DrillState | None, str]:
    """Whether anything has changed since a full verification found these jobs warm; and its drill and tuning, if nothing."""
    bucket = prepared.bucket
    proven = proof.load(bucket)
    if proven is None or proven.state != inventory.state(bucket, known):
        if bucket.building.exists():
            unfinished = _not_proven("a build began since the last verification and did not finish")
            return _none_run(prepared.plan, [unfinished], Outcome.UNPROVEN), None, ""
        faults = inventory.check(bucket, known, deep=False)
        damaged = [fault for fault in faults if fault.kind is not FaultKind.MTIME]
        if damaged:
            return _none_run(prepared.plan, [fault_reason(fault) for fault in damaged], Outcome.NOT_RUN), None, ""
        if proven is not None:
            touched = f"{faults[0].path} was" if faults else "a file was"
            message = f"{touched} written, copied or replaced since a verification last read the bucket"
            return _none_run(prepared.plan, [_not_proven(message)], Outcome.UNPROVEN), None, ""
    jobs = []
    states: set[str] = set()
    tunings: set[str] = set()
    for job in prepared.plan.jobs:
        entry = matches[job.id]
        if entry is None:
            jobs.append(_not_built(job, known))
            continue
        known_proof = proven.jobs.get(proof.job_name(job.share, job.id)) if proven else None
        if known_proof is not None:
            drill = wanted_state(prepared.plan, options)
            if drill is DrillState.LEFT_OUT:
                drill = DrillState(known_proof.context.get(DRILL, drill.value))  # a proof with it is a better one
            # The same of one that had nothing to tune.
            tuning = known_proof.context.get(TUNING, "") if options.tuning is not Tuning.MISS else NO_TUNING
            remedy = options.conduct(Purpose.VERIFY).remedy
            now = context(prepared, environ, guard=remedy, drill=drill.value, tuning=tuning)
            reasons = changes_since_proof(known_proof, now, prepared.sources_of(job))
        else:
            reasons = differences_since_build(prepared, known, job, entry, None, environ) or [
                _not_proven("it is stored, and no full verification has found it warm since")
            ]
        outcome = Outcome.UNPROVEN if reasons else Outcome.HIT
        jobs.append(JobVerdict(job=job, outcome=outcome, reasons=tuple(reasons), record=None))
        if known_proof is not None:
            states.add(known_proof.context.get(DRILL, ""))
            tunings.add(known_proof.context.get(TUNING, ""))
    verdict = conclude(jobs, [], best=Kind.WARM)
    if verdict.kind is not Kind.WARM:
        return verdict, None, ""
    # The least that any of them had.
    drill = next(x for x in (DrillState.LEFT_OUT, DrillState.RAN, DrillState.NOT_NEEDED) if x.value in states)
    return verdict, drill, TUNING_LEFT if TUNING_LEFT in tunings else NO_TUNING


def _one_compile_thread(plan: Plan) -> Plan:
    """With more, Inductor compiles in processes of its own, where neither Triton's listener nor our hooks would see it."""
    workers = [dataclasses.replace(worker, env={**worker.env, COMPILE_THREADS: "1"}) for worker in plan.workers]
    return Plan(workers=tuple(workers))


def _match(job: Job, known: Manifest) -> JobEntry | None:
    """The build's entry for a job: of the same environment, else of the same workload and device in another one."""
    if job.share in known.jobs:
        return known.jobs[job.share]
    others = [entry for entry in known.jobs.values() if entry.detail.get("subject") == job.subject]
    return max(others, key=lambda entry: entry.built_at, default=None)


def _only_jobs(plan: Plan, wanted: Sequence[str]) -> Plan:
    workers = [
        dataclasses.replace(worker, jobs=tuple(job for job in worker.jobs if job.id in wanted)) for worker in plan.workers
    ]
    return Plan(workers=tuple(worker for worker in workers if worker.jobs))


def _not_built(job: Job, known: Manifest) -> JobVerdict:
    return JobVerdict(job=job, outcome=Outcome.NOT_RUN, reasons=(never_built(job, known),), record=None)


def _none_run(plan: Plan, reasons: Sequence[Reason], outcome: Outcome) -> Verdict:
    """A verdict without any job's evidence; the reasons are of the run, the jobs have none of their own."""
    assert reasons, "a verdict without evidence needs a reason"
    jobs = [JobVerdict(job=job, outcome=outcome, reasons=(), record=None) for job in plan.jobs]
    return conclude(jobs, reasons, best=Kind.UNKNOWN)


def _not_proven(message: str) -> Reason:
    return Reason(code=Code.NOT_PROVEN, message=message, hint="run flexwarm verify without --fast once")


def corrupt(message: str) -> Reason:
    """A file that is not what a build wrote."""
    return Reason(code=Code.CORRUPT_FILE, message=message, hint="flexwarm build --rebuild")


def fault_reason(fault: Fault) -> Reason:
    """A difference between the bucket and its manifest."""
    if fault.kind is FaultKind.UNLISTED_IN_KEY:
        # torch adds entries to a key that it has; a launch that compiled may have done so.
        return Reason(
            code=Code.DISK_CHANGED,
            message=f"{fault.path} was put beside the entry of a build, and torch would load it",
            hint="flexwarm build removes it",
        )
    return corrupt(f"{fault.path} is not what was built: {fault.kind.value}")


def _cold_seconds(known: Manifest | None, job: Job) -> float | None:
    entry = _match(job, known) if known else None
    return entry.cold_seconds if entry else None


def _remember(prepared: Prepared, read: str, state: str, record: Record, now: Mapping[str, str], watcher: Watcher) -> None:
    """Keep the proof for ``--fast``, and the use for ``clean``; a store that can only be read keeps neither.

    Args:
        read: digest of the manifest that was judged; a proof of another one would be false.
        state: of the bucket's files before the jobs ran.
        now: under what it was proven, as :func:`flexwarm.ops.prepare.context` says it.
    """
    bucket = prepared.bucket
    earlier = proof.load(bucket)
    jobs = dict(earlier.jobs) if earlier is not None and earlier.state == state else {}
    for job in prepared.plan.jobs:
        sources = record.jobs[job.id].sources
        jobs[proof.job_name(job.share, job.id)] = JobProof(context=now, files=sources.files if sources else {})
    try:
        if proof.manifest_digest(bucket) != read:
            watcher.notify("another process wrote the bucket's manifest meanwhile; the proof is not kept for --fast")
            return
        proof.save(bucket, Proof(manifest=read, state=state, jobs=jobs))
        ledger.append(bucket, {"command": "verify", "verdict": Kind.WARM.value, "exit_code": int(ExitCode.OK)})
    except StoreError as error:
        watcher.notify(f"the proof is not kept for --fast: {error.message}")
