"""What a worker says: one JSON line an event, appended to its own file and never to standard output.

The parent folds these into a record. A line that was cut by a crash is the last line of its file; it is dropped
there, and the missing end of the job is what counts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias, get_args

from flexwarm.calls import CompiledCall
from flexwarm.canonical import StrEnum, plain, text
from flexwarm.costs import Part, StartCosts
from flexwarm.hazards import HazardCode
from flexwarm.program_events import Called, ProgramEvent
from flexwarm.typed import wrong_field


class Phase(StrEnum):
    """What a worker is doing; the live table shows it."""

    START = "start"
    IMPORT = "import"
    WAIT = "wait"
    TRACE = "trace"
    COMPILE = "compile"
    LOAD = "load"
    RUN = "run"
    CHECK = "check"


class Layer(StrEnum):
    """A cache layer, outermost first."""

    AOT = "aot"
    FX = "fx"
    TRITON = "triton"


class Answer(StrEnum):
    """What a layer said when it was asked."""

    HIT = "hit"
    MISS = "miss"
    BYPASS = "bypass"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """The worker has imported torch; what it sees, to be held against what the parent read from files."""

    KIND: ClassVar[str] = "hello"
    t: float
    pid: int
    host: str
    components: Mapping[str, str]
    config_digest: str
    config: Mapping[str, str]
    import_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Inductor's settings as a job left them, where a module of the user's made them other than at the worker's hello."""

    KIND: ClassVar[str] = "settings"
    t: float
    job: str
    config_digest: str
    config: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Modes:
    """Settings of torch beside Inductor's, as the thread of a job or program sees them when it compiles.

    Attributes:
        digest: of the values.
        values: name -> value as text; empty where the process has told these before.
    """

    KIND: ClassVar[str] = "modes"
    t: float
    job: str | None
    digest: str
    values: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """The files that a job's own functions came from, path -> SHA-256: their module and what it imported."""

    KIND: ClassVar[str] = "sources"
    t: float
    job: str
    files: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The worker, or one of its jobs, has entered a phase."""

    KIND: ClassVar[str] = "progress"
    t: float
    job: str | None
    phase: Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """The interpreter still runs: a thread of it could write this."""

    KIND: ClassVar[str] = "heartbeat"
    t: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookup:
    """A cache layer was asked for a key. ``graph``: Dynamo's number of the graph, such as ``0/1``; empty if it is not known."""

    KIND: ClassVar[str] = "lookup"
    t: float
    job: str | None
    layer: Layer
    answer: Answer
    key: str
    reason: str
    graph: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyGroup:
    """Parts of a cache key, as :class:`flexwarm.key_parts.Group` has them; said once by a process, before the first such key.

    Attributes:
        names, digests, texts: of each part.
    """

    KIND: ClassVar[str] = "key_group"
    t: float
    digest: str
    names: tuple[str, ...]
    digests: tuple[str, ...]
    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyMade:
    """What went into a key that a cache layer did not have: name of a group -> digest of a :class:`KeyGroup`."""

    KIND: ClassVar[str] = "key_made"
    t: float
    job: str | None
    layer: Layer
    key: str
    groups: Mapping[str, str]
    graph: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recompiled:
    """The graph that a cache layer is about to be missed for is of a function that Dynamo compiles once more.

    Attributes:
        function, file, line: where the function is defined.
        guards: of each earlier variant, the last one first, the guard that this call fails, in torch's words, with the line
            that it comes from; empty if torch found none.
    """

    KIND: ClassVar[str] = "recompiled"
    t: float
    job: str | None
    function: str
    file: str
    line: int
    guards: tuple[str, ...]
    graph: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """A compiler, an autotuner or a precompiler ran, or tried to while verifying."""

    KIND: ClassVar[str] = "compiled"
    t: float
    job: str | None
    what: str  # "inductor", "cxx", "header", "triton" or "autotune"
    detail: str
    graph: str = ""


