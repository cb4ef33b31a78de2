"""The nearest of many keys."""

from __future__ import annotations

import math
from collections.abc import Iterable, Set
from itertools import islice, zip_longest

from flexwarm.key_differences.pairs import pairs, part, same
from flexwarm.key_differences.tensors import Tensor, read
from flexwarm.key_parts import GRAPH, KERNEL, Group, Key, Part

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
    "source": 10.0,
    "line": 0.25,
}
#: Of the code of a graph: other numbers or devices in the same code, and other code, by how much of it is other.
_ROOT_WEIGHTS = (0.75, 10.0, 60.0)
_INSIDE_WEIGHTS = (1.0, 4.0, 10.0)
#: The graph is another one, and its code is not known.
_UNKNOWN_GRAPH = 30.0
#: Of an input, each change once however many inputs have it: one of 300 parameters must not count 300 times.
_INPUT_WEIGHTS = {"device": 0.5, "dtype": 2.0, "shape": 1.5, "stride": 1.0, "gradient": 1.0, "rest": 0.25}
_INPUTS_MOST = 12.0
_INPUT_COUNT = 4.0
#: Inputs that differ and are read; a change of more inputs is in these as well.
_INPUTS_READ = 48
_DIGITLESS = str.maketrans("", "", "0123456789")


def nearest(wanted: Key, known: Iterable[Key], prefer: Set[str] = frozenset()) -> Key | None:
    """The key of the same layer that has least apart from the one that is wanted; of these, one of ``prefer``, then the first.

    The graph counts most, so that the same code with other shapes, settings or another device is nearer than other code. A
    Triton kernel is held against those of its name alone.
    """
    distances = _Distances(wanted)
    best: Key | None = None
    least = (math.inf, True)
    kernel = part(wanted, "", KERNEL)
    for key in known:
        if key.layer != wanted.layer or part(key, "", KERNEL) != kernel:
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

    def of(self, key: Key, limit: float) -> float:
        """Beyond ``limit`` it is not exact."""
        total = 0.0
        coded = GRAPH in self._wanted.groups and GRAPH in key.groups
        if not coded and part(self._wanted, "", "gm") != part(key, "", "gm"):
            total += _UNKNOWN_GRAPH
        for name in self._wanted.groups.keys() | key.groups.keys():
            old, new = key.groups.get(name), self._wanted.groups.get(name)
            if same(old, new) or (name == GRAPH and not coded):
                continue
            known = (name, old.digest if old else "")
            if known not in self._groups:
                self._groups[known] = self._group(name, old, new)
            total += self._groups[known]
            if total > limit:
                break
        return total

    def _group(self, name: str, old: Group | None, new: Group | None) -> float:
        if name == "example_inputs":
            return _inputs(old, new)
        if name == GRAPH:
            return self._graph(old, new)
        each, most = _WEIGHTS.get(name, _WEIGHT)
        names = [pair.name for pair in pairs(old, new)]
        special = [_PART_WEIGHTS[name] for name in names if name in _PART_WEIGHTS]
        return sum(special) + min(each * (len(names) - len(special)), most)

    def _graph(self, old: Group | None, new: Group | None) -> float:
        total = 0.0
        for pair in pairs(old, new):
            numbers, least, most = _ROOT_WEIGHTS if pair.name == GRAPH else _INSIDE_WEIGHTS
            if pair.old is None or pair.new is None:
                total += most
                continue
            (first, words), (second, others) = self._code(pair.old), self._code(pair.new)
            if first == second:
                total += numbers
            else:
                total += most - (most - least) * len(words & others) / max(len(words | others), 1)
        return total

    def _code(self, part: Part) -> tuple[str, frozenset[str]]:
        """Code without digits, in which numbers, devices and dtypes of one kind are the same, and its words."""
        found = self._codes.get(part.digest)
        if found is None:
            text = part.text.translate(_DIGITLESS).replace("bfloat", "float")
            found = self._codes[part.digest] = (text, frozenset(text.split()))
        return found


def _inputs(old: Group | None, new: Group | None) -> float:
    changes: set[tuple[str, str, str]] = set()
    for pair in islice(pairs(old, new), _INPUTS_READ):
        if pair.old is None or pair.new is None:
            continue
        a, b = read(pair.old.text), read(pair.new.text)
        if isinstance(a, Tensor) and isinstance(b, Tensor):
            changes |= _tensor(a, b)
        elif a != b:
            changes.add(("shape", pair.old.text, pair.new.text))
    other_count = len(old.parts if old else ()) != len(new.parts if new else ())
    return min(sum(_INPUT_WEIGHTS[name] for name, _, _ in changes), _INPUTS_MOST) + other_count * _INPUT_COUNT


def _tensor(a: Tensor, b: Tensor) -> set[tuple[str, str, str]]:
    """(field, old, new) of what differs; of a shape each size."""
    found: set[tuple[str, str, str]] = set()
    for name in _INPUT_WEIGHTS:
        one, other = getattr(a, name), getattr(b, name)
        if name == "shape":
            found |= {(name, x, y) for x, y in zip_longest(one, other, fillvalue="") if x != y}
        elif one != other and not (name in ("stride", "rest") and (a.shape, a.dtype) != (b.shape, b.dtype)):
            found.add((name, str(one), str(other)))
    return found
