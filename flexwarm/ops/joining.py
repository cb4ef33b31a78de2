"""Builds of launch lines that share a store run beside each other: the nodes of one job each have a flexwarm of their own.

The first takes the bucket's lock and is the builder. One that comes while the builder's command runs joins it: it runs its
own command without the lock, leaves what its programs recorded, and the builder publishes that with its own. To wait for the
lock instead would be a deadlock: the builder's ranks wait for those of the other node.

The order, with a lock of its own, which those who join share:

    the builder:   bucket's lock -> marker -> command -> join lock, alone (waits for all who joined) -> publish -> both let go
    who joins:     join lock, shared -> marker still there -> command -> leaves its part -> let go -> bucket's lock
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from flexwarm import canonical, locks
from flexwarm.errors import CorruptError
from flexwarm.files import list_names, make_directory, write_atomic
from flexwarm.manifest import JobEntry, job_from_json
from flexwarm.reasons import Code, Reason
from flexwarm.store import Bucket


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one build recorded: its entries; and the settings and variables that they name, each by its digest.

    Attributes:
        failed: why nothing of it may be published; empty if it may.
    """

    entries: tuple[JobEntry, ...] = ()
    configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    variables: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    modes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    failed: str = ""


@contextmanager
def joined(bucket: Bucket, own: str) -> Iterator[str | None]:
    """Join the build of a launch line that is under way. Yields its run, or None if there is none to join.

    Args:
        own: names this build.
    """
    if not bucket.lock.parent.is_dir() or not locks.is_held(bucket.lock):
        yield None
        return
    with locks.try_share(bucket.join_lock) as shared:
        builder = _joinable(bucket) if shared and locks.is_held(bucket.lock) else None
        if builder is None:
            yield None
            return
        make_directory(bucket.joined)
        # Until it is overwritten this says that whoever joined has died.
        leave(bucket, builder, own, Part(failed="it did not end"))
        yield builder


def leave(bucket: Bucket, builder: str, own: str, part: Part) -> None:
    """Leave one's part to the builder."""
    data = {"builder": builder, **canonical.plain(part)}
    write_atomic(bucket.joined / f"{own}.json", canonical.text(data).encode() + b"\n")


def collect(bucket: Bucket, builder: str) -> tuple[list[Part], list[Reason]]:
    """The parts of those who joined; and why they cannot be published. The caller holds the join lock alone."""
    parts, reasons = [], []
    for name in sorted(list_names(bucket.joined)):
        path = bucket.joined / name
        try:
            data: dict[str, Any] = json.loads(path.read_bytes())
            if data["builder"] == builder:
                part = Part(
                    entries=tuple(job_from_json(entry) for entry in data["entries"]),
                    configs=data["configs"],
                    variables=data.get("variables", {}),
                    modes=data.get("modes", {}),
                    failed=data["failed"],
                )
                parts.append(part)
                if part.failed:
                    message = f"a build that joined this one failed, and nothing is published: {part.failed}"
                    reasons.append(Reason(code=Code.LEADER_FAILED, message=message, hint="build again on all nodes"))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CorruptError(f"{path} cannot be read: {error}", "flexwarm build again") from error
        path.unlink(missing_ok=True)
    return parts, reasons


def forget(bucket: Bucket) -> None:
    """Before a build begins: parts that nobody collected are of a builder that died."""
    for name in list_names(bucket.joined):
        (bucket.joined / name).unlink(missing_ok=True)


def unpublished(entries: Sequence[JobEntry], known: Mapping[str, JobEntry]) -> list[Reason]:
    """What the builder that was joined has not published of one's own."""
    missing = [entry for entry in entries if entry.share not in known or not set(entry.keys) <= set(known[entry.share].keys)]
    if not missing:
        return []
    message = "the build that this one joined has not published what it left to it, so that one failed"
    return [Reason(code=Code.LEADER_FAILED, message=message, hint="build again on all nodes")]


def _joinable(bucket: Bucket) -> str | None:
    """The run of the build that holds the bucket's lock, if it is one that can be joined.

    A marker may be one that an earlier build left, so it must be of whoever holds the lock.
    """
    try:
        data, holder = (json.loads(path.read_bytes()) for path in (bucket.building, bucket.holder))
        own = all(data[name] == holder[name] for name in ("host", "pid"))
        return str(data["run"]) if own and data.get("joinable") else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
