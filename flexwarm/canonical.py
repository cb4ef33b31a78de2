"""The one text form of a value that is hashed: canonical JSON, and the digest of it.

A digest is only ever taken of this text, and the text is stored beside the digest, so that two digests
that differ can always be compared.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sys
from enum import Enum
from typing import Any

if sys.version_info >= (3, 11):
    from enum import StrEnum as StrEnum
else:

    class StrEnum(str, Enum):
        """Stand-in for ``enum.StrEnum`` on Python 3.10: the member prints as its value."""

        def __str__(self) -> str:
            return str(self.value)


def plain(value: Any) -> Any:
    """Dataclasses, enums, tuples and mappings as what JSON has; anything else but a scalar is a ``TypeError``."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    raise TypeError(f"{type(value).__name__} has no JSON form")


def text(value: Any) -> str:
    """Canonical JSON of ``value``: sorted keys, no spaces, no NaN."""
    return json.dumps(plain(value), sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=True)


def digest(value: Any, length: int = 20) -> str:
    """The first ``length`` hexadecimal digits of the SHA-256 of the canonical JSON of ``value``."""
    return hashlib.sha256(text(value).encode()).hexdigest()[:length]
