"""Which cache keys a bucket has an entry for, read from torch's directory layout."""

from __future__ import annotations

import os
from collections.abc import Iterator

from flexwarm.files import list_names
from flexwarm.store import Bucket


def stored_keys(bucket: Bucket) -> frozenset[tuple[str, str]]:
    """(layer, key) of each key whose directory holds an entry.

    ``inductor/fxgraph/<two letters>/<key>/`` and ``inductor/aotautograd/<key>/``: the same in torch 2.9 to 2.14.
    """
    return frozenset([*_keys(bucket, "aot", 0), *_keys(bucket, "fx", 1)])


def _keys(bucket: Bucket, layer: str, depth: int) -> Iterator[tuple[str, str]]:
    parents = [bucket.inductor / {"aot": "aotautograd", "fx": "fxgraph"}[layer]]
    for _ in range(depth):
        parents = [parent / name for parent in parents for name in list_names(parent)]
    for parent in parents:
        for name in list_names(parent):
            directory = parent / name
            if any(not entry.endswith(".tmp") for entry in os.listdir(directory)):
                yield layer, name