class Open(StrEnum):
    """What a GPU that is not there leaves open, because it has no times and no values."""

    VARIANT = "variant"  # which variant of a kernel is run: all of them are compiled, and the first call on a GPU times them
    GRAPH = "graph"  # which code is made of a graph: so it is not stored, and is made on a GPU, of kernels that are compiled
    VALUE = "value"  # what was read from the device while a graph was compiled: the compile was ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Untuned:
    """Something was to be decided by a GPU that is not there.

    Attributes:
        kernel: its name, or what was to be decided.
    """

    KIND: ClassVar[str] = "untuned"
    t: float
    job: str | None
    kernel: str
    open: Open
    graph: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """The entry of a graph that was compiled is not stored, for its code depends on a choice that is left to a GPU."""

    KIND: ClassVar[str] = "left_out"
    t: float
    job: str | None
    layer: Layer
    key: str
    graph: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """A GPU has timed a kernel's variants, which took ``seconds``; ``kept``: others need not do it again."""

    KIND: ClassVar[str] = "tuned"
    t: float
    job: str | None
    kernel: str
    seconds: float
    graph: str = ""
    kept: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """Values were copied from a GPU that is not there, for the first time from this ``place``: they are no results."""

    KIND: ClassVar[str] = "read"
    t: float
    job: str | None
    place: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Dense:
    """Attention was computed with a materialised score matrix, on real tensors."""

    KIND: ClassVar[str] = "dense"
    t: float
    job: str | None
    shape: tuple[int, ...]
    stack: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hazard:
    """A condition in which a compiled call would raise, hang, crash or run dense, at the moment when it was seen.

    Attributes:
        fate: what torch did with the call: ``pass``, ``raise`` or ``inline``; empty where it is of no single call.
        owner: the thread that brought it about, such as ``lane 1`` or ``thread 'loader'``; empty if nobody did.
        owner_lane: the owner's lane, if it is one.
        stack: the owner's Python stack when its trace began, outermost first, as ``file:line in function``.
    """

    KIND: ClassVar[str] = "hazard"
    t: float
    job: str | None
    code: HazardCode
    message: str
    fate: str = ""
    owner: str = ""
    owner_lane: int | None = None
    stack: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Hang:
    """The holder of torch's compile lock stands still, and so does everyone who waits for it.

    Attributes:
        message: the cycle in one sentence.
        stacks: name of each thread -> its Python stack, outermost first.
    """

    KIND: ClassVar[str] = "hang"
    t: float
    jobs: tuple[str, ...]
    message: str
    seconds: float
    stacks: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillDone:
    """One lane was held inside its traces while the other lanes called warm code.

    Attributes:
        holds: traces in which the lane was held.
        calls: warm calls that the other lanes made meanwhile.
        callers: how many lanes made these.
        waited: calls that turned out to need a compile, so that they waited for the trace instead of meeting it.
        unanswered: holds that ended at their limit, before every other lane had called.
    """

    KIND: ClassVar[str] = "drill_done"
    t: float
    job: str
    holds: int
    calls: int
    callers: int
    waited: int
    unanswered: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillLock:
    """One lane compiled while the backward of another lane on its device waited to be compiled, which did not deadlock.

    Attributes:
        met: the two did meet: a thread waited for torch's compile lock while the lane held it.
    """

    KIND: ClassVar[str] = "drill_lock"
    t: float
    job: str
    met: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeDone:
    """All calls of one shape have returned and were held against the dense reference.

    Attributes:
        calls: calls of the compiled function.
        checks: how often torch asked in this job, in the calling thread, whether FX traces; at least once a call.
        first_seconds: the first call, compiling or loading included.
        error: largest absolute difference from the reference on the sampled rows; None where one side is not finite.
        tolerance: what that difference may be for this dtype; the worker's comparison is elementwise.
        agrees: every sampled element is within tolerance, and all gradients are finite; None where nothing was computed.
    """

    KIND: ClassVar[str] = "shape_done"
    t: float
    job: str
    shape: int
    calls: int
    checks: int
    first_seconds: float
    repeat_seconds: float | None
    error: float | None
    tolerance: float
    agrees: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDone:
    """One call of a step function has returned.

    Attributes:
        number: which call in this job, from 0; the first one compiles or loads.
        checks: how often torch asked in this job, in the calling thread, whether FX traces; 0 where it called nothing compiled.
    """

    KIND: ClassVar[str] = "step_done"
    t: float
    job: str
    number: int
    checks: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Where a start has spent its time: of a job one first call, of a program all its compiles until now.

    Attributes:
        job: None for a program.
        parts: name of a :class:`flexwarm.costs.Part` -> seconds; one that this torch does not tell is not there.
    """

    KIND: ClassVar[str] = "costs"
    t: float
    job: str | None
    whole_seconds: float
    parts: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDone:
    """The job ran to its end; its own counters of the cache layers, as torch keeps them."""

    KIND: ClassVar[str] = "job_done"
    t: float
    job: str
    counters: Mapping[str, int]
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStopped:
    """While verifying, the job was stopped at its first miss, before anything was compiled or written."""

    KIND: ClassVar[str] = "job_stopped"
    t: float
    job: str
    counters: Mapping[str, int]
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFailed:
    """The job raised.

    Attributes:
        unanswered: the last call before it that a GPU that is not there did not answer, and what to use instead.
    """

    KIND: ClassVar[str] = "job_failed"
    t: float
    job: str
    error: str
    message: str
    traceback: str
    unanswered: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The worker cannot do anything here, such as with a torch it does not know."""

    KIND: ClassVar[str] = "refused"
    t: float
    message: str
    hint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bye:
    """The worker has done what it was asked and ends by itself."""

    KIND: ClassVar[str] = "bye"
    t: float


