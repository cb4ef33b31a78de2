"""What the first calls of a process still cost when nothing is compiled: seconds by part, and which lane waits the longest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from flexwarm.canonical import StrEnum


class Part(StrEnum):
    """Where a moment of a first call goes. No moment is in two parts."""

    IMPORT = "import"  # modules that are loaded on the way: of torch's compilers, and in a launch line torch itself
    DYNAMO = "dynamo"  # reading bytecode and capturing graphs
    GUARDS = "guards"  # making the guards, not what they cost at each call
    AOT = "aot"  # what AOTAutograd and Inductor do around their caches
    KEYS = "keys"  # making cache keys; the first one of a process reads torch's own sources
    LOAD = "load"  # reading entries and loading code
    PROBE = "probe"  # trying each kind of vector instructions of the processor, in new processes
    COMPILE = "compile"  # code that is generated and compiled: none of it in a warm start
    RUN = "run"  # the rest of the calls: kernels, and waiting for other lanes
    OTHER = "other"  # the rest of the calls where torch does not say what it is in


@dataclass(frozen=True, slots=True, kw_only=True)
class StartCosts:
    """The first calls of a job, or the compiles of a program.

    Attributes:
        whole_seconds: all parts together.
        parts: seconds of each part; one that is not known has no entry, and its time is in another.
    """

    whole_seconds: float
    parts: Mapping[Part, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneCosts:
    """The start of one lane: of its process, and of its jobs one after the other."""

    rank: int
    lane: int
    costs: StartCosts


def total(costs: Iterable[StartCosts]) -> StartCosts | None:
    """All of them together; a part that one of them does not know is not known. None of nothing."""
    several = list(costs)
    if not several:
        return None
    known = [part for part in Part if all(part in one.parts for one in several)]
    loose = sum(seconds for one in several for part, seconds in one.parts.items() if part not in known)
    parts = {part: sum(one.parts[part] for one in several) for part in known}
    if loose:
        parts[Part.OTHER] = parts.get(Part.OTHER, 0.0) + loose
    return StartCosts(whole_seconds=sum(one.whole_seconds for one in several), parts=parts)


def with_imports(calls: StartCosts, seconds: float) -> StartCosts:
    """The same with what its process had imported before."""
    parts = {**calls.parts, Part.IMPORT: calls.parts.get(Part.IMPORT, 0.0) + seconds}
    return StartCosts(whole_seconds=calls.whole_seconds + seconds, parts=parts)


def slowest(starts: Iterable[LaneCosts]) -> LaneCosts | None:
    """The lane that a launch waits for."""
    return max(starts, key=lambda start: start.costs.whole_seconds, default=None)
