"""What every build does around its compiling: make the bucket ready, mark it, and know whether it is still the same one."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterable, Set

from flexwarm import canonical, inventory, ledger, manifest, reaper
from flexwarm.errors import CorruptError, ExitCode, StoreError
from flexwarm.files import sync_directory, write_atomic
from flexwarm.hazards import HazardCode
from flexwarm.inventory import FaultKind
from flexwarm.manifest import Manifest
from flexwarm.ops.prepare import Machine
from flexwarm.reasons import Code, Kind, Reason
from flexwarm.store import Bucket

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
