"""What went into a key is told where a cache does not have it: a miss can then be explained by the key that is nearest."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from flexwarm import canonical
from flexwarm.events import KeyGroup, KeyMade, Layer
from flexwarm.key_parts import GRAPH, Part
from flexwarm.observer.recorder import Recorder
from flexwarm.observer.torch_api import keys
from flexwarm.observer.torch_api.triton_keys import Kernel


@dataclass(frozen=True, slots=True)
class Asked:
    """A key that torch has just made, and of what."""

    key: str
    lines: Sequence[str]
    graph: Any


def tell(recorder: Recorder, layer: Layer, asked: Asked) -> None:
    """Say what went into a key. Nobody decides by it, so what cannot be read is left out."""
    if asked.lines:
        _tell(recorder, layer, asked.key, lambda: keys.parts(asked.lines, asked.graph))


def tell_kernel(recorder: Recorder, kernel: Kernel) -> None:
    """The same of a Triton kernel."""
    if kernel.hash:
        _tell(recorder, Layer.TRITON, kernel.hash, kernel.parts)


def _tell(recorder: Recorder, layer: Layer, key: str, read: Callable[[], Sequence[Part]]) -> None:
    try:
        parts = read()
    except Exception:  # noqa: BLE001 - the user's graph or kernel, of which a key is made; the miss itself is told
        return
    groups: dict[str, list[Part]] = {}
    for part in parts:
        groups.setdefault(_group_of(part.name), []).append(part)
    digests = {name: _tell_group(recorder, members) for name, members in groups.items()}
    graph = recorder.graph_here()
    recorder.emit(KeyMade(t=time.time(), job=recorder.job, layer=layer, key=key, groups=digests, graph=graph))


def _tell_group(recorder: Recorder, parts: list[Part]) -> str:
    """The digest of a group; what is in it is said once in each event file."""
    digest = canonical.digest([[part.name, part.digest] for part in parts])
    if digest not in recorder.groups_told:
        recorder.emit(
            KeyGroup(
                t=time.time(),
                digest=digest,
                names=tuple(part.name for part in parts),
                digests=tuple(part.digest for part in parts),
                texts=tuple(part.text for part in parts),
            )
        )
        recorder.groups_told.add(digest)  # not before: a forked child begins its own file with what it says first
    return digest


def _group_of(name: str) -> str:
    """Parts with one beginning of their names go together; those that stand alone do as well."""
    if name == GRAPH or name.startswith(f"{GRAPH}."):
        return GRAPH
    before, bracket, _ = name.partition("[")
    return before if bracket else ""
