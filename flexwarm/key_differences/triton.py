"""What differs between two of Triton's keys of a kernel."""

from __future__ import annotations

from collections.abc import Sequence

from flexwarm.key_differences.cause import UNSET, Cause, CauseKind
from flexwarm.key_differences.pairs import Differences, Pair, part
from flexwarm.key_parts import GENERATED, KERNEL, Key

#: What Triton has as the type of an argument that is compiled in.
_COMPILED_IN = "constexpr"
_DIVISIBLE = "tt.divisibility"


def kernel_causes(old: Key, new: Key) -> list[Cause]:
    """The causes, in no order."""
    differences = Differences(old, new)
    named = part(new, "", KERNEL)
    kernel = f"Triton kernel {' '.join(named.text.split())}" if named else "a Triton kernel"
    content = differences.take_one("", "triton")
    target, backend = differences.take_one("", "target"), differences.take_one("", "backend")
    found = [Cause(CauseKind.TRITON, "Triton", *_version(content))] if content else []
    if target:
        found.append(Cause(CauseKind.GPU, "what Triton compiles for", *target.texts))
    elif backend:
        found.append(Cause(CauseKind.TRITON, "Triton's assembler", *backend.texts))
    found += _source(differences, kernel)
    found += _arguments(differences, kernel)
    for group, pairs in differences.left.items():
        for pair in pairs:
            kind = CauseKind.OTHER if group == "" else CauseKind.SETTING
            subject = pair.name if group == "" else f"{pair.setting} of {kernel}"
            found.append(Cause(kind, pair.setting if group == "environment" else subject, *pair.texts))
    return found


def _version(pair: Pair) -> tuple[str, str]:
    """Two versions; the beginnings of their digests if it is in the sources."""
    return pair.texts if pair.old and pair.new and pair.old.text != pair.new.text else pair.contents


def _source(differences: Differences, kernel: str) -> list[Cause]:
    """Its text, the functions that it calls, constants of its module, its line: all of these that differ."""
    whole, line = differences.take_one("", "source"), differences.take_one("", "line")
    constants, called = differences.take("global"), differences.take("calls")
    if whole is None:
        return []
    if whole.new and whole.new.text == GENERATED:
        return [Cause(CauseKind.KERNEL, f"what Inductor wrote as {kernel}", *whole.contents)]
    found = []
    if whole.old and whole.old.text != (whole.new.text if whole.new else ""):
        found.append(Cause(CauseKind.KERNEL, kernel, *whole.lines))
    found += [Cause(CauseKind.KERNEL, f"the function {pair.setting} that {kernel} calls", *pair.lines) for pair in called]
    found += [Cause(CauseKind.CONSTANT, f"{pair.setting} of {kernel}", *pair.texts) for pair in constants]
    if line:
        found.append(Cause(CauseKind.LINE, f"the line of {kernel} in its file", *line.texts))
    return found or [Cause(CauseKind.KERNEL, f"a function that {kernel} calls", *whole.contents)]


def _arguments(differences: Differences, kernel: str) -> list[Cause]:
    """Types, what is compiled in, and what is assumed of the rest: of each argument what is most telling."""
    types = {pair.setting: pair for pair in differences.take("signature")}
    constants = {pair.setting: pair for pair in differences.take("constants")}
    assumed = {pair.setting: pair for pair in differences.take("attributes")}
    alike: dict[tuple[CauseKind, tuple[str, str]], list[str]] = {}
    inner = {name.rpartition(".")[0] for name in (*constants, *assumed)}
    for name in dict.fromkeys([*types, *constants, *assumed]):
        if name in inner:
            continue  # what differs in a tuple is told of its items
        constant, kind = constants.get(name), types.get(name)
        if constant and not constant.lone:
            change = CauseKind.CONSTANT, constant.texts
        elif kind and not (constant and _COMPILED_IN in kind.texts):
            change = CauseKind.DTYPE, kind.texts
        elif kind or constant:
            change = CauseKind.SPECIALIZATION, _compiled_in(constant, kind)
        else:
            old, new = assumed[name].texts
            said = _assumption(old), _assumption(new)
            change = CauseKind.SPECIALIZATION, said if said[0] != said[1] else (old, new)
        alike.setdefault(change, []).append(name)
    return [Cause(kind, f"{_named(names)} of {kernel}", *texts) for (kind, texts), names in alike.items()]


def _named(names: Sequence[str]) -> str:
    """``argument x``, or ``arguments x, y and out``."""
    return f"argument {names[0]}" if len(names) == 1 else f"arguments {', '.join(names[:-1])} and {names[-1]}"


def _compiled_in(constant: Pair | None, kind: Pair | None) -> tuple[str, str]:
    """A number is compiled in if it is 1, or a parameter of the kernel; else any number of its type will do."""
    values = constant.texts if constant else (UNSET, UNSET)
    types = kind.texts if kind else (UNSET, UNSET)
    old, new = (
        f"always {value}" if value != UNSET else "any number" if x == UNSET else f"any {x}"
        for value, x in zip(values, types, strict=True)
    )
    return old, new


def _assumption(text: str) -> str:
    if _DIVISIBLE in text:
        return "a multiple of 16"
    return "any number" if text in (UNSET, "[]") else text
