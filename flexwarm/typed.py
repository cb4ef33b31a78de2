"""Whether what a file says has the types that its class asks for: a value of another one breaks what reads it, later."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar, Union, get_args, get_origin, get_type_hints


def conforms(value: Any, hint: Any) -> bool:
    """Whether ``value`` is of the type that an annotation says: scalars, tuples, mappings, enums, dataclasses, and ``None``."""
    if hint is Any:
        return True
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return any(conforms(value, one) for one in arguments)
    if origin is tuple:
        items = (arguments[0],) * len(value) if arguments[-1] is ... and isinstance(value, tuple) else arguments
        return isinstance(value, tuple) and len(value) == len(items) and all(map(conforms, value, items))
    if origin is Mapping:
        key, item = arguments
        return isinstance(value, dict) and all(conforms(k, key) and conforms(v, item) for k, v in value.items())
    if hint in (int, float):  # a truth value is a number to Python, and to nobody else
        return isinstance(value, (int, hint)) and not isinstance(value, bool)
    kind: type = type(None) if hint is None else hint
    return isinstance(value, kind) and (not dataclasses.is_dataclass(kind) or wrong_field(value) is None)


def wrong_field(value: Any) -> str | None:
    """The first field of a dataclass that is not of its type."""
    kind: Any = type(value)
    fields: tuple[tuple[str, Any], ...] = _fields(kind)
    return next((name for name, hint in fields if not conforms(getattr(value, name), hint)), None)


@cache
def _fields(kind: type) -> tuple[tuple[str, Any], ...]:
    return tuple((name, hint) for name, hint in get_type_hints(kind).items() if get_origin(hint) is not ClassVar)
