"""Warm a bucket with the job itself: run the launch line, let it compile into the bucket, and publish what it stored."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence, Set
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Final

from flexwarm import __version__, canonical, entries, inventory, launch, locks, manifest
from flexwarm.errors import ExitCode, Interrupted
from flexwarm.key_parts import Key
from flexwarm.launch_verdict import LaunchVerdict, judge_built_launch
from flexwarm.manifest import JobEntry, KeyEntry, Manifest
from flexwarm.observation import OnMiss
from flexwarm.ops import explaining, joining, publish, surroundings
from flexwarm.ops.build import refuse_disabled_caches, refuse_foreign_cache
from flexwarm.ops.launch_line import (
    LaunchOptions,
    LaunchResult,
    LaunchWatcher,
    PreparedLaunch,
    expectation,
    observe,
    prepare_launch,
    result_of,
)
from flexwarm.programs import LaunchRecord, ProgramRecord, is_rank
from flexwarm.reasons import Kind, Reason, weigh

#: How long one try for the bucket's lock takes, before it is looked again whether its holder can be joined.
_TURN_SECONDS: Final = 0.2


def build_launch(options: LaunchOptions, environ: Mapping[str, str], watcher: LaunchWatcher, *, rebuild: bool) -> LaunchResult:
    """Run the line and keep what it compiled.

    Args:
        rebuild: put a corrupt bucket into quarantine and start anew, instead of refusing it.

    Raises:
        FlexwarmError: it could not begin. A command that fails is in the result, not raised.
        Interrupted: a signal asked for the end; the command was ended with it.
    """
    began = time.perf_counter()
    refuse_disabled_caches(environ)
    prepared = prepare_launch(options, environ, create=True)
    bucket = prepared.machine.bucket
    refuse_foreign_cache(environ, bucket)
    build = _Build(prepared, options, environ, watcher, began)
    began_waiting = time.monotonic()
    told = False
    while True:
        # In turns: a builder that holds the lock cannot be joined before it has marked the bucket, and its ranks may already
        # wait for ours.
        result = build.join() or build.lead(rebuild=rebuild)
        if result is not None:
            return result
        waited = time.monotonic() - began_waiting
        if waited > options.lock_wait_seconds:
            raise locks.busy(bucket.lock, bucket.holder, options.lock_wait_seconds)
        if not told and waited > locks.QUIET_SECONDS:
            watcher.notify(f"waiting up to {options.lock_wait_seconds:g} s for {locks.read_holder(bucket.holder)}")
            told = True


class _Build:
    """One build of a launch line, which leads or joins: see :mod:`flexwarm.ops.joining`."""

    def __init__(
        self,
        prepared: PreparedLaunch,
        options: LaunchOptions,
        environ: Mapping[str, str],
        watcher: LaunchWatcher,
        began: float,
    ) -> None:
        self._prepared, self._options, self._environ, self._watcher = prepared, options, environ, watcher
        self._began = began
        self._bucket = prepared.machine.bucket
        self._id = launch.new_run_id()

    def join(self) -> LaunchResult | None:
        """Beside the builder that holds the bucket's lock; None if there is none that can be joined."""
        if self._options.target is not None:
            return None  # what is published with others' would be theirs
        with joining.joined(self._bucket, self._id) as builder:
            if builder is None:
                return None
            self._watcher.notify("another build of a launch line is under way in this bucket: this one joins it")
            before = manifest.load(self._bucket)
            record, verdict = _run(self._prepared, self._options, self._environ, self._watcher, before)
            part = _part(self._prepared, record, verdict, self._environ)
            explaining.keep(self._bucket, _made(record), self._watcher.notify)  # the builder forgets what it does not publish
            joining.leave(self._bucket, builder, self._id, part)
        # The builder's end, in which it has published what was left to it.
        with self._lock(self._bucket.lock, self._bucket.holder):
            known = manifest.load(self._bucket)
        missing = joining.unpublished(part.entries, known.jobs if known else {})
        verdict = _with_reasons(verdict, missing, self._prepared)
        published = not missing and not part.failed
        return result_of(self._prepared, self._options, verdict, record, known, self._began, published=published)

    def lead(self, *, rebuild: bool) -> LaunchResult | None:
        """With the bucket's lock; None if somebody else has it."""
        bucket, prepared, notify = self._bucket, self._prepared, self._watcher.notify
        with locks.try_hold(bucket.lock, holder=bucket.holder, command="build", wait_seconds=_TURN_SECONDS) as busy:
            if busy is not None:
                return None
            known = publish.open_bucket(prepared.machine, rebuild, notify)
            publish.refuse_mixed(bucket, known, self._options.target)
            joining.forget(bucket)
            publish.begin(bucket, self._id, joinable=self._options.target is None, target=self._options.target)
            with publish.swept_unless_published(bucket, known, self._options.target):
                before = inventory.snapshot(bucket)
                record, verdict = _run(prepared, self._options, self._environ, self._watcher, known)
                # Whoever came now would wait for ranks that have ended.
                publish.mark_building(bucket, self._id, target=self._options.target)
                with self._lock(bucket.join_lock, bucket.join_holder):
                    parts, failures = joining.collect(bucket, self._id)
                    written = bool(inventory.changed(before, inventory.snapshot(bucket)))
                    verdict = _with_reasons(verdict, failures, prepared)
                    if written and verdict.kind is Kind.WARM:
                        verdict = replace(verdict, kind=Kind.BUILT)
                    current = known
                    if publish.is_whole(_every(verdict)):
                        publish.require_marker(bucket, self._id)
                        if self._options.target is not None:
                            publish.drop_times(bucket)
                        current = _publish(prepared, [_part(prepared, record, verdict, self._environ), *parts], known, written)
                        bucket.building.unlink()  # after any other end it stays, or what this build left is swept with it
                        explaining.keep(bucket, _made(record), notify, only=current)
            publish.keep_ledger(bucket, verdict.kind, verdict.exit_code, notify)
        return result_of(prepared, self._options, verdict, record, current, self._began, published=current is not known)

    def _lock(self, lock: Path, holder: Path) -> AbstractContextManager[None]:
        wait_seconds = self._options.lock_wait_seconds
        return locks.hold(lock, holder=holder, command="build", wait_seconds=wait_seconds, notify=self._watcher.notify)


