"""Compile what is cold, once, and publish it: the manifest is written last and only when every job succeeded."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Mapping, Set
from datetime import datetime, timezone

from flexwarm import __version__, canonical, entries, environment, inventory, launch, ledger, locks, manifest, reaper
from flexwarm.errors import CorruptError, ExitCode, StoreError, UsageError
from flexwarm.files import sync_directory, write_atomic
from flexwarm.hazards import HazardCode
from flexwarm.inventory import FaultKind
from flexwarm.manifest import JobEntry, KeyEntry, Manifest
from flexwarm.ops.prepare import Prepared, foreign_cache, prepare, worker_components
from flexwarm.ops.run import RunOptions, RunResult, Watcher, run_workers
from flexwarm.reasons import Code, Reason
from flexwarm.record import JobRecord, Record
from flexwarm.request import Purpose
from flexwarm.store import Bucket
from flexwarm.verdict import Verdict, conclude, judge_build

#: With less than this free, a build that failed may well have failed for that.
SPACE_BYTES = 1_000_000


def prepare_build(options: RunOptions, environ: Mapping[str, str], *, create: bool = True) -> Prepared:
    """Check everything and plan; ``--dry-run`` ends here, and does not ``create`` the store.

    Raises:
        FlexwarmError: as :func:`flexwarm.ops.prepare.prepare`; also where a variable turns a cache off.
    """
    for name in environment.disabling(environ):
        raise UsageError(f"{name}={environ[name]} turns a cache off, so nothing could be stored", f"unset {name}")
    prepared = prepare(
        options.spec,
        environ=environ,
        root=options.root,
        trust_shared=options.trust_shared,
        building=True,
        create=create,
    )
    if foreign := foreign_cache(environ, prepared.bucket):
        raise UsageError(f"{foreign}={environ[foreign]} keeps compiled kernels outside of the bucket", f"unset {foreign}")
    return prepared


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
        known = _open_bucket(prepared, rebuild, watcher)
        run_id = launch.new_run_id()
        _mark_building(bucket, run_id)
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
        verdict = judge_build(record, entries.stored_keys(bucket), worker_components(prepared, conduct), written)
        if verdict.exit_code is not ExitCode.OK and (full := _no_space(bucket)):
            verdict = conclude(verdict.jobs, [full, *verdict.reasons], best=verdict.kind)
        current = known
        if _is_whole(verdict):
            _require_marker(bucket, run_id)
            current = _publish(prepared, record, known, environ, written)
            bucket.building.unlink()  # after any other end it stays, and the next build sweeps what this one left
        _keep_ledger(bucket, verdict, watcher)
    return _result(prepared, verdict, record, current, current is not known, time.perf_counter() - started, conduct.remedy)


def _is_whole(verdict: Verdict) -> bool:
    """Whether all was compiled as a launch needs it; a hazard that leaves the kernels right is no reason to lose them."""
    harmful = {HazardCode.DENSE_FALLBACK, HazardCode.RECOMPILE_LIMIT, HazardCode.COMPILE_DEADLOCK}
    harmless = {Code(hazard.value) for hazard in HazardCode if hazard not in harmful}
    reasons = [*verdict.reasons, *(reason for job in verdict.jobs for reason in job.reasons)]
    ended = all(job.record is not None and job.record.ran_to_end for job in verdict.jobs)
    return ended and all(reason.code in harmless for reason in reasons)


def _require_marker(bucket: Bucket, run: str) -> None:
    """A cache is a thing that people delete: what was deleted and made anew during the build is not what was built."""
    try:
        ours = json.loads(bucket.building.read_bytes())["run"] == run
    except (OSError, ValueError, KeyError, TypeError):
        ours = False
    if not ours:
        raise CorruptError(f"bucket {bucket.digest} was deleted or replaced during the build", "flexwarm build again")


def _keep_ledger(bucket: Bucket, verdict: Verdict, watcher: Watcher) -> None:
    try:
        ledger.append(bucket, {"command": "build", "verdict": verdict.kind.value, "exit_code": int(verdict.exit_code)})
    except StoreError as error:
        watcher.notify(f"the build is not in the bucket's history: {error.message}")


def _open_bucket(prepared: Prepared, rebuild: bool, watcher: Watcher) -> Manifest | None:
    """Make the bucket ready to compile into: whole, and without what a build that died left behind."""
    bucket = prepared.bucket
    if rebuild and bucket.exists():
        target = prepared.store.quarantine / f"{bucket.digest}.{int(time.time())}.{os.getpid()}"
        os.rename(bucket.path, target)
        sync_directory(bucket.path.parent)
        watcher.notify(f"the old bucket is in quarantine: {target}")
    known = manifest.load(bucket) if bucket.exists() else None
    bucket.create()
    if bucket.building.exists() or known is None:
        _end_what_still_runs(bucket)
        # A compiler that was killed may have left half a file under its final name, where torch would load it.
        _sweep(bucket, {entry.path for entry in known.files} if known else set(), watcher)
    if known is None:  # an earlier one was vouched for by no manifest
        write_atomic(bucket.fingerprint, canonical.text(prepared.fingerprint.to_json()).encode() + b"\n")
        return None
    faults = inventory.check(bucket, known, deep=True)
    extra = {fault.path for fault in faults if fault.kind is FaultKind.UNLISTED_IN_KEY}
    for path in sorted(extra):
        # A launch may have added an entry to a key that a build had made. Nothing vouches for it.
        (bucket.path / path).unlink()
        watcher.notify(f"removed {path}, which no build had made")
    damaged = [fault for fault in faults if fault.path not in extra]
    if damaged:
        told = ", ".join(f"{fault.path} ({fault.kind.value})" for fault in damaged[:3])
        more = f" and {len(damaged) - 3} more" if len(damaged) > 3 else ""
        raise CorruptError(
            f"bucket {bucket.digest} is not what was built: {told}{more}",
            "flexwarm build --rebuild puts it into quarantine and builds anew",
        )
    return known


def _sweep(bucket: Bucket, listed: Set[str], watcher: Watcher) -> None:
    swept = inventory.sweep(bucket, listed)
    if swept:
        watcher.notify(f"removed {swept} files that no finished build had listed")


def _end_what_still_runs(bucket: Bucket) -> None:
    """A build that was killed has let go of its lock, but for a moment its compilers may still be writing."""
    try:
        data = json.loads(bucket.building.read_bytes())
        run, host = str(data["run"]), data["host"]
    except (OSError, ValueError, KeyError, TypeError):
        return  # no marker, or one that names no run
    if host == socket.gethostname():
        reaper.kill_run(run)


def _no_space(bucket: Bucket) -> Reason | None:
    """A compiler that found the disk full says only that it failed."""
    room = os.statvfs(bucket.path)
    if room.f_bavail * room.f_frsize >= SPACE_BYTES and (room.f_favail > 0 or room.f_files == 0):
        return None
    return Reason(
        code=Code.NO_SPACE,
        message=f"{bucket.root} is on a disk with {room.f_bavail * room.f_frsize // 1000} kB and {room.f_favail} inodes left",
        hint="flexwarm clean --max-size SIZE, or another store with --store DIR",
    )


def _mark_building(bucket: Bucket, run: str) -> None:
    data = {"run": run, "pid": os.getpid(), "host": socket.gethostname(), "since_unix": round(time.time(), 3)}
    write_atomic(bucket.building, json.dumps(data).encode() + b"\n")


def _publish(prepared: Prepared, record: Record, known: Manifest | None, environ: Mapping[str, str], written: bool) -> Manifest:
    """Write the manifest, unless the bucket's says all this already: a warm build changes nothing."""
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    jobs = dict(known.jobs) if known else {}
    for job_record in record.jobs.values():
        if job_record.job.leader is None:
            entry = _job_entry(prepared, job_record, record, jobs.get(job_record.job.share), environ, now)
            jobs[entry.share] = entry
    configs = dict(known.configs) if known else {}
    configs.update(record.settings_of(job) for job in prepared.plan.jobs)
    if known is not None and not written and jobs == dict(known.jobs):
        return known
    published = Manifest(
        fingerprint=prepared.bucket.digest,
        created_at=now,
        flexwarm_version=__version__,
        files=inventory.scan(prepared.bucket),
        jobs=jobs,
        configs={digest: config for digest, config in configs.items() if any(j.config_digest == digest for j in jobs.values())},
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
) -> JobEntry:
    job = job_record.job
    worker = next(worker for worker in prepared.plan.workers if worker.rank == job.rank)
    # Lanes of the same device share what one of them compiled; which one that was may differ from run to run.
    lanes = [lane for lane in record.round_of(job) if lane.job.share == job.share]
    compiled = any(lane.compiled for lane in lanes)
    asked = frozenset().union(*(lane.keys for lane in lanes))
    keys = tuple(KeyEntry(layer=layer, key=key) for layer, key in sorted(asked))
    env = environment.key_variables({**environ, **worker.env})
    hit_throughout = known is not None and not compiled and known.keys == keys
    return JobEntry(
        share=job.share,
        workload=job.workload.name,
        detail={
            "subject": job.subject,
            "device": job.device,
            "workload": job.workload.subject(),
            "sources": {name: source.sha256 for name, source in prepared.sources_of(job).items()},
        },
        keys=keys,
        env=env,
        config_digest=record.settings_of(job)[0],
        cold_seconds=job_record.first_seconds if compiled else (known.cold_seconds if known else None),
        built_at=known.built_at if known is not None and hit_throughout else now,
    )


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
        remedy=remedy,
    )
