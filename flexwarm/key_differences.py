"""Why a cache key is not the one that was built: what differs between the parts of two keys, in a user's words. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain, combinations, islice, zip_longest

from flexwarm.canonical import StrEnum
from flexwarm.key_parts import GRAPH, Group, Key, Part

#: What is said of a part that only the other key has.
UNSET = "unset"
#: Characters of a line of code or a setting that are shown.
_SHOWN = 100
#: Characters of a digest that are shown.
_DIGEST = 8
#: The code of a graph is cut at this length, so what comes after is not known.
_CODE_CUT = 20_000
#: Numbers of one graph that are named.
_NUMBERS = 3
#: Sizes that changed whose products are tried; each more doubles the work.
_RATIOS = 6


class CauseKind(StrEnum):
    """What kind of thing differs. The order is how telling it is: of the first ones much else is a consequence."""

    TORCH = "torch"
    TRITON = "triton"
    CUDA = "cuda"
    GPU = "gpu"
    DEVICE = "device"
    DYNAMIC = "dynamic"
    SHAPE = "shape"
    DTYPE = "dtype"
    STRIDE = "stride"
    MASK = "mask"
    SCORE = "score"
    CONSTANT = "constant"
    INPUTS = "inputs"
    KERNEL = "kernel"
    GRADIENT = "gradient"
    AUTOCAST = "autocast"
    GRAPH = "graph"
    PRECISION = "precision"
    DETERMINISM = "determinism"
    THREADS = "threads"
    SETTING = "setting"
    OTHER = "other"


_RANK = {kind: rank for rank, kind in enumerate(CauseKind)}

#: How a cause is said; "is" and "has" stand for the plural as well.
_SENTENCES = {
    CauseKind.DEVICE: "{subject} is on {new}, and on {old} when this was built",
    CauseKind.SHAPE: "{subject} has the shape {new}, and {old} when this was built",
    CauseKind.DTYPE: "{subject} has the dtype {new}, and {old} when this was built",
    CauseKind.STRIDE: "{subject} has the strides {new}, and {old} when this was built",
    CauseKind.MASK: "{subject} has `{new}`, and `{old}` when this was built",
    CauseKind.SCORE: "{subject} has `{new}`, and `{old}` when this was built",
    CauseKind.GRAPH: "{subject} has `{new}`, and `{old}` when this was built",
    CauseKind.KERNEL: "{subject} has `{new}`, and `{old}` when this was built",
    CauseKind.CONSTANT: "{subject} has the number {new}, and {old} when this was built",
}
_SENTENCE = "{subject} is {new}, and {old} when this was built"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One thing that a user changed, or that is not the same here.

    Attributes:
        subject: what differs: ``input 0``, ``max_autotune``, ``the mask function``.
        old, new: in short; :data:`UNSET` where only the other has it.
    """

    kind: CauseKind
    subject: str
    old: str
    new: str

    def __str__(self) -> str:
        sentence = _SENTENCES.get(self.kind, _SENTENCE)
        if self.old.startswith("content ") or self.new.startswith("content "):
            sentence = "{subject} has {new}, and {old} when this was built"
        if self.subject.startswith("inputs ") or self.subject.endswith(" more"):
            sentence = sentence.replace("} is ", "} are ").replace("} has ", "} have ")
        return sentence.format(subject=self.subject, new=self.new, old=self.old)


# What two keys do not share


@dataclass(slots=True)
class _Pair:
    """A part of both keys; one of them may lack it."""

    name: str
    old: Part | None
    new: Part | None

    @property
    def texts(self) -> tuple[str, str]:
        """Both texts, cut to where they differ; digests where the texts do not tell."""
        old, new = _value(self.old), _value(self.new)
        if old is None or new is None or old == new:
            return _content(self.old), _content(self.new)
        return _shorten(old, new)


#: group -> the pairs that differ, in the order of the old key and then of the new.
_Different = dict[str, list[_Pair]]


def _different(old: Key, new: Key) -> _Different:
    found: _Different = {}
    for name in dict.fromkeys(chain(old.groups, new.groups)):
        first, second = old.groups.get(name), new.groups.get(name)
        if first is second or (first and second and first.digest == second.digest):
            continue
        pairs = list(_pairs(first, second))
        if pairs:
            found[name] = pairs
    return found


def _pairs(old: Group | None, new: Group | None) -> Iterator[_Pair]:
    first, second = (old.parts if old else {}), (new.parts if new else {})
    for name in dict.fromkeys(chain(first, second)):
        pair = _Pair(name, first.get(name), second.get(name))
        if pair.old is None or pair.new is None or pair.old.digest != pair.new.digest:
            yield pair


def _value(part: Part | None) -> str | None:
    """A setting's text without what torch wraps it in; None if it is not for people."""
    if part is None:
        return UNSET
    text = " ".join(part.text.split())
    return _bare(text) or "empty" if text.isprintable() and "\ufffd" not in text else None


def _content(part: Part | None) -> str:
    return f"content {part.digest[:_DIGEST]}" if part else UNSET


def _bare(text: str) -> str:
    boxed = re.fullmatch(r"Boxed\w+\(value=(.*)\)", text)
    return (boxed[1] if boxed else text).removeprefix("torch.")


