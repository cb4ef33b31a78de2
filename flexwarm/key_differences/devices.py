"""Devices in the texts of torch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

_DEVICE = re.compile(r"device\(type='(\w+)'(?:, index=(\d+))?\)")


def devices(text: str) -> list[str]:
    """``cpu`` or ``cuda:0`` of every device in a text."""
    return [_name(found) for found in _DEVICE.finditer(text)]


def moved(old: Iterable[str], new: Iterable[str]) -> tuple[str, str] | None:
    """The device that only the old ones have, and the one that only the new ones have, if it is one each."""
    gone, come = set(old) - set(new), set(new) - set(old)
    return (gone.pop(), come.pop()) if len(gone) == len(come) == 1 else None


def move(text: str, to: Mapping[str, str]) -> str:
    """A text with each device as the one that took its place."""
    if not to:
        return text

    def described(found: re.Match[str]) -> str:
        kind, _, index = to.get(_name(found), _name(found)).partition(":")
        return f"device(type='{kind}', index={index})" if index else f"device(type='{kind}')"

    text = _DEVICE.sub(described, text)
    return re.sub(r"\b\w+:\d+\b(?!:)", lambda found: to.get(found[0], found[0]), text)


def _name(found: re.Match[str]) -> str:
    return found[1] if found[2] is None else f"{found[1]}:{found[2]}"
