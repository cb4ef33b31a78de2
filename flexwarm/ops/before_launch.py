"""What a launch must not take from its bucket: what builds without the GPU left, and what they built for another size of it."""

from __future__ import annotations

import json

from flexwarm import inventory, locks, manifest
from flexwarm.errors import BusyError, CorruptError, StoreError, UnsupportedError
from flexwarm.manifest import Manifest
from flexwarm.ops import publish
from flexwarm.ops.publish import Notify
from flexwarm.reasons import Code, Reason
from flexwarm.store import Bucket


def unfinished(bucket: Bucket) -> str | None:
    """The GPUs for which a build without them is under way or was killed, in words; None if there is no such build."""
    try:
        title = json.loads(bucket.building.read_bytes())["target"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return str(title)


def unfinished_reasons(bucket: Bucket, known: Manifest) -> list[Reason]:
    """What speaks against a bucket in which a build without the GPU was killed: a launch would take what it left."""
    title = unfinished(bucket)
    if title is None or not inventory.unlisted(bucket, known):
        return []
    message = f"a build for {title} without a GPU did not finish, and what it left lies in the bucket"
    return [Reason(code=Code.DISK_CHANGED, message=message, hint="flexwarm build removes it")]


def no_build_finished(bucket: Bucket, build: str) -> Reason:
    """There is a bucket, and nothing that vouches for it.

    Args:
        build: how to build, for the hint.
    """
    title = unfinished(bucket)
    begun = f"; one for {title} without a GPU was begun" if title is not None else ""
    return Reason(code=Code.NO_BUCKET, message=f"no build has finished in bucket {bucket.digest}{begun}", hint=build)


def admit(bucket: Bucket, *, command: str, wait_seconds: float, notify: Notify) -> None:
    """Let a launch use the bucket.

    Raises:
        BusyError, StoreError, CorruptError, UnsupportedError: as :func:`settle` and :func:`refuse_other_shapes`.
    """
    settle(bucket, command=command, wait_seconds=wait_seconds, notify=notify)
    try:
        known = manifest.load(bucket)
    except (CorruptError, StoreError):
        return  # build and verify say what is wrong with it
    refuse_other_shapes(bucket, known)


def settle(bucket: Bucket, *, command: str, wait_seconds: float, notify: Notify) -> None:
    """Remove what a build without the GPU left when it was killed, as the next build would.

    No key tells it from what was built for the GPU that is here. A build that is still at work is waited for.

    Raises:
        BusyError: it is at work for longer than ``wait_seconds``.
        StoreError: what it left is there and cannot be removed.
        CorruptError: the manifest cannot be read, so that nobody knows what it left.
        UnsupportedError: the filesystem has no working locks.
    """
    title = unfinished(bucket)
    if title is None:
        return
    try:
        with locks.hold(bucket.lock, holder=bucket.holder, command=command, wait_seconds=wait_seconds, notify=notify):
            title = unfinished(bucket)
            if title is None:
                return  # it has finished, or another launch was here first
            known = manifest.load(bucket)
            publish.end_what_still_runs(bucket)
            removed = inventory.sweep(bucket, publish.listed(known))
            publish.unmark(bucket)
    except StoreError as error:
        if locks.is_held(bucket.lock):
            raise BusyError(
                f"bucket {bucket.digest} is being built for {title} without a GPU, by {locks.read_holder(bucket.holder)}",
                "let it finish",
            ) from error
        if not inventory.unlisted(bucket, manifest.load(bucket)):
            return
        raise StoreError(
            f"a build for {title} without a GPU was killed, and what it left cannot be removed: {error.message}",
            "flexwarm build where the store can be written, or another store with --store DIR",
        ) from error
    if removed:
        notify(f"removed {removed} files that a build for {title} without a GPU left when it was killed")


def refuse_other_shapes(bucket: Bucket, known: Manifest | None) -> None:
    """Raises:
    UnsupportedError: what is vouched for was built for a GPU of another size than is here.
    """
    for reason in publish.other_shapes(known.jobs.values()) if known is not None else ():
        raise UnsupportedError(f"bucket {bucket.digest} was {reason.message}", reason.hint)
