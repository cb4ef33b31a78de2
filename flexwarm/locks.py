"""Locks between processes whose waits are bounded and say what is waited for."""

from __future__ import annotations

import errno
import fcntl
import inspect
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

from filelock import FileLock, SoftFileLock, Timeout

from flexwarm.errors import BusyError, UnsupportedError
from flexwarm.files import store_error

#: A wait shorter than this is not worth a line on the terminal.
QUIET_SECONDS: Final = 1.0

#: Between two tries for a shared lock; as filelock does for others.
_POLL_SECONDS: Final = 0.05

#: What `flock` answers on a filesystem that has no locks, or whose lock service is down.
_NO_LOCKS: Final = frozenset({errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK})


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who holds a lock, as the holder itself wrote it down.

    Attributes:
        since_unix: when the lock was taken, in seconds since the epoch.
    """

    host: str
    pid: int
    command: str
    since_unix: float

    def __str__(self) -> str:
        since = datetime.fromtimestamp(self.since_unix, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
        return f"flexwarm {self.command} (pid {self.pid} on {self.host}, since {since})"

    @classmethod
    def from_json(cls, data: Any) -> Holder:
        """Raises:
        ValueError: the data is not a holder.
        """
        try:
            value = cls(
                host=str(data["host"]), pid=int(data["pid"]), command=str(data["command"]), since_unix=float(data["since_unix"])
            )
            str(value)  # a time out of the calendar's range is no holder either
        except (TypeError, KeyError, OverflowError, OSError) as error:
            raise ValueError("not the holder of a lock") from error
        return value


@contextmanager
def hold(lock: Path, *, holder: Path, command: str, wait_seconds: float, notify: Callable[[str], None]) -> Iterator[None]:
    """Hold ``lock``, waiting for it at most ``wait_seconds``; 0 tries once.

    Args:
        lock: its file, which is never unlinked: a waiter that has it open would lock a file that nobody else sees.
        holder: where the holder writes down who it is, for those who wait.
        command: this command's name, for that note.
        notify: called once, with one sentence, when the wait is long enough to be noticed.

    Raises:
        BusyError: it was held for longer; the message names the holder.
        UnsupportedError: the filesystem has no working locks.
        StoreError: the lock's file cannot be opened.
    """
    with _hold(_handle(lock), lock, holder, command, wait_seconds, notify):
        yield


@contextmanager
def _hold(
    handle: FileLock | _SharedLock, lock: Path, holder: Path, command: str, wait_seconds: float, notify: Callable[[str], None]
) -> Iterator[None]:
    quiet_seconds = min(wait_seconds, QUIET_SECONDS)
    if not (_acquire(handle, lock, 0) or (quiet_seconds > 0 and _acquire(handle, lock, quiet_seconds))):
        rest_seconds = wait_seconds - quiet_seconds
        if rest_seconds > 0:
            notify(f"waiting up to {wait_seconds:g} s for {read_holder(holder)}")
        if rest_seconds <= 0 or not _acquire(handle, lock, rest_seconds):
            raise busy(lock, holder, wait_seconds)
    with _held(handle, holder, command):
        yield


@contextmanager
def share(lock: Path, *, holder: Path, command: str, wait_seconds: float, notify: Callable[[str], None]) -> Iterator[None]:
    """Hold ``lock`` together with others who share it, and with nobody who holds it alone. Otherwise as :func:`hold`."""
    with _hold(_SharedLock(lock), lock, holder, command, wait_seconds, notify):
        yield


@contextmanager
def share_if_writable(
    lock: Path, *, holder: Path, command: str, wait_seconds: float, notify: Callable[[str], None]
) -> Iterator[None]:
    """:func:`share` for a command that only reads: where the lock's file cannot be written, go on without it and say so.

    Who reads a store that only others can write still learns of a change: the disk is a witness of its own.
    """
    if os.access(lock if lock.exists() else lock.parent, os.W_OK):
        with share(lock, holder=holder, command=command, wait_seconds=wait_seconds, notify=notify):
            yield
    else:
        notify(f"{lock.parent} cannot be written, so the bucket is read without its lock")
        yield


@contextmanager
def try_share(lock: Path) -> Iterator[bool]:
    """Share ``lock`` if nobody holds it alone. Yields whether we do."""
    handle = _SharedLock(lock)
    shared = _acquire(handle, lock, 0)
    try:
        yield shared
    finally:
        handle.release()


@contextmanager
def try_hold(lock: Path, *, holder: Path, command: str, wait_seconds: float = 0) -> Iterator[str | None]:
    """Hold ``lock`` if it is free, or gets free within ``wait_seconds``.

    Yields None while it is held by us, else who holds it; the caller must then leave it alone.

    Raises:
        UnsupportedError, StoreError: as :func:`hold`.
    """
    handle = _handle(lock)
    if not _acquire(handle, lock, wait_seconds):
        yield read_holder(holder)
        return
    with _held(handle, holder, command):
        yield None


def held_by(lock: Path, *, holder: Path) -> str | None:
    """Who holds ``lock`` at this moment, or None; makes no file, so it is for showing a plan, not for acting on one."""
    if not lock.exists() or not os.access(lock, os.W_OK):
        return None  # whoever shows a plan for a store that cannot be written will not act on it
    handle = _handle(lock)
    if not _acquire(handle, lock, 0):
        return read_holder(holder)
    handle.release()
    return None


def is_held(lock: Path) -> bool:
    """Whether some process holds ``lock`` at this moment; makes no file, and needs no right to write.

    It asks for a shared lock, so that two processes that ask at once do not take each other for a holder. A lock that
    cannot be asked counts as held.

    Raises:
        UnsupportedError: the filesystem has no working locks.
    """
    try:
        descriptor = os.open(lock, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _NO_LOCKS:
            raise _no_locks(lock) from error
        return True
    finally:
        os.close(descriptor)
    return False


@contextmanager
def mark_held(lock: Path) -> Iterator[None]:
    """Hold a lock file of one's own, that nobody else takes, so that :func:`is_held` says so to others.

    Raises:
        UnsupportedError: the filesystem has no working locks.
        StoreError: the file cannot be made.
    """
    handle = _handle(lock)
    if not _acquire(handle, lock, QUIET_SECONDS):
        raise UnsupportedError(f"{lock} is new and held by another process", "go on once it has ended")
    try:
        yield
    finally:
        handle.release()


def read_holder(path: Path) -> str:
    """The holder in words. A note that is missing, unreadable or half written is an ``unknown holder``, never an error."""
    try:
        return str(Holder.from_json(json.loads(path.read_bytes())))
    except (OSError, ValueError):
        return "an unknown holder"


class _SharedLock:
    """As much of filelock's interface as is used here, for a lock that many hold at once."""

    def __init__(self, lock: Path) -> None:
        self._lock = lock
        self._descriptor: int | None = None

    def acquire(self, timeout: float) -> None:
        """Raises:
        Timeout: somebody holds it alone, still.
        """
        descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        deadline = time.monotonic() + timeout
        try:
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() >= deadline:
                        raise Timeout(str(self._lock)) from None
                    time.sleep(_POLL_SECONDS)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def busy(lock: Path, holder: Path, wait_seconds: float) -> BusyError:
    """The error of a wait that was not long enough; names the holder."""
    waited = f"still, after {wait_seconds:g} s" if wait_seconds > 0 else "now"
    return BusyError(
        f"{lock} is held {waited}, by {read_holder(holder)}",
        "let it finish, or wait longer with --lock-wait SECONDS",
    )


