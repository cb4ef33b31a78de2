"""The inputs of a key, read from torch's texts."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from flexwarm.key_differences.devices import devices
from flexwarm.key_differences.pairs import items

_METADATA = re.compile(r"TensorMetadata\((.*)\)", re.DOTALL)
_FIELD = re.compile(r"\s*(\w+)=(.*)", re.DOTALL)
_SCALAR = re.compile(r"\('([^']*)'(?:, ([^()]*?))?,?\)")
SYMBOL = re.compile(r"\b[su]_?\d+\b")

#: A size is a number, or an expression of names where it is dynamic.
Sizes = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Tensor:
    """``rest``: the other fields of torch's metadata."""

    shape: Sizes
    stride: Sizes
    dtype: str
    device: str
    gradient: str
    rest: Mapping[str, str]

    @property
    def dynamic(self) -> bool:
        return any(not size.isdecimal() for size in self.shape)

    @property
    def contiguous(self) -> bool:
        expected: list[str] = []
        for size, stride in zip(reversed(self.shape), reversed(self.stride), strict=False):
            if size != "1" and _product([stride]) != _product(expected):
                return False
            expected.append(size)
        return True


def _product(sizes: Iterable[str]) -> tuple[int, list[str]]:
    """The number and the names of which sizes are the product, such as ``64*s37``."""
    factors = [factor.strip() for size in sizes for factor in size.split("*")]
    numbers = [int(factor) for factor in factors if factor.isdecimal()]
    return math.prod(numbers), sorted(factor for factor in factors if not factor.isdecimal())


@dataclass(frozen=True, slots=True)
class Number:
    """An input that is no tensor: a size that has a name, or a number. ``hint``: what the name stands for, if it is told."""

    symbol: str
    hint: str

    @property
    def dynamic(self) -> bool:
        return bool(SYMBOL.search(self.symbol))


@dataclass(frozen=True, slots=True)
class Unread:
    """An input of a form that is not known."""

    dynamic = False


Input = Tensor | Number | Unread


@lru_cache(maxsize=20_000)
def read(text: str) -> Input:
    scalar = _SCALAR.fullmatch(text)
    if scalar:
        return Number(scalar[1], scalar[2] or "")
    found = _METADATA.fullmatch(text)
    if not found:
        return Unread()
    fields = {item[1]: item[2] for item in map(_FIELD.fullmatch, items(found[1])) if item}
    shape, stride = _sizes(fields.pop("shape", "")), _sizes(fields.pop("stride", ""))
    device = devices(fields.pop("device", ""))
    dtype = fields.pop("dtype", "").removeprefix("torch.")
    if shape is None or stride is None or not device or not dtype:
        return Unread()
    return Tensor(shape, stride, dtype, device[0], fields.pop("requires_grad", ""), fields)


def _sizes(text: str) -> Sizes | None:
    """The sizes of ``torch.Size([1, 2])`` or ``(2, 1)``."""
    if text.startswith("torch.Size("):
        text = text.removeprefix("torch.Size(")[:-1]
    return tuple(items(text[1:-1])) if text.startswith(("(", "[")) else None
