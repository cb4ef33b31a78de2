"""The files that a bucket holds now: listed for a manifest, compared with one, and compared before and after a run."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from flexwarm.canonical import StrEnum
from flexwarm.errors import CorruptError
from flexwarm.files import store_error
from flexwarm.manifest import FILE_PATH, FileEntry, Manifest
from flexwarm.store import Bucket

#: torch's own lock files: empty, made on a warm run too, and they carry nothing.
_TORCH_LOCKS: Final = "inductor/locks"

#: What Dynamo learnt of shapes, by job id: each launch writes it anew, and it holds no kernel.
_DYNAMO_STATE: Final = "inductor/dynamo"

#: A write that was under way or died: torch's ``.<pid>.<thread>.tmp``, Triton's ``tmp.pid_<pid>_<uuid>`` directories, and
#: directories of Python's tempfile.
_TEMPORARY: Final = re.compile(r"\.\d+\.\d+\.tmp|tmp\.pid_\d+_.+|tmp[a-z0-9_]{8}")

#: The only name in a key's directory that torch does not load.
_UNFINISHED_ENTRY: Final = re.compile(r"\.\d+\.\d+\.tmp")

#: In these, torch tries every file that lies in a key's directory, so a file too many is an entry too many.
_KEY_DIRECTORY: Final = re.compile(r"inductor/(fxgraph/[^/]+|aotautograd)/[^/]+")

#: What torch and Triton keep of times, and of choices by them.
TIMES: Final = (".best_config", ".autotune.json", ".kernel_perf", ".picked_kernel")

_LISTED_BESIDE_THE_TREES: Final = ("fingerprint.json",)
_CHUNK_BYTES: Final = 1 << 20


def scan(bucket: Bucket) -> tuple[FileEntry, ...]:
    """Every file of the bucket that a manifest lists, in order of path.

    That is all below ``inductor/`` and ``triton/``, and ``fingerprint.json``, without torch's locks, other
    ``*.lock`` files and unfinished writes. Each file is read: what an earlier manifest says of it is a claim, not evidence.

    Raises:
        CorruptError: something there is neither a file nor a directory; torch and Triton make no links.
        StoreError: a file cannot be read.
    """
    found = [(name, bucket.path / name) for name in _LISTED_BESIDE_THE_TREES if (bucket.path / name).exists()]
    for path, entry in _walk(bucket):
        if _is_content(path):
            found.append((path, Path(entry.path)))
    return tuple(_file_entry(path, file) for path, file in sorted(found))


def _file_entry(path: str, file: Path) -> FileEntry:
    try:
        status = os.lstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise CorruptError(f"{file} is not a regular file", "flexwarm build --rebuild")
        return FileEntry(path=path, size_bytes=status.st_size, mtime_ns=status.st_mtime_ns, sha256=_sha256(file, sync=True))
    except OSError as error:
        raise store_error(error, f"read {file}") from error


def _sha256(file: str | Path, *, sync: bool = False) -> str:
    """Of the content; ``sync`` also puts it on the disk, so that a manifest never outlives what it lists."""
    value = hashlib.sha256()
    with open(file, "rb", buffering=0) as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            value.update(chunk)
        if sync:
            os.fsync(stream.fileno())
    return value.hexdigest()


def _is_content(path: str) -> bool:
    return not (path.startswith((_TORCH_LOCKS + "/", _DYNAMO_STATE + "/")) or path.endswith(".lock") or _is_temporary(path))


def _is_temporary(path: str) -> bool:
    return any(_TEMPORARY.fullmatch(part) for part in path.split("/"))


def _walk(bucket: Bucket) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Everything below ``inductor/`` and ``triton/`` that is not a directory, by path in the bucket; follows no link."""
    pending = ["inductor", "triton"]
    while pending:
        directory = pending.pop()
        full = f"{bucket.path}/{directory}"
        try:
            with os.scandir(full) as entries:
                for entry in entries:
                    path = f"{directory}/{entry.name}"
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(path)
                    else:
                        yield path, entry
        except FileNotFoundError:
            continue  # an empty bucket, or torch removed a temporary directory meanwhile
        except OSError as error:
            raise store_error(error, f"read the directory {full}") from error


