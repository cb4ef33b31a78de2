"""What the last verifications proved about a bucket, so that ``verify --fast`` can say whether anything changed since."""

from __future__ import annotations

import hashlib
import json
import time

from flexwarm import canonical
from flexwarm.errors import StoreError
from flexwarm.files import store_error, write_atomic
from flexwarm.store import Bucket

SCHEMA = 1


def manifest_digest(bucket: Bucket) -> str:
    """SHA-256 of the manifest's file: a proof is of one state of a bucket and of no other."""
    try:
        return hashlib.sha256(bucket.manifest.read_bytes()).hexdigest()
    except OSError as error:
        raise store_error(error, f"read {bucket.manifest}") from error


def proven_shares(bucket: Bucket) -> frozenset[str]:
    """Shares that a full verification found warm with the manifest that is there now.

    A proof that is missing, altered or of an earlier manifest proves nothing, so it is the empty set.
    """
    try:
        text = bucket.proof.read_text()
        data = json.loads(text)
        rest = {key: value for key, value in data.items() if key != "digest"}
        if data["digest"] != canonical.digest(rest) or data["manifest"] != manifest_digest(bucket):
            return frozenset()
        return frozenset(data["shares"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, StoreError):
        return frozenset()


def add(bucket: Bucket, shares: frozenset[str]) -> None:
    """Record that ``shares`` were found warm, beside those already proven with the same manifest.

    Raises:
        StoreError: the bucket cannot be written.
    """
    data = {
        "schema": SCHEMA,
        "manifest": manifest_digest(bucket),
        "shares": sorted(shares | proven_shares(bucket)),
        "time_unix": round(time.time(), 3),
    }
    write_atomic(bucket.proof, canonical.text({**data, "digest": canonical.digest(data)}).encode() + b"\n")
