"""What went into a cache key, part by part: torch's own details of it, as text and digest. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from flexwarm.events import Event, KeyGroup, KeyMade

#: Name of the group that has the code of a graph: ``graph`` for its own, and a part for each graph inside of it.
GRAPH = "graph"
#: Name of the part that has the name of a Triton kernel.
KERNEL = "kernel"
#: Text of the source of a kernel that Inductor wrote.
GENERATED = "written by Inductor"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of a key.

    Attributes:
        name: as torch has it, such as ``example_inputs[0]`` or ``inductor_config[max_autotune]``; of the code of a graph
            ``graph``, and ``graph.sdpa_mask0`` of one inside of it.
        digest: two parts with the same are the same for torch, whatever their texts are.
        text: for people; cut if it is long.
    """

    name: str
    digest: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The parts with one beginning of their names: of ``inductor_config[...]`` all. Keys share most of their groups.

    Attributes:
        digest: of all of it; groups with the same are the same.
        parts: by name.
    """

    digest: str
    parts: Mapping[str, Part]


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """A cache key with its parts.

    Attributes:
        layer: ``aot``, ``fx`` or ``triton``.
        groups: by the beginning of their parts' names.
    """

    layer: str
    key: str
    groups: Mapping[str, Group]


def group(digest: str, names: Iterable[str], digests: Iterable[str], texts: Iterable[str]) -> Group:
    """The parts of a group, from what a process or a file says of them; of lists that differ in length what all have."""
    parts = (Part(name=name, digest=one, text=text) for name, one, text in zip(names, digests, texts, strict=False))
    return Group(digest=digest, parts={part.name: part for part in parts})


def told(events: Iterable[Event]) -> dict[str | None, tuple[Key, ...]]:
    """Job -> the keys that a process was asked for in it and did not have. A group of which no more was said has no parts."""
    groups: dict[str, Group] = {}
    keys: dict[str | None, dict[tuple[str, str], Key]] = {}
    for event in events:
        if isinstance(event, KeyGroup):
            groups[event.digest] = group(event.digest, event.names, event.digests, event.texts)
        elif isinstance(event, KeyMade):
            found = {name: groups.get(digest, Group(digest=digest, parts={})) for name, digest in event.groups.items()}
            key = Key(layer=event.layer.value, key=event.key, groups=found)
            keys.setdefault(event.job, {})[key.layer, key.key] = key
    return {job: tuple(made.values()) for job, made in keys.items()}
