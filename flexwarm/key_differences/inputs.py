"""What differs in the inputs of a graph: devices, shapes, dtypes, strides, gradients."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from flexwarm.key_differences.cause import UNSET, Cause, CauseKind
from flexwarm.key_differences.changes import Changes
from flexwarm.key_differences.code import tables
from flexwarm.key_differences.devices import moved
from flexwarm.key_differences.names import input_names
from flexwarm.key_differences.pairs import Differences, Pair, bare
from flexwarm.key_differences.tensors import SYMBOL, Input, Number, Sizes, Tensor, read
from flexwarm.key_parts import Key, Part

#: What is said to differ where one graph has more inputs.
INPUT_COUNT = "the number of inputs"
#: Fields of a tensor that follow from its sizes and its dtype.
_SIZED = {"storage_bytes", "memory_format", "storage_offset"}


@dataclass(slots=True)
class _Inputs:
    """The inputs of one key. Named sizes come and go between the tensors, which are counted without them.

    Attributes:
        numbers: sizes and numbers that are passed.
        tensors: the other inputs.
        labels: of those, their names, or their numbers.
        tables: positions of the tables of a block mask among all inputs.
    """

    numbers: list[Number]
    tensors: list[tuple[Part, Input]]
    labels: list[str]
    tables: set[int]

    @classmethod
    def of(cls, key: Key) -> _Inputs:
        group = key.groups.get("example_inputs")
        parts = sorted(group.parts.values(), key=_position) if group else []
        found = [(part, read(part.text)) for part in parts]
        numbers = [seen for _, seen in found if isinstance(seen, Number)]
        names = input_names(key, len(parts))
        tensors: list[tuple[Part, Input]] = []
        labels: list[str] = []
        for (part, seen), name in zip(found, names, strict=True):
            if not isinstance(seen, Number):
                labels.append(str(len(labels)) if name.isdecimal() else name)
                tensors.append((part, seen))
        return cls(numbers, tensors, labels, tables(key))

    @property
    def size(self) -> str:
        dynamic = any(seen.dynamic for seen in chain(self.numbers, (seen for _, seen in self.tensors)))
        return "dynamic" if dynamic else "static"

    def renamed(self) -> Callable[[Tensor], Tensor]:
        """Renames symbols in the order in which they appear: torch's own names mean nothing."""
        shapes = (seen.shape for _, seen in self.tensors if isinstance(seen, Tensor))
        symbols = dict.fromkeys(symbol for size in chain.from_iterable(shapes) for symbol in SYMBOL.findall(size))
        names = {symbol: f"${at}" for at, symbol in enumerate(symbols)}

        def sizes(known: Sizes) -> Sizes:
            return tuple(SYMBOL.sub(lambda found: names.get(found[0], found[0]), size) for size in known)

        return lambda tensor: replace(tensor, shape=sizes(tensor.shape), stride=sizes(tensor.stride))


@dataclass(slots=True)
class _Row:
    """A tensor that differs.

    Attributes:
        label: its name, or its number among the tensors.
        table: it is one of a block mask.
        plain: both with symbols that can be compared.
    """

    label: str
    table: bool
    old: Tensor
    new: Tensor
    plain: tuple[Tensor, Tensor]

    @property
    def mixed(self) -> bool:
        """Whether a size is a number in the one and has a name in the other."""
        if len(self.old.shape) != len(self.new.shape):
            return self.old.dynamic != self.new.dynamic
        return any(a.isdecimal() != b.isdecimal() for a, b in zip(self.old.shape, self.new.shape, strict=True))

    @property
    def resized(self) -> bool:
        old, new = self.old, self.new
        return (old.shape, old.stride, old.dtype) != (new.shape, new.stride, new.dtype)

    @property
    def sizes(self) -> set[tuple[str, str]]:
        """The sizes that differ."""
        return {(a, b) for a, b in zip(self.old.shape, self.new.shape, strict=False) if a != b}

    @property
    def numbers(self) -> set[tuple[int, int]]:
        """The sizes that differ and are numbers in both."""
        if len(self.old.shape) != len(self.new.shape):
            return set()
        return {(int(a), int(b)) for a, b in self.sizes if a.isdecimal() and b.isdecimal()}