class FaultKind(StrEnum):
    """How a bucket differs from its manifest."""

    MISSING = "missing"
    SIZE = "size"
    MTIME = "mtime"
    CONTENT = "content"
    UNLISTED_IN_KEY = "unlisted_in_key"
    UNREADABLE = "unreadable"
    NOT_A_FILE = "not_a_file"
    ESCAPES = "escapes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One difference; ``path`` is relative to the bucket."""

    path: str
    kind: FaultKind


def check(bucket: Bucket, manifest: Manifest, *, deep: bool) -> tuple[Fault, ...]:
    """Compare the bucket with its manifest; empty means that it is what was built.

    Args:
        deep: read every file and compare its digest. A time that changed over the same content is then no fault: a store that
            was copied is whole. Without it only presence, kind, size and time are compared, and a changed time is a fault.

    Returns:
        Faults in order of path.
    """
    root = str(bucket.path)
    faults: list[Fault] = []
    key_directories: dict[str, set[str]] = {}
    directories: dict[str, FaultKind | None] = {"": None}
    for entry in manifest.files:
        path = entry.path
        if not FILE_PATH.fullmatch(path):  # `load` refuses such a manifest, but one of a pack comes from elsewhere
            faults.append(Fault(path=path, kind=FaultKind.ESCAPES))
            continue
        parent, _, name = path.rpartition("/")
        if parent not in directories:
            directories[parent] = _directory_fault(root, parent, directories)
        kind = directories[parent]
        if kind is None:
            kind = _file_fault(f"{root}/{path}", entry, deep=deep)
            if parent in key_directories:
                key_directories[parent].add(name)
            elif _KEY_DIRECTORY.fullmatch(parent):
                key_directories[parent] = {name}
        if kind is not None:
            faults.append(Fault(path=path, kind=kind))
    for directory, listed in key_directories.items():
        try:
            names = os.listdir(f"{root}/{directory}")
        except OSError:
            faults.append(Fault(path=directory, kind=FaultKind.UNREADABLE))
            continue
        extra = [name for name in names if name not in listed and not _UNFINISHED_ENTRY.fullmatch(name)]
        faults.extend(Fault(path=f"{directory}/{name}", kind=FaultKind.UNLISTED_IN_KEY) for name in extra)
    return tuple(sorted(faults, key=lambda fault: (fault.path, fault.kind)))


def _directory_fault(root: str, path: str, known: dict[str, FaultKind | None]) -> FaultKind | None:
    """What is wrong with every file in a directory: a link on the way to it leads out of what the manifest vouches for."""
    parent = path.rpartition("/")[0]
    if parent not in known:
        known[parent] = _directory_fault(root, parent, known)
    if known[parent] is not None:
        return known[parent]
    try:
        mode = os.lstat(f"{root}/{path}").st_mode
    except OSError as error:
        return _fault_of(error)
    if stat.S_ISLNK(mode):
        return FaultKind.ESCAPES
    return None if stat.S_ISDIR(mode) else FaultKind.MISSING


def _file_fault(full: str, entry: FileEntry, *, deep: bool) -> FaultKind | None:
    try:
        status = os.lstat(full)
        if not stat.S_ISREG(status.st_mode):
            return FaultKind.NOT_A_FILE
        if status.st_size != entry.size_bytes:
            return FaultKind.SIZE
        if deep:
            return None if _sha256(full) == entry.sha256 else FaultKind.CONTENT
        return None if status.st_mtime_ns == entry.mtime_ns else FaultKind.MTIME
    except OSError as error:
        return _fault_of(error)


