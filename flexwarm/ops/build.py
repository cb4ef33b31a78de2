"""Compile what is cold, once, and publish it: the manifest is written last and only when every job succeeded."""

from __future__ import annotations

import time
from collections.abc import Mapping, Set
from datetime import datetime, timezone

from flexwarm import __version__, entries, environment, inventory, launch, locks, manifest
from flexwarm.environment_difference import Surroundings
from flexwarm.errors import ExitCode, UsageError
from flexwarm.manifest import JobEntry, KeyEntry, Manifest
from flexwarm.ops import explaining, publish, surroundings
from flexwarm.ops.prepare import Prepared, foreign_cache, prepare, worker_components
from flexwarm.ops.run import RunOptions, RunResult, Watcher, run_workers
from flexwarm.record import JobRecord, Record
from flexwarm.request import Purpose
from flexwarm.store import Bucket
from flexwarm.verdict import Verdict, conclude, judge_build, notes


def prepare_build(options: RunOptions, environ: Mapping[str, str], *, create: bool = True) -> Prepared:
    """Check everything and plan; ``--dry-run`` ends here, and does not ``create`` the store.

    Raises:
        FlexwarmError: as :func:`flexwarm.ops.prepare.prepare`; also where a variable turns a cache off.
    """
    refuse_disabled_caches(environ)
    prepared = prepare(
        options.spec,
        environ=environ,
        root=options.root,
        trust_shared=options.trust_shared,
        building=True,
        create=create,
        target=options.target,
    )
    refuse_foreign_cache(environ, prepared.bucket)
    return prepared


def refuse_disabled_caches(environ: Mapping[str, str]) -> None:
    """Raises:
    UsageError: a variable turns a cache off.
    """
    for name in environment.disabling(environ):
        raise UsageError(f"{name}={environ[name]} turns a cache off, so nothing could be stored", f"unset {name}")


def refuse_foreign_cache(environ: Mapping[str, str], bucket: Bucket) -> None:
    """Raises:
    UsageError: a variable takes the caches out of the bucket.
    """
    if foreign := foreign_cache(environ, bucket):
        raise UsageError(f"{foreign}={environ[foreign]} keeps compiled kernels outside of the bucket", f"unset {foreign}")


def build(options: RunOptions, environ: Mapping[str, str], watcher: Watcher, *, rebuild: bool) -> RunResult:
    """Build the spec into its bucket.

    Args:
        rebuild: put a corrupt bucket into quarantine and start anew, instead of refusing it.

    Raises:
        FlexwarmError: it could not begin. A job that fails is in the result, not raised.
    """
    started = time.perf_counter()
    prepared = prepare_build(options, environ)
    bucket, conduct = prepared.bucket, options.conduct(Purpose.BUILD)
    with locks.hold(
        bucket.lock,
        holder=bucket.holder,
        command="build",
        wait_seconds=options.lock_wait_seconds,
        notify=watcher.notify,
    ):
        known = publish.open_bucket(prepared, rebuild, watcher.notify)
        publish.refuse_mixed(bucket, known, prepared.target)
        run_id = launch.new_run_id()
        publish.begin(bucket, run_id, joinable=False, target=prepared.target)
        with publish.swept_unless_published(bucket, known, prepared.target):
            before = inventory.snapshot(bucket)
            record = run_workers(
                prepared,
                prepared.plan,
                conduct=conduct,
                environ=environ,
                limits=options.limits,
                watcher=watcher,
                run_id=run_id,
            )
            written = bool(inventory.changed(before, inventory.snapshot(bucket)))
            stored = entries.stored_keys(bucket)
            verdict = judge_build(record, stored, worker_components(prepared, conduct), written)
            if reasons := publish.processor_reasons(prepared, record):
                verdict = conclude(verdict.jobs, [*reasons, *verdict.reasons], best=verdict.kind)
            if verdict.exit_code is not ExitCode.OK and (full := publish.no_space(bucket)):
                verdict = conclude(verdict.jobs, [full, *verdict.reasons], best=verdict.kind)
            current = known
            if _is_whole(verdict):
                publish.require_marker(bucket, run_id)
                if prepared.target is not None:
                    publish.drop_times(bucket)
                current = _publish(prepared, record, known, environ, written, stored)
                bucket.building.unlink()  # after any other end it stays, or what this build left is swept with it
                made = [key for job in record.jobs.values() for key in job.missed_keys]
                explaining.keep(bucket, made, watcher.notify, only=current)
        publish.keep_ledger(bucket, verdict.kind, verdict.exit_code, watcher.notify)
    return _result(prepared, verdict, record, current, current is not known, time.perf_counter() - started, conduct.remedy)


