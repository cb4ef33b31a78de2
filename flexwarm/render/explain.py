"""Why keys were missed, for people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from flexwarm.events import Layer
from flexwarm.explanation import Explained
from flexwarm.lookups import LAYER_NAMES, MISSES, short
from flexwarm.ops.launch_line import LaunchResult
from flexwarm.ops.run import RunResult
from flexwarm.reasons import Code, Kind, Reason
from flexwarm.render.costs import cost_lines
from flexwarm.render.environment import environment_lines
from flexwarm.render.known_faults import fault_lines
from flexwarm.render.run import VERDICT_STYLES

_MISSES = tuple(MISSES.values())
#: Characters of each side of a difference, and of these before it begins; -vv shows all that is kept.
_SIDE, _BEFORE = 100, 40


def print_explained(result: RunResult | LaunchResult, *, verbosity: int) -> None:
    """Each missed key and its causes, what else speaks against the launch, and the verdict; on standard output."""
    from rich.text import Text

    from flexwarm.render.console import make_console

    console = make_console()

    def line(text: str | Text) -> None:
        console.print(text, soft_wrap=not console.is_terminal, highlight=False, markup=False)

    for owners, explained in _owned(result.explained, _names(result)) if verbosity >= 0 else ():
        line(Text(owners, style="bold"))
        for text in _lines(explained, verbosity):
            line(text)
    for reason in dict.fromkeys(_others(result)) if verbosity >= 0 else ():
        line(Text.assemble((reason.code.value, "yellow"), f": {reason.message}"))
    for note in (result.notes if isinstance(result, RunResult) else result.verdict.notes) if verbosity >= 0 else ():
        line(Text.assemble(("note", "cyan"), f": {note}"))
    for changed in environment_lines(result, verbosity) if verbosity >= 0 else ():
        line(changed)
    for fault in fault_lines(result.faults, verbosity, warm=result.verdict.kind is Kind.WARM) if verbosity >= 0 else ():
        line(fault)
    for cost in cost_lines(result, verbosity) if verbosity >= 0 else ():
        line(cost)
    kind = result.verdict.kind
    nothing = "" if kind is not Kind.WARM else " (everything hits, so there is nothing to explain)"
    line(Text.assemble("verdict: ", (kind.value, VERDICT_STYLES[kind]), nothing))
    hints = dict.fromkeys(reason.hint for reason in _reasons(result) if reason.hint)
    for hint in list(hints)[:4] if verbosity >= 0 else ():
        line(f"  next: {hint}")


def _names(result: RunResult | LaunchResult) -> dict[str, str]:
    """What owns an explanation -> its name for people."""
    if isinstance(result, RunResult):
        return {job.job.id: job.job.id for job in result.verdict.jobs}
    return {program.record.process: program.record.name for program in result.verdict.programs}


def _owned(explained: Mapping[str, Sequence[Explained]], names: Mapping[str, str]) -> Iterable[tuple[str, Sequence[Explained]]]:
    """Jobs or programs that missed the same for the same causes are named together."""
    grouped: dict[tuple[Explained, ...], list[str]] = {}
    for owner, found in explained.items():
        grouped.setdefault(tuple(found), []).append(names.get(owner, owner))
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
            yield f"      {part.name}: {_sides(part.old, part.new, whole=verbosity > 1)}"


def _sides(old: str | None, new: str | None, *, whole: bool) -> str:
    """Both texts of a part, from a little before the first difference."""
    if old == new:
        return "differs, in what torch does not print"
    one, other = ("nothing" if text is None else text if whole else " ".join(text.split()) for text in (old, new))
    if not whole:
        apart = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
        one, other = (_from(text, max(0, apart - _BEFORE)) for text in (one, other))
    return f"{one} -> {other}"


def _from(text: str, start: int) -> str:
    shown = f"…{text[start + 1 :]}" if start else text
    return shown if len(shown) <= _SIDE else f"{shown[: _SIDE - 1]}…"


def _others(result: RunResult | LaunchResult) -> list[Reason]:
    """The reasons that no explanation has said: of a miss that was not explained as well."""
    found = list(result.verdict.reasons)
    if isinstance(result, RunResult):
        owned = [(job.job.id, job.reasons) for job in result.verdict.jobs]
    else:
        owned = [(program.record.process, program.reasons) for program in result.verdict.programs]
    for owner, reasons in owned:
        said = [short(one.key) for one in result.explained.get(owner, ())]
        found += [
            reason
            for reason in reasons
            if not (said and reason.code is Code.KEY_CHANGED)
            and not (reason.code in _MISSES and any(key in reason.message for key in said))
        ]
    return found


def _reasons(result: RunResult | LaunchResult) -> list[Reason]:
    owned = result.verdict.jobs if isinstance(result, RunResult) else result.verdict.programs
    return [*result.verdict.reasons, *(reason for one in owned for reason in one.reasons)]
