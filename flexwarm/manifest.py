"""What a finished build left in a bucket: its files, jobs and keys, in one file that vouches for itself."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from flexwarm import canonical
from flexwarm.errors import CorruptError
from flexwarm.files import store_error, write_atomic
from flexwarm.store import Bucket

SCHEMA: Final = 1

#: The layers whose keys a job records.
LAYERS: Final = ("aot", "fx", "triton")

#: A path that a bucket can hold: relative, normal, below one of the two trees or one of the two files beside them.
FILE_PATH: Final = re.compile(r"(inductor|triton)(/(?!\.{1,2}(/|\Z))[^/\0]+)+|fingerprint\.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """One file of a bucket.

    Attributes:
        path: relative to the bucket, with ``/``.
        sha256: 64 hexadecimal digits.
    """

    path: str
    size_bytes: int
    mtime_ns: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyEntry:
    """One cache key that a job must hit; ``layer`` is one of :data:`LAYERS`."""

    layer: str
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEntry:
    """One job that a build finished.

    Attributes:
        share: digest of workload, visible device and environment: jobs with the same share have the same keys.
        workload: its name in the spec.
        detail: the workload as JSON has it, to name what changed.
        env: the variables of the worker that can make a key miss.
        config_digest: of the compiler configuration that the lane saw.
        variables_digest, modes_digest: of all variables that can be compared, and of torch's settings beside Inductor's, both
            as they were when this was compiled; empty where the build did not keep them.
        cold_seconds: how long compiling took; None if it was never measured here.
        built_at: UTC, ISO 8601.
    """

    share: str
    workload: str
    detail: Mapping[str, Any]
    keys: tuple[KeyEntry, ...]
    env: Mapping[str, str]
    config_digest: str
    cold_seconds: float | None
    built_at: str
    variables_digest: str = ""
    modes_digest: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The content of a bucket as its last finished build left it.

    Attributes:
        fingerprint: digest of the bucket's fingerprint, which is the bucket's name.
        created_at: UTC, ISO 8601.
        files: in order of path.
        jobs: by share.
        configs: Inductor's settings by digest, name -> value as text: what a job's ``config_digest`` stands for.
        variables, modes: the same for ``variables_digest`` and ``modes_digest``. They explain, and decide nothing.
    """

    fingerprint: str
    created_at: str
    flexwarm_version: str
    files: tuple[FileEntry, ...]
    jobs: Mapping[str, JobEntry]
    configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    variables: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    modes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def keys(self) -> frozenset[tuple[str, str]]:
        """(layer, key) of everything that the bucket holds: what the jobs recorded, and each of Triton's directories."""
        recorded = {(key.layer, key.key) for job in self.jobs.values() for key in job.keys}
        directories = {found[1] for entry in self.files if (found := _TRITON_DIRECTORY.match(entry.path))}
        return frozenset(recorded | {("triton", _triton_key(name)) for name in directories})

    def to_json(self) -> dict[str, Any]:
        data: dict[str, Any] = canonical.plain(self)
        return {**data, "schema": SCHEMA}

    @classmethod
    def from_json(cls, data: Any) -> Manifest:
        """Inverse of :meth:`to_json`.

        Raises:
            ValueError: the data is not a manifest of this schema, or names a path that a manifest cannot have.
        """
        if not isinstance(data, dict) or data.get("schema") != SCHEMA:
            raise ValueError(f"not a manifest of schema {SCHEMA}")
        try:
            value = cls(
                fingerprint=data["fingerprint"],
                created_at=data["created_at"],
                flexwarm_version=data["flexwarm_version"],
                files=tuple([FileEntry(**entry) for entry in data["files"]]),
                jobs={share: job_from_json(job) for share, job in data["jobs"].items()},
                configs={digest: dict(config) for digest, config in data["configs"].items()},
                variables={digest: dict(table) for digest, table in data.get("variables", {}).items()},
                modes={digest: dict(table) for digest, table in data.get("modes", {}).items()},
            )
            _refuse_bad_paths(value.files)
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError("a field of the manifest is missing or of the wrong kind") from error
        if any(share != job.share for share, job in value.jobs.items()):
            raise ValueError("a job of the manifest is filed under another job's share")
        return value