def _is_whole(verdict: Verdict) -> bool:
    reasons = [*verdict.reasons, *(reason for job in verdict.jobs for reason in job.reasons)]
    return all(job.record is not None and job.record.ran_to_end for job in verdict.jobs) and publish.is_whole(reasons)


def _publish(
    prepared: Prepared,
    record: Record,
    known: Manifest | None,
    environ: Mapping[str, str],
    written: bool,
    stored: Set[tuple[str, str]],
) -> Manifest:
    """Write the manifest, unless the bucket's says all this already: a warm build changes nothing."""
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    jobs = dict(known.jobs) if known else {}
    found = {job.id: surroundings.of_job(prepared, job, record.jobs[job.id], environ) for job in prepared.plan.jobs}
    for job_record in record.jobs.values():
        if job_record.job.leader is None:
            had = found[job_record.job.id]
            entry = _job_entry(prepared, job_record, record, jobs.get(job_record.job.share), environ, now, stored, had)
            jobs[entry.share] = publish.keep_origin(jobs.get(entry.share), entry)
    configs = dict(known.configs) if known else {}
    configs.update(record.settings_of(job) for job in prepared.plan.jobs)
    if known is not None and not written and jobs == dict(known.jobs):
        return known
    kept = surroundings.kept(known, jobs.values(), found.values())
    published = Manifest(
        fingerprint=prepared.bucket.digest,
        created_at=now,
        flexwarm_version=__version__,
        files=inventory.scan(prepared.bucket),
        jobs=jobs,
        configs={digest: config for digest, config in configs.items() if any(j.config_digest == digest for j in jobs.values())},
        variables=kept.variables,
        modes=kept.modes,
    )
    manifest.save(prepared.bucket, published)
    return published


def _job_entry(
    prepared: Prepared,
    job_record: JobRecord,
    record: Record,
    known: JobEntry | None,
    environ: Mapping[str, str],
    now: str,
    stored: Set[tuple[str, str]],
    had: Surroundings,
) -> JobEntry:
    job = job_record.job
    worker = next(worker for worker in prepared.plan.workers if worker.rank == job.rank)
    # Lanes of the same device share what one of them compiled; which one that was may differ from run to run.
    lanes = [lane for lane in record.round_of(job) if lane.job.share == job.share]
    compiled = any(lane.compiled for lane in lanes)
    asked = frozenset().union(*(lane.keys for lane in lanes))
    # What is not stored was left to the GPU: see `is_whole`.
    keys = tuple(KeyEntry(layer=layer, key=key) for layer, key in sorted(asked & stored))
    env = environment.key_variables({**environ, **worker.env})
    hit_throughout = known is not None and not compiled and known.keys == keys
    entry = JobEntry(
        share=job.share,
        workload=job.workload.name,
        detail={
            "subject": job.subject,
            "device": job.device,
            "workload": job.workload.subject(),
            "sources": {name: source.sha256 for name, source in prepared.sources_of(job).items()},
            **publish.untuned(event for lane in lanes for event in lane.untuned),
            **publish.built_for(prepared.target),
        },
        keys=keys,
        env=env,
        config_digest=record.settings_of(job)[0],
        cold_seconds=job_record.first_seconds if compiled else (known.cold_seconds if known else None),
        built_at=known.built_at if known is not None and hit_throughout else now,
    )
    # Of a job that hits throughout the manifest says how it was when it was compiled.
    return surroundings.as_before(entry, known) if known is not None and hit_throughout else surroundings.named(entry, had)


def _result(
    prepared: Prepared,
    verdict: Verdict,
    record: Record,
    current: Manifest | None,
    published: bool,
    seconds: float,
    remedy: str,
) -> RunResult:
    cold = {}
    for job in prepared.plan.jobs:
        entry = current.jobs.get(job.share) if current else None
        if entry and entry.cold_seconds is not None:
            cold[job.id] = entry.cold_seconds
    return RunResult(
        verdict=verdict,
        bucket=prepared.bucket.digest,
        bucket_path=str(prepared.bucket.path),
        plan=prepared.plan,
        record=record,
        cold_seconds=cold,
        seconds=seconds,
        published=published,
        bucket_bytes=sum(entry.size_bytes for entry in current.files) if current else None,
        bucket_files=len(current.files) if current else None,
        target=prepared.target.title if prepared.target is not None else None,
        built_for=publish.origins(current),
        remedy=remedy,
        notes=notes(record),
    )
