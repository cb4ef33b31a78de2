"""What every build does around its compiling: make the bucket ready, mark it, and know whether it is still the same one."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Set
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

from flexwarm import __version__, canonical, inventory, leases, ledger, manifest, reaper, toolchain
from flexwarm.errors import BusyError, CorruptError, ExitCode, StoreError, UsageError
from flexwarm.events import Open, Untuned
from flexwarm.files import store_error, sync_directory, user_name, write_atomic
from flexwarm.hazards import HazardCode
from flexwarm.inventory import FaultKind
from flexwarm.launch_verdict import processor_reasons as processor_reasons_of
from flexwarm.manifest import JobEntry, Manifest
from flexwarm.ops.prepare import Machine
from flexwarm.reasons import Code, Kind, Reason
from flexwarm.record import Record
from flexwarm.store import Bucket
from flexwarm.target import Target
from flexwarm.toolchain import profiles
from flexwarm.tuning import and_more

#: With less than this free, a build that failed may well have failed for that.
SPACE_BYTES = 1_000_000

Notify = Callable[[str], None]


def open_bucket(machine: Machine, rebuild: bool, notify: Notify) -> Manifest | None:
    """Make the bucket ready to compile into: whole, and without what a build that died left behind."""
    bucket = machine.bucket
    if rebuild and bucket.exists():
        target = machine.store.quarantine / f"{bucket.digest}.{int(time.time())}.{os.getpid()}"
        os.rename(bucket.path, target)
        sync_directory(bucket.path.parent)
        notify(f"the old bucket is in quarantine: {target}")
    known = manifest.load(bucket) if bucket.exists() else None
    bucket.create()
    if bucket.building.exists() or known is None:
        end_what_still_runs(bucket)
        # A compiler that was killed may have left half a file under its final name, where torch would load it.
        _sweep(bucket, listed(known), notify)
    if known is None:  # an earlier one was vouched for by no manifest
        write_atomic(bucket.fingerprint, canonical.text(machine.fingerprint.to_json()).encode() + b"\n")
        return None
    faults = inventory.check(bucket, known, deep=True)
    extra = {fault.path for fault in faults if fault.kind is FaultKind.UNLISTED_IN_KEY}
    for path in sorted(extra):
        # A launch may have added an entry to a key that a build had made. Nothing vouches for it.
        (bucket.path / path).unlink()
        notify(f"removed {path}, which no build had made")
    damaged = [fault for fault in faults if fault.path not in extra]
    if damaged:
        told = ", ".join(f"{fault.path} ({fault.kind.value})" for fault in damaged[:3])
        more = f" and {len(damaged) - 3} more" if len(damaged) > 3 else ""
        raise CorruptError(
            f"bucket {bucket.digest} is not what was built: {told}{more}",
            "flexwarm build --rebuild puts it into quarantine and builds anew",
        )
    return known


def listed(known: Manifest | None) -> set[str]:
    """The paths that a manifest vouches for."""
    return {entry.path for entry in known.files} if known is not None else set()


def _sweep(bucket: Bucket, listed: Set[str], notify: Notify) -> None:
    swept = inventory.sweep(bucket, listed)
    if swept:
        notify(f"removed {swept} files that no finished build had listed")


def end_what_still_runs(bucket: Bucket) -> None:
    """A build that was killed has let go of its lock, but for a moment its compilers may still be writing."""
    try:
        data = json.loads(bucket.building.read_bytes())
        run, host = str(data["run"]), data["host"]
    except (OSError, ValueError, KeyError, TypeError):
        return  # no marker, or one that names no run
    if host == socket.gethostname():
        reaper.kill_run(run)


def mark_building(bucket: Bucket, run: str, *, joinable: bool = False, target: Target | None = None) -> None:
    """Say that a build is under way.

    Args:
        joinable: see :mod:`flexwarm.ops.joining`.
        target: the GPUs that it is for, if they are not here: what it leaves is no launch's.
    """
    data = {
        "run": run,
        "joinable": joinable,
        **({"target": target.title} if target is not None else {}),
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "since_unix": round(time.time(), 3),
    }
    write_atomic(bucket.building, json.dumps(data).encode() + b"\n")


def is_whole(reasons: Iterable[Reason]) -> bool:
    """Whether all was compiled as a launch needs it; a hazard that leaves the kernels right is no reason to lose them.

    Neither is another node that has another toolchain: what was compiled here is right here.
    """
    harmful = {HazardCode.DENSE_FALLBACK, HazardCode.RECOMPILE_LIMIT, HazardCode.COMPILE_DEADLOCK}
    harmless = {Code(hazard.value) for hazard in HazardCode if hazard not in harmful}
    return all(reason.code in harmless or reason.code is Code.FINGERPRINT_CHANGED for reason in reasons)


def untuned(events: Iterable[Untuned]) -> dict[str, list[str]]:
    """What a GPU that was not there has left open, as a manifest has it: kernels, and choices that decide what a graph becomes.

    Nothing for none.
    """
    events = list(events)
    left = {name: sorted({event.kernel for event in events if event.open is kind}) for name, kind in LEFT_OPEN.items()}
    return {name: kernels for name, kernels in left.items() if kernels}


#: In the detail of a job: choices of which code to make, for which the graph is not stored.
LEFT_OUT: Final = "left_out"
#: All that a detail has of this kind, and what it is of.
LEFT_OPEN: Final = {"untuned": Open.VARIANT, LEFT_OUT: Open.GRAPH}


def left_out(job: JobEntry) -> list[Reason]:
    """Why a job misses that was built without its GPU, as far as choices by time are the cause."""
    names = job.detail.get(LEFT_OUT, ())
    if not names:
        return []
    return [
        Reason(
            code=Code.UNTUNED,
            message=f"it was built without the GPU, to which choices are left that its code depends on: {and_more(names)}",
            hint="flexwarm build on the GPU, which finds the kernels to choose between compiled",
        )
    ]


def drop_times(bucket: Bucket) -> None:
    """A GPU that is not there has no times: what was measured on it must reach nobody."""
    for tree in (bucket.inductor, bucket.triton):
        for path in tree.rglob("*"):
            # Inductor keeps those of matrix products in files without an ending.
            if path.is_file() and (path.name.endswith(inventory.TIMES) or path.parent == bucket.inductor / "cache"):
                path.unlink()


#: In the detail of a job: for which GPUs it was built that were not there; and on which machine, by whom and from what.
BUILT_FOR: Final = "built_for"
BUILT_ON: Final = "built_on"


def built_for(target: Target | None) -> dict[str, Any]:
    """What a manifest says of a job that was built without its GPU; nothing for one that was built with it."""
    if target is None:
        return {}
    return {
        BUILT_FOR: {"name": target.profile.name, "shape": target.profile.shape},
        BUILT_ON: {
            "host": socket.gethostname(),
            "user": user_name(os.geteuid()),
            **toolchain.machine(),
            "flexwarm": __version__,
            "profile": target.asked,
            "measured": target.profile.measured,
        },
    }


def keep_origin(known: JobEntry | None, entry: JobEntry) -> JobEntry:
    """The entry of a job, with the origin of what lies in the bucket: who finds everything built has not built it."""
    if known is None or known.keys != entry.keys or BUILT_ON not in entry.detail:
        return entry
    detail = {name: value for name, value in entry.detail.items() if name != BUILT_ON}
    if BUILT_ON in known.detail:
        detail[BUILT_ON] = known.detail[BUILT_ON]
    return replace(entry, detail=detail)


def origins(known: Manifest | None) -> tuple[dict[str, Any], ...]:
    """Where a bucket's jobs were built that were built without their GPU: each place once, as JSON has it."""
    jobs = known.jobs.values() if known is not None else ()
    found = [
        {"gpu": job.detail[BUILT_FOR]["name"], **{name: job.detail.get(BUILT_ON, {}).get(name) for name in _ORIGIN}}
        for job in jobs
        if BUILT_FOR in job.detail
    ]
    return tuple({canonical.text(origin): origin for origin in found}.values())


