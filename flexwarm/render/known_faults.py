"""Known faults of the installed torch and Triton, for people."""

from __future__ import annotations

from collections.abc import Sequence

from flexwarm.known_faults import Applying

#: Those that are told beside a verdict; ``flexwarm doctor`` tells all.
_SHOWN = 3


def fault_lines(faults: Sequence[Applying], verbosity: int, *, warm: bool = False) -> list[str]:
    """Those that certainly matter, in a line each; with -v what follows from each, its source, and those that may matter.

    Args:
        warm: everything hits, so that what only makes keys miss is told with -v alone.
    """
    told = [one for one in faults if verbosity > 0 or (one.certain and (one.fault.hurts_warm or not warm))]
    shown = told if verbosity > 0 else told[:_SHOWN]
    lines = [line for one in shown for line in (_lines(one) if verbosity > 0 else [_line(one)])]
    if len(told) > len(shown):
        lines.append(f"and {len(told) - len(shown)} more known faults of these versions: flexwarm doctor SPEC")
    return lines


def _line(one: Applying) -> str:
    return f"{_named(one)}: {one.fault.title}; {one.fault.remedy}"


def _lines(one: Applying) -> list[str]:
    fault = one.fault
    return [
        f"{_named(one)}: {fault.title}",
        f"  then: {fault.consequence}",
        f"  do: {fault.remedy}",
        f"  {'seen' if fault.seen == 'measured' else fault.seen.value}: {fault.source}",
    ]


def _named(one: Applying) -> str:
    certain = "known fault" if one.certain else f"may matter: {', '.join(one.fault.when).replace('-', ' ')}"
    return f"{certain} ({one.fault.package} {one.installed})"
