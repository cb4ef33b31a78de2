"""The append-only history of a bucket: who used it, when, and with which verdict."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

from flexwarm import canonical
from flexwarm.files import append_lines, store_error
from flexwarm.store import Bucket


def append(bucket: Bucket, entry: Mapping[str, Any]) -> None:
    """Add one line to the bucket's ledger: ``entry`` with ``time_unix`` (now, unless the entry has it).

    Raises:
        StoreError: the line could not be written.
    """
    append_lines(bucket.ledger, canonical.text({"time_unix": time.time(), **entry}).encode() + b"\n")


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