def inputs(differences: Differences, changes: Changes) -> list[Cause]:
    if not differences.take("example_inputs"):
        return []
    old, new = _Inputs.of(differences.old), _Inputs.of(differences.new)
    changes.inputs = len(old.numbers) != len(new.numbers) or len(old.tensors) != len(new.tensors)
    if len(old.tensors) != len(new.tensors):
        return _counts(old, new, changes)
    rows, found = _rows(old, new)
    found += _dynamic(rows, changes)
    if not any(row.mixed for row in rows):
        found += _numbers(old, new, changes)
    found += _devices(rows, changes)
    found += _shapes(rows, changes)
    found += _dtypes(rows, changes)
    found += _strides(rows, changes)
    found += _gradients(rows, changes)
    return found + _other_fields(rows)


def _position(part: Part) -> int:
    found = re.search(r"\[(\d+)\]", part.name)
    return int(found[1]) if found else -1


def _counts(old: _Inputs, new: _Inputs, changes: Changes) -> list[Cause]:
    """Of another number of inputs it is not known which is which."""
    found = []
    if old.size != new.size:
        changes.dynamic = True
        found.append(Cause(CauseKind.DYNAMIC, "the graph", old.size, new.size))
    found.append(Cause(CauseKind.INPUTS, INPUT_COUNT, str(len(old.tensors)), str(len(new.tensors))))
    device = moved(*([seen.device for _, seen in side.tensors if isinstance(seen, Tensor)] for side in (old, new)))
    if device:
        changes.devices[device[0]] = device[1]
        pairs = zip(new.labels, new.tensors, strict=True)
        labels = [label for label, (_, seen) in pairs if isinstance(seen, Tensor) and seen.device == device[1]]
        found.append(Cause(CauseKind.DEVICE, _named(labels), *device))
    return found


def _rows(old: _Inputs, new: _Inputs) -> tuple[list[_Row], list[Cause]]:
    """The tensors that differ, and causes for the inputs that cannot be read."""
    rows, unread = [], []
    names = old.renamed(), new.renamed()
    for label, (part, first), (other, second) in zip(new.labels, old.tensors, new.tensors, strict=True):
        if part.digest == other.digest:
            continue
        if isinstance(first, Tensor) and isinstance(second, Tensor):
            table = _position(part) in old.tables and _position(other) in new.tables
            rows.append(_Row(label, table, first, second, (names[0](first), names[1](second))))
        else:
            unread.append(Cause(CauseKind.OTHER, _named([label]), *Pair(part.name, part, other).texts))
    return rows, unread


def _named(labels: Sequence[str]) -> str:
    """``input query``, ``inputs 0, 1 and 2`` or ``input x and 4 more``."""
    if len(labels) == 1:
        return f"input {labels[0]}"
    if len(labels) > 3:
        return f"input {labels[0]} and {len(labels) - 1} more"
    return f"inputs {', '.join(labels[:-1])} and {labels[-1]}"


def _alike(rows: Iterable[_Row], show: Callable[[Tensor], str]) -> list[tuple[str, tuple[str, str], _Row]]:
    """Each change of what is shown of a tensor: the subject, both texts, and the first of the rows that have it."""
    found: dict[tuple[str, str], list[_Row]] = {}
    for row in rows:
        texts = show(row.old), show(row.new)
        if texts[0] != texts[1]:
            found.setdefault(texts, []).append(row)
    return [(_named([row.label for row in same]), texts, same[0]) for texts, same in found.items()]


def _dynamic(rows: Sequence[_Row], changes: Changes) -> list[Cause]:
    """Sizes that have a name in the one and not in the other."""
    found = []
    known: set[tuple[str, str]] = set()
    for subject, texts, row in _alike((row for row in rows if row.mixed), _sizes):
        changes.dynamic = True
        if not row.sizes <= known:  # else it is the same size, in another tensor
            found.append(Cause(CauseKind.DYNAMIC, subject, *texts))
        known |= row.sizes
    return found


def _sizes(tensor: Tensor) -> str:
    return f"{'dynamic' if tensor.dynamic else 'static'} ({_shape(tensor)})"