def _run(
    prepared: PreparedLaunch,
    options: LaunchOptions,
    environ: Mapping[str, str],
    watcher: LaunchWatcher,
    known: Manifest | None,
) -> tuple[LaunchRecord, LaunchVerdict]:
    """Run the line, and judge it by what the bucket has in the end."""
    record = observe(prepared, options, environ, watcher, on_miss=OnMiss.ALLOW, known=known)
    if record.signum is not None:
        raise Interrupted(record.signum)
    expected = expectation(prepared, options, None, disk=())
    return record, judge_built_launch(record, expected, entries.stored_keys(prepared.machine.bucket))


def _made(record: LaunchRecord) -> list[Key]:
    return [key for program in record.judged for key in program.missed_keys]


def _every(verdict: LaunchVerdict) -> list[Reason]:
    return [*verdict.reasons, *(reason for program in verdict.programs for reason in program.reasons)]


def _with_reasons(verdict: LaunchVerdict, more: Sequence[Reason], prepared: PreparedLaunch) -> LaunchVerdict:
    """A verdict with what else speaks against it: others' failures, and a disk that is full where something failed."""
    if more or verdict.exit_code is not ExitCode.OK:
        full = publish.no_space(prepared.machine.bucket)
        more = [*([full] if full else []), *more]
    reasons = (*more, *verdict.reasons)
    kind, exit_code = weigh([*more, *_every(verdict)], best=verdict.kind)
    return replace(verdict, kind=kind, exit_code=exit_code, reasons=reasons)


def _part(prepared: PreparedLaunch, record: LaunchRecord, verdict: LaunchVerdict, environ: Mapping[str, str]) -> joining.Part:
    """What this build recorded; or why none of it may be published."""
    bad = [reason for reason in _every(verdict) if not publish.is_whole([reason])]
    if bad:
        return joining.Part(failed=bad[0].message)
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    stored = entries.stored_keys(prepared.machine.bucket)
    merged: dict[str, JobEntry] = {}
    for program in record.judged:
        if program.keys:
            entry = surroundings.named(
                _entry(prepared, program, now, stored), surroundings.of_program(prepared.machine, program, environ)
            )
            merged[entry.share] = _merged(merged.get(entry.share), entry)
    settings = [program.settings for program in record.judged if program.settings is not None]
    found = [surroundings.of_program(prepared.machine, program, environ) for program in record.judged]
    kept = surroundings.kept(None, merged.values(), found)
    return joining.Part(
        entries=tuple(merged.values()),
        configs={x.config_digest: x.config for x in settings},
        variables=kept.variables,
        modes=kept.modes,
    )


