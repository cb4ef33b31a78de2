"""What a warm start still costs, as JSON and for people."""

from __future__ import annotations

from collections.abc import Iterable

from flexwarm.costs import Part, StartCosts, slowest
from flexwarm.ops.launch_line import LaunchResult
from flexwarm.ops.run import RunResult
from flexwarm.reasons import Kind

#: Parts in the words of people, in the order in which a start goes through them.
PART_NAMES = {
    Part.IMPORT: "import",
    Part.DYNAMO: "Dynamo",
    Part.GUARDS: "guards",
    Part.AOT: "AOTAutograd",
    Part.KEYS: "keys",
    Part.LOAD: "load",
    Part.PROBE: "CPU probe",
    Part.COMPILE: "compile",
    Part.RUN: "first run",
    Part.OTHER: "other",
}
#: What is shown as 0.0 is left out.
_SHOWN_SECONDS = 0.05


def costs_json(costs: StartCosts | None) -> dict[str, float | None] | None:
    """What docs/reference/json.md says: null of a part is "not known"."""
    if costs is None:
        return None
    found: dict[str, float | None] = {"whole_seconds": round(costs.whole_seconds, 6)}
    for part in Part:
        seconds = costs.parts.get(part)
        found[f"{part.value}_seconds"] = None if seconds is None else round(seconds, 6)
    return found


def cost_lines(result: RunResult | LaunchResult, verbosity: int) -> list[str]:
    """Of a warm verdict: the lane or program that a launch waits for, and with -v every job or program.

    Nothing of GPUs that are not there: what the same start costs where they are is another number.
    """
    if result.verdict.kind is not Kind.WARM or result.target is not None:
        return []
    return list(_of_run(result, verbosity) if isinstance(result, RunResult) else _of_launch(result, verbosity))


def _of_run(result: RunResult, verbosity: int) -> Iterable[str]:
    starts = result.record.starts if result.record is not None else ()
    worst = slowest(starts)
    if worst is None:
        return
    several_lanes = any(start.lane for start in starts)
    where = f"rank {worst.rank}{f' lane {worst.lane}' if several_lanes else ''}"
    slow = f" on the slowest of {len(starts)}, {where}" if len(starts) > 1 else ""
    yield f"a warm start still costs {worst.costs.whole_seconds:.1f} s{slow}: {_parts(worst.costs, waits=several_lanes)}"
    if verbosity <= 0 or result.record is None:
        return
    for job in result.verdict.jobs:
        if job.record is not None and job.record.costs is not None:
            costs = job.record.costs
            yield f"  {job.job.id}: first calls {costs.whole_seconds:.1f} s: {_parts(costs, waits=several_lanes)}"


def _of_launch(result: LaunchResult, verbosity: int) -> Iterable[str]:
    told = [(program.record.name, program.record.costs) for program in result.verdict.programs]
    known = [(name, costs) for name, costs in told if costs is not None]
    if not known:
        return
    name, worst = max(known, key=lambda one: one[1].whole_seconds)
    slow = f" on the slowest of {len(known)}, {name}" if len(known) > 1 else ""
    yield f"a warm start still costs {worst.whole_seconds:.1f} s before its calls run{slow}: {_parts(worst)}"
    if verbosity > 0 and len(known) > 1:
        for name, costs in known:
            yield f"  {name}: {costs.whole_seconds:.1f} s: {_parts(costs)}"


def _parts(costs: StartCosts, *, waits: bool = False) -> str:
    """The parts so that they add up to what is said of the whole, as far as tenths of a second do."""
    names = {**PART_NAMES, Part.RUN: "first run and waiting for other lanes"} if waits else PART_NAMES
    shown = {part: round(costs.parts[part], 1) for part in names if costs.parts.get(part, 0.0) >= _SHOWN_SECONDS}
    words = [f"{names[part]} {seconds:.1f}" for part, seconds in shown.items()]
    rest = round(costs.whole_seconds, 1) - sum(shown.values())
    if rest >= _SHOWN_SECONDS:
        words.append(f"the rest {rest:.1f}")
    unknown = [names[part] for part in names if part not in costs.parts and part not in (Part.RUN, Part.OTHER)]
    return ", ".join(words or ["no part of it takes 0.1 s"]) + (f" (not known: {', '.join(unknown)})" if unknown else "")
