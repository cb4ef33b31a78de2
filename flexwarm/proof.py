"""What full verifications proved about a bucket, and under what, so that ``verify --fast`` can say what changed since."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flexwarm import canonical
from flexwarm.errors import StoreError
from flexwarm.files import store_error, write_atomic
from flexwarm.store import Bucket

SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class JobProof:
    """One job that a full verification found warm.

    Attributes:
        context: what the machine, the environment and flexwarm were, component -> value.
        files: path -> SHA-256 of the files that the job's own functions came from.
    """

    context: Mapping[str, str]
    files: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """All that is proven of one manifest.

    Attributes:
        state: of the bucket's files, as :func:`flexwarm.inventory.state` says it, before the jobs ran.
        jobs: by :func:`job_name`.
    """

    manifest: str
    state: str
    jobs: Mapping[str, JobProof] = field(default_factory=dict)


def job_name(share: str, job: str) -> str:
    """Of a job in a proof: what it compiles, and which rank of which role it was."""
    return f"{share}/{job}"


def manifest_digest(bucket: Bucket) -> str:
    """SHA-256 of the manifest's file: a proof is of one state of a bucket and of no other."""
    try:
        return hashlib.sha256(bucket.manifest.read_bytes()).hexdigest()
    except OSError as error:
        raise store_error(error, f"read {bucket.manifest}") from error


def load(bucket: Bucket) -> Proof | None:
    """The proof in a bucket. One that is missing, altered or of an earlier manifest proves nothing: None."""
    try:
        data: dict[str, Any] = json.loads(bucket.proof.read_bytes())
        rest = {key: value for key, value in data.items() if key != "digest"}
        if data["schema"] != SCHEMA or data["digest"] != canonical.digest(rest):
            return None
        if data["manifest"] != manifest_digest(bucket):
            return None
        contexts = data["contexts"]
        jobs = {s: JobProof(context=contexts[job["context"]], files=job["files"]) for s, job in data["jobs"].items()}
        return Proof(manifest=data["manifest"], state=data["state"], jobs=jobs)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, StoreError):
        return None


def save(bucket: Bucket, proof: Proof) -> None:
    """Keep a proof in place of the one that is there.

    Raises:
        StoreError: the bucket cannot be written.
    """
    contexts = {canonical.digest(dict(job.context)): dict(job.context) for job in proof.jobs.values()}
    data = {
        "schema": SCHEMA,
        "manifest": proof.manifest,
        "state": proof.state,
        "contexts": contexts,
        "jobs": {
            share: {"context": canonical.digest(dict(job.context)), "files": dict(job.files)}
            for share, job in proof.jobs.items()
        },
        "time_unix": round(time.time(), 3),
    }
    write_atomic(bucket.proof, canonical.text({**data, "digest": canonical.digest(data)}).encode() + b"\n")
