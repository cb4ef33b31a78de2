"""The environment in which any Python process uses this machine's bucket."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from flexwarm import store, toolchain
from flexwarm.plan import bucket_environment
from flexwarm.store import Store


def bucket_variables(environ: Mapping[str, str], *, root: Path | None, trust_shared: bool) -> tuple[str, dict[str, str]]:
    """The bucket's digest, and variable -> value.

    Raises:
        UnsupportedError: no torch that flexwarm knows.
        StoreError: the store cannot be used.
    """
    toolchain.require_supported()
    opened = Store.open(root if root is not None else store.default_root(environ), create=False, trust_shared=trust_shared)
    bucket = opened.bucket(toolchain.fingerprint(environ, store=opened).digest)
    return bucket.digest, bucket_environment(str(bucket.path))
