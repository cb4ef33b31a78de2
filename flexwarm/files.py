"""Files written whole or not at all, and what the operating system says about them as one sentence and a next step."""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import socket
from pathlib import Path
from typing import Final

from flexwarm.errors import StoreError

_DIRECTORY_MODE: Final = 0o755  # umask may take more away; group and others never get to write
_FILE_MODE: Final = 0o644


def store_error(error: OSError, doing: str) -> StoreError:
    """The one sentence and next step for a failed file operation.

    Args:
        error: what the operating system said.
        doing: the attempt, with its path, to follow "cannot": ``"write /store/buckets-v1/ab/manifest.json"``.
    """
    elsewhere = "use another store with --store DIR"
    why, hint = {
        errno.EACCES: (f"permission denied for {user_name(os.geteuid())}", f"change its owner or mode, or {elsewhere}"),
        errno.EPERM: (f"not permitted for {user_name(os.geteuid())}", f"change its owner or mode, or {elsewhere}"),
        errno.EROFS: ("the filesystem is read-only", elsewhere),
        errno.ENOSPC: ("no space (or no inode) is left", f"flexwarm clean --max-size SIZE, or {elsewhere}"),
        errno.EDQUOT: ("the disk quota is used up", f"flexwarm clean --max-size SIZE, or {elsewhere}"),
        errno.ENOTDIR: ("part of the path is a file, not a directory", elsewhere),
        errno.EEXIST: ("a file of that name is in the way", elsewhere),
        errno.ENAMETOOLONG: ("the path is too long", "use a shorter path with --store DIR"),
        errno.ELOOP: ("its symbolic links lead in a circle", elsewhere),
        errno.ESTALE: ("the network filesystem lost the file", "try again, or use a local disk with --store DIR"),
        errno.EIO: ("the disk reports an input/output error", f"check the disk, or {elsewhere}"),
    }.get(error.errno or 0, (error.strerror or str(error) or type(error).__name__, elsewhere))
    return StoreError(f"cannot {doing}: {why}", hint)


def user_name(uid: int) -> str:
    """``name (uid 1000)``, or ``uid 1000`` where there is no passwd entry, as in many containers."""
    import pwd

    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"


def unique_suffix() -> str:
    """Host, pid and a random part: no two writers of one network directory ever choose the same name."""
    return f"{socket.gethostname()}.{os.getpid()}.{secrets.token_hex(4)}"


def write_atomic(path: Path, data: bytes) -> None:
    """Put ``data`` at ``path`` so that a reader, or a crash at any moment, sees the old file or all of the new one.

    Raises:
        StoreError: it could not be written; nothing of the attempt is left.
    """
    temporary = path.with_name(f".{path.name}.{unique_suffix()}.tmp")
    try:
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _FILE_MODE)
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())  # else a crash can leave the new name with no content behind it
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_directory(path.parent)
    except OSError as error:
        raise store_error(error, f"write {path}") from error


def append_lines(path: Path, text: bytes) -> None:
    """Add whole lines, each with its newline, to a file that may not be there yet.

    Concurrent writers do not mix their lines: they come in one write to a file that is opened for appending.

    Raises:
        StoreError: they could not be written.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, _FILE_MODE)
        try:
            size = os.fstat(descriptor).st_size
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                text = b"\n" + text  # a writer died in the middle of its line: do not let it spoil ours too
            if os.write(descriptor, text) != len(text):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # a short write to a file is a full disk
        finally:
            os.close(descriptor)
    except OSError as error:
        raise store_error(error, f"write {path}") from error


def sync_directory(path: Path) -> None:
    """Make renames in ``path`` survive a crash of the machine."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network filesystems cannot sync a directory; the rename is still atomic
            raise
    finally:
        os.close(descriptor)


def make_directory(path: Path) -> None:
    """Make ``path`` and its parents, if they are not there."""
    try:
        os.makedirs(path, mode=_DIRECTORY_MODE, exist_ok=True)
    except OSError as error:
        raise store_error(error, f"make the directory {path}") from error


def list_names(directory: Path) -> list[str]:
    """What lies in a directory, in no order; nothing if it is not there."""
    try:
        return os.listdir(directory)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise store_error(error, f"read the directory {directory}") from error


def file_digest(path: str | Path) -> str:
    """SHA-256 of a file's content; empty where it cannot be read, which is the digest of no file."""
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        return ""