#: Triton names a directory by its key, 32 bytes, in base 32 without padding; under a device's number if it is not told where.
_TRITON_DIRECTORY: Final = re.compile(r"(?:triton|inductor/triton/\d+)/([A-Z2-7]{52})/")


def _triton_key(directory: str) -> str:
    return base64.b32decode(f"{directory}====").hex()


def _refuse_bad_paths(files: tuple[FileEntry, ...]) -> None:
    last = ""
    for entry in files:
        path = entry.path
        if not FILE_PATH.fullmatch(path):
            raise ValueError(f"it lists {path!r}, which is not the path of a file that a bucket holds")
        if path <= last:
            raise ValueError(f"it lists {path!r} twice or out of order")
        last = path


def job_from_json(data: Any) -> JobEntry:
    """Inverse of :func:`flexwarm.canonical.plain`.

    Raises:
        ValueError, KeyError, TypeError: the data is not a job's entry.
    """
    keys = tuple(KeyEntry(**key) for key in data["keys"])
    if any(key.layer not in LAYERS for key in keys):
        raise ValueError(f"a job of the manifest has a key of no known layer (known: {', '.join(LAYERS)})")
    return JobEntry(**{**data, "keys": keys})


def dump(manifest: Manifest) -> bytes:
    """The manifest's file: one line of canonical JSON that holds the digest of the rest of itself."""
    data = manifest.to_json()
    return canonical.text({**data, "digest": canonical.digest(data, 64)}).encode() + b"\n"


def parse(text: bytes) -> Manifest:
    """Inverse of :func:`dump`.

    Raises:
        ValueError: the text is not, to the byte, what :func:`dump` wrote.
    """
    data = json.loads(text)
    if not isinstance(data, dict) or not isinstance(data.get("digest"), str):
        raise ValueError("it has no digest")
    # The digest is of the canonical text without its own member. Cutting the member out of the bytes compares them all, and
    # takes a tenth of the time of writing the JSON again.
    member = b'"digest":"%s",' % data.pop("digest").encode("ascii", "replace")
    rest = text.replace(member, b"", 1)
    if not rest.endswith(b"\n") or b'"digest":"%s",' % hashlib.sha256(rest[:-1]).hexdigest().encode() != member:
        raise ValueError("its digest is not that of its content")
    return Manifest.from_json(data)


def load(bucket: Bucket) -> Manifest | None:
    """The bucket's manifest; None only if it has no such file, which means that no build ever finished.

    Raises:
        CorruptError: the file is not what a build wrote for this bucket.
        StoreError: the file cannot be read.
    """
    path = bucket.manifest
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        if path.is_symlink():
            raise _corrupt(path, "it is a symbolic link to nothing") from None
        return None
    except IsADirectoryError as error:
        raise _corrupt(path, "it is a directory") from error
    except OSError as error:
        raise store_error(error, f"read {path}") from error
    try:
        manifest = parse(text)
    except (ValueError, RecursionError) as error:
        why = "it is cut off or not JSON" if isinstance(error, (json.JSONDecodeError, UnicodeDecodeError)) else str(error)
        raise _corrupt(path, why) from error
    if manifest.fingerprint != bucket.digest:
        raise _corrupt(path, f"it belongs to bucket {manifest.fingerprint}")
    return manifest


def _corrupt(path: Path, why: str) -> CorruptError:
    return CorruptError(f"{path} is corrupt: {why}", "flexwarm build --rebuild")


def save(bucket: Bucket, manifest: Manifest) -> None:
    """Put the manifest in place; from then on the bucket counts as built."""
    write_atomic(bucket.manifest, dump(manifest))
