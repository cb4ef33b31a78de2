"""Why keys were missed, for people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from flexwarm.events import Layer
from flexwarm.evidence import LAYER_NAMES, short
from flexwarm.explanation import Explained
from flexwarm.ops.launch_line import LaunchResult
from flexwarm.ops.run import RunResult
from flexwarm.reasons import Code, Kind, Reason
from flexwarm.render.run import VERDICT_STYLES

#: What a reason that an explanation has said already is about.
_SAID = (Code.AOT_MISS, Code.FX_MISS, Code.KEY_CHANGED)
#: Characters of each side of a difference; -vv shows all that is kept.
_SIDE = 100


def print_explained(result: RunResult | LaunchResult, *, verbosity: int) -> None:
    """Each missed key and its causes, what else speaks against the launch, and the verdict; on standard output."""
    from rich.text import Text

    from flexwarm.render.console import make_console

    console = make_console()

    def line(text: str | Text) -> None:
        console.print(text, soft_wrap=not console.is_terminal, highlight=False, markup=False)

    for owners, explained in _owned(result.explained) if verbosity >= 0 else ():
        line(Text(owners, style="bold"))
        for text in _lines(explained, verbosity):
            line(text)
    others = list(dict.fromkeys(reason for reason in _reasons(result) if not result.explained or reason.code not in _SAID))
    for reason in others if verbosity >= 0 else ():
        line(Text.assemble((reason.code.value, "yellow"), f": {reason.message}"))
    kind = result.verdict.kind
    nothing = "" if kind is not Kind.WARM else " (everything hits, so there is nothing to explain)"
    line(Text.assemble("verdict: ", (kind.value, VERDICT_STYLES[kind]), nothing))
    hints = dict.fromkeys(reason.hint for reason in _reasons(result) if reason.hint)
    for hint in list(hints)[:4] if verbosity >= 0 else ():
        line(f"  next: {hint}")


def _owned(explained: Mapping[str, Sequence[Explained]]) -> Iterable[tuple[str, Sequence[Explained]]]:
    """Jobs or programs that missed the same for the same causes are named together."""
    grouped: dict[tuple[Explained, ...], list[str]] = {}
    for owner, found in explained.items():
        grouped.setdefault(tuple(found), []).append(owner)
    for found, owners in grouped.items():
        yield (owners[0] if len(owners) == 1 else f"{owners[0]} and {len(owners) - 1} more"), found


def _lines(explained: Sequence[Explained], verbosity: int) -> Iterable[str]:
    before: tuple[str, ...] = ()
    for one in explained:
        name = LAYER_NAMES[Layer(one.layer)]
        causes = tuple(str(cause) for cause in one.causes)
        same = bool(before) and causes == before
        end = ", for the same" if same else f"; the nearest is {short(one.nearest)}"
        yield f"  {name} key {short(one.key)} is not in the bucket{end}"
        if not same:
            yield from (f"    {cause}" for cause in causes or ("no part of it that torch names differs",))
        before = causes
        for part in one.differences if verbosity > 0 else ():
            old, new = (_side(text, verbosity) for text in (part.old, part.new))
            yield f"      {part.name}: {old} -> {new}"


def _side(text: str | None, verbosity: int) -> str:
    if text is None:
        return "nothing"
    if verbosity > 1:
        return text
    flat = " ".join(text.split())
    return flat if len(flat) <= _SIDE else f"{flat[: _SIDE - 1]}…"


def _reasons(result: RunResult | LaunchResult) -> list[Reason]:
    found = list(result.verdict.reasons)
    owned = result.verdict.jobs if isinstance(result, RunResult) else result.verdict.programs
    for one in owned:
        found += one.reasons
    return found
