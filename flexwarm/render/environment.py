"""What of the environment is not as it was at the build, for people."""

from __future__ import annotations

from collections.abc import Iterable

from flexwarm.environment_difference import Compare, Compared, Difference, Subject
from flexwarm.ops.launch_line import LaunchResult
from flexwarm.ops.run import RunResult

#: Differences of one job that are told; -v shows all.
_SHOWN = 8
#: Characters of a value; -vv shows all.
_VALUE = 60


def environment_lines(result: RunResult | LaunchResult, verbosity: int) -> Iterable[str]:
    """Build -> now, what can matter first; what is known to change nothing only with ``-v``."""
    for compare in result.environment:
        yield from _lines(compare, verbosity)


def _lines(compare: Compare, verbosity: int) -> Iterable[str]:
    if compare.compared is Compared.NONE:
        yield f"environment{_of(compare)}: {compare.why}"
        return
    matter = [one for one in compare.differences if one.matters]
    others = [one for one in compare.differences if not one.matters]
    shown = [*matter, *others] if verbosity > 0 else matter[:_SHOWN]
    aside = f"; {compare.why}" if compare.why else ""
    if matter:
        yield f"environment, build -> now{_of(compare)}{aside}"
    else:
        yield f"environment{_of(compare)}: nothing that matters is other than at the build{aside}"
    for one in shown:
        yield f"  {one.name}: {_shown(one.old, one, verbosity)} -> {_shown(one.new, one, verbosity)}: {one.does}"
    if verbosity <= 0 and len(matter) > _SHOWN:
        yield f"  and {len(matter) - _SHOWN} more (-v shows all)"


def _of(compare: Compare) -> str:
    if not compare.owners:
        return ""
    more = len(compare.owners) - 1
    return f" ({compare.owners[0]}{f' and {more} more' if more else ''})"


def _shown(value: str | None, one: Difference, verbosity: int) -> str:
    """Unset, empty and ``0`` must not look alike; a setting's value is a text that torch made."""
    if value is None:
        return "unset"
    text = repr(value) if one.subject is Subject.VARIABLE else "".join(x if x.isprintable() else " " for x in value)
    return text if verbosity > 1 or len(text) <= _VALUE else f"{text[: _VALUE - 1]}…"
