"""Prove with the job itself that a launch compiles nothing: it is held at the first thing that the bucket does not have."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from flexwarm import inventory, ledger, locks, manifest
from flexwarm.errors import CorruptError, ExitCode, Interrupted, StoreError
from flexwarm.explanation import Explained
from flexwarm.launch_verdict import LaunchVerdict, judge_verified_launch
from flexwarm.manifest import Manifest
from flexwarm.observation import OnMiss
from flexwarm.ops import before_launch, publish
from flexwarm.ops.differences import no_bucket
from flexwarm.ops.launch_changes import environment_of, explain_misses, why_missed
from flexwarm.ops.launch_line import (
    BUILD,
    LaunchOptions,
    LaunchResult,
    LaunchWatcher,
    PreparedLaunch,
    expectation,
    observe,
    observe_outside,
    prepare_launch,
    result_of,
    with_space,
)
from flexwarm.ops.verify import corrupt, disabled_caches, fault_reason
from flexwarm.programs import LaunchRecord
from flexwarm.reasons import Kind, Reason, weigh


def verify_launch(options: LaunchOptions, environ: Mapping[str, str], watcher: LaunchWatcher) -> LaunchResult:
    """The verdict on the line; nothing is compiled, and nothing is written that a launch would read.

    Raises:
        FlexwarmError: it could not begin. Anything that is wrong with the bucket or the command is a verdict, not raised.
        Interrupted: a signal asked for the end; the command was ended with it.
    """
    began = time.perf_counter()
    prepared = prepare_launch(options, environ, create=False)
    verdict, record, known, explained = _decide(prepared, options, environ, watcher)
    compares = environment_of(prepared, known, record, environ)
    return result_of(prepared, options, verdict, record, known, began, explained=explained, environment=compares)


def _decide(
    prepared: PreparedLaunch, options: LaunchOptions, environ: Mapping[str, str], watcher: LaunchWatcher
) -> tuple[LaunchVerdict, LaunchRecord | None, Manifest | None, Mapping[str, Sequence[Explained]]]:
    bucket = prepared.machine.bucket
    disabled = disabled_caches(environ, bucket)
    if disabled:
        return _not_started(disabled), None, None, {}
    if not bucket.exists():
        return (*_nothing_built(prepared, options, environ, watcher, no_bucket(prepared.machine, BUILD)), {})
    # Shared: the nodes of one launch are verified at the same time, and their ranks wait for each other.
    with locks.share_if_writable(
        bucket.lock,
        holder=bucket.holder,
        command="verify",
        wait_seconds=options.lock_wait_seconds,
        notify=watcher.notify,
    ):
        try:
            known = manifest.load(bucket)
        except CorruptError as error:
            return _not_started([corrupt(error.message)]), None, None, {}
        if known is None:
            reason = before_launch.no_build_finished(bucket, BUILD)
            return (*_nothing_built(prepared, options, environ, watcher, reason), {})
        if left := before_launch.unfinished_reasons(bucket, known):
            return _not_started(left), None, known, {}
        before = inventory.snapshot(bucket)
        faults = inventory.check(bucket, known, deep=True)
        if faults:
            return _not_started([fault_reason(fault) for fault in faults]), None, known, {}
        shapes = publish.other_shapes(known.jobs.values(), options.target)
        if shapes:
            return _not_started(shapes), None, known, {}
        record = observe(prepared, options, environ, watcher, on_miss=OnMiss.FAIL, known=known)
        if record.signum is not None:
            raise Interrupted(record.signum)
        disk = [change.path for change in inventory.changed(before, inventory.snapshot(bucket))]
        expected = expectation(prepared, options, known, disk)
        explained = explain_misses(prepared, known, record, watcher.notify)
        why = why_missed(prepared, known, record, explained)
        verdict = with_space(bucket, judge_verified_launch(record, expected, why))
        if verdict.kind is Kind.WARM and options.keeps_proof:
            try:
                ledger.append(bucket, {"command": "verify", "verdict": Kind.WARM.value, "exit_code": int(ExitCode.OK)})
            except StoreError as error:
                watcher.notify(f"the verification is not in the bucket's history: {error.message}")
        return verdict, record, known, explained


def _nothing_built(
    prepared: PreparedLaunch, options: LaunchOptions, environ: Mapping[str, str], watcher: LaunchWatcher, reason: Reason
) -> tuple[LaunchVerdict, LaunchRecord | None, Manifest | None]:
    """There is nothing to verify. But where other nodes wait for the ranks of this one, they must hear why it is in vain."""
    if not prepared.line.elsewhere:
        return _not_started([reason]), None, None
    watcher.notify("nothing was built here; the launch is started all the same, for the other nodes to hear of it")
    record = observe_outside(prepared, options, environ, watcher)
    if record.signum is not None:
        raise Interrupted(record.signum)
    verdict = judge_verified_launch(record, expectation(prepared, options, None, disk=()), {})
    every = [reason, *verdict.reasons, *(other for program in verdict.programs for other in program.reasons)]
    kind, exit_code = weigh(every, best=Kind.COLD)
    return replace(verdict, kind=kind, exit_code=exit_code, reasons=(reason, *verdict.reasons)), record, None


def _not_started(reasons: Sequence[Reason]) -> LaunchVerdict:
    kind, exit_code = weigh(reasons, best=Kind.UNKNOWN)
    return LaunchVerdict(kind=kind, exit_code=exit_code, programs=(), reasons=tuple(reasons), notes=())
