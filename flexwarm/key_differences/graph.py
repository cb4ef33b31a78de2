"""What differs in the code of a graph and of the graphs inside of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import chain, zip_longest

from flexwarm.key_differences.cause import UNSET, Cause, CauseKind
from flexwarm.key_differences.changes import Changes
from flexwarm.key_differences.code import Code, place, read
from flexwarm.key_differences.devices import move, moved
from flexwarm.key_differences.pairs import Differences, Pair, part, shortened
from flexwarm.key_parts import GRAPH

#: Whose code it is.
_SUBJECTS = {
    CauseKind.MASK: "the mask function",
    CauseKind.SCORE: "the score function",
    CauseKind.GRAPH: "the graph",
}
#: Numbers of one graph that are named.
_NUMBERS = 3
#: Kernel options that torch sets itself, by whether gradients are needed.
_OF_GRADIENT = {"OUTPUT_LOGSUMEXP", "OUTPUT_MAX"}
_DIGITS = re.compile(r"(?<![\w.%$])-?(?:\d+\.?\d*(?:e[+-]?\d+)?|inf\b)(?![\w.])")
_CALLED = re.compile(r"(?<![\w.])([a-zA-Z_][\w.]*)\(")


def graph(differences: Differences, changes: Changes) -> list[Cause]:
    whole = differences.take_one("", "gm")
    pairs = differences.take(GRAPH)
    old, new = part(differences.old, "", "gm"), part(differences.new, "", "gm")
    if old and new and old.digest == new.digest:
        return []  # the code has other names, which are nothing to torch
    if GRAPH not in differences.old.groups or GRAPH not in differences.new.groups:
        return [unread(whole)] if whole and not changes.reach_code else []
    found: list[Cause] = []
    told = False
    # What is inside first: a mask function that changed explains that the graph passes other things to it.
    for pair in sorted(pairs, key=lambda pair: pair.name == GRAPH):
        if pair.old is None or pair.new is None:
            continue
        first, second = (read(one.text, without_casts=bool(changes.dtypes)) for one in (pair.old, pair.new))
        told = told or first.statements != second.statements
        kind = place(pair.name)
        if kind is not CauseKind.GRAPH:
            changes.captured.setdefault(kind.value, second.parameters - first.parameters)
        causes = _causes(first, second, kind, changes, root=pair.name == GRAPH, inside=_inside(found))
        if kind is CauseKind.MASK or not any(cause.kind is kind for cause in found):
            found += [cause for cause in causes if cause not in found]
    if not found and not changes.training:
        found = [_lone(pair) for pair in pairs if pair.lone]
    if not found and whole and not told and not changes.reach_code:
        found = [unread(pair) for pair in pairs or [whole]]
    return found


def unread(pair: Pair) -> Cause:
    """Code that differs in nothing that is understood."""
    kind = place(pair.name)
    return Cause(kind, _SUBJECTS[kind], *pair.lines)


def _lone(pair: Pair) -> Cause:
    kind = place(pair.name)
    old, new = (f"part of it ({pair.name})" if one else UNSET for one in (pair.old, pair.new))
    return Cause(kind, _SUBJECTS[kind], old, new)


def _inside(found: Sequence[Cause]) -> bool:
    return any(cause.kind in (CauseKind.MASK, CauseKind.SCORE) for cause in found)


def _causes(first: Code, second: Code, kind: CauseKind, changes: Changes, *, root: bool, inside: bool) -> list[Cause]:
    """What differs in the code of one graph and does not follow from other causes.

    Args:
        root: it is not inside of another.
        inside: the code of a graph inside of it differs.
    """
    found = _options(first, second, changes)
    if root and changes.training:
        return found
    parameters = min(first.parameters, second.parameters)
    old = [_neutral(_translated(one.plain, changes), changes, parameters) for one in first.statements]
    new = [_neutral(one.plain, changes, parameters) for one in second.statements]
    device = None if changes.devices else moved(first.devices, second.devices)
    if device:
        old = [move(one, dict([device])) for one in old]
    if first.cut or second.cut:
        length = min(len(old), len(new))
        old, new = old[:length], new[:length]
    if list(map(_skeleton, old)) == list(map(_skeleton, new)):
        if device:
            found.append(Cause(CauseKind.DEVICE, _SUBJECTS[kind], *device))
        pairs = zip(old, new, strict=True)
        numbers = dict.fromkeys(chain.from_iterable(_numbers(a, b, changes, derived=root) for a, b in pairs))
        return found + [Cause(CauseKind.CONSTANT, _SUBJECTS[kind], *pair) for pair in list(numbers)[:_NUMBERS]]
    if root and (changes.dynamic or ((changes.inputs or changes.sizes) and (inside or _calls(old) == _calls(new)))):
        return found
    at = next(
        at
        for at, (a, b) in enumerate(zip_longest(old, new, fillvalue=""))
        if _skeleton(a) != _skeleton(b) or _numbers(a, b, changes, derived=root)
    )
    texts = (code.statements[at].raw if at < len(code.statements) else "nothing" for code in (first, second))
    return [*found, Cause(kind, _SUBJECTS[kind], *shortened(*texts))]


def _options(first: Code, second: Code, changes: Changes) -> list[Cause]:
    """The options of attention's kernels."""
    found = []
    for old, new in zip(first.options, second.options, strict=False):
        for name in dict.fromkeys(chain(old, new)):
            a, b = old.get(name, UNSET), new.get(name, UNSET)
            if a != b and not (name in _OF_GRADIENT and changes.gradient):
                found.append(Cause(CauseKind.SETTING, f"the kernel option {name}", a, b))
    return found


def _translated(old: str, changes: Changes) -> str:
    """A statement of the old code with the devices and dtypes of the new one."""
    old = move(old, changes.devices)
    return re.sub(r"\btorch\.(\w+)\b", lambda found: f"torch.{changes.dtypes.get(found[1], found[1])}", old)


def _neutral(plain: str, changes: Changes, parameters: int) -> str:
    """A statement in which what became dynamic, or was, is as in the other code; ``parameters``: that both have."""
    if not changes.dynamic:
        return plain
    # A number that became an input is passed as the last of them.
    plain = re.sub(r"%p(\d+)", lambda found: found[0] if int(found[1]) < parameters else "#", plain)
    return _skeleton(plain)


def _skeleton(plain: str) -> str:
    """A statement without its numbers."""
    return _DIGITS.sub("#", plain)


def _numbers(old: str, new: str, changes: Changes, *, derived: bool) -> list[tuple[str, str]]:
    """The numbers that differ and do not follow from the sizes."""
    pairs = zip(_DIGITS.findall(old), _DIGITS.findall(new), strict=False)
    return [(a, b) for a, b in pairs if a != b and not changes.explain(a, b, derived=derived)]


def _calls(statements: Sequence[str]) -> list[str]:
    """What a graph calls, in order, without what only computes sizes."""
    names = chain.from_iterable(map(_CALLED.findall, statements))
    return [name for name in names if "sym_" not in name and not name.endswith(".size")]
