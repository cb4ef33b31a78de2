"""What two keys do not share, part by part, and the texts of the parts as they are shown."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, zip_longest

from flexwarm.key_differences.cause import UNSET
from flexwarm.key_parts import Group, Key, Part

#: Characters of a digest that are shown.
DIGEST = 8
#: Characters of a line of code or a setting that are shown.
_SHOWN = 100


@dataclass(slots=True)
class Pair:
    """A part of both keys; one of them may lack it."""

    name: str
    old: Part | None
    new: Part | None

    @property
    def lone(self) -> bool:
        return self.old is None or self.new is None

    @property
    def setting(self) -> str:
        """``max_autotune`` of ``inductor_config[max_autotune]``."""
        found = re.fullmatch(r"\w+\[(.*)\]", self.name, re.DOTALL)
        return found[1] if found else self.name

    @property
    def contents(self) -> tuple[str, str]:
        """Both digests."""
        return _content(self.old), _content(self.new)

    @property
    def texts(self) -> tuple[str, str]:
        """Both texts, cut to where they differ; digests where the texts do not tell."""
        old, new = _text(self.old), _text(self.new)
        return self.contents if old is None or new is None or old == new else shortened(old, new)

    @property
    def lines(self) -> tuple[str, str]:
        """The first line of each that is not as in the other."""
        if self.old is None or self.new is None:
            return self.texts
        sides = ([line.strip() for line in part.text.splitlines() if line.strip()] for part in (self.old, self.new))
        for old, new in zip_longest(*sides, fillvalue="nothing"):
            if old != new:
                return shortened(old, new)
        return self.texts


class Differences:
    """The pairs that differ and were not looked at yet: group -> pairs, in the order of the old key and then of the new."""

    def __init__(self, old: Key, new: Key) -> None:
        self.old = old
        self.new = new
        self.left = {
            name: list(pairs(old.groups.get(name), new.groups.get(name)))
            for name in dict.fromkeys(chain(old.groups, new.groups))
        }

    def take(self, group: str, matches: Callable[[str], object] = lambda _: True) -> list[Pair]:
        """The pairs of a group whose name matches; they are then done with."""
        found = self.left.get(group, [])
        taken = [pair for pair in found if matches(pair.name)]
        if taken:
            self.left[group] = [pair for pair in found if not matches(pair.name)]
        return taken

    def take_one(self, group: str, name: str) -> Pair | None:
        return next(iter(self.take(group, lambda seen: seen == name)), None)


def same(old: Group | None, new: Group | None) -> bool:
    return old is new or bool(old and new and old.digest == new.digest)


def pairs(old: Group | None, new: Group | None) -> Iterator[Pair]:
    """The parts that differ."""
    if same(old, new):
        return
    first, second = (old.parts if old else {}), (new.parts if new else {})
    for name in dict.fromkeys(chain(first, second)):
        pair = Pair(name, first.get(name), second.get(name))
        if pair.old is None or pair.new is None or pair.old.digest != pair.new.digest:
            yield pair


def part(key: Key, group: str, name: str) -> Part | None:
    found = key.groups.get(group)
    return found.parts.get(name) if found else None


def _content(one: Part | None) -> str:
    return f"content {one.digest[:DIGEST]}" if one else UNSET


def _text(one: Part | None) -> str | None:
    """A setting's text; None if it is not for people."""
    if one is None:
        return UNSET
    text = " ".join(one.text.split())
    return bare(text) or "empty" if text.isprintable() and "\ufffd" not in text else None


def bare(text: str) -> str:
    """A text without what torch wraps it in."""
    boxed = re.fullmatch(r"Boxed\w+\(value=(.*)\)", text)
    return (boxed[1] if boxed else text).removeprefix("torch.")


def switch(text: str) -> str:
    return {"True": "on", "False": "off"}.get(text, text)


def shortened(old: str, new: str) -> tuple[str, str]:
    """Both texts cut to what surrounds their first difference."""
    start = 0
    if max(len(old), len(new)) > _SHOWN:
        apart = next((at for at, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
        start = max(0, apart - _SHOWN // 2) if apart > _SHOWN * 3 // 4 else 0
    return _cut(old, start), _cut(new, start)


def _cut(text: str, start: int) -> str:
    shown = f"…{text[start + 1 :]}" if start else text
    return shown if len(shown) <= _SHOWN else f"{shown[: _SHOWN - 1]}…"


def items(text: str) -> list[str]:
    """The items of ``a, (b, c), d`` with commas inside of brackets left alone."""
    found, depth, item = [], 0, ""
    for sign in text:
        depth += (sign in "([{") - (sign in ")]}")
        if sign == "," and depth == 0:
            found.append(item.strip())
            item = ""
        else:
            item += sign
    return [*found, item.strip()] if item.strip() else found
