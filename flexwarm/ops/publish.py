"""What every build does around its compiling: make the bucket ready, mark it, and know whether it is still the same one."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Set
from contextlib import contextmanager
from typing import Any, Final

from flexwarm import canonical, inventory, ledger, manifest, reaper
from flexwarm.errors import CorruptError, ExitCode, StoreError, UsageError
from flexwarm.events import Untuned
from flexwarm.files import sync_directory, write_atomic
from flexwarm.hazards import HazardCode
from flexwarm.inventory import FaultKind
from flexwarm.manifest import JobEntry, Manifest
from flexwarm.ops.prepare import Machine
from flexwarm.reasons import Code, Kind, Reason
from flexwarm.store import Bucket
from flexwarm.target import Target
from flexwarm.toolchain import profiles

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
        _end_what_still_runs(bucket)
        # A compiler that was killed may have left half a file under its final name, where torch would load it.
        _sweep(bucket, {entry.path for entry in known.files} if known else set(), notify)
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


def _sweep(bucket: Bucket, listed: Set[str], notify: Notify) -> None:
    swept = inventory.sweep(bucket, listed)
    if swept:
        notify(f"removed {swept} files that no finished build had listed")


def _end_what_still_runs(bucket: Bucket) -> None:
    """A build that was killed has let go of its lock, but for a moment its compilers may still be writing."""
    try:
        data = json.loads(bucket.building.read_bytes())
        run, host = str(data["run"]), data["host"]
    except (OSError, ValueError, KeyError, TypeError):
        return  # no marker, or one that names no run
    if host == socket.gethostname():
        reaper.kill_run(run)


def mark_building(bucket: Bucket, run: str, *, joinable: bool = False) -> None:
    """Say that a build is under way. ``joinable``: see :mod:`flexwarm.ops.joining`."""
    data = {
        "run": run,
        "joinable": joinable,
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
    """Kernels between whose variants a launch on the GPU will have to choose, as a manifest has them; nothing for none."""
    names = sorted({event.kernel for event in events})
    return {"untuned": names} if names else {}


#: What torch and Triton keep of times, and of choices by them.
_TIMES: Final = (".best_config", ".autotune.json", ".kernel_perf", ".picked_kernel")


def drop_times(bucket: Bucket) -> None:
    """A GPU that is not there has no times: what was measured on it must reach nobody."""
    for tree in (bucket.inductor, bucket.triton):
        for path in tree.rglob("*"):
            # Inductor keeps those of matrix products in files without an ending.
            if path.is_file() and (path.name.endswith(_TIMES) or path.parent == bucket.inductor / "cache"):
                path.unlink()


#: In the detail of a job: for which GPUs it was built that were not there.
BUILT_FOR: Final = "built_for"


def built_for(target: Target | None) -> dict[str, Any]:
    """What a manifest says of a job that was built without its GPU; nothing for one that was built with it."""
    return {BUILT_FOR: {"name": target.profile.name, "shape": target.profile.shape}} if target is not None else {}


def other_shapes(jobs: Iterable[JobEntry]) -> list[Reason]:
    """Jobs that were built without the GPU, for one of another size than is here: nothing of that is in a key."""
    wanted = [job.detail[BUILT_FOR] for job in jobs if BUILT_FOR in job.detail]
    if not wanted:
        return []
    reasons = []
    for here in profiles.ask_driver():
        for asked in wanted:
            differing = [name for name, value in asked["shape"].items() if here.get(name, value) != value]
            if differing:
                name = differing[0]
                message = f"built for {asked['name']} with {name} {asked['shape'][name]}, and the GPU here has {here[name]}"
                hint = "flexwarm fingerprint --profile -o FILE here, and build for that file in another store"
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
    """What a build for a GPU that is not there leaves and does not vouch for goes at once: a launch there would take it."""
    try:
        yield
    finally:
        if target is not None and bucket.building.exists():
            inventory.sweep(bucket, {entry.path for entry in known.files} if known else set())


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
