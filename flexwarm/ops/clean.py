"""Delete buckets: look, decide without touching anything, then do exactly what was decided and no more."""

from __future__ import annotations

import dataclasses
import os
import shutil
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flexwarm import leases, ledger, locks
from flexwarm.canonical import StrEnum
from flexwarm.errors import ExitCode
from flexwarm.files import store_error, sync_directory
from flexwarm.store import Store

#: The purpose in the name of a staged tree that is on its way out.
_DELETED = "deleted"


class Action(StrEnum):
    """What becomes of a bucket; ``skip`` is what was selected and could not be had."""

    DELETE = "delete"
    KEEP = "keep"
    SKIP = "skip"


class Reason(StrEnum):
    """Why, one list for all actions."""

    ALL = "all"
    STALE = "stale"
    OLD = "older-than"
    OVER_SIZE = "max-size"
    CURRENT = "current"
    NOT_SELECTED = "not-selected"
    IN_USE = "in-use"
    LEASED = "leased"
    USED_SINCE = "used-since"
    GONE = "gone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which buckets go. Each part adds to what goes; ``max_size_bytes`` is applied to what the others leave.

    Attributes:
        current: digest of the fingerprint of here and now; with it, every other bucket is stale.
        older_than_seconds: time since the last use.
        force: take also what runs hold leases of; never what a build or a verification has locked.
    """

    everything: bool = False
    current: str | None = None
    older_than_seconds: float | None = None
    max_size_bytes: int | None = None
    force: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """One bucket as it is now.

    Attributes:
        holder: in words, who holds its lock; None if nobody does.
        leases: in words, the runs that hold leases of it.
    """

    bucket: str
    size_bytes: int
    files: int
    last_use_unix: float | None
    holder: str | None
    leases: tuple[str, ...] = ()

    @property
    def holders(self) -> tuple[str, ...]:
        """Everyone who uses it: the one with the lock first."""
        return (*(() if self.holder is None else (self.holder,)), *self.leases)

    def kept_for(self, *, force: bool) -> Reason | None:
        """Why it may not be deleted, whoever selects it; None if it may."""
        if self.holder is not None:
            return Reason.IN_USE
        return Reason.LEASED if self.leases and not force else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """A tree in no bucket: what a process that died did not finish deleting or staging, or a quarantined one."""

    path: Path
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What happens to one bucket, and why."""

    usage: Usage
    action: Action
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a clean does, or did; the least recently used bucket first."""

    steps: tuple[Step, ...]
    leftovers: tuple[Leftover, ...]

    def having(self, action: Action) -> tuple[Step, ...]:
        return tuple(step for step in self.steps if step.action is action)

    @property
    def leftovers_bytes(self) -> int:
        return sum(leftover.size_bytes for leftover in self.leftovers)

    @property
    def freed_bytes(self) -> int:
        return sum(step.usage.size_bytes for step in self.having(Action.DELETE)) + self.leftovers_bytes

    @property
    def deletes_nothing(self) -> bool:
        return not self.having(Action.DELETE) and not self.leftovers

    def to_json(self, *, dry_run: bool) -> dict[str, Any]:
        return {
            "verdict": None,
            "exit_code": int(ExitCode.OK),
            "dry_run": dry_run,
            "freed_bytes": self.freed_bytes,
            "leftovers_bytes": self.leftovers_bytes,
            "buckets": [
                {
                    "bucket": step.usage.bucket,
                    "size_bytes": step.usage.size_bytes,
                    "files": step.usage.files,
                    "last_use_unix": step.usage.last_use_unix,
                    "action": step.action.value,
                    "reason": step.reason.value,
                    "holder": step.usage.holder,
                    "leases": list(step.usage.leases),
                }
                for step in self.steps
            ],
        }


def survey(store: Store) -> tuple[Usage, ...]:
    """Every bucket of the store, with its size as the sum of its files' sizes."""
    usages = []
    for bucket in store.buckets():
        size_bytes, files = _measure(bucket.path)
        holder = locks.held_by(bucket.lock, holder=bucket.holder)
        last_use = ledger.last_use(bucket)
        if last_use is not None:  # None: another clean took it while we looked
            usages.append(
                Usage(
                    bucket=bucket.digest,
                    size_bytes=size_bytes,
                    files=files,
                    last_use_unix=last_use,
                    holder=holder,
                    leases=leases.holders(bucket),
                )
            )
    return tuple(usages)


def leftovers(store: Store, *, quarantine: bool) -> tuple[Leftover, ...]:
    """What may be swept: trees being deleted, trees staged by processes of this host that are gone, and the quarantine.

    A tree that another host staged stays: whether its process lives cannot be seen from here.
    """
    paths = [path for path in store.staged() if _is_abandoned(path.name)]
    if quarantine:
        paths += store.quarantined()
    return tuple(Leftover(path=path, size_bytes=_measure(path)[0]) for path in paths)