#: All that is known of where a job was built.
_ORIGIN: Final = ("host", "user", "platform", "processor", "flexwarm", "profile", "measured")


def other_shapes(jobs: Iterable[JobEntry], target: Target | None = None) -> list[Reason]:
    """Jobs that were built without the GPU, for one of another size than is here: nothing of that is in a key.

    Args:
        target: what is here instead of a GPU.
    """
    wanted = [job.detail[BUILT_FOR] for job in jobs if BUILT_FOR in job.detail]
    if not wanted:
        return []
    if target is None:
        found, whose = profiles.ask_driver(), "the GPU here has"
        hint = "flexwarm fingerprint --profile -o FILE here, and build for that file in another store"
    else:
        found, whose, hint = [target.profile.shape], f"{target.asked} has", "the profile that it was built for"
    reasons = []
    for here in found:
        for asked in wanted:
            differing = [name for name, value in asked["shape"].items() if here.get(name, value) != value]
            if differing:
                name = differing[0]
                message = f"built for {asked['name']} with {name} {asked['shape'][name]}, and {whose} {here[name]}"
                reasons.append(Reason(code=Code.FINGERPRINT_CHANGED, message=message, hint=hint))
    return list(dict.fromkeys(reasons))


def refuse_mixed(bucket: Bucket, known: Manifest | None, target: Target | None) -> None:
    """What was built, or tuned, on the GPU is worth more than what can be added without it; and one bucket is for one GPU.

    Raises:
        UsageError: the bucket holds such, and the build is for a GPU that is not there; or it is for one of another size.
    """
    if known is None:
        return
    jobs = known.jobs.values()
    if target is None:
        for reason in other_shapes(jobs):
            raise UsageError(f"bucket {bucket.digest} was {reason.message}", "flexwarm build --rebuild")
        return
    if any(BUILT_FOR not in job.detail for job in jobs):
        raise UsageError(
            f"bucket {bucket.digest} has jobs that were built on the GPU, and nothing is added to it without one",
            "build on the GPU machine, or for the target in another store: --store DIR",
        )
    if any(job.detail[BUILT_FOR]["shape"] != target.profile.shape for job in jobs):
        raise UsageError(
            f"bucket {bucket.digest} was built for an {target.profile.name} of another size than {target.asked} says",
            "use the profile that it was built for, or another store: --store DIR",
        )


