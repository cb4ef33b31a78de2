"""Every path that flexwarm owns on disk is made here: the store's root, its buckets and what lies in them."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from flexwarm.errors import StoreError, UsageError
from flexwarm.files import list_names, make_directory, store_error, unique_suffix, user_name, write_atomic

#: The format's version is in the directory's name: an older flexwarm never sees what a newer one writes.
BUCKETS: Final = "buckets-v1"
LOCKS: Final = "locks-v1"
STAGING: Final = "staging-v1"
QUARANTINE: Final = "quarantine-v1"
NULLGPU: Final = "nullgpu-v1"
TAG: Final = "CACHEDIR.TAG"

#: https://bford.info/cachedir/ : backup programs look for exactly these first bytes.
TAG_TEXT: Final = (
    b"Signature: 8a477f597d28d172789f06886806bc55\n# This directory holds kernels that flexwarm compiled; it can be deleted.\n"
)

_DIGEST: Final = re.compile(r"[0-9a-f]{20}")
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


def default_root(environ: Mapping[str, str]) -> Path:
    """``FLEXWARM_STORE`` if set, else the user's cache directory.

    Raises:
        StoreError: there is no home directory to put a cache in (a container's user without a passwd entry).
    """
    if given := environ.get("FLEXWARM_STORE"):
        return Path(given)
    from platformdirs import user_cache_dir

    try:
        root = Path(user_cache_dir("flexwarm"))
    except (RuntimeError, KeyError) as error:
        raise _no_home() from error
    if not root.is_absolute():  # older platformdirs leave "~" in place, which would become a directory of that name
        raise _no_home()
    return root


def _no_home() -> StoreError:
    return StoreError("no home directory is known for this user, so there is no default store", "name one with --store DIR")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """The directory of one fingerprint. It may not exist yet.

    Attributes:
        root: the store's root.
        digest: the fingerprint's 20 hexadecimal digits.
    """

    root: Path
    digest: str

    @property
    def path(self) -> Path:
        return self.root / BUCKETS / self.digest

    @property
    def inductor(self) -> Path:
        """``TORCHINDUCTOR_CACHE_DIR``."""
        return self.path / "inductor"

    @property
    def triton(self) -> Path:
        """``TRITON_CACHE_DIR``, shared by all devices."""
        return self.path / "triton"

    @property
    def manifest(self) -> Path:
        return self.path / "manifest.json"

    @property
    def fingerprint(self) -> Path:
        return self.path / "fingerprint.json"

    @property
    def ledger(self) -> Path:
        return self.path / "ledger.jsonl"

    @property
    def keys(self) -> Path:
        """What went into the keys that its builds made; explanations rest on it, and nothing else."""
        return self.path / "keys.jsonl"

    @property
    def proof(self) -> Path:
        """What the last full verification proved; ``verify --fast`` rests on it."""
        return self.path / "proof.json"

    @property
    def runs(self) -> Path:
        return self.path / "runs"

    @property
    def building(self) -> Path:
        """Exists while a build is in progress, and after one that died."""
        return self.path / "building.json"

    @property
    def lock(self) -> Path:
        """Outside of the bucket: deleting the bucket must not move the lock from under its holder."""
        return self.root / LOCKS / f"{self.digest}.lock"

    @property
    def holder(self) -> Path:
        return self.root / LOCKS / f"{self.digest}.holder.json"

    @property
    def join_lock(self) -> Path:
        """Shared by the builds of launch lines that run beside the one that holds the bucket's lock."""
        return self.root / LOCKS / f"{self.digest}.join.lock"

    @property
    def join_holder(self) -> Path:
        return self.root / LOCKS / f"{self.digest}.join.holder.json"

    @property
    def joined(self) -> Path:
        """What builds that joined another one left for it to publish."""
        return self.path / "joined"

    @property
    def leases(self) -> Path:
        """One lock and one note for each run that is using the bucket; outside of it for the same reason as its lock."""
        return self.root / LOCKS / f"{self.digest}.leases"

    @property
    def gate(self) -> Path:
        """The lock that is held, for a moment, while a lease is taken, and while the bucket is taken from all leases."""
        return self.leases / "gate.lock"

    @property
    def gate_holder(self) -> Path:
        return self.leases / "gate.holder.json"

    def exists(self) -> bool:
        return self.path.is_dir()

    def create(self) -> None:
        """Make the bucket's directories, if they are not there."""
        for path in (self.path, self.inductor, self.triton, self.runs):
            make_directory(path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """The cache root. Make one with :meth:`open`, which checks that its content may be trusted."""

    root: Path

    @classmethod
    def open(cls, root: Path, *, create: bool, trust_shared: bool = False) -> Store:
        """Check the store at ``root``, and with ``create`` make what is missing of it.

        Args:
            root: its directory; without ``create`` a missing one is an empty store.
            trust_shared: accept a store that other users can write. What it holds is run as code.

        Raises:
            StoreError: others can write it, it is some other directory, or it cannot be used.
        """
        store = cls(root=_absolute(root))
        if create and not trust_shared:
            _refuse_what_others_can_write(store.root, store.root)  # before anything is made in it
        if create:
            store._create()
        if not trust_shared:
            for path in (store.root, *store._directories, store.nullgpu):
                _refuse_what_others_can_write(path, store.root)
        return store

    @property
    def buckets_path(self) -> Path:
        return self.root / BUCKETS

    @property
    def staging(self) -> Path:
        """Where a tree is prepared before it is renamed into place, and where it goes to be deleted."""
        return self.root / STAGING

    @property
    def quarantine(self) -> Path:
        return self.root / QUARANTINE

    @property
    def nullgpu(self) -> Path:
        """What stands in for a GPU's driver, by the digest of what it was made of; made when it is first needed."""
        return self.root / NULLGPU

    @property
    def lock(self) -> Path:
        return self.root / LOCKS / "store.lock"

    @property
    def holder(self) -> Path:
        return self.root / LOCKS / "store.holder.json"

    def refuse_bucket_of_others(self, bucket: Bucket) -> None:
        """Refuse a bucket whose directories other users can write, as :meth:`open` does for the store's own.

        Raises:
            StoreError: names the directory and what to do.
        """
        for path in (bucket.path, bucket.inductor, bucket.triton):
            _refuse_what_others_can_write(path, self.root)

    def bucket(self, digest: str) -> Bucket:
        """The bucket of a fingerprint's digest, whether or not it exists."""
        if not _DIGEST.fullmatch(digest):
            raise UsageError(f"{digest!r} is not the name of a bucket", "a bucket's name is 20 hexadecimal digits")
        return Bucket(root=self.root, digest=digest)

    def buckets(self) -> Iterator[Bucket]:
        """The buckets that exist, in order of digest; anything else in the directory is passed over."""
        for name in sorted(list_names(self.buckets_path)):
            bucket = Bucket(root=self.root, digest=name)
            if _DIGEST.fullmatch(name) and bucket.exists():
                yield bucket

    def stage(self, purpose: str) -> Path:
        """A new name in the staging directory that no other process uses; see :meth:`staged`."""
        return self.staging / f"{purpose}.{unique_suffix()}"

    def staged(self) -> tuple[Path, ...]:
        """What lies in the staging directory, in order of name."""
        return tuple(self.staging / name for name in sorted(list_names(self.staging)))

    def quarantined(self) -> tuple[Path, ...]:
        """What lies in the quarantine, in order of name."""
        return tuple(self.quarantine / name for name in sorted(list_names(self.quarantine)))

    @property
    def _directories(self) -> tuple[Path, ...]:
        return tuple(self.root / name for name in (BUCKETS, LOCKS, STAGING, QUARANTINE))

    def _create(self) -> None:
        make_directory(self.root)
        strangers = set(list_names(self.root)) - {BUCKETS, LOCKS, STAGING, QUARANTINE, NULLGPU, TAG, "lost+found"}
        if strangers and not self.buckets_path.exists():
            # The tag would take somebody's home directory out of their backups.
            raise StoreError(
                f"{self.root} is not a flexwarm store, and it is not empty",
                f"give the store a directory of its own: --store {self.root / 'flexwarm'}",
            )
        for path in self._directories:  # the buckets first: they are what tells a store from another directory
            make_directory(path)
        if not (self.root / TAG).exists():
            write_atomic(self.root / TAG, TAG_TEXT)


def _absolute(root: Path) -> Path:
    try:
        # FLEXWARM_STORE=~/cache in a CI file is not expanded by a shell, and would make a directory named "~".
        return Path(os.path.abspath(root.expanduser()))
    except RuntimeError as error:
        raise StoreError(f"{root}: there is no such home directory", "name another with --store DIR") from error
    except FileNotFoundError as error:
        raise StoreError(f"{root} is relative to a directory that is gone", "cd somewhere that exists") from error


def _refuse_what_others_can_write(path: Path, root: Path) -> None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise store_error(error, f"use the store {root}") from error
    if not stat.S_ISDIR(status.st_mode):
        raise StoreError(f"{path} is not a directory", "use another store with --store DIR")
    if status.st_uid not in (os.geteuid(), 0):
        raise StoreError(
            f"{path} belongs to {user_name(status.st_uid)}, and a compiled cache is code that runs as you",
            "use your own with --store DIR, or --trust-shared if you trust its owner",
        )
    if status.st_mode & _OTHERS_WRITE:
        raise StoreError(
            f"other users can write {path} ({stat.filemode(status.st_mode)}), and a compiled cache is code that runs as you",
            f"chmod go-w {path}, or --trust-shared if you trust them",
        )
