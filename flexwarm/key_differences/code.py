"""The code of a graph, read from torch's text of it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from flexwarm.key_differences.cause import CauseKind
from flexwarm.key_differences.devices import devices
from flexwarm.key_differences.pairs import items, part
from flexwarm.key_parts import GRAPH, Key

#: The code of a graph is cut at this length, so what comes after is not known.
_CUT = 20_000
_TAIL = re.compile(r";\s+(?:\w+ = )+None\s*$")
_ASSIGNED = re.compile(r"(\w+) = ")
_DEFINED = re.compile(r"def forward\(self(?:, )?(.*)\):(?:\s*->.*)?")
_NAME = re.compile(r"(?<![\w.'%])[A-Za-z_]\w*(?!\w)")
_ALIAS = re.compile(r"%\w+|self(\.\w+)+")
_CAST = re.compile(r"torch\.ops\.prims\.convert_element_type\.default\((%\w+), torch\.\w+\)")
_TABLES = re.compile(r"\bflex_attention(?:_backward)?\([^()]*\(([^()]*)\)")
_FLEX = re.compile(r"\bflex_attention(?:_backward)?\(")
_OPTIONS = re.compile(r"\{('\w+': [^{}]*)\}")
_OPTION = re.compile(r"'(\w+)': ([^,]+)")


@dataclass(frozen=True, slots=True)
class Statement:
    """``raw``: as torch prints it. ``plain``: without names that torch gives, so that it can be compared."""

    raw: str
    plain: str


@dataclass(slots=True)
class Code:
    """The code of one graph.

    Attributes:
        parameters: how many there are; the first is ``%p0`` in plain statements.
        options: of each call of attention, without those in the plain statements.
        devices: that are named in it.
        cut: what comes after is not known.
    """

    parameters: int = 0
    statements: list[Statement] = field(default_factory=list)
    options: list[dict[str, str]] = field(default_factory=list)
    devices: list[str] = field(default_factory=list)
    cut: bool = False


def read(text: str, *, without_casts: bool = False) -> Code:
    code = Code(devices=devices(text), cut=len(text) >= _CUT)
    lines = text.splitlines()
    names: dict[str, str] = {}
    for line in map(str.strip, lines[:-1] if code.cut else lines):
        defined = _DEFINED.fullmatch(line)
        if defined:
            parameters = [re.split(r"\s*[:=]", item)[0] for item in items(defined[1])]
            names.update({name: f"%p{at}" for at, name in enumerate(parameters)})
            code.parameters = len(parameters)
        elif line:
            _read_statement(code, names, _TAIL.sub("", line), without_casts)
    return code


def _read_statement(code: Code, names: dict[str, str], raw: str, without_casts: bool) -> None:
    """``names``: of variables in plain statements."""
    assigned = _ASSIGNED.match(raw)
    plain = _NAME.sub(lambda found: names.get(found[0], found[0]), raw[assigned.end() :] if assigned else raw)
    if assigned:
        cast = _CAST.fullmatch(plain) if without_casts else None
        if cast or _ALIAS.fullmatch(plain):
            names[assigned[1]] = cast[1] if cast else plain  # a second name of an input, or of a graph inside of this one
            return
        names[assigned[1]] = f"%{len(code.statements)}_"
    options = _OPTIONS.search(plain) if _FLEX.search(plain) else None
    if options:
        code.options.append(dict(_OPTION.findall(options[1])))
        plain = plain.replace(options[0], "{}")
    code.statements.append(Statement(raw, plain))


def tables(key: Key) -> set[int]:
    """Inputs, by their number, that are tables of a block mask: they follow from the lengths and the mask."""
    root = part(key, GRAPH, GRAPH)
    statements = read(root.text).statements if root else []
    calls = (call for statement in statements for call in _TABLES.findall(statement.plain))
    return {int(number) for call in calls for number in re.findall(r"%p(\d+)", call)}


def place(name: str) -> CauseKind:
    """What another code in a part of the group of the graph is: another mask function, score function or graph."""
    last = name.rpartition(".")[2]
    if re.match(r"sdpa_mask|mask_fn|mask_graph|mask_mod", last):
        return CauseKind.MASK
    if re.match(r"sdpa_score|score_|fw_graph\d*$|joint_graph\d*$", last):
        return CauseKind.SCORE
    return CauseKind.GRAPH
