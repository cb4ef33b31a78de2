"""Launch the real job with the bucket's environment, under a lease, and say in the end what it compiled."""

from __future__ import annotations

import time
from collections.abc import Mapping

from flexwarm import commandline, environment, leases, ledger, manifest
from flexwarm.errors import CorruptError, StoreError
from flexwarm.launch_verdict import judge_verified_launch
from flexwarm.manifest import Manifest
from flexwarm.observation import OnMiss
from flexwarm.ops.before_launch import admit
from flexwarm.ops.launch_changes import explain_misses, why_missed
from flexwarm.ops.launch_line import (
    LaunchOptions,
    LaunchResult,
    LaunchWatcher,
    PreparedLaunch,
    expectation,
    observe,
    prepare_real_launch,
    result_of,
    with_space,
)
from flexwarm.ops.prepare import foreign_cache


def run_launch(options: LaunchOptions, environ: Mapping[str, str], watcher: LaunchWatcher, *, on_miss: OnMiss) -> LaunchResult:
    """Run the line to its own end, whatever signals come: they are passed on to it.

    Raises:
        FlexwarmError: it could not begin.
    """
    began = time.perf_counter()
    prepared = prepare_real_launch(options, environ)
    bucket = prepared.machine.bucket
    for name in environment.disabling(environ):
        watcher.notify(f"{name}={environ[name]} turns a cache off, so this launch compiles")
    foreign = foreign_cache(environ, bucket)
    if foreign is not None:
        watcher.notify(f"{foreign}={environ[foreign]} keeps compiled kernels outside of the bucket, so it is not used")
    with leases.hold(
        bucket,
        command=commandline.title(options.argv),
        wait_seconds=options.lock_wait_seconds,
        notify=watcher.notify,
    ):
        if foreign is None:
            admit(bucket, command="run", wait_seconds=options.lock_wait_seconds, notify=watcher.notify)
        known = _manifest(prepared, watcher)
        record = observe(prepared, options, environ, watcher, on_miss=on_miss, known=known, patient=True)
        expected = expectation(prepared, options, known, disk=())
        explained = explain_misses(prepared, known, record, watcher.notify)
        why = why_missed(prepared, known, record, explained) if known else {}
        verdict = with_space(bucket, judge_verified_launch(record, expected, why))
        try:
            ledger.append(bucket, {"command": "run", "verdict": verdict.kind.value, "exit_code": int(verdict.exit_code)})
        except StoreError as error:
            watcher.notify(f"the run is not in the bucket's history: {error.message}")
    return result_of(prepared, options, verdict, record, known, began, explained=explained)


def _manifest(prepared: PreparedLaunch, watcher: LaunchWatcher) -> Manifest | None:
    """What a build vouches for; a launch goes on without it, and says so."""
    bucket = prepared.machine.bucket
    try:
        known = manifest.load(bucket) if bucket.exists() else None
    except CorruptError as error:
        watcher.notify(error.message)
        return None
    if known is None:
        watcher.notify(f"nothing was built in bucket {bucket.digest}, so this launch compiles; flexwarm build -- warms it")
    return known