@contextmanager
def swept_unless_published(bucket: Bucket, known: Manifest | None, target: Target | None) -> Iterator[None]:
    """What a build for a GPU that is not there leaves and does not vouch for goes at once: a launch there would take it.

    One that is killed cannot see to it: :mod:`flexwarm.ops.before_launch` does.
    """
    try:
        yield
    finally:
        if target is not None and bucket.building.exists():
            inventory.sweep(bucket, listed(known))
            unmark(bucket)


def unmark(bucket: Bucket) -> None:
    """Nothing is left of the build that the marker tells of.

    Raises:
        StoreError: the marker cannot be removed.
    """
    try:
        bucket.building.unlink(missing_ok=True)
    except OSError as error:
        raise store_error(error, f"remove {bucket.building}") from error


def processor_reasons(machine: Machine, record: Record) -> list[Reason]:
    """As :func:`flexwarm.launch_verdict.processor_reasons`, of what the workers of a spec compiled."""
    bucket = str(machine.bucket.path) if machine.has_other_processor else ""
    return processor_reasons_of([event for job in record.jobs.values() for event in job.compiled], bucket)


def begin(bucket: Bucket, run: str, *, joinable: bool, target: Target | None) -> None:
    """Mark the bucket; for GPUs that are not here, where no launch is under way in it that would take what is not judged yet.

    A launch takes its lease before it looks at the marker, so one of the two always sees the other.

    Raises:
        BusyError: there is one.
    """
    mark_building(bucket, run, joinable=joinable, target=target)
    if target is None:
        return
    running = leases.holders(bucket)
    if running:
        unmark(bucket)
        message = (
            f"bucket {bucket.digest} is used by {running[0]}, and a build for {target.title} without a GPU may not add to it"
        )
        raise BusyError(message, "let it finish, or build in another store: --store DIR")


def require_marker(bucket: Bucket, run: str) -> None:
    """A cache is a thing that people delete: what was deleted and made anew during the build is not what was built."""
    try:
        ours = json.loads(bucket.building.read_bytes())["run"] == run
    except (OSError, ValueError, KeyError, TypeError):
        ours = False
    if not ours:
        raise CorruptError(f"bucket {bucket.digest} was deleted or replaced during the build", "flexwarm build again")


def no_space(bucket: Bucket) -> Reason | None:
    """A compiler that found the disk full says only that it failed."""
    try:
        room = os.statvfs(bucket.path)
    except OSError:
        return None  # it was deleted meanwhile, and what speaks of that is the rest
    if room.f_bavail * room.f_frsize >= SPACE_BYTES and (room.f_favail > 0 or room.f_files == 0):
        return None
    return Reason(
        code=Code.NO_SPACE,
        message=f"{bucket.root} is on a disk with {room.f_bavail * room.f_frsize // 1000} kB and {room.f_favail} inodes left",
        hint="flexwarm clean --max-size SIZE, or another store with --store DIR",
    )


def keep_ledger(bucket: Bucket, kind: Kind, exit_code: ExitCode, notify: Notify) -> None:
    try:
        ledger.append(bucket, {"command": "build", "verdict": kind.value, "exit_code": int(exit_code)})
    except StoreError as error:
        notify(f"the build is not in the bucket's history: {error.message}")
