"""SHA-256 of a large file, remembered in the store for as long as the file is the same."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from flexwarm.errors import StoreError, UnsupportedError
from flexwarm.files import write_atomic

if TYPE_CHECKING:
    from flexwarm.store import Store

_SCHEMA: Final = 1
_CHUNK_BYTES: Final = 1 << 20


def sha256(path: Path, store: Store | None) -> str:
    """The file's SHA-256 in hexadecimal.

    It is remembered by path, size, time of change and inode, in a store that exists and can be written; elsewhere it is
    computed each time.

    Raises:
        UnsupportedError: the file cannot be read.
    """
    # A store is never made here. One that is not made yet would be refused by `Store.open` for holding a file of ours.
    memory = store.root / "digests-v1.json" if store is not None and store.buckets_path.is_dir() else None
    known = _load(memory) if memory is not None else {}
    try:
        status = path.stat()
        identity = [status.st_size, status.st_mtime_ns, status.st_ino]
        entry = known.get(str(path))
        if isinstance(entry, dict) and entry.get("identity") == identity and isinstance(entry.get("sha256"), str):
            return str(entry["sha256"])
        value = _compute(path)
    except OSError as error:
        raise UnsupportedError(f"cannot read {path}: {error.strerror}", "reinstall the package that it belongs to") from error
    if memory is not None:
        kept = {name: old for name, old in known.items() if Path(name).exists()}
        _save(memory, {**kept, str(path): {"identity": identity, "sha256": value}})
    return value


def _compute(path: Path) -> str:
    hasher = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(_CHUNK_BYTES):
            hasher.update(chunk)
    return hasher.hexdigest()


def _load(memory: Path) -> dict[str, Any]:
    try:
        data = json.loads(memory.read_bytes())
    except (OSError, ValueError):
        return {}  # not there, not ours to read, or cut off: nothing is lost, because each digest can be computed again
    entries = data.get("files") if isinstance(data, dict) and data.get("schema") == _SCHEMA else None
    return entries if isinstance(entries, dict) else {}


def _save(memory: Path, entries: dict[str, Any]) -> None:
    try:
        write_atomic(memory, json.dumps({"schema": _SCHEMA, "files": entries}, indent=1).encode())
    except StoreError:
        pass  # a store that cannot be written, or is full: the next command computes the digest again, and that is all