def decide(usages: Iterable[Usage], found: Iterable[Leftover], selection: Selection, *, now_unix: float) -> Plan:
    """Which buckets go. Pure: it is given the time, and touches nothing."""
    usages = sorted(usages, key=lambda usage: (usage.last_use_unix or 0.0, usage.bucket))
    chosen = {usage.bucket: reason for usage in usages if (reason := _reason_to_delete(usage, selection, now_unix))}
    stays = {usage.bucket: reason for usage in usages if (reason := usage.kept_for(force=selection.force))}
    if selection.max_size_bytes is not None:
        # What is in use stays whatever we choose, so it counts against the limit.
        left_bytes = sum(usage.size_bytes for usage in usages if usage.bucket not in chosen or usage.bucket in stays)
        for usage in usages:
            if left_bytes <= selection.max_size_bytes:
                break
            if usage.bucket not in chosen:
                chosen[usage.bucket] = Reason.OVER_SIZE
                left_bytes -= 0 if usage.bucket in stays else usage.size_bytes
    steps = []
    for usage in usages:
        if usage.bucket not in chosen:
            reason = Reason.CURRENT if usage.bucket == selection.current else Reason.NOT_SELECTED
            steps.append(Step(usage=usage, action=Action.KEEP, reason=reason))
        elif usage.bucket in stays:
            steps.append(Step(usage=usage, action=Action.SKIP, reason=stays[usage.bucket]))
        else:
            steps.append(Step(usage=usage, action=Action.DELETE, reason=chosen[usage.bucket]))
    return Plan(steps=tuple(steps), leftovers=tuple(found))


def _reason_to_delete(usage: Usage, selection: Selection, now_unix: float) -> Reason | None:
    if selection.everything:
        return Reason.ALL
    if selection.current is not None and usage.bucket != selection.current:
        return Reason.STALE
    if selection.older_than_seconds is not None and now_unix - (usage.last_use_unix or 0.0) > selection.older_than_seconds:
        return Reason.OLD
    return None


def execute(store: Store, plan: Plan, *, wait_seconds: float, notify: Callable[[str], None], force: bool = False) -> Plan:
    """Do what the plan says, under the store's lock and one bucket's lock at a time.

    Args:
        force: as in the selection: also delete a bucket of which a run has taken a lease since the plan was made.

    Returns:
        The plan as it turned out: a bucket that was taken or used since the plan was made is skipped, with the reason.
        One that was deleted has the leases that it was taken from.

    Raises:
        BusyError: another process held the store for longer than ``wait_seconds``.
        StoreError: a file could not be deleted; what was deleted before it stays deleted.
    """
    if plan.deletes_nothing:
        return plan
    with locks.hold(store.lock, holder=store.holder, command="clean", wait_seconds=wait_seconds, notify=notify):
        for leftover in plan.leftovers:
            _remove(leftover.path)
        steps = tuple(_delete(store, step, force) if step.action is Action.DELETE else step for step in plan.steps)
    return dataclasses.replace(plan, steps=steps)


def _delete(store: Store, step: Step, force: bool) -> Step:
    bucket = store.bucket(step.usage.bucket)
    with locks.try_hold(bucket.lock, holder=bucket.holder, command="clean") as holder:
        if holder is not None:
            usage = dataclasses.replace(step.usage, holder=holder)
            return Step(usage=usage, action=Action.SKIP, reason=Reason.IN_USE)
        # Nobody takes a lease from here until the bucket is away; see `leases` for why both locks are needed.
        with leases.closed(bucket) as held:
            step = dataclasses.replace(step, usage=dataclasses.replace(step.usage, leases=held))
            if (reason := _kept_after_all(step.usage, ledger.last_use(bucket), force)) is not None:
                return dataclasses.replace(step, action=Action.SKIP, reason=reason)
            staged = store.stage(f"{_DELETED}.{bucket.digest}")
            try:
                # After the rename there is no bucket, whatever happens: half a bucket is never seen.
                os.rename(bucket.path, staged)
                sync_directory(store.buckets_path)
            except OSError as error:
                raise store_error(error, f"delete {bucket.path}") from error
    # The locks are free again: a build may start over in the same name while the old tree is removed.
    _remove(staged)
    return step


def _kept_after_all(usage: Usage, last_use: float | None, force: bool) -> Reason | None:
    """Why a bucket that was to be deleted is not, as it is now that it is locked."""
    if last_use is None:
        return Reason.GONE
    if (reason := usage.kept_for(force=force)) is not None:
        return reason
    return Reason.USED_SINCE if last_use != usage.last_use_unix else None


def _remove(path: Path) -> None:
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)  # never what a link points at
    except FileNotFoundError:
        pass  # somebody else removed it, which is what was wanted
    except OSError as error:
        raise store_error(error, f"delete {error.filename or path}") from error


def _measure(path: Path) -> tuple[int, int]:
    """Sum of sizes in bytes, and number, of the files below ``path``; follows no link."""
    size_bytes, files = 0, 0
    pending = [str(path)]
    while pending:
        directory = pending.pop()
        try:
            with os.scandir(directory) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
                    else:
                        size_bytes += entry.stat(follow_symlinks=False).st_size
                        files += 1
        except NotADirectoryError:
            return os.lstat(path).st_size, 1
        except FileNotFoundError:
            continue  # a build or another clean is at work; sizes are for people
        except OSError as error:
            raise store_error(error, f"read {directory}") from error
    return size_bytes, files


def _is_abandoned(name: str) -> bool:
    """Whether a staged tree's name, ``purpose.host.pid.random``, is of a process that cannot come back for it."""
    if name.startswith(f"{_DELETED}."):
        return True  # nobody wants it back, and deleting it twice at once does no harm
    rest, _, _ = name.rpartition(".")
    owner, _, pid = rest.rpartition(".")
    return pid.isdecimal() and owner.endswith(f".{socket.gethostname()}") and not _is_alive(int(pid))


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True
