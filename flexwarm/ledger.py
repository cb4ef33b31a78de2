"""The append-only history of a bucket: who used it, when, and with which verdict."""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Iterator, Mapping
from typing import Any

from flexwarm import canonical
from flexwarm.files import store_error
from flexwarm.store import Bucket


def append(bucket: Bucket, entry: Mapping[str, Any]) -> None:
    """Add one line to the bucket's ledger: ``entry`` with ``time_unix`` (now, unless the entry has it).

    Concurrent writers do not mix their lines: each line is one write to a file opened for appending.

    Raises:
        StoreError: the line could not be written.
    """
    line = canonical.text({"time_unix": time.time(), **entry}).encode() + b"\n"
    try:
        descriptor = os.open(bucket.ledger, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            size = os.fstat(descriptor).st_size
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                line = b"\n" + line  # a writer died in the middle of its line: do not let it spoil ours too
            if os.write(descriptor, line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # a short write to a file is a full disk
        finally:
            os.close(descriptor)
    except OSError as error:
        raise store_error(error, f"write {bucket.ledger}") from error


def entries(bucket: Bucket) -> Iterator[dict[str, Any]]:
    """The ledger's lines, oldest first. A line that a crash cut is skipped: the ledger is history, not evidence.

    Raises:
        StoreError: there is a ledger and it cannot be read.
    """
    try:
        text = bucket.ledger.read_bytes()
    except FileNotFoundError:
        return
    except OSError as error:
        raise store_error(error, f"read {bucket.ledger}") from error
    for line in text.splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict) and isinstance(entry.get("time_unix"), (int, float)):
            yield entry


def last_use(bucket: Bucket) -> float | None:
    """When the bucket was last used, in seconds since the epoch; None if there is no bucket.

    Without a ledger it is the time of the manifest, and without a manifest that of the directory.
    """
    times = [float(entry["time_unix"]) for entry in entries(bucket)]
    if times:
        return max(times)
    for path in (bucket.manifest, bucket.path):
        try:
            return path.stat().st_mtime
        except FileNotFoundError:
            continue
        except OSError as error:
            raise store_error(error, f"read {path}") from error
    return None
