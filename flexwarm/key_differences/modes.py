"""What differs in the modes of torch: gradients, threads, precision, determinism, autocast."""

from __future__ import annotations

import re
from collections.abc import Sequence

from flexwarm.key_differences.cause import UNSET, Cause, CauseKind
from flexwarm.key_differences.changes import Changes
from flexwarm.key_differences.pairs import Differences, Pair, items, switch
from flexwarm.key_parts import GRAPH

_PURPOSES = {"True": "for inference", "False": "for training"}
_DIRECTIONS = {"True": "a backward one", "False": "a forward one"}
_AUTOCAST = {"True": "switched off", "False": "allowed"}
_PRECISION = re.compile("matmul_settings|matmul_precision|fp32_precision")
#: The fields of torch's settings of matrix multiplication and of determinism, in its order.
_PRECISIONS = ("float32 matmul precision", "float16 reduction in matmul", "bfloat16 reduction in matmul")
_DETERMINISM = (
    "deterministic algorithms",
    "only warning of no deterministic algorithms",
    "filling of new memory",
)


def gradients(differences: Differences, changes: Changes) -> list[Cause]:
    """Of a forward and a backward graph no more is said: no input is the same."""
    mode = differences.take_one("", "grad_enabled")
    purpose = differences.take_one("fx_kwargs", "fx_kwargs[is_inference]")
    direction = differences.take_one("fx_kwargs", "fx_kwargs[is_backward]")
    changes.gradient = bool(mode or purpose or direction)
    changes.training = bool(purpose or direction)
    if direction:
        changes.inputs = True
        differences.take("example_inputs")
        differences.take(GRAPH)
        differences.take_one("", "gm")
        return [_graph(direction, _DIRECTIONS)]
    found = []
    if mode:
        found.append(Cause(CauseKind.GRADIENT, "gradient mode", *map(switch, mode.texts)))
    if purpose:
        found.append(_graph(purpose, _PURPOSES))
    return found


def _graph(pair: Pair, names: dict[str, str]) -> Cause:
    return Cause(CauseKind.GRADIENT, "the graph", *(names.get(text, text) for text in pair.texts))


def modes(differences: Differences, changes: Changes) -> list[Cause]:
    return [
        *_threads(differences, changes),
        *_precision(differences),
        *_determinism(differences),
        *_dtype(differences),
        *_autocast(differences),
    ]


def _threads(differences: Differences, changes: Changes) -> list[Cause]:
    pair = differences.take_one("", "cpp_runtime_thread_count")
    if pair is None or (pair.lone and changes.devices):
        return []  # it is in the keys of CPU graphs alone
    return [Cause(CauseKind.THREADS, "the number of CPU threads", *pair.texts)]


def _precision(differences: Differences) -> list[Cause]:
    pairs = differences.take("", _PRECISION.search)
    return [cause for pair in pairs for cause in _fields(pair, CauseKind.PRECISION, _PRECISIONS)]


def _determinism(differences: Differences) -> list[Cause]:
    pairs = differences.take("", lambda name: name.startswith("deterministic"))
    pairs += differences.take("inductor_config", lambda name: name == "inductor_config[deterministic]")
    found = []
    for pair in pairs:
        if pair.name == "deterministic_algorithms_settings":
            found += _fields(pair, CauseKind.DETERMINISM, _DETERMINISM)
        elif not found:
            found.append(Cause(CauseKind.DETERMINISM, _DETERMINISM[0], *map(switch, pair.texts)))
    return found


def _dtype(differences: Differences) -> list[Cause]:
    pair = differences.take_one("", "default_dtype")
    return [Cause(CauseKind.DTYPE, "a new tensor", *pair.texts)] if pair else []


def _autocast(differences: Differences) -> list[Cause]:
    found = []
    for pair in differences.take("autocast_state"):
        sides = ("off" if text == UNSET else text for text in pair.texts)
        found.append(Cause(CauseKind.AUTOCAST, f"autocast on {pair.setting}", *sides))
    amp = differences.take_one("", "disable_amp")
    if amp:
        found.append(Cause(CauseKind.AUTOCAST, "autocast", *(_AUTOCAST.get(text, text) for text in amp.texts)))
    return found


def _fields(pair: Pair, kind: CauseKind, names: Sequence[str]) -> list[Cause]:
    """The elements of a tuple that differ, by name."""
    sides = [[item.strip("'") for item in items(part.text.strip()[1:-1])] if part else [] for part in (pair.old, pair.new)]
    if len(sides[0]) == len(sides[1]) == len(names):
        found = [Cause(kind, name, switch(a), switch(b)) for name, a, b in zip(names, *sides, strict=True) if a != b]
        if found:
            return found
    return [Cause(kind, pair.name, *pair.texts)]