def _publish(prepared: PreparedLaunch, parts: Sequence[joining.Part], known: Manifest | None, written: bool) -> Manifest:
    """Write the manifest, unless the bucket's says all this already: a warm build changes nothing."""
    jobs = dict(known.jobs) if known else {}
    configs = dict(known.configs) if known else {}
    for part in parts:
        configs.update(part.configs)
        for entry in part.entries:
            old = jobs.get(entry.share)
            entry = publish.keep_origin(old, entry)
            same = old is not None and old.keys == entry.keys and old.detail == entry.detail and not written
            jobs[entry.share] = old if same and old is not None else entry
    jobs = retired(jobs, prepared.digest, {entry.detail["program"] for part in parts for entry in part.entries})
    if known is not None and not written and jobs == dict(known.jobs):
        return known
    kept = surroundings.kept(known, jobs.values(), parts=parts)
    published = Manifest(
        fingerprint=prepared.machine.bucket.digest,
        created_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        flexwarm_version=__version__,
        files=inventory.scan(prepared.machine.bucket),
        jobs=jobs,
        configs={digest: config for digest, config in configs.items() if any(j.config_digest == digest for j in jobs.values())},
        variables=kept.variables,
        modes=kept.modes,
    )
    manifest.save(prepared.machine.bucket, published)
    return published


def retired(jobs: Mapping[str, JobEntry], line: str, recorded: Set[str]) -> dict[str, JobEntry]:
    """Of programs that the line starts no more: what they stored stays vouched for, and nobody has to ask for it again.

    Args:
        line: digest of the line that was built.
        recorded: the programs that made calls in this build. Ranks that are not among them may be on other nodes.
    """
    kept = {}
    for share, job in jobs.items():
        gone = job.detail.get("line") == line and not is_rank(job.detail["program"]) and job.detail["program"] not in recorded
        kept[share] = replace(job, detail={**job.detail, "line": ""}) if gone else job
    return kept


def _entry(prepared: PreparedLaunch, program: ProgramRecord, now: str, stored: Set[tuple[str, str]]) -> JobEntry:
    subject = canonical.digest({"line": prepared.digest, "program": program.identity})
    env = dict(program.program.environ)
    calls = {signature: call.called for signature, call in program.signatures.items()}
    return JobEntry(
        share=canonical.digest({"subject": subject, "env": env}),
        workload=program.identity,
        detail={
            "subject": subject,
            "line": prepared.digest,
            "argv": list(prepared.line.argv),
            "program": program.identity,
            "devices": sorted(program.devices),
            "calls": dict(sorted(calls.items())),
            "files": dict(program.files),
            **publish.untuned(program.untuned),
            **publish.built_for(prepared.machine.target),
        },
        # What is not stored was left to the GPU: see `publish.is_whole`.
        keys=tuple(KeyEntry(layer=layer, key=key) for layer, key in sorted(program.keys & stored)),
        env=env,
        config_digest=program.settings.config_digest if program.settings else "",
        cold_seconds=round(program.seconds, 3) if program.compiled else None,
        built_at=now,
    )


def _merged(known: JobEntry | None, entry: JobEntry) -> JobEntry:
    """Programs that cannot be told apart, such as workers that a program spawned without ranks, are one entry."""
    if known is None:
        return entry
    keys = {(key.layer, key.key): key for key in (*known.keys, *entry.keys)}
    calls = {**known.detail["calls"], **entry.detail["calls"]}
    devices = sorted({*known.detail["devices"], *entry.detail["devices"]})
    detail = {**entry.detail, "calls": calls, "devices": devices}
    for name in publish.LEFT_OPEN:
        if kernels := sorted({*known.detail.get(name, ()), *entry.detail.get(name, ())}):
            detail[name] = kernels
    return JobEntry(
        share=entry.share,
        workload=entry.workload,
        detail=detail,
        keys=tuple(keys[name] for name in sorted(keys)),
        env=entry.env,
        config_digest=entry.config_digest,
        cold_seconds=max(filter(None, (known.cold_seconds, entry.cold_seconds)), default=None),
        built_at=entry.built_at,
        variables_digest=entry.variables_digest,
        modes_digest=entry.modes_digest,
    )
