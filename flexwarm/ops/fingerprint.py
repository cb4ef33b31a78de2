"""Take this machine's fingerprint, and compare it with a bucket's."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from flexwarm import toolchain
from flexwarm.errors import CorruptError, UsageError
from flexwarm.files import store_error
from flexwarm.fingerprint import Change, Fingerprint, differences
from flexwarm.store import Bucket, Store
from flexwarm.target import DeviceProfile
from flexwarm.toolchain import profiles

_LISTED: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class FingerprintResult:
    """What was found.

    Attributes:
        fingerprint: of this machine, now; or of the bucket that was named.
        old: the one that it was compared with, or None.
        here: ``fingerprint`` is this machine's.
    """

    fingerprint: Fingerprint
    old: Fingerprint | None = None
    here: bool = True

    @property
    def changes(self) -> tuple[Change, ...] | None:
        """Each component that differs, or None without a comparison."""
        return None if self.old is None else differences(self.old, self.fingerprint)

    @property
    def same_bucket(self) -> bool:
        """Whether nothing that selects the bucket differs."""
        return not any(change.selects for change in self.changes or ())


def run(
    environ: Mapping[str, str], *, store: Store | None, diff: str | None = None, of: str | None = None
) -> FingerprintResult:
    """This machine's fingerprint, or that of a bucket; and with ``diff`` the one to compare it with.

    Of a bucket both sides are files, so there need be no torch here.

    Args:
        environ: the environment that the training would run in.
        store: where buckets are looked for.
        of: a bucket, named as ``diff`` is; None for this machine.
        diff: a bucket's digest, a beginning of it that no other has, or the path of a bucket or of a ``fingerprint.json``.

    Raises:
        UsageError: there is no such bucket, or more than one.
        CorruptError: it holds something that is not a fingerprint.
        UnsupportedError: the toolchain is not one that flexwarm knows.
    """
    if of is None:
        toolchain.require_supported()
    old = read(find(diff, store)) if diff is not None else None
    if of is not None:
        return FingerprintResult(fingerprint=read(find(of, store)), old=old, here=False)
    return FingerprintResult(fingerprint=toolchain.fingerprint(environ, store=store), old=old)


def profile(environ: Mapping[str, str], *, store: Store | None, device: int) -> DeviceProfile:
    """The profile of a GPU of this machine, for builds elsewhere.

    Raises:
        UnsupportedError: there is no such GPU; or the toolchain is not one that flexwarm knows.
    """
    toolchain.require_supported()
    return profiles.measured_profile(device, toolchain.fingerprint(environ, store=store))


def find(wanted: str, store: Store | None) -> Path:
    """The ``fingerprint.json`` that ``wanted`` means; a bucket goes before a path of the same name."""
    buckets = list(store.buckets()) if store is not None else []
    matching = [bucket for bucket in buckets if wanted and bucket.digest.startswith(wanted)]
    if len(matching) > 1:
        raise UsageError(f"{wanted} begins the name of {len(matching)} buckets: {_listed(matching)}", "give more digits")
    if matching:
        path = matching[0].fingerprint
    elif os.path.isdir(wanted):  # unlike Path's, it takes any text
        path = Path(wanted) / "fingerprint.json"
    elif os.path.exists(wanted):
        return Path(wanted)
    else:
        there = f"there are {_listed(buckets)}" if buckets else "there are no buckets yet"
        where = f"in {store.root}" if store is not None else "without a store"
        raise UsageError(f"no bucket {wanted!r} {where}; {there}", "flexwarm build SPEC makes one")
    if not path.exists():
        raise UsageError(
            f"{path.parent} has no fingerprint.json: it is no bucket, or its build did not finish",
            "flexwarm build SPEC --rebuild",
        )
    return path


def read(path: Path) -> Fingerprint:
    """The fingerprint in a file.

    Raises:
        CorruptError: it holds something else.
        StoreError: it cannot be read.
    """
    try:
        return Fingerprint.from_json(json.loads(path.read_bytes()))
    except OSError as error:
        raise store_error(error, f"read {path}") from error
    except ValueError as error:
        raise CorruptError(f"{path} is corrupt: {error}", "flexwarm build SPEC --rebuild") from error


def _listed(buckets: Sequence[Bucket]) -> str:
    names = [bucket.digest for bucket in buckets[:_LISTED]]
    more = len(buckets) - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")
