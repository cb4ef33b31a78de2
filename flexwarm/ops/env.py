"""The environment in which any Python process uses this machine's bucket."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from flexwarm import store, toolchain
from flexwarm.errors import BusyError
from flexwarm.ops.before_launch import admit
from flexwarm.ops.publish import Notify
from flexwarm.plan import bucket_environment
from flexwarm.store import Store


def bucket_variables(
    environ: Mapping[str, str], *, root: Path | None, trust_shared: bool, notify: Notify
) -> tuple[str, dict[str, str]]:
    """The bucket's digest, and variable -> value.

    Raises:
        UnsupportedError: no torch that flexwarm knows; or the bucket was built for GPUs of another size than are here.
        StoreError: the store cannot be used.
        BusyError, CorruptError: as :func:`flexwarm.ops.before_launch.admit`.
    """
    toolchain.require_supported()
    opened = Store.open(root if root is not None else store.default_root(environ), create=False, trust_shared=trust_shared)
    bucket = opened.bucket(toolchain.fingerprint(environ, store=opened).digest)
    try:
        admit(bucket, command="env", wait_seconds=0, notify=notify)
    except BusyError as error:
        raise BusyError(error.message, "let it finish, and ask again") from error
    return bucket.digest, bucket_environment(str(bucket.path))