def _numbers(old: _Inputs, new: _Inputs, changes: Changes) -> list[Cause]:
    """Numbers that are passed."""
    subject = "a number that is passed"
    if old.size != new.size:
        changes.dynamic = True
        return [Cause(CauseKind.DYNAMIC, subject, old.size, new.size)]
    if len(old.numbers) != len(new.numbers):
        sides = (str(len(side.numbers)) for side in (old, new))
        return [Cause(CauseKind.INPUTS, "the number of numbers that are passed", *sides)]
    found = []
    for a, b in zip(old.numbers, new.numbers, strict=True):
        # A name alone is nothing; what it stands for is in the keys of some versions.
        if a.hint == b.hint and (a.symbol == b.symbol or (a.dynamic and b.dynamic)):
            continue
        first, second = a.hint or a.symbol, b.hint or b.symbol
        found.append(Cause(CauseKind.DYNAMIC, f"the size {b.symbol}" if b.hint else subject, first, second))
        if first.isdecimal() and second.isdecimal():
            changes.sizes.add((int(first), int(second)))
    return found


def _devices(rows: Sequence[_Row], changes: Changes) -> list[Cause]:
    found = _alike(rows, lambda tensor: tensor.device)
    changes.devices.update(texts for _, texts, _ in found)
    return [Cause(CauseKind.DEVICE, subject, *texts) for subject, texts, _ in found]


def _shapes(rows: Sequence[_Row], changes: Changes) -> list[Cause]:
    changed = [row for row in rows if row.plain[0].shape != row.plain[1].shape and not row.mixed]
    known: set[tuple[int, int]] = set()
    found = []
    for subject, texts, row in _alike((row for row in changed if not row.table), _any_shape):
        if not row.numbers or not row.numbers <= known:  # else it is the same size, in another tensor
            found.append(Cause(CauseKind.SHAPE, subject, *texts))
        known |= row.numbers
    masks = [row for row in changed if row.table]
    if masks and not found and not changes.dynamic and not changes.sizes:
        found = [Cause(CauseKind.SHAPE, "the block mask", _shape(masks[0].old), _shape(masks[0].new))]
        known = masks[0].numbers
    changes.sizes |= known
    return found


def _shape(tensor: Tensor) -> str:
    return "x".join(tensor.shape) or "scalar"


def _any_shape(tensor: Tensor) -> str:
    """``1x2x*x64``: a size that has a name may be any."""
    return _shape(replace(tensor, shape=tuple(SYMBOL.sub("*", size) for size in tensor.shape)))


def _dtypes(rows: Sequence[_Row], changes: Changes) -> list[Cause]:
    found = _alike(rows, lambda tensor: tensor.dtype)
    changes.dtypes.update(texts for _, texts, _ in found)
    return [Cause(CauseKind.DTYPE, subject, *texts) for subject, texts, _ in found]


def _strides(rows: Sequence[_Row], changes: Changes) -> list[Cause]:
    def apart(row: _Row) -> bool:
        old, new = row.plain
        if row.table or row.mixed or len(old.shape) != len(new.shape):
            return False
        alike = old.shape == new.shape
        if not alike and old.contiguous and new.contiguous:
            return False
        return any(
            a != b and (alike or "1" not in sizes) and not changes.explain(a, b, derived=True)
            for a, b, *sizes in zip(old.stride, new.stride, old.shape, new.shape, strict=False)
        )

    found = _alike(filter(apart, rows), lambda tensor: ",".join(tensor.stride) or "none")
    return [Cause(CauseKind.STRIDE, subject, *texts) for subject, texts, _ in found]


def _gradients(rows: Sequence[_Row], changes: Changes) -> list[Cause]:
    names = {"True": "with a gradient", "False": "without a gradient"}
    found = _alike(rows, lambda tensor: names.get(tensor.gradient, tensor.gradient))
    if not found or changes.gradient:
        return []
    changes.gradient = True
    return [Cause(CauseKind.GRADIENT, subject, *texts) for subject, texts, _ in found]


def _other_fields(rows: Sequence[_Row]) -> list[Cause]:
    """Whatever else is known of a tensor, where it does not follow from the rest."""
    found = []
    for name in dict.fromkeys(chain.from_iterable(chain(row.old.rest, row.new.rest) for row in rows)):
        told = (row for row in rows if not (name in _SIZED and row.resized))
        for subject, texts, _ in _alike(told, lambda tensor: bare(tensor.rest.get(name, UNSET))):  # noqa: B023
            found.append(Cause(CauseKind.OTHER, f"{name} of {subject}", *texts))
    return found
