"""Leases: who is using a bucket, so that `clean` leaves it alone. Many may hold one at once; each ends with its process.

A lease is a lock file of its own beside the bucket's lock, held by the process that uses the bucket, with a note of who
that is. A lease whose lock is free is nobody's, whatever its note says.

The order that keeps a run and a `clean` from missing each other rests on one more lock, the gate:

    a run:      gate taken -> lease made and locked -> gate let go -> the caller sees whether the bucket is there
    a clean:    bucket's lock taken -> gate taken -> leases read -> bucket renamed away -> gate let go

Either the run had the gate first, and then `clean` sees its lease; or `clean` had it, and then the run sees that there
is no bucket. The gate is held for the time of a few file operations and not for that of a build, so a run waits for no
build and for no verification. It is taken after the bucket's lock or without it, never before it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from flexwarm import locks
from flexwarm.errors import StoreError
from flexwarm.files import list_names, make_directory, unique_suffix
from flexwarm.store import Bucket

#: How long `clean` waits for runs that are taking a lease: each takes milliseconds.
GATE_SECONDS: Final = 5.0

#: How long the lock of a new lease is tried for: nobody else holds it, but somebody may be asking whether it is held.
_OWN_SECONDS: Final = 10.0

_LOCK: Final = ".lock"
_NOTE: Final = ".json"


@contextmanager
def hold(bucket: Bucket, *, command: str, wait_seconds: float, notify: Callable[[str], None]) -> Iterator[None]:
    """Hold a lease on ``bucket`` for the length of the block. Look at the bucket inside of it: before, it may still go.

    Where the store cannot be written no lease is kept, which is told: whoever may delete the bucket cannot be stopped
    from here.

    Args:
        command: the launch line's title, for the note of who holds it.
        wait_seconds: longest wait for a `clean` that is at work on this bucket.
        notify: called with one sentence if no lease is kept, or if the wait is long enough to be noticed.

    Raises:
        BusyError: another process held the gate for longer.
        UnsupportedError: the filesystem has no working locks.
    """
    with ExitStack() as stack:
        try:
            _enter(stack, bucket, command, wait_seconds, notify)
        except StoreError as error:
            notify(f"no lease is kept, so clean may delete bucket {bucket.digest} during this run: {error.message}")
        yield


def _enter(stack: ExitStack, bucket: Bucket, command: str, wait_seconds: float, notify: Callable[[str], None]) -> None:
    make_directory(bucket.leases)
    name = unique_suffix()
    lock, note = _lock(bucket, name), _note(bucket, name)
    with locks.hold(bucket.gate, holder=bucket.gate_holder, command="run", wait_seconds=wait_seconds, notify=notify):
        _sweep(bucket)
        # The file goes while its lock is still held, and then the note: a lease that ends leaves nothing.
        stack.enter_context(
            locks.hold(lock, holder=note, command=f"run -- {command}", wait_seconds=_OWN_SECONDS, notify=notify)
        )
        stack.callback(_remove, lock)


def holders(bucket: Bucket) -> tuple[str, ...]:
    """Who holds leases of ``bucket`` at this moment, in words. Only looks: for acting on it, :func:`closed` is the way."""
    return tuple(locks.read_holder(_note(bucket, name)) for name in _names(bucket, _LOCK) if locks.is_held(_lock(bucket, name)))


@contextmanager
def closed(bucket: Bucket) -> Iterator[tuple[str, ...]]:
    """Let nobody take a lease of ``bucket`` in this block, and yield who holds one, in words.

    A run that is taking a lease and does not get done with it counts as a holder. What dead processes left is removed.

    Raises:
        StoreError, UnsupportedError: as :func:`flexwarm.locks.hold`.
    """
    make_directory(bucket.leases)
    with locks.try_hold(bucket.gate, holder=bucket.gate_holder, command="clean", wait_seconds=GATE_SECONDS) as busy:
        if busy is not None:
            yield (*holders(bucket), busy)
            return
        _sweep(bucket)
        yield holders(bucket)


def _sweep(bucket: Bucket) -> None:
    """Remove the leases that nobody holds; under the gate, so none of them is one that is just being taken."""
    for name in _names(bucket, _LOCK, _NOTE):  # a note alone is of a process that died while it put its lease away
        if not locks.is_held(_lock(bucket, name)):
            _remove(_note(bucket, name))
            _remove(_lock(bucket, name))


def _names(bucket: Bucket, *suffixes: str) -> list[str]:
    """The names of leases, held or not, that have a file with one of ``suffixes``; without the gate."""
    gate = {bucket.gate.name, bucket.gate_holder.name}
    found = [name for name in list_names(bucket.leases) if name.endswith(suffixes) and name not in gate]
    return sorted({name.rpartition(".")[0] for name in found})


def _lock(bucket: Bucket, name: str) -> Path:
    return bucket.leases / f"{name}{_LOCK}"


def _note(bucket: Bucket, name: str) -> Path:
    return bucket.leases / f"{name}{_NOTE}"


def _remove(path: Path) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass  # somebody else removed it, or it is another user's: a lease whose lock is free counts for nothing