Event: TypeAlias = (
    Hello
    | Settings
    | Modes
    | Sources
    | Progress
    | Heartbeat
    | Lookup
    | KeyGroup
    | KeyMade
    | Recompiled
    | Compiled
    | Untuned
    | LeftOut
    | Tuned
    | Read
    | Dense
    | Hazard
    | Hang
    | DrillDone
    | DrillLock
    | ShapeDone
    | StepDone
    | Costs
    | JobDone
    | JobStopped
    | JobFailed
    | Refused
    | Bye
    | ProgramEvent
)

_KINDS: dict[str, Any] = {kind.KIND: kind for kind in get_args(Event)}
_PARTS = {part.value: part for part in Part}
_ENUMS: dict[str, Any] = {"phase": Phase, "layer": Layer, "answer": Answer, "open": Open}
_TUPLES = {
    *((KeyGroup.KIND, name) for name in ("names", "digests", "texts")),
    (Recompiled.KIND, "guards"),
    *(("program", "argv"), ("dense", "shape"), ("dense", "stack"), ("hazard", "stack"), ("hang", "jobs")),
}


def costs_of(event: Costs) -> StartCosts:
    """What an event says of a start; a part that is not known here, from another flexwarm, is one of the others."""
    parts: dict[Part, float] = {}
    for name, seconds in event.parts.items():
        part = _PARTS.get(name, Part.OTHER)
        parts[part] = parts.get(part, 0.0) + seconds
    return StartCosts(whole_seconds=event.whole_seconds, parts=parts)


def told_modes(said: Iterable[Event]) -> list[tuple[str | None, Mapping[str, str]]]:
    """(job, values) of each telling, in the order of one process's events; one whose values are lost is left out."""
    known: dict[str, Mapping[str, str]] = {}
    found = []
    for event in said:
        if isinstance(event, Modes):
            known.setdefault(event.digest, event.values)
            if known[event.digest]:
                found.append((event.job, known[event.digest]))
    return found


def to_line(event: Event) -> str:
    """One line of JSON, with its newline."""
    return text({"event": event.KIND, **plain(event)}) + "\n"


def from_line(line: str) -> Event:
    """Inverse of :func:`to_line`.

    Raises:
        ValueError: the line is not an event.
    """
    data = json.loads(line)
    if not isinstance(data, dict) or data.get("event") not in _KINDS:
        raise ValueError(f"not an event: {line[:80]!r}")
    kind = data.pop("event")
    try:
        for name, enum in _ENUMS.items():
            if name in data:
                data[name] = enum(data[name])
        for owner, name in _TUPLES:
            if owner == kind and isinstance(data[name], list):
                data[name] = tuple(data[name])
        if kind == Hazard.KIND:
            data["code"] = HazardCode(data["code"])
        if kind == Hang.KIND:
            data["stacks"] = {name: tuple(stack) for name, stack in data["stacks"].items()}
        event: Event = _KINDS[kind](**data)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise ValueError(f"not an event of kind {kind}: {error}") from error
    return event


def foreign_from_line(line: str) -> Event:
    """The same for what a program of the user's says, where another flexwarm may speak: what would break a reader is told here.

    Raises:
        ValueError: the line is not an event, or a field of it is not of its type.
    """
    event = from_line(line)
    wrong = wrong_field(event)
    if wrong is not None:
        raise ValueError(f"not an event of kind {event.KIND}: {wrong} is not of its type")
    if isinstance(event, Called):
        try:
            call = CompiledCall.from_json(event.call)
            whole = isinstance(call.graph, str) and bool(call.called and call.signature())
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise ValueError(f"not a compiled call: {error!r}") from error
        if not whole:
            raise ValueError("not a compiled call")
    return event
