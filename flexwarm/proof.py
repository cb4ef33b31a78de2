"""What the last verifications proved about a bucket, so that ``verify --fast`` can say whether anything changed since."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Any

from flexwarm import canonical
from flexwarm.errors import StoreError
from flexwarm.files import store_error, write_atomic
from flexwarm.store import Bucket

SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What was found warm, and the state of the files in which it was.

    Attributes:
        shares: of the jobs that a full verification found warm with the manifest that is there now.
        mtimes_ns: path -> time, of the files whose time is not the manifest's, as after a copy, but whose content was read
            and found to be what was built.
    """

    shares: frozenset[str] = frozenset()
    mtimes_ns: Mapping[str, int] = field(default_factory=dict)

    def covers(self, bucket: Bucket, path: str) -> bool:
        """Whether a file has not been touched since its content was read."""
        try:
            return os.lstat(bucket.path / path).st_mtime_ns == self.mtimes_ns.get(path)
        except OSError:
            return False


def manifest_digest(bucket: Bucket) -> str:
    """SHA-256 of the manifest's file: a proof is of one state of a bucket and of no other."""
    try:
        return hashlib.sha256(bucket.manifest.read_bytes()).hexdigest()
    except OSError as error:
        raise store_error(error, f"read {bucket.manifest}") from error


def load(bucket: Bucket) -> Proof:
    """The proof in a bucket. One that is missing, altered or of an earlier manifest proves nothing, so it is empty."""
    try:
        data: dict[str, Any] = json.loads(bucket.proof.read_bytes())
        rest = {key: value for key, value in data.items() if key != "digest"}
        if data["digest"] != canonical.digest(rest) or data["manifest"] != manifest_digest(bucket):
            return Proof()
        return Proof(shares=frozenset(data["shares"]), mtimes_ns=dict(data["mtimes_ns"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, StoreError):
        return Proof()


def add(bucket: Bucket, shares: Set[str], touched: Set[str]) -> None:
    """Record that ``shares`` were found warm, beside those already proven with the same manifest.

    Args:
        touched: files whose time is not the manifest's; their content was read by the verification that found this.

    Raises:
        StoreError: the bucket cannot be read or written.
    """
    try:
        mtimes = {path: os.lstat(bucket.path / path).st_mtime_ns for path in sorted(touched)}
    except OSError as error:
        raise store_error(error, f"read {bucket.path}") from error
    data = {
        "schema": SCHEMA,
        "manifest": manifest_digest(bucket),
        "shares": sorted(shares | load(bucket).shares),
        "mtimes_ns": mtimes,
        "time_unix": round(time.time(), 3),
    }
    write_atomic(bucket.proof, canonical.text({**data, "digest": canonical.digest(data)}).encode() + b"\n")