def _handle(lock: Path) -> FileLock:
    # Options of newer filelock, asked for where they exist: never the weaker existence lock, never unlink.
    wanted = {"fallback_to_soft": False, "preserve_lock_file": True}
    known = inspect.signature(FileLock.__init__).parameters
    options: dict[str, Any] = {name: value for name, value in wanted.items() if name in known}
    return FileLock(lock, **options)


def _acquire(handle: FileLock | _SharedLock, lock: Path, timeout_seconds: float) -> bool:
    try:
        handle.acquire(timeout=timeout_seconds)
    except Timeout:  # a subclass of OSError, so it must come first
        return False
    except NotImplementedError as error:  # how filelock before 3.20 reports ENOSYS
        raise _no_locks(lock) from error
    except OSError as error:
        if error.errno in _NO_LOCKS:
            raise _no_locks(lock) from error
        raise store_error(error, f"lock {lock}") from error
    if isinstance(handle, SoftFileLock):  # a filelock without `fallback_to_soft` changed its own class
        handle.release()
        raise _no_locks(lock)
    return True


@contextmanager
def _held(handle: FileLock | _SharedLock, holder: Path, command: str) -> Iterator[None]:
    note = Holder(host=socket.gethostname(), pid=os.getpid(), command=command, since_unix=time.time())
    text = json.dumps(asdict(note))
    try:
        try:
            holder.write_text(text)
        except OSError:
            pass  # only a courtesy to those who wait; a full disk must not keep `clean` from emptying it
        try:
            yield
        finally:
            try:
                if holder.read_text() == text:  # else it is of another one that shares the lock
                    holder.unlink()
            except (OSError, ValueError):
                pass  # a stale note is overwritten by the next holder
    finally:
        handle.release()


def _no_locks(lock: Path) -> UnsupportedError:
    return UnsupportedError(
        f"{lock} is on a filesystem without working file locks ({filesystem_type(lock)})",
        "put the store on a local disk with --store DIR, or mount the filesystem with locks (Lustre: -o flock)",
    )


def filesystem_type(path: Path) -> str:
    """The kernel's name of the filesystem that holds ``path``, such as ``ext4`` or ``nfs4``; ``unknown`` off Linux."""
    try:
        mounts = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return "unknown"
    real = Path(os.path.realpath(path))
    best, kind = "", "unknown"
    for line in mounts:
        _, point, name, *_ = line.split(" ")
        point = point.replace("\\040", " ")
        if len(point) >= len(best) and real.is_relative_to(point):  # a later mount on the same point hides the earlier
            best, kind = point, name
    return kind
