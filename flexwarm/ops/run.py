"""What a run of build or verify came to, and the parts that both share."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flexwarm import launch, locks
from flexwarm.environment_difference import Compare
from flexwarm.errors import StoreError, UnsupportedError
from flexwarm.events import Event
from flexwarm.explanation import Explained
from flexwarm.files import list_names, make_directory
from flexwarm.known_faults import Applying
from flexwarm.launch import Limits, OnEvent
from flexwarm.ops.drill import DrillResult
from flexwarm.ops.prepare import Prepared
from flexwarm.plan import Plan
from flexwarm.record import Record, fold
from flexwarm.request import Backward, Conduct, Guard, Purpose, Tuning
from flexwarm.store import Bucket
from flexwarm.target import Target
from flexwarm.verdict import Verdict

#: Runs whose requests, events and logs are kept in a bucket, the newest.
RUNS_KEPT = 8
#: What a directory of a run must at least take.
_ROOM_BYTES = 64 * 1024
#: In the directory of a run, locked while it goes on.
_IN_USE = "in-use.lock"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What the user asked for, of build and of verify alike; ``root`` None is the default store.

    Attributes:
        drill: let a verification of ranks with several lanes end with the drill.
        target: GPUs that are not here.
        tuning: what a verification does where a GPU is to choose between a kernel's variants.
        keeps_proof: a verification that finds everything warm is kept for ``--fast``, and as a use of the bucket.
    """

    spec: Path
    root: Path | None
    trust_shared: bool
    limits: Limits
    lock_wait_seconds: float
    guard: Guard = Guard.REPORT
    backward: Backward = Backward.ENGINE
    drill: bool = True
    target: Target | None = None
    tuning: Tuning = Tuning.MISS
    keeps_proof: bool = True

    def conduct(self, purpose: Purpose) -> Conduct:
        """What is asked of the workers of a run for ``purpose``."""
        return Conduct(
            purpose=purpose,
            guard=self.guard,
            backward=self.backward,
            hang_seconds=self.limits.hang_seconds,
            computes=self.target is None,
            tuning=self.tuning if purpose is Purpose.VERIFY else Tuning.MISS,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Watcher:
    """How an operation tells what goes on; it prints nothing itself.

    Attributes:
        on_plan: the plan, before the first worker starts; and what is done with it, where that is not the command's own.
        on_event: each event, with its rank.
        notify: one line for people, such as what is waited for.
    """

    on_plan: Callable[[Plan, str], None]
    on_event: OnEvent
    notify: Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """What build and verify return.

    Attributes:
        cold_seconds: job id -> seconds of its first calls when it was compiled, as the manifest knows it.
        seconds: of the whole operation.
        published: the bucket's manifest was written.
        bucket_bytes, bucket_files: of the manifest's files; None without a manifest.
        remedy: as :attr:`flexwarm.request.Conduct.remedy`.
        tuning: as :attr:`flexwarm.request.Conduct.tuning`, of a verification.
        tuning_left: a warm verdict is of a launch that has kernels to tune.
        drill: what became of the drill; None for a build.
        target: GPUs that were not there, as :attr:`flexwarm.target.Target.title`; None where all were.
        built_for: of the bucket's jobs that were built without their GPU: which, where, by whom and from what.
        notes: what is to be known beside the reasons.
        explained: job id -> the keys that it missed, with what they are nearest to.
        faults: of the installed versions, those that matter for this launch, or may; nothing is decided by them.
        environment: of a verification, what of it is not as it was at the build.
    """

    verdict: Verdict
    bucket: str
    bucket_path: str
    plan: Plan
    record: Record | None
    cold_seconds: Mapping[str, float]
    seconds: float
    published: bool = False
    fast: bool = False
    bucket_bytes: int | None = None
    bucket_files: int | None = None
    remedy: str = Guard.REPORT.value
    tuning: Tuning = Tuning.MISS
    tuning_left: bool = False
    drill: DrillResult | None = None
    target: str | None = None
    built_for: Sequence[Mapping[str, Any]] = ()
    notes: Sequence[str] = ()
    explained: Mapping[str, Sequence[Explained]] = field(default_factory=dict)
    faults: Sequence[Applying] = ()
    environment: Sequence[Compare] = ()


def run_workers(
    prepared: Prepared,
    plan: Plan,
    *,
    conduct: Conduct,
    environ: Mapping[str, str],
    limits: Limits,
    watcher: Watcher,
    run_id: str,
    before_jobs: Callable[[], bool] | None = None,
) -> Record:
    """Run a plan's workers and fold what they said."""
    watcher.on_plan(plan, "")
    with run_directory(prepared.bucket, run_id) as directory:
        environ = {**environ, **prepared.child_variables(environ)}
        return run_in(directory, plan, conduct, environ, limits, watcher, before_jobs)


def run_in(
    directory: Path,
    plan: Plan,
    conduct: Conduct,
    environ: Mapping[str, str],
    limits: Limits,
    watcher: Watcher,
    before_jobs: Callable[[], bool] | None = None,
) -> Record:
    """The same in a directory that is there."""
    events: dict[int, list[Event]] = {}

    def on_event(rank: int, event: Event) -> None:
        events.setdefault(rank, []).append(event)
        watcher.on_event(rank, event)

    run = launch.run_plan(
        plan,
        conduct=conduct,
        environ=environ,
        directory=directory,
        limits=limits,
        on_event=on_event,
        before_jobs=before_jobs,
    )
    return fold(plan, run.events, run.exits)


@contextmanager
def run_directory(bucket: Bucket, name: str) -> Iterator[Path]:
    """A new directory for one run, in the bucket; elsewhere when that can only be read, or takes no more.

    The oldest ones go, but none whose run goes on: a launch may take days, and with a store that many nodes share there are
    more runs at once than are kept.
    """
    with ExitStack() as stack:
        try:
            make_directory(bucket.runs)
            for old in sorted(list_names(bucket.runs))[: -RUNS_KEPT + 1]:
                if not locks.is_held(bucket.runs / old / _IN_USE):
                    shutil.rmtree(bucket.runs / old, ignore_errors=True)  # only logs: one that cannot go stays
            directory = bucket.runs / name
            directory.mkdir()
            _require_room(directory)
            stack.enter_context(locks.mark_held(directory / _IN_USE))
        except (OSError, StoreError, UnsupportedError):
            directory = Path(tempfile.mkdtemp(prefix="flexwarm-")) / name
            directory.mkdir()
        yield directory


def _require_room(directory: Path) -> None:
    """Where not even this can be written, a run cannot be told what to do, nor say what it did.

    Raises:
        OSError: so it is; nothing is left there.
    """
    probe = directory / "room"
    try:
        probe.write_bytes(b"\0" * _ROOM_BYTES)
        probe.unlink()
    except OSError:
        shutil.rmtree(directory, ignore_errors=True)
        raise