def _fault_of(error: OSError) -> FaultKind:
    return FaultKind.MISSING if error.errno in (errno.ENOENT, errno.ENOTDIR) else FaultKind.UNREADABLE


def state(bucket: Bucket, manifest: Manifest) -> str:
    """Digest of the size, times and inode of every listed file, of every directory of a listed key, and of unlisted choices.

    A launch may have added the last; another launch need not choose as long as they are there.

    The time of change is among them, which no program can set back: equal states mean that nobody wrote, replaced, copied
    or added anything, also where size and time of modification were kept. Reads no content.
    """
    root = str(bucket.path)
    paths = [entry.path for entry in manifest.files]
    keys = {parent for path in paths if _KEY_DIRECTORY.fullmatch(parent := path.rpartition("/")[0])}
    listed = set(paths)
    choices = sorted(path for path, _ in _walk(bucket) if path.endswith(TIMES) and path not in listed)
    value = hashlib.sha256()
    for path in [*paths, *sorted(keys), *choices]:
        try:
            s = os.lstat(f"{root}/{path}")
            value.update(f"{path}\0{s.st_size} {s.st_mtime_ns} {s.st_ctime_ns} {s.st_ino} {s.st_mode}\n".encode())
        except OSError as error:
            value.update(f"{path}\0{error.errno}\n".encode())
    return value.hexdigest()


def unlisted(bucket: Bucket, manifest: Manifest | None) -> tuple[str, ...]:
    """Paths that :func:`scan` would list and the manifest does not, in order; without a manifest all of them."""
    listed = {entry.path for entry in manifest.files} if manifest is not None else set()
    return tuple(sorted(path for path, _ in _walk(bucket) if path not in listed and _is_content(path)))


def sweep(bucket: Bucket, listed: Set[str]) -> int:
    """Remove what a build that died left: every file that is not ``listed``, unfinished writes and lock files among them.

    Only for the holder of the bucket's lock, before it starts to compile.

    Returns:
        How many files that could have been loaded were removed; locks and unfinished writes are not counted.
    """
    removed = 0
    for path, entry in list(_walk(bucket)):
        if path in listed:
            continue
        try:
            os.unlink(entry.path)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise store_error(error, f"remove {entry.path}") from error
        removed += _is_content(path)
    return removed


#: Path -> (size in bytes, mtime in ns, ctime in ns, inode) of all below ``inductor/`` and ``triton/`` that is no directory.
Snapshot = Mapping[str, tuple[int, int, int, int]]

#: What a warm run may change: below these, torch makes and touches empty lock files.
CHANGES_ALLOWED: Final = (_TORCH_LOCKS + "/",)


class ChangeKind(StrEnum):
    ADDED = "added"
    REMOVED = "removed"
    ALTERED = "altered"


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskChange:
    """One file that is not as it was; ``path`` is relative to the bucket."""

    path: str
    kind: ChangeKind


def snapshot(bucket: Bucket) -> Snapshot:
    """The state of the bucket's files now.

    The inode tells a file that was replaced by one of the same size and time, and the time of change one whose content was
    written and whose time was set back.
    """
    state: dict[str, tuple[int, int, int, int]] = {}
    for path, entry in _walk(bucket):
        try:
            status = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue  # removed between listing and asking: it is not there now
        except OSError as error:
            raise store_error(error, f"read {entry.path}") from error
        state[path] = (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)
    return state


def changed(before: Snapshot, after: Snapshot) -> tuple[DiskChange, ...]:
    """What differs between two snapshots of one bucket, in order of path, without :data:`CHANGES_ALLOWED`."""
    changes = []
    for path in sorted(before.keys() | after.keys()):
        if before.get(path) == after.get(path) or path.startswith(CHANGES_ALLOWED):
            continue
        kind = ChangeKind.ALTERED
        if path not in before:
            kind = ChangeKind.ADDED
        elif path not in after:
            kind = ChangeKind.REMOVED
        changes.append(DiskChange(path=path, kind=kind))
    return tuple(changes)