def _shorten(old: str, new: str) -> tuple[str, str]:
    """Both texts cut to what surrounds their first difference."""
    start = 0
    if max(len(old), len(new)) > _SHOWN:
        apart = next((at for at, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
        start = max(0, apart - _SHOWN // 2) if apart > _SHOWN * 3 // 4 else 0
    return _cut(old, start), _cut(new, start)


def _cut(text: str, start: int = 0) -> str:
    shown = f"…{text[start + 1 :]}" if start else text
    return shown if len(shown) <= _SHOWN else f"{shown[: _SHOWN - 1]}…"


def _list(text: str) -> list[str]:
    """The items of ``a, (b, c), d`` with commas inside of brackets left alone."""
    items, depth, item = [], 0, ""
    for sign in text:
        depth += (sign in "([{") - (sign in ")]}")
        if sign == "," and depth == 0:
            items.append(item.strip())
            item = ""
        else:
            item += sign
    return [*items, item.strip()] if item.strip() else items


# Inputs

_METADATA = re.compile(r"TensorMetadata\((.*)\)", re.DOTALL)
_FIELD = re.compile(r"\s*(\w+)=(.*)", re.DOTALL)
_DEVICE = re.compile(r"device\(type='(\w+)'(?:, index=(\d+))?\)")
_SYMBOL = re.compile(r"\b[su]_?\d+\b")
_SCALAR = re.compile(r"\('([^']*)'(?:, ([^()]*?))?,?\)")


@dataclass(frozen=True, slots=True)
class _Tensor:
    shape: tuple[str, ...]
    stride: tuple[str, ...]
    dtype: str
    device: str
    gradient: str
    rest: Mapping[str, str]

    @property
    def dynamic(self) -> bool:
        return any(not size.isdecimal() for size in self.shape)

    @property
    def contiguous(self) -> bool:
        expected, stride = [], 1
        for size in reversed(self.shape):
            expected.append(str(stride))
            stride *= int(size) if size.isdecimal() else 0
        sides = zip(self.shape, self.stride, reversed(expected), strict=False)
        return all(seen == known or size == "1" for size, seen, known in sides)


@dataclass(frozen=True, slots=True)
class _Number:
    """An input that is no tensor: a size that has a name, or a number."""

    symbol: str
    hint: str


@dataclass(frozen=True, slots=True)
class _Unread:
    """An input of a form that is not known."""


_Input = _Tensor | _Number | _Unread


@lru_cache(maxsize=20_000)
def _input(text: str) -> _Input:
    scalar = _SCALAR.fullmatch(text)
    if scalar:
        return _Number(scalar[1], scalar[2] or "")
    if re.fullmatch(r"-?[\w.]+", text):
        return _Number(text, "")
    found = _METADATA.fullmatch(text)
    if not found:
        return _Unread()
    fields = {item[1]: item[2] for item in map(_FIELD.fullmatch, _list(found[1])) if item}
    shape, stride = _sizes(fields.pop("shape", "")), _sizes(fields.pop("stride", ""))
    device = _DEVICE.fullmatch(fields.pop("device", ""))
    dtype = fields.pop("dtype", "").removeprefix("torch.")
    if shape is None or stride is None or device is None or not dtype:
        return _Unread()
    return _Tensor(shape, stride, dtype, _device_name(device), fields.pop("requires_grad", ""), fields)


def _sizes(text: str) -> tuple[str, ...] | None:
    """The sizes of ``torch.Size([1, 2])`` or ``(2, 1)``."""
    inner = text.removeprefix("torch.Size")
    if inner[:1] not in ("(", "["):
        return None
    while inner[:1] in ("(", "[") and inner[-1:] in (")", "]"):
        inner = inner[1:-1]
    return tuple(_list(inner))


def _device_name(found: re.Match[str]) -> str:
    return found[1] if found[2] is None else f"{found[1]}:{found[2]}"


def _inputs(key: Key) -> list[tuple[Part, _Input]]:
    group = key.groups.get("example_inputs")
    parts = sorted(group.parts.values(), key=lambda part: _position(part.name)) if group else []
    return [(part, _input(part.text)) for part in parts]


def _position(name: str) -> int:
    found = re.search(r"\[(\d+)\]", name)
    return int(found[1]) if found else -1


def _named(numbers: Sequence[int]) -> str:
    """``input 0``, ``inputs 0, 1 and 2`` or ``input 0 and 4 more``."""
    if len(numbers) == 1:
        return f"input {numbers[0]}"
    if len(numbers) > 3:
        return f"input {numbers[0]} and {len(numbers) - 1} more"
    return f"inputs {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"


def _symbols(tensors: Iterable[_Input]) -> Callable[[str], str]:
    """Renames the symbols of a key in the order in which they appear: torch's own names mean nothing."""
    names: dict[str, str] = {}
    for tensor in tensors:
        if isinstance(tensor, _Tensor):
            for size in tensor.shape:
                for symbol in _SYMBOL.findall(size):
                    names.setdefault(symbol, f"${len(names)}")
    return lambda text: _SYMBOL.sub(lambda found: names.get(found[0], found[0]), text)


@dataclass(slots=True)
class _Changes:
    """What is known to have changed, and so explains changes elsewhere.

    Attributes:
        sizes: (old, new) of the sizes of inputs that changed.
        devices, dtypes: old -> new.
    """

    sizes: set[tuple[int, int]] = field(default_factory=set)
    devices: dict[str, str] = field(default_factory=dict)
    dtypes: dict[str, str] = field(default_factory=dict)
    dynamic: bool = False
    inputs: bool = False
    gradient: bool = False
    training: bool = False

    def ratios(self) -> set[float]:
        """By how much a size that is a product of sizes that changed may have grown."""
        known = sorted(self.sizes)[:_RATIOS]
        subsets = chain.from_iterable(combinations(known, count) for count in range(1, len(known) + 1))
        return {math.prod(new / old for old, new in subset) for subset in subsets if all(old and new for old, new in subset)}

    def explains(self, old: str, new: str, *, derived: bool) -> bool:
        """Whether a number follows from the sizes; ``derived``: also if it is computed from them."""
        if not self.sizes:
            return False
        a, b = _number(old), _number(new)
        if a is None or b is None:
            return False
        if any((a, b) == pair or b - a == pair[1] - pair[0] for pair in self.sizes):
            return True
        if not derived or a == 0 or b == 0:
            return False
        if any(math.isclose(b / a, ratio, rel_tol=1e-9) for ratio in self.ratios()):
            return True
        if isinstance(a, float) or isinstance(b, float):
            return b / a > 0 and any(
                math.isclose(b / a, ratio**power, rel_tol=1e-6) for ratio in self.ratios() for power in (-1, 0.5, -0.5)
            )
        # Blocks or tiles that the sizes are cut into.
        return any(
            (-(-x // size), -(-y // size)) == (a, b) for x, y in self.sizes for size in (2**power for power in range(1, 11))
        )


def _number(text: str) -> int | float | None:
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            pass  # not of this kind
    return None


# Code

_TAIL = re.compile(r";\s+(?:\w+ = )+None\s*$")
_ASSIGNED = re.compile(r"(\w+) = (.*)", re.DOTALL)
_DEFINED = re.compile(r"def forward\(self(?:, )?(.*)\):(?:\s*->.*)?")
_NAME = re.compile(r"(?<![\w.'%])[A-Za-z_]\w*(?!\w)")
_DIGITS = re.compile(r"(?<![\w.%$])-?(?:\d+\.?\d*(?:e[+-]?\d+)?|inf\b)(?![\w.])")
_CAST = re.compile(r"torch\.ops\.prims\.convert_element_type\.default\((%\w+), torch\.\w+\)")
_CALLED = re.compile(r"(?<![\w.])([a-zA-Z_][\w.]*)\(")
_FLEX = re.compile(r"\bflex_attention(?:_backward)?\(")
_TABLES = re.compile(r"\bflex_attention(?:_backward)?\([^()]*\(([^()]*)\)")
_OPTIONS = re.compile(r"\{('\w+': [^{}]*)\}")
_OPTION = re.compile(r"'(\w+)': ([^,]+)")
#: A kernel option that torch sets itself, by whether gradients are needed.
_OF_GRADIENT = {"OUTPUT_LOGSUMEXP", "OUTPUT_MAX"}


@dataclass(frozen=True, slots=True)
class _Statement:
    """``raw``: as torch prints it. ``plain``: without names that torch gives, so that it can be compared."""

    raw: str
    plain: str


@dataclass(slots=True)
class _Code:
    parameters: list[str]
    statements: list[_Statement]
    options: list[dict[str, str]]
    aliases: dict[str, str]


def _code(text: str, *, without_casts: bool = False) -> _Code:
    lines = text.splitlines()
    if len(text) >= _CODE_CUT:
        lines = lines[:-1]
    code = _Code([], [], [], {})
    names: dict[str, str] = {}
    for line in (line.strip() for line in lines):
        if not line:
            continue
        defined = _DEFINED.fullmatch(line)
        if defined:
            code.parameters = [re.split(r"\s*[:=]", item)[0].strip() for item in _list(defined[1])]
            names.update({name: f"%p{at}" for at, name in enumerate(code.parameters)})
            continue
        raw = _TAIL.sub("", line)
        assigned = _ASSIGNED.fullmatch(raw)
        plain = _NAME.sub(lambda found: names.get(found[0], found[0]), assigned[2] if assigned else raw)
        if assigned and re.fullmatch(r"%\w+|self(\.\w+)+", plain):
            names[assigned[1]] = plain  # torch's second name of an input, or of a graph inside of this one
            code.aliases[assigned[1]] = assigned[2]
            continue
        cast = _CAST.fullmatch(plain) if without_casts else None
        if assigned and cast:
            names[assigned[1]] = cast[1]
            continue
        if assigned:
            names[assigned[1]] = f"%{len(code.statements)}_"
        if _FLEX.search(plain):
            options = _OPTIONS.search(plain)
            if options:
                code.options.append(dict(_OPTION.findall(options[1])))
                plain = plain.replace(options[0], "{}")
        code.statements.append(_Statement(raw, plain))
    return code


def _tables(key: Key) -> frozenset[int]:
    """Inputs, by their number, that are tables of a block mask: they follow from the lengths and the mask."""
    group = key.groups.get(GRAPH)
    root = group.parts.get(GRAPH) if group else None
    return _table_positions(root.text) if root else frozenset()


@lru_cache(maxsize=64)
def _table_positions(text: str) -> frozenset[int]:
    code = _code(text)
    positions = {name: at for at, name in enumerate(code.parameters)}
    found = set()
    for statement in code.statements:
        for call in _TABLES.findall(statement.raw):
            for name in map(str.strip, call.split(",")):
                name = code.aliases.get(name, name)
                if name in positions:
                    found.add(positions[name])
    return frozenset(found)


def _place(name: str) -> tuple[CauseKind, str]:
    """Whose code a part of the group of the graph is."""
    last = name.rpartition(".")[2]
    if re.match(r"sdpa_mask|mask_fn|mask_graph|mask_mod", last):
        return CauseKind.MASK, "the mask function"
    if re.match(r"sdpa_score|score_|fw_graph\d*$|joint_graph\d*$", last):
        return CauseKind.SCORE, "the score function"
    return CauseKind.GRAPH, "the graph"


# The nearest key

#: What differs in a group's parts counts this much each, and at most this much together.
_WEIGHTS = {
    "inductor_config": (1.0, 6.0),
    "inductor_config_comms": (0.5, 2.0),
    "autograd_config": (0.5, 3.0),
    "system_info": (1.0, 3.0),
}
_WEIGHT = (1.0, 6.0)
#: Single parts that say more, or less, than others.
_PART_WEIGHTS = {
    "fx_kwargs[is_backward]": 200.0,
    "fx_kwargs[is_inference]": 15.0,
    "fx_kwargs[static_input_idxs]": 0.25,
    "aot_config": 1.0,
    "grad_enabled": 5.0,
    "torch_version": 4.0,
    "system_info[hash]": 0.0,
    "gm": 0.0,
}
#: Of the code of a graph: other numbers or devices in the same code, and other code, by how much of it is other.
_CODE_WEIGHTS = {True: (0.75, 10.0, 60.0), False: (1.0, 4.0, 10.0)}
_UNKNOWN_GRAPH = 30.0
#: Of an input, each change once however many inputs have it: one of 300 parameters must not count 300 times.
_INPUT_WEIGHTS = {"device": 0.5, "dtype": 2.0, "shape": 1.5, "stride": 1.0, "gradient": 1.0, "rest": 0.25}
_INPUT_COUNT = 4.0
#: Inputs that differ and are read; a change of more inputs is in these as well.
_INPUTS_READ = 48
_DIGITLESS = str.maketrans("", "", "0123456789")


def nearest(wanted: Key, known: Iterable[Key], prefer: Set[str] = frozenset()) -> Key | None:
    """The key of the same layer that has least apart from the one that is wanted; of these, one of ``prefer``, then the first.

    The graph counts most, so that the same code with other shapes, settings or another device is nearer than other code.
    """
    distances = _Distances(wanted)
    best: Key | None = None
    least = (math.inf, True)
    for key in known:
        if key.layer != wanted.layer:
            continue
        rank = (distances.of(key, least[0]), key.key not in prefer)
        if rank < least:
            best, least = key, rank
    return best


class _Distances:
    """From one key to others. Keys share most of their groups, so that what was compared is kept."""

    def __init__(self, wanted: Key) -> None:
        self._wanted = wanted
        self._groups: dict[tuple[str, str], float] = {}
        self._codes: dict[str, tuple[str, frozenset[str]]] = {}
        self._likeness: dict[tuple[str, str], float] = {}

    def of(self, key: Key, limit: float) -> float:
        """Beyond ``limit`` it is not exact."""
        total = 0.0
        wanted, groups = self._wanted.groups, key.groups
        graphs = GRAPH in wanted and GRAPH in groups
        if not graphs and _digest(self._wanted, "gm") != _digest(key, "gm"):
            total += _UNKNOWN_GRAPH
        for name in wanted.keys() | groups.keys():
            first, second = groups.get(name), wanted.get(name)
            if first is second or (first and second and first.digest == second.digest):
                continue
            if name == GRAPH and not graphs:
                continue
            pair = (name, first.digest if first else "")
            if pair not in self._groups:
                self._groups[pair] = self._group(name, first, second)
            total += self._groups[pair]
            if total > limit:
                break
        return total

    def _group(self, name: str, first: Group | None, second: Group | None) -> float:
        if name == "example_inputs":
            return self._inputs(first, second)
        if name == GRAPH and first and second:
            return self._graph(first, second)
        each, most = _WEIGHTS.get(name, _WEIGHT)
        special, plain = 0.0, 0.0
        for pair in _pairs(first, second):
            weight = _PART_WEIGHTS.get(pair.name)
            if weight is None:
                plain += each
            else:
                special += weight
        return special + min(plain, most)

    def _inputs(self, first: Group | None, second: Group | None) -> float:
        sides = (first.parts if first else {}), (second.parts if second else {})
        total = _INPUT_COUNT if len(sides[0]) != len(sides[1]) else 0.0
        changes: set[tuple[str, object, object]] = set()
        for pair in islice(_pairs(first, second), _INPUTS_READ):
            if pair.old is None or pair.new is None:
                continue
            a, b = _input(pair.old.text), _input(pair.new.text)
            if isinstance(a, _Tensor) and isinstance(b, _Tensor):
                for name in _INPUT_WEIGHTS:
                    one, other = getattr(a, name), getattr(b, name)
                    if one == other or (name in ("stride", "rest") and (a.shape, a.dtype) != (b.shape, b.dtype)):
                        continue
                    if name == "shape":
                        changes |= {(name, *sizes) for sizes in zip_longest(one, other) if sizes[0] != sizes[1]}
                    else:
                        changes.add((name, str(one), str(other)))
            elif a != b:
                changes.add(("shape", pair.old.text, pair.new.text))
        return total + min(sum(_INPUT_WEIGHTS[name] for name, _, _ in changes), 12.0)

    def _graph(self, first: Group, second: Group) -> float:
        total = 0.0
        for pair in _pairs(first, second):
            numbers, least, most = _CODE_WEIGHTS[pair.name == GRAPH]
            if pair.old is None or pair.new is None:
                total += most
            else:
                likeness = self._alike(pair.old, pair.new)
                total += numbers if likeness == 1.0 else least + (most - least) * (1.0 - likeness)
        return total

    def _alike(self, old: Part, new: Part) -> float:
        """1 for code that differs in its numbers only, else how much of it is the same."""
        (first, words), (second, others) = self._code(old), self._code(new)
        if first == second:
            return 1.0
        pair = (first, second)
        if pair not in self._likeness:
            self._likeness[pair] = min(len(words & others) / max(len(words | others), 1), 0.999)
        return self._likeness[pair]

    def _code(self, part: Part) -> tuple[str, frozenset[str]]:
        found = self._codes.get(part.digest)
        if found is None:
            # Without digits names, numbers, devices and dtypes of one kind are the same.
            text = part.text.translate(_DIGITLESS).replace("bfloat", "float")
            found = self._codes[part.digest] = (text, frozenset(text.split()))
        return found


def _digest(key: Key, name: str) -> str:
    group = key.groups.get("")
    part = group.parts.get(name) if group else None
    return part.digest if part else ""


# Causes


def causes(old: Key, new: Key) -> list[Cause]:
    """What differs between a key that was built and one that is asked for, most telling first.

    What follows from something that is named is left out: code from shapes, most of all. Parts are compared by their
    digests alone; a part that is not known is named with its texts, so that there is a cause if any part differs.
    """
    different = _different(old, new)
    if not different:
        return []
    search = _Search(old, new, {name: list(pairs) for name, pairs in different.items()})
    search.run()
    found = list(dict.fromkeys(search.found))
    if not found:
        found = [_unknown(pair, name) for name, pairs in different.items() for pair in pairs]
    return sorted(found, key=lambda cause: _RANK[cause.kind])


def _unknown(pair: _Pair, group: str) -> Cause:
    if group == GRAPH:
        kind, subject = _place(pair.name)
        old, new = (_text(part) for part in (pair.old, pair.new))
        first = next(((a, b) for a, b in zip_longest(old, new, fillvalue="nothing") if a != b), None)
        return Cause(kind=kind, subject=subject, **_sides(*(_shorten(*first) if first else pair.texts)))
    if not group and pair.name == "gm":
        return Cause(kind=CauseKind.GRAPH, subject="the graph", **_sides(*pair.texts))
    return Cause(kind=CauseKind.OTHER, subject=pair.name, **_sides(*pair.texts))


def _text(part: Part | None) -> list[str]:
    return [line.strip() for line in part.text.splitlines() if line.strip()] if part else [UNSET]


def _sides(old: str, new: str) -> dict[str, str]:
    return {"old": old, "new": new}


@dataclass(slots=True)
class _Search:
    """Goes through what differs, from what explains much to what explains nothing, and takes it away.

    Attributes:
        left: what has not been looked at.
    """

    old: Key
    new: Key
    left: _Different
    found: list[Cause] = field(default_factory=list)
    changes: _Changes = field(default_factory=_Changes)

    def run(self) -> None:
        self.absent()
        self.machine()
        self.gradients()
        if not self.direction():
            self.inputs()
        self.graph()
        self.arguments()
        self.numerics()
        self.settings()

    def add(self, kind: CauseKind, subject: str, old: str, new: str) -> None:
        self.found.append(Cause(kind=kind, subject=subject, old=old, new=new))

    def take(self, group: str, matches: Callable[[str], object] = lambda _: True) -> list[_Pair]:
        """The pairs of a group whose name matches; they are then done with."""
        pairs = self.left.get(group, [])
        taken = [pair for pair in pairs if matches(pair.name)]
        if taken:
            self.left[group] = [pair for pair in pairs if not matches(pair.name)]
        return taken

    def take_one(self, group: str, name: str) -> _Pair | None:
        taken = self.take(group, lambda seen: seen == name)
        return taken[0] if taken else None

    # Each step

    def absent(self) -> None:
        """All settings of one kind, that one of the keys lacks: they are not named one by one."""
        for group in sorted(_SETTINGS - {"fx_kwargs"}):
            sides = [key.groups.get(group) for key in (self.old, self.new)]
            if None in sides and len(self.left.get(group, ())) > 1:
                self.take(group)
                self.add(CauseKind.OTHER, group, *(f"{len(side.parts)} settings" if side else UNSET for side in sides))

    def machine(self) -> None:
        """torch, Triton, CUDA and the GPU."""
        torch = self.take_one("", "torch_version")
        if torch:
            self.add(CauseKind.TORCH, "torch", _content(torch.old), _content(torch.new))
        system = {pair.name: pair for pair in self.take("system_info")}
        device = system.pop("system_info[device]", None)
        version = system.pop("system_info[version]", None)
        if device:
            names = (_entry(device.old, "name") or UNSET, _entry(device.new, "name") or UNSET)
            self.add(CauseKind.GPU, "the GPU", *(names if names[0] != names[1] else device.texts))
        told = device is not None  # without a GPU there are no versions either
        for name, kind, subject in _VERSIONS:
            if version is None or version.old is None or version.new is None:
                continue
            one, other = _entry(version.old, name), _entry(version.new, name)
            if one != other:
                self.add(kind, subject, *_versions(one, other))
                told = True
        if version and not told:
            self.add(CauseKind.TRITON, "the version of Triton or CUDA", *version.texts)
        elif system and not told:
            self.add(CauseKind.GPU, "the GPU, Triton or CUDA", *next(iter(system.values())).texts)

    def gradients(self) -> None:
        mode = self.take_one("", "grad_enabled")
        if mode:
            self.add(CauseKind.GRADIENT, "gradient mode", *map(_switch, mode.texts))
            self.changes.gradient = True
        inference = self.take_one("fx_kwargs", "fx_kwargs[is_inference]")
        if inference:
            self.add(CauseKind.GRADIENT, "the graph", *map(_purpose, inference.texts))
            self.changes.gradient = self.changes.training = True

    def direction(self) -> bool:
        """Whether one is of a backward graph and the other is not: then no input is the same."""
        backward = self.take_one("fx_kwargs", "fx_kwargs[is_backward]")
        if not backward:
            return False
        self.found = [cause for cause in self.found if cause.kind is not CauseKind.GRADIENT]
        self.add(CauseKind.GRADIENT, "the graph", *map(_direction, backward.texts))
        self.changes.gradient = self.changes.training = self.changes.inputs = True
        self.take("example_inputs")
        self.take(GRAPH)
        self.take_one("", "gm")
        return True

    def inputs(self) -> None:
        pairs = self.take("example_inputs")
        if not pairs:
            return
        old, new = _inputs(self.old), _inputs(self.new)
        numbers_old, numbers_new = ([seen for _, seen in side if isinstance(seen, _Number)] for side in (old, new))
        if len(numbers_old) != len(numbers_new):
            self.changes.inputs = True
        # Named sizes come and go between the tensors, which are counted without them.
        rows_old, rows_new = ([row for row in side if not isinstance(row[1], _Number)] for side in (old, new))
        renamed_old, renamed_new = (_symbols(seen for _, seen in side) for side in (old, new))
        named = [any(map(_is_named, (seen for _, seen in side))) for side in (old, new)]
        if len(rows_old) != len(rows_new):
            self.changes.inputs = True
            if named[0] != named[1]:
                self.changes.dynamic = True
                self.add(CauseKind.DYNAMIC, "the graph", *("dynamic" if one else "static" for one in named))
            self.add(CauseKind.INPUTS, "the number of inputs", str(len(rows_old)), str(len(rows_new)))
            self._devices_apart(rows_old, rows_new)
            return
        aligned = list(zip(rows_old, rows_new, strict=True))
        tables = _tables(self.old), _tables(self.new)
        rows: list[_Row] = []
        for number, ((part, first), (other, second)) in enumerate(aligned):
            if part.digest == other.digest:
                continue
            if not isinstance(first, _Tensor) or not isinstance(second, _Tensor):
                self.add(CauseKind.OTHER, _named([number]), *_Pair(part.name, part, other).texts)
                continue
            table = _position(part.name) in tables[0] and _position(other.name) in tables[1]
            rows.append(_Row(number, table, part, other, first, second))
        self._dynamic(rows, numbers_old, numbers_new, named)
        self._devices(rows)
        self._shapes(rows, renamed_old, renamed_new)
        self._dtypes(rows)
        self._strides(rows, renamed_old, renamed_new)
        self._gradients_of_inputs(rows)
        self._other_fields(rows, hints=[x.hint for x in numbers_old] != [x.hint for x in numbers_new])

    def _devices_apart(self, old: Sequence[tuple[Part, _Input]], new: Sequence[tuple[Part, _Input]]) -> None:
        first, second = ({seen.device for _, seen in side if isinstance(seen, _Tensor)} for side in (old, new))
        gone, come = first - second, second - first
        if len(gone) == len(come) == 1:
            (a,), (b,) = gone, come
            self.changes.devices[a] = b
            numbers = [at for at, (_, seen) in enumerate(new) if isinstance(seen, _Tensor) and seen.device == b]
            self.add(CauseKind.DEVICE, _named(numbers), a, b)

    def _dynamic(self, rows: Sequence[_Row], old: Sequence[_Number], new: Sequence[_Number], named: Sequence[bool]) -> None:
        """Sizes that have a name in the one and not in the other, and the sizes that names stand for."""
        apart = [row for row in rows if row.first.dynamic != row.second.dynamic or _mixed(row.first.shape, row.second.shape)]
        self.changes.dynamic = bool(apart) or named[0] != named[1]
        known: set[tuple[str, str]] = set()
        for numbers, (first, second) in _alike(apart, lambda row: (_size_text(row.first), _size_text(row.second))):
            row = next(row for row in apart if row.number == numbers[0])
            sizes = {(a, b) for a, b in zip(row.first.shape, row.second.shape, strict=False) if a != b}
            if not sizes <= known:  # else it is the same size, in another tensor
                self.add(CauseKind.DYNAMIC, _named(numbers), first, second)
            known |= sizes
        if not apart and named[0] != named[1]:
            self.add(CauseKind.DYNAMIC, "a number that is passed", *("dynamic" if one else "static" for one in named))
        elif not apart and len(old) != len(new):
            self.add(CauseKind.INPUTS, "the number of numbers that are passed", str(len(old)), str(len(new)))
        elif not apart:
            for a, b in zip(old, new, strict=True):
                # A name alone is nothing; what it stands for is in the keys of some versions.
                if a.hint == b.hint and (a.symbol == b.symbol or (_is_symbol(a.symbol) and _is_symbol(b.symbol))):
                    continue
                first, second = a.hint or a.symbol, b.hint or b.symbol
                self.add(CauseKind.DYNAMIC, f"the size {b.symbol}" if b.hint else "a number that is passed", first, second)
                if first.isdecimal() and second.isdecimal():
                    self.changes.sizes.add((int(first), int(second)))

    def _devices(self, rows: Sequence[_Row]) -> None:
        apart = [row for row in rows if row.first.device != row.second.device]
        for numbers, (first, second) in _alike(apart, lambda row: (row.first.device, row.second.device)):
            self.changes.devices[first] = second
            self.add(CauseKind.DEVICE, _named(numbers), first, second)

    def _shapes(self, rows: Sequence[_Row], old: Callable[[str], str], new: Callable[[str], str]) -> None:
        def apart(row: _Row) -> bool:
            shapes = tuple(map(old, row.first.shape)), tuple(map(new, row.second.shape))
            return shapes[0] != shapes[1] and not _mixed(row.first.shape, row.second.shape)

        changed = [row for row in rows if apart(row)]
        followed = [row for row in changed if row.table]
        told = [row for row in changed if not row.table]
        known: set[tuple[int, int]] = set()
        for numbers, (first, second) in _alike(told, lambda row: (_by(row.first.shape), _by(row.second.shape))):
            row = next(row for row in told if row.number == numbers[0])
            sizes = _sizes_apart(row.first.shape, row.second.shape)
            if sizes and sizes <= known:
                continue  # the same size, in another tensor
            known |= sizes
            self.add(CauseKind.SHAPE, _named(numbers), first, second)
        if followed and not told and not self.changes.dynamic and not self.changes.sizes:
            row = followed[0]
            self.add(CauseKind.SHAPE, "the block mask", _by(row.first.shape), _by(row.second.shape))
            known |= _sizes_apart(row.first.shape, row.second.shape)
        self.changes.sizes |= known

    def _dtypes(self, rows: Sequence[_Row]) -> None:
        apart = [row for row in rows if row.first.dtype != row.second.dtype]
        for numbers, (first, second) in _alike(apart, lambda row: (row.first.dtype, row.second.dtype)):
            self.changes.dtypes[first] = second
            self.add(CauseKind.DTYPE, _named(numbers), first, second)

    def _strides(self, rows: Sequence[_Row], old: Callable[[str], str], new: Callable[[str], str]) -> None:
        def apart(row: _Row) -> bool:
            first, second = row.first, row.second
            if row.table or _mixed(first.shape, second.shape) or first.dynamic != second.dynamic:
                return False
            if len(first.shape) != len(second.shape):
                return first.contiguous != second.contiguous if not first.dynamic else False
            if first.shape != second.shape and first.contiguous and second.contiguous:
                return False
            return any(
                old(a) != new(b) and not self.changes.explains(a, b, derived=True)
                for a, b, size, other in zip(first.stride, second.stride, first.shape, second.shape, strict=False)
                if first.shape == second.shape or not (size == "1" or other == "1")
            )

        changed = [row for row in rows if apart(row)]
        for numbers, (first, second) in _alike(changed, lambda row: (_comma(row.first.stride), _comma(row.second.stride))):
            self.add(CauseKind.STRIDE, _named(numbers), first, second)

    def _gradients_of_inputs(self, rows: Sequence[_Row]) -> None:
        apart = [row for row in rows if row.first.gradient != row.second.gradient]
        if not apart or self.changes.gradient:
            return
        self.changes.gradient = True
        for numbers, (first, second) in _alike(apart, lambda row: (_needs(row.first), _needs(row.second))):
            self.add(CauseKind.GRADIENT, _named(numbers), first, second)

    def _other_fields(self, rows: Sequence[_Row], *, hints: bool) -> None:
        """Whatever else is known of a tensor, where it does not follow from the rest."""
        apart: list[tuple[_Row, str]] = []
        for row in rows:
            first, second = row.first, row.second
            sized = (first.shape, first.stride, first.dtype) != (second.shape, second.stride, second.dtype)
            follows = {"storage_bytes", "memory_format", "storage_offset"} if sized else set()
            names = [
                name
                for name in dict.fromkeys(chain(first.rest, second.rest))
                if first.rest.get(name) != second.rest.get(name) and name not in follows
            ]
            apart += [(row, name) for name in names]
            told = bool(names) or sized or first.device != second.device or first.gradient != second.gradient
            if not told and not (first.dynamic and hints):
                self.add(CauseKind.OTHER, _named([row.number]), *_Pair(row.old.name, row.old, row.new).texts)
        for name in dict.fromkeys(name for _, name in apart):
            of_name = [row for row, seen in apart if seen == name]
            values = _alike(of_name, lambda row: (row.first.rest.get(name, UNSET), row.second.rest.get(name, UNSET)))  # noqa: B023
            for numbers, (one, other) in values:
                self.add(CauseKind.OTHER, f"{name} of {_named(numbers)}", _bare(one), _bare(other))

    def graph(self) -> None:
        """The code of the graph and of the graphs inside of it."""
        whole = self.take_one("", "gm")
        old, new = self.old.groups.get(GRAPH), self.new.groups.get(GRAPH)
        pairs = self.take(GRAPH)
        same = [key.groups[""].parts.get("gm") if "" in key.groups else None for key in (self.old, self.new)]
        if same[0] is not None and same[1] is not None and same[0].digest == same[1].digest:
            return  # the code has other names, which are nothing to torch
        if old is None or new is None:
            if whole and not self._has_explained():
                self.add(CauseKind.GRAPH, "the graph", *whole.texts)
            return
        before = len(self.found)
        told: set[tuple[CauseKind, str]] = set()
        explained = False
        # What is inside first: a mask function that changed explains that the graph passes other things to it.
        for pair in sorted(pairs, key=lambda pair: pair.name == GRAPH):
            kind, subject = _place(pair.name)
            if pair.old is None or pair.new is None:
                continue
            cause = self._code_cause(pair.old.text, pair.new.text, kind, subject, root=pair.name == GRAPH)
            if cause is None:
                explained = True
            elif cause and (kind, subject) not in told:
                told.update({(kind, subject)} if cause[0].kind is kind else ())
                self.found += cause
        if len(self.found) == before:
            lone = [pair for pair in pairs if pair.old is None or pair.new is None]
            for pair in lone if not self.changes.training else ():
                kind, subject = _place(pair.name)
                self.add(
                    kind, subject, *(UNSET if part is None else f"part of it ({pair.name})" for part in (pair.old, pair.new))
                )
        if len(self.found) == before and whole and not explained and not self._has_explained():
            self.found += [_unknown(pair, GRAPH) for pair in pairs] or [_unknown(whole, "")]

    def _has_explained(self) -> bool:
        """Whether anything that was found can change a graph's code."""
        changes = self.changes
        return bool(changes.sizes or changes.devices or changes.dtypes or changes.dynamic or changes.inputs or changes.gradient)

    def _code_cause(self, old: str, new: str, kind: CauseKind, subject: str, *, root: bool) -> list[Cause] | None:
        """None: what differs follows from other causes."""
        casts = bool(self.changes.dtypes)
        first, second = (_code(text, without_casts=casts) for text in (old, new))
        found = self._options(first, second)
        if root and self.changes.training:
            return found or None
        statements = [
            [_Statement(one.raw, self._neutral(one.plain, new=at == 1, parameters=shared)) for one in code.statements]
            for at, (code, shared) in enumerate(
                (code, min(len(first.parameters), len(second.parameters))) for code in (first, second)
            )
        ]
        device = None
        if not self.changes.devices:
            devices = [set(map(_device_name, _DEVICE.finditer(text))) for text in (old, new)]
            gone, come = devices[0] - devices[1], devices[1] - devices[0]
            if len(gone) == len(come) == 1:
                device = (gone.pop(), come.pop())
                statements[0] = [_Statement(one.raw, _on(one.plain, {device[0]: device[1]})) for one in statements[0]]
        if any(len(text) >= _CODE_CUT for text in (old, new)):
            length = min(map(len, statements))
            statements = [side[:length] for side in statements]
        skeletons = [[_DIGITS.sub("#", one.plain) for one in side] for side in statements]
        if skeletons[0] == skeletons[1]:
            if device:
                found.append(Cause(kind=CauseKind.DEVICE, subject=subject, **_sides(*device)))
            numbers = dict.fromkeys(
                pair
                for a, b in zip(*statements, strict=True)
                for pair in zip(_DIGITS.findall(a.plain), _DIGITS.findall(b.plain), strict=True)
                if pair[0] != pair[1] and not self.changes.explains(*pair, derived=root)
            )
            found += [Cause(kind=CauseKind.CONSTANT, subject=subject, old=a, new=b) for a, b in list(numbers)[:_NUMBERS]]
            return found or (None if self._has_explained() or first.statements != second.statements else [])
        if root and (self.changes.dynamic or self.changes.inputs):
            calls = [self._calls(side) for side in statements]
            if calls[0] == calls[1] or self.changes.dynamic or any(cause.kind in _INSIDE for cause in self.found):
                return found or None
        nothing = _Statement("nothing", "")
        for a, b in zip_longest(*statements, fillvalue=nothing):
            if _DIGITS.sub("#", a.plain) != _DIGITS.sub("#", b.plain) or not self._same_numbers(a, b, root):
                return [*found, Cause(kind=kind, subject=subject, **_sides(*_shorten(a.raw, b.raw)))]
        return found or None

    def _same_numbers(self, a: _Statement, b: _Statement, root: bool) -> bool:
        pairs = zip(_DIGITS.findall(a.plain), _DIGITS.findall(b.plain), strict=False)
        return all(one == other or self.changes.explains(one, other, derived=root) for one, other in pairs)

    def _options(self, old: _Code, new: _Code) -> list[Cause]:
        """The options of attention's kernels."""
        found = {}
        for first, second in zip(old.options, new.options, strict=False):
            for name in dict.fromkeys(chain(first, second)):
                a, b = first.get(name, UNSET), second.get(name, UNSET)
                if a == b or (name in _OF_GRADIENT and self.changes.gradient):
                    continue
                found[(name, a, b)] = Cause(kind=CauseKind.SETTING, subject=f"the kernel option {name}", old=a, new=b)
        return list(found.values())

    def _neutral(self, plain: str, *, new: bool, parameters: int) -> str:
        """A statement in which what is known to have changed is the same in both."""
        if not new:
            plain = _on(plain, self.changes.devices)
            for old, to in self.changes.dtypes.items():
                plain = re.sub(rf"\btorch\.{re.escape(old)}\b", f"torch.{to}", plain)
        if self.changes.dynamic:
            # A number that became an input is passed as the last of them.
            plain = re.sub(r"%p(\d+)", lambda found: found[0] if int(found[1]) < parameters else "#", plain)
            plain = _DIGITS.sub("#", plain)
        return plain

    @staticmethod
    def _calls(statements: Iterable[_Statement]) -> list[str]:
        """What a graph calls, in order, without what only computes sizes."""
        names = (name for one in statements for name in _CALLED.findall(one.plain))
        return [name for name in names if "sym_" not in name and not name.endswith(".size")]

    def arguments(self) -> None:
        """How the graph is called: which inputs stay in place, where they come from."""
        static = self.take_one("fx_kwargs", "fx_kwargs[static_input_idxs]")
        config = self.take_one("", "aot_config")
        if self.changes.inputs or self.changes.dynamic:
            return
        if static:
            self.add(CauseKind.INPUTS, "the list of inputs that stay in place", *static.texts)
        if config:
            self.found += _aot_config(config)

    def numerics(self) -> None:
        """Settings of torch for numbers: threads, precision, determinism, autocast."""
        threads = self.take_one("", "cpp_runtime_thread_count")
        if threads and not (self.changes.devices and (threads.old is None or threads.new is None)):
            self.add(CauseKind.THREADS, "the number of CPU threads", *threads.texts)
        for pair in self.take("", lambda name: re.search(r"matmul_settings|matmul_precision|fp32_precision", name)):
            self.found += _fields(
                pair,
                CauseKind.PRECISION,
                ("float32 matmul precision", "float16 reduction in matmul", "bfloat16 reduction in matmul"),
            )
        self._determinism()
        default = self.take_one("", "default_dtype")
        if default:
            self.add(CauseKind.DTYPE, "a new tensor", *default.texts)
        for pair in self.take("autocast_state"):
            name = pair.name.partition("[")[2].rstrip("]")
            old, new = ("off" if text == UNSET else text for text in pair.texts)
            self.add(CauseKind.AUTOCAST, f"autocast on {name}", old, new)
        amp = self.take_one("", "disable_amp")
        if amp:
            names = {"True": "switched off", "False": "allowed"}
            self.add(CauseKind.AUTOCAST, "autocast", *(names.get(text, text) for text in amp.texts))
        for group in ("user_defined_triton_source", "triton_kernel_source_codes"):
            for pair in self.take(group):
                self.add(CauseKind.KERNEL, "a Triton kernel that the graph calls", *_first_lines(pair))
        codes = self.take_one("", "triton_kernel_source_codes")
        if codes:
            self.add(CauseKind.KERNEL, "a Triton kernel that the graph calls", *_first_lines(codes))

    def _determinism(self) -> None:
        pairs = [
            *self.take("", lambda name: name.startswith("deterministic")),
            *self.take("inductor_config", lambda name: name == "inductor_config[deterministic]"),
        ]
        subject = "deterministic algorithms"
        found: list[Cause] = []
        for pair in pairs:
            if pair.name == "deterministic_algorithms_settings":
                names = (subject, f"only warning of no {subject}", "filling of new memory")
                found += _fields(pair, CauseKind.DETERMINISM, names)
            elif pair.name == "deterministic_algorithms" or not found:
                found.append(Cause(kind=CauseKind.DETERMINISM, subject=subject, **_sides(*pair.texts)))
        self.found += [Cause(kind=x.kind, subject=x.subject, old=_switch(x.old), new=_switch(x.new)) for x in found]

    def settings(self) -> None:
        """What is left."""
        seen = {_setting(pair.name).removeprefix("triton.") for pair in self.left.get("inductor_config", ())}
        torch = any(cause.kind is CauseKind.TORCH for cause in self.found)
        for group, pairs in self.left.items():
            for pair in pairs:
                if (pair.old is None or pair.new is None) and torch:
                    continue  # another torch has other settings
                if self._follows(pair) or (group == "fx_kwargs" and _setting(pair.name) in seen):
                    continue
                self.found.append(self._setting_cause(group, pair))

    def _follows(self, pair: _Pair) -> bool:
        """Whether a setting only names the device that changed."""
        if not self.changes.devices:
            return False
        if "device_index" in pair.name:
            return True
        if pair.old is None or pair.new is None:
            return False
        return _on(pair.old.text, self.changes.devices) == pair.new.text

    def _setting_cause(self, group: str, pair: _Pair) -> Cause:
        name = _setting(pair.name)
        texts = pair.texts
        if "device_index" in name:
            old, new = (f"cuda:{text}" if text.isdecimal() else text for text in texts)
            return Cause(kind=CauseKind.DEVICE, subject="the graph", old=old, new=new)
        if group in _SETTINGS:
            subject = _ARGUMENTS.get(name, name) if group == "fx_kwargs" else name
            if group == "fx_kwargs" and name in _ARGUMENTS:
                texts = (_switch(texts[0]), _switch(texts[1]))
            return Cause(kind=CauseKind.SETTING, subject=subject, **_sides(*texts))
        if _KNOWN.search(group or name):
            return Cause(kind=CauseKind.SETTING, subject=_SPOKEN.get(pair.name, pair.name), **_sides(*texts))
        return Cause(kind=CauseKind.OTHER, subject=pair.name, **_sides(*texts))


_INSIDE = (CauseKind.MASK, CauseKind.SCORE)
#: Groups each part of which is a setting.
_SETTINGS = {"inductor_config", "inductor_config_comms", "autograd_config", "fx_kwargs"}
#: Arguments of Inductor that say yes or no, in a user's words.
_ARGUMENTS = {
    "cudagraphs": "use of CUDA graphs",
    "cpp_wrapper": "use of the C++ wrapper",
    "fx_wrapper": "use of the FX wrapper",
    "aot_mode": "compiling ahead of time",
    "layout_opt": "layout optimization",
}
#: Other parts that are settings, and those of them that a user knows by another name.
_KNOWN = re.compile(
    r"_pass(es)?\b|_pass_|^cache_key_tag|^provenance_|^precompile_|partitioner|^compile_on_|_config|cudagraph|budget"
)
_SPOKEN = {
    "autograd_config": "the configuration of AOTAutograd",
    "cudagraph_override": "use of CUDA graphs",
    "cudagraph_annotation": "use of CUDA graphs",
    "region_activation_memory_budget": "the memory budget of activations",
}


#: What torch has among the versions of the system.
_VERSIONS = (
    ("triton", CauseKind.TRITON, "Triton"),
    ("cuda", CauseKind.CUDA, "CUDA"),
    ("hip", CauseKind.CUDA, "HIP"),
)


def _setting(name: str) -> str:
    """``max_autotune`` of ``inductor_config[max_autotune]``."""
    found = re.fullmatch(r"\w+\[(.*)\]", name, re.DOTALL)
    return found[1] if found else name


def _switch(text: str) -> str:
    return {"True": "on", "False": "off"}.get(text, text)


def _purpose(text: str) -> str:
    return {"True": "for inference", "False": "for training"}.get(text, text)


def _direction(text: str) -> str:
    return {"True": "a backward one", "False": "a forward one"}.get(text, text)


def _entry(part: Part | None, name: str) -> str:
    """The value of a name in the text of a dictionary."""
    found = re.search(rf"'{name}': (?:'([^']*)'?|([^,}}]+))", part.text) if part else None
    return (found[1] or found[2] or "") if found else ""


def _versions(old: str, new: str) -> tuple[str, str]:
    """Versions with the digest of the sources that torch sets behind Triton's."""
    sides = []
    for text in (old, new):
        found = re.fullmatch(r"([^-]+)([0-9a-f]{64})((?:-.*)?)", text)
        sides.append((found[1], found[2] + found[3]) if found else (text or UNSET, ""))
    (first, sources), (second, others) = sides
    if first != second:
        return first, second
    apart = next(((a, b) for a, b in zip(sources.split("-"), others.split("-"), strict=False) if a != b), (sources, others))
    return f"{first} ({apart[0][:_DIGEST]})", f"{second} ({apart[1][:_DIGEST]})"


def _fields(pair: _Pair, kind: CauseKind, names: Sequence[str]) -> list[Cause]:
    """The elements of a tuple that differ, by name."""
    if pair.old and pair.new:
        sides = [_list(part.text.strip()[1:-1]) for part in (pair.old, pair.new)]
        if len(sides[0]) == len(sides[1]) == len(names):
            found = [
                Cause(kind=kind, subject=name, old=_switch(a.strip("'")), new=_switch(b.strip("'")))
                for name, a, b in zip(names, *sides, strict=True)
                if a != b
            ]
            if found:
                return found
    return [Cause(kind=kind, subject=names[0] if len(names) == 1 else pair.name, **_sides(*pair.texts))]


#: The fields of what AOTAutograd was asked for, in the order in which torch has them.
_AOT_FIELDS = (
    (CauseKind.INPUTS, "the number of parameters and buffers"),
    (CauseKind.SETTING, "keep_inference_input_mutations"),
    (CauseKind.SETTING, "is_export"),
    (CauseKind.SETTING, "no_tangents"),
    (CauseKind.DYNAMIC, "dynamic_shapes"),
    (CauseKind.INPUTS, "the source of the inputs"),
    (CauseKind.INPUTS, "the list of inputs that stay in place"),
)


def _aot_config(pair: _Pair) -> list[Cause]:
    if pair.old and pair.new and pair.old.text[:1] == pair.new.text[:1] == "(":
        whole = all(part.text.endswith(")") for part in (pair.old, pair.new))  # else the text was cut
        sides = [_list(part.text[1:-1] if whole else part.text[1:]) for part in (pair.old, pair.new)]
        found = []
        for at, (a, b) in enumerate(zip_longest(*sides, fillvalue=UNSET) if whole else zip(*sides, strict=False)):
            if a == b:
                continue
            kind, subject = _AOT_FIELDS[at] if at < len(_AOT_FIELDS) else (CauseKind.SETTING, "aot_config")
            if at == 5:
                sources = zip_longest(_list(a.strip("[]")), _list(b.strip("[]")), fillvalue=UNSET)
                number, (a, b) = next(((n, one) for n, one in enumerate(sources) if one[0] != one[1]), (0, (a, b)))
                subject = f"the source of input {number}"
                a, b = (_source(one) for one in (a, b)) if _source(a) != _source(b) else (a, b)
            found.append(Cause(kind=kind, subject=subject, **_sides(*_shorten(a, b))))
        if found:
            return found
    return [Cause(kind=CauseKind.OTHER, subject=pair.name, **_sides(*pair.texts))]


def _source(text: str) -> str:
    """``block_mask.kv_indices`` of Dynamo's description of where an input comes from."""
    names = re.findall(r"(?:local_name|global_name|member)='([^']*)'", text)
    return ".".join(names) or text


def _first_lines(pair: _Pair) -> tuple[str, str]:
    old, new = _text(pair.old), _text(pair.new)
    first = next(((a, b) for a, b in zip_longest(old, new, fillvalue="nothing") if a != b), None)
    return _shorten(*first) if first else pair.texts


@dataclass(slots=True)
class _Row:
    """An input that differs. ``number``: among the tensors. ``table``: of a block mask."""

    number: int
    table: bool
    old: Part
    new: Part
    first: _Tensor
    second: _Tensor


_Sides = tuple[str, str]


def _alike(rows: Iterable[_Row], sides: Callable[[_Row], _Sides]) -> list[tuple[list[int], _Sides]]:
    """The numbers of the inputs with the same change."""
    found: dict[_Sides, list[int]] = {}
    for row in rows:
        found.setdefault(sides(row), []).append(row.number)
    return [(numbers, change) for change, numbers in found.items()]


def _by(shape: Sequence[str]) -> str:
    return "x".join(shape) or "scalar"


def _comma(stride: Sequence[str]) -> str:
    return ",".join(stride) or "none"


def _size_text(tensor: _Tensor) -> str:
    return f"{'dynamic' if tensor.dynamic else 'static'} ({_by(tensor.shape)})"


def _needs(tensor: _Tensor) -> str:
    return {"True": "with a gradient", "False": "without a gradient"}.get(tensor.gradient, tensor.gradient)


def _is_symbol(text: str) -> bool:
    return bool(_SYMBOL.search(text))


def _is_named(seen: _Input) -> bool:
    return seen.dynamic if isinstance(seen, _Tensor) else isinstance(seen, _Number) and _is_symbol(seen.symbol)


def _mixed(old: Sequence[str], new: Sequence[str]) -> bool:
    """Whether a size is a number in the one and has a name in the other."""
    if len(old) != len(new):
        return any(map(_is_symbol, old)) != any(map(_is_symbol, new))
    return any(_is_symbol(a) != _is_symbol(b) for a, b in zip(old, new, strict=True))


def _sizes_apart(old: Sequence[str], new: Sequence[str]) -> set[tuple[int, int]]:
    if len(old) != len(new):
        return set()
    pairs = ((a, b) for a, b in zip(old, new, strict=True) if a != b and a.isdecimal() and b.isdecimal())
    return {(int(a), int(b)) for a, b in pairs}


def _on(text: str, devices: Mapping[str, str]) -> str:
    """A text with the devices moved."""
    if not devices:
        return text

    def described(found: re.Match[str]) -> str:
        kind, _, index = devices.get(_device_name(found), _device_name(found)).partition(":")
        return f"device(type='{kind}', index={index})" if index else f"device(type='{kind}')"

    text = _DEVICE.sub(described, text)
    named = re.compile(
        "|".join(rf"\b{re.escape(name)}\b(?!:)" for name in sorted(devices, key=len, reverse=True) if ":" in name)
    )
    return named.sub(lambda found: devices[found[0]], text) if named.pattern else text
