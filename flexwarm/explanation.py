"""Why a key is not in a bucket: the nearest one that is, and in what the two differ. Pure."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Any

from flexwarm.key_differences import Cause, causes, nearest
from flexwarm.key_parts import Key, Part

#: Characters of a part that JSON has; the file beside the bucket has more.
_SHOWN = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A part of a key that is not as in the nearest; None where one of the two has no such part."""

    name: str
    old: str | None
    new: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """A key that was asked for and is not in the bucket.

    Attributes:
        nearest: the key of a build that is the most like it.
        causes: in a user's words.
        differences: every part that differs.
    """

    layer: str
    key: str
    nearest: str
    causes: tuple[Cause, ...]
    differences: tuple[Difference, ...]

    def to_json(self) -> dict[str, Any]:
        """What docs/reference/json.md says of a miss."""
        causes = [{"kind": x.kind.value, "subject": x.subject, "old": x.old, "new": x.new, "text": str(x)} for x in self.causes]
        parts = [{"name": x.name, "old": _cut(x.old), "new": _cut(x.new)} for x in self.differences]
        return {"layer": self.layer, "key": self.key, "nearest": self.nearest, "causes": causes, "parts": parts}


def explain(missed: Key, known: Sequence[Key], prefer: Set[str]) -> Explained | None:
    """A key, explained by the nearest of its layer; None if no other key of the layer is known.

    Args:
        prefer: keys that win where several are equally near.
    """
    old = nearest(missed, known, prefer)
    if old is None:
        return None
    return Explained(
        layer=missed.layer,
        key=missed.key,
        nearest=old.key,
        causes=tuple(causes(old, missed)),
        differences=tuple(_differences(old, missed)),
    )


def _differences(old: Key, new: Key) -> list[Difference]:
    before, after = _parts(old), _parts(new)
    names = [*before, *(name for name in after if name not in before)]
    return [
        Difference(name=name, old=_text(before.get(name)), new=_text(after.get(name)))
        for name in names
        if _digest(before.get(name)) != _digest(after.get(name))
    ]


def _parts(key: Key) -> dict[str, Part]:
    return {name: part for group in key.groups.values() for name, part in group.parts.items()}


def _text(part: Part | None) -> str | None:
    return part.text if part is not None else None


def _digest(part: Part | None) -> str | None:
    return part.digest if part is not None else None


def _cut(text: str | None) -> str | None:
    return text if text is None or len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
