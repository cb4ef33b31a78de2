"""Typed reading of one TOML table, with errors that name the table, the key and what would be right."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from flexwarm.canonical import StrEnum
from flexwarm.errors import SpecError

_NAME = re.compile(r"\w[\w.+-]{0,63}")

E = TypeVar("E", bound=StrEnum)

#: TOML's names of what a value is, for messages.
_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text", list: "a list", dict: "a table"}


def kind_of(value: object) -> str:
    """What a TOML value is, in a user's words."""
    return _KINDS.get(type(value), type(value).__name__)


class Table:
    """One table of a spec file; every key is asked for once, and :meth:`finish` refuses those nobody asked for."""

    def __init__(self, data: object, label: str) -> None:
        if not isinstance(data, dict):
            raise SpecError(f"{label}: expected a table, found {kind_of(data)}")
        self.data: Mapping[str, Any] = data
        self.label = label
        self._known: list[str] = []

    def fail(self, key: str, problem: str, hint: str = "") -> NoReturn:
        raise SpecError(f"{self.label}: {key}: {problem}", hint)

    def has(self, key: str) -> bool:
        return key in self.data

    def _take(self, key: str, wanted: type | tuple[type, ...], default: Any) -> Any:
        self._known.append(key)
        if key not in self.data:
            return default
        value = self.data[key]
        kinds = wanted if isinstance(wanted, tuple) else (wanted,)
        # bool is an int in Python, and "processes = true" is not one process.
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            self.fail(key, f"expected {' or '.join(_KINDS[k] for k in kinds)}, found {kind_of(value)} ({value!r})")
        return value

    def text(self, key: str, default: str | None = None) -> str | None:
        value: str | None = self._take(key, str, default)
        if value is not None and not value.strip():
            self.fail(key, "must not be empty")
        return value

    def require_text(self, key: str) -> str:
        value = self.text(key)
        if value is None:
            self.fail(key, "is missing")
        return value

    def name(self) -> str:
        """The table's ``name``: it stands in job ids, in file names and on terminals, so it is kept plain."""
        value = self.require_text("name")
        if not _NAME.fullmatch(value):
            self.fail("name", f"{value[:80]!r} is not a plain name", "letters, digits and . _ + - , at most 64 of them")
        return value

    def flag(self, key: str, default: bool) -> bool:
        return bool(self._take(key, bool, default))

    def optional_flag(self, key: str) -> bool | None:
        value: bool | None = self._take(key, bool, None)
        return value

    def integer(self, key: str, default: int, minimum: int = 1) -> int:
        value = int(self._take(key, int, default))
        if value < minimum:
            self.fail(key, f"must be at least {minimum}, found {value}")
        return value

    def optional_integer(self, key: str, minimum: int = 1) -> int | None:
        return self.integer(key, minimum, minimum) if key in self.data else self._take(key, int, None)

    def optional_number(self, key: str) -> float | None:
        value = self._take(key, (int, float), None)
        return None if value is None else float(value)

    def table(self, key: str) -> dict[str, Any] | None:
        value: dict[str, Any] | None = self._take(key, dict, None)
        return value

    def texts(self, key: str) -> tuple[str, ...] | None:
        """A list of texts, or one text for a list of one."""
        value = self._take(key, (str, list), None)
        if value is None:
            return None
        items = [value] if isinstance(value, str) else value
        if not items or not all(isinstance(item, str) and item.strip() for item in items):
            self.fail(key, f"expected text or a list of texts, found {value!r}")
        return tuple(items)

    def integers(self, key: str) -> tuple[int, ...] | None:
        """A whole number of at least 1, or a list of them: a list is a grid."""
        value = self._take(key, (int, list), None)
        if value is None:
            return None
        items = value if isinstance(value, list) else [value]
        if not items:
            self.fail(key, "an empty list is a grid without points")
        for item in items:
            if not isinstance(item, int) or isinstance(item, bool) or item < 1:
                self.fail(key, f"expected a whole number of at least 1, found {item!r}")
        if len(set(items)) != len(items):
            self.fail(key, f"a value is there twice: {items}")
        return tuple(items)

    def require_integers(self, key: str) -> tuple[int, ...]:
        value = self.integers(key)
        if value is None:
            self.fail(key, "is missing")
        return value

    def tables(self, key: str) -> list[object]:
        """The ``[[key]]`` tables, not yet read; none where there is no such key."""
        self._known.append(key)
        value = self.data.get(key, [])
        if not isinstance(value, list):
            self.fail(key, f"expected [[{key}]] tables, found {kind_of(value)}", f"write [[{key}]] with two brackets")
        return value

    def choice(self, key: str, kind: type[E], default: E) -> E:
        value = self._take(key, str, default.value)
        try:
            return kind(value)
        except ValueError:
            self.fail(
                key,
                f"{value!r} is not one of {', '.join(member.value for member in kind)}",
                suggestion(value, [m.value for m in kind]),
            )

    def finish(self) -> None:
        """Refuse keys that nobody asked for: a misspelt key must not be a silent default."""
        for key in self.data:
            if key not in self._known:
                self.fail(
                    key, "unknown key", suggestion(key, self._known) or f"known keys: {', '.join(sorted(set(self._known)))}"
                )


def suggestion(word: str, known: Sequence[str]) -> str:
    """``did you mean ...?`` for a near miss, else nothing."""
    near = difflib.get_close_matches(word, known, n=1)
    return f"did you mean {near[0]!r}?" if near else ""
