"""The fold of what the programs of a launch line said: each program, its compiled calls, and who it was in the launch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from flexwarm import key_parts
from flexwarm.calls import CompiledCall
from flexwarm.canonical import StrEnum, digest
from flexwarm.commandline import title
from flexwarm.costs import StartCosts
from flexwarm.events import (
    Answer,
    Bye,
    Compiled,
    Costs,
    Dense,
    Event,
    Hang,
    Hazard,
    Layer,
    LeftOut,
    Lookup,
    Read,
    Recompiled,
    Refused,
    Settings,
    Sources,
    Tuned,
    Untuned,
    costs_of,
    told_modes,
)
from flexwarm.key_parts import Key
from flexwarm.nodes import NodeFacts
from flexwarm.program_events import (
    COMPILE_WORKER,
    Called,
    Held,
    Moved,
    Nodes,
    Placed,
    Program,
    Raised,
    Silenced,
    Spent,
    Summary,
)

E = TypeVar("E")

_RANK = "rank"


class Ended(StrEnum):
    """Why a launch is over."""

    BY_ITSELF = "by itself"
    AT_A_MISS = "at a miss"
    HUNG = "hung"
    TIMED_OUT = "timed out"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unseen:
    """A process that had torch loaded and said nothing."""

    pid: int
    argv: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenCompiler:
    """A compiler among the launch's processes, whoever started it: a build tool, a shell, or a program that reports it too."""

    pid: int
    argv: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What one program said, in its order.

    Attributes:
        gone_unix: when the process was first seen to be gone, while the command still ran; None if it was not, or is
            on another machine.
        silenced: the number of the error for which it could not go on to say what it had to say; None if it could.
    """

    events: tuple[Event, ...]
    gone_unix: float | None
    silenced: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphRecord:
    """One compiled call, and what the caches and compilers did about it.

    Attributes:
        call: None for lookups that belong to no graph that was seen, such as a backward that is compiled late.
        lane: the thread; ``lane-0`` is the main thread.
    """

    call: CompiledCall | None
    lane: str
    lookups: tuple[Lookup, ...]
    compiled: tuple[Compiled, ...]
    seconds: float

    def answers(self, answer: Answer) -> tuple[Lookup, ...]:
        return tuple(lookup for lookup in self.lookups if lookup.answer is answer)

    @property
    def hit(self) -> bool:
        """Everything that was asked for was there, and something was asked for."""
        return bool(self.lookups) and len(self.answers(Answer.HIT)) == len(self.lookups) and not self.compiled


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramRecord:
    """One observed program.

    Attributes:
        silenced: as :attr:`Told.silenced`, of it or of what it has forked.
        missed_keys: what went into the keys that a cache did not have.
        recompiled: why the graphs of some of them are of functions that were compiled before.
        costs: what its imports of torch and its compiles took; None if it did not come to say so.
        modes: settings of torch beside Inductor's, when it compiled for the first time; empty if it never said.
    """

    program: Program
    place: Mapping[str, int]
    graphs: tuple[GraphRecord, ...]
    dense: tuple[Dense, ...]
    hazards: tuple[Hazard, ...]
    hang: Hang | None
    refused: tuple[Refused, ...]
    raised: Raised | None
    moved: tuple[Moved, ...]
    held: Held | None
    untuned: tuple[Untuned, ...]
    left_out: frozenset[tuple[str, str]]
    tuned: tuple[Tuned, ...]
    reads: tuple[Read, ...]
    met: Nodes | None
    settings: Settings | None
    files: Mapping[str, str]
    summary: Summary | None
    said_bye: bool
    gone_unix: float | None
    silenced: int | None = None
    missed_keys: tuple[Key, ...] = ()
    recompiled: tuple[Recompiled, ...] = ()
    costs: StartCosts | None = None
    modes: Mapping[str, str] = field(default_factory=dict)

    @property
    def went_on(self) -> bool:
        """It made calls after it had said that it ends, and not to put another program in its place."""
        return not self.said_bye and self.summary is not None and self.summary.how != "exec"

    @property
    def rank(self) -> int | None:
        return self.place.get("rank")

    @property
    def name(self) -> str:
        """For people: ``rank 0``, or the program and its pid."""
        return f"rank {self.rank}" if self.rank is not None else f"{title(self.program.argv)} (pid {self.program.pid})"

    @property
    def identity(self) -> str:
        """The same in each run of one launch line: the rank, or the command line where there is none."""
        return f"{_RANK} {self.rank}" if self.rank is not None else title(self.program.argv)

    @property
    def process(self) -> str:
        """This one among all of the launch, also where several have one identity."""
        return f"{self.program.host} {self.program.pid} {self.program.started} {self.program.t}"

    @property
    def is_compile_worker(self) -> bool:
        """Inductor's own helper, which says who it is and nothing more."""
        return any(COMPILE_WORKER in argument for argument in self.program.argv)

    @property
    def used_torch(self) -> bool:
        """It compiled, loaded or ran what is being asked about; most programs of a launch do not."""
        return bool(self.graphs or self.dense or self.held)

    @property
    def counts(self) -> bool:
        """Its evidence matters: it used torch, or something was seen of it that would be hidden if it were left out.

        Lookups that torch counted and nobody saw are such a thing.
        """
        counted = self.summary is not None and any(self.summary.counters.values())
        silenced = self.silenced is not None
        return bool(self.used_torch or self.hazards or self.hang or self.refused or counted or silenced)

    @property
    def lookups(self) -> tuple[Lookup, ...]:
        return tuple(lookup for graph in self.graphs for lookup in graph.lookups)

    @property
    def compiled(self) -> tuple[Compiled, ...]:
        return tuple(event for graph in self.graphs for event in graph.compiled)

    @property
    def keys(self) -> frozenset[tuple[str, str]]:
        """(layer, key) of each lookup of the two graph caches."""
        return frozenset((x.layer.value, x.key) for x in self.lookups if x.layer is not Layer.TRITON and x.key)

    @property
    def signatures(self) -> dict[str, CompiledCall]:
        """Digest -> call, of what was compiled; the same on every rank that makes the same calls."""
        return {graph.call.signature(): graph.call for graph in self.graphs if graph.call is not None}

    @property
    def devices(self) -> frozenset[str]:
        """The devices of the tensors that entered its graphs."""
        return frozenset(x.device for graph in self.graphs if graph.call is not None for x in graph.call.inputs)

    @property
    def seconds(self) -> float:
        """Spent on compiling."""
        return sum(graph.seconds for graph in self.graphs)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRecord:
    """One run of a launch line.

    Attributes:
        status: of the command; minus the signal that ended it.
        signum: the signal with which we were asked to end it, if we were.
        left: processes that outlived it.
        nameless: observers that could not begin, in programs that could not even say who they are.
        silenced: of programs that could say nothing at all: the number of the error, or 0 where that is not known.
        store: where they wrote: the store, or another directory if that can only be read.
    """

    status: int
    ended: Ended
    signum: int | None
    seconds: float
    programs: tuple[ProgramRecord, ...]
    unseen: tuple[Unseen, ...]
    left: tuple[int, ...]
    nameless: tuple[Refused, ...] = ()
    compilers: tuple[SeenCompiler, ...] = ()
    silenced: tuple[int, ...] = ()
    store: str = ""
    ranks: Mapping[int, ProgramRecord] = field(default_factory=dict)

    @property
    def nodes(self) -> dict[str, NodeFacts]:
        """What the nodes of the launch have, by their runs; empty where they could not tell each other."""
        found = {node: NodeFacts.from_json(data) for met in self._met for node, data in met.nodes.items()}
        return {node: facts for node, facts in found.items() if facts is not None}

    @property
    def missed_elsewhere(self) -> dict[str, str]:
        """Run of another node -> what one of its ranks was stopped at."""
        return {node: what for met in self._met for node, what in met.missed.items() if node != met.own}

    @property
    def own_node(self) -> str:
        return next((met.own for met in self._met), "")

    @property
    def _met(self) -> list[Nodes]:
        return [program.met for program in self.programs if program.met is not None]

    @property
    def judged(self) -> tuple[ProgramRecord, ...]:
        """The programs that count: one for each rank, and every other that used compiled code; ranks first."""
        ranks = [self.ranks[rank] for rank in sorted(self.ranks)]
        return (*ranks, *(program for program in self.programs if program.counts and program not in ranks))


def fold_launch(
    told: Sequence[Told],
    *,
    status: int,
    ended: Ended,
    signum: int | None,
    seconds: float,
    unseen: Sequence[Unseen],
    left: Sequence[int],
    compilers: Sequence[SeenCompiler] = (),
    store: str = "",
) -> LaunchRecord:
    """The record of a launch."""
    programs = tuple(_fold_program(part) for one in told for part in _parts(one))
    strangers = [_stranger(one.events) for one in told if one.events and not isinstance(one.events[0], Program)]
    return LaunchRecord(
        status=status,
        ended=ended,
        signum=signum,
        seconds=seconds,
        programs=programs,
        unseen=tuple(unseen),
        left=tuple(left),
        nameless=tuple(strangers),
        compilers=tuple(compilers),
        silenced=tuple(one.silenced or 0 for one in told if not one.events),
        store=store,
        ranks=_ranks(programs),
    )


def _stranger(said: Sequence[Event]) -> Refused:
    """Why a program did not even say who it is."""
    refused = _of(Refused, said)
    return refused[0] if refused else Refused(t=said[0].t, message="a program said something, and not who it is", hint="")


def _parts(told: Told) -> list[Told]:
    """A process may put another program in its place, which goes on in the same file: one for each program."""
    starts = [number for number, event in enumerate(told.events) if isinstance(event, Program)]
    if not starts or starts[0] != 0:
        return []
    ends = [*starts[1:], len(told.events)]
    parts = [Told(events=told.events[start:end], gone_unix=told.gone_unix) for start, end in zip(starts, ends, strict=True)]
    return [*parts[:-1], replace(parts[-1], silenced=told.silenced)]


def _ranks(programs: Sequence[ProgramRecord]) -> dict[int, ProgramRecord]:
    """The program of each rank. What a rank starts, such as its data loader, inherits its variables and is not the rank."""
    by_pid = {(program.program.host, program.program.pid): program for program in programs}
    found: dict[int, tuple[tuple[bool, bool], ProgramRecord]] = {}
    for program in programs:
        if program.rank is None:
            continue
        parent = by_pid.get((program.program.host, program.program.parent))
        inherited = parent is not None and parent.rank == program.rank
        if inherited and not program.used_torch:
            continue
        claim = (program.used_torch, not inherited)
        if program.rank not in found or claim > found[program.rank][0]:
            found[program.rank] = (claim, program)
    return {rank: program for rank, (_, program) in found.items()}


def _fold_program(told: Told) -> ProgramRecord:
    said = told.events
    program = said[0]
    assert isinstance(program, Program)
    places = _of(Placed, said)
    sources = _of(Sources, said)
    silenced = [told.silenced, *(event.error for event in _of(Silenced, said))]
    return ProgramRecord(
        program=program,
        place=places[-1].place if places else program.place,
        graphs=_graphs(said),
        dense=tuple(_of(Dense, said)),
        hazards=tuple(_of(Hazard, said)),
        hang=_last(_of(Hang, said)),
        refused=tuple(_of(Refused, said)),
        raised=_last(_of(Raised, said)),
        moved=tuple(_of(Moved, said)),
        held=_last(_of(Held, said)),
        untuned=tuple(_of(Untuned, said)),
        left_out=frozenset((e.layer.value, e.key) for e in _of(LeftOut, said)),
        tuned=tuple(_of(Tuned, said)),
        reads=tuple(_of(Read, said)),
        met=_last(_of(Nodes, said)),
        settings=next(iter(_of(Settings, said)), None),
        files=sources[-1].files if sources else {},
        summary=_last(_of(Summary, said)),
        said_bye=_ended_well(said),
        gone_unix=told.gone_unix,
        silenced=next((error for error in silenced if error is not None), None),
        missed_keys=tuple(key for keys in key_parts.told(said).values() for key in keys),
        recompiled=tuple(_of(Recompiled, said)),
        costs=next((costs_of(event) for event in reversed(_of(Costs, said))), None),
        modes=next((values for _, values in told_modes(said)), {}),
    )


def _ended_well(said: Sequence[object]) -> bool:
    """It said that it ends, and made no call after that: to put another program in its place may fail."""
    for event in reversed(said):
        if isinstance(event, Bye):
            return True
        if isinstance(event, (Called, Lookup, Compiled, Held, Dense)):
            return False
    return False


@dataclass(slots=True)
class _Open:
    """A graph that is being put together."""

    call: CompiledCall | None
    lane: str
    lookups: list[Lookup] = field(default_factory=list)
    compiled: list[Compiled] = field(default_factory=list)
    seconds: float = 0.0


def _graphs(said: Iterable[Event]) -> tuple[GraphRecord, ...]:
    """The graphs in the order of their calls. A number may come again: Dynamo was reset, or split one graph into several."""
    found: list[_Open] = []
    current: dict[str, _Open] = {}

    def of(graph: str, job: str | None) -> _Open:
        if graph not in current:
            current[graph] = _Open(call=None, lane=job or "")
            found.append(current[graph])
        return current[graph]

    for event in said:
        match event:
            case Called(job=job, call=data):
                call = CompiledCall.from_json(data)
                current[call.graph] = _Open(call=call, lane=job or "")
                found.append(current[call.graph])
            case Lookup(graph=graph, job=job):
                of(graph, job).lookups.append(event)
            case Compiled(graph=graph, job=job):
                of(graph, job).compiled.append(event)
            case Spent(graph=graph, job=job, seconds=seconds):
                of(graph, job).seconds += seconds
    return tuple(
        GraphRecord(
            call=graph.call,
            lane=graph.lane,
            lookups=tuple(graph.lookups),
            compiled=tuple(graph.compiled),
            seconds=graph.seconds,
        )
        for graph in found
    )


def is_rank(identity: str) -> bool:
    """Whether an identity is that of a rank, and not a command line."""
    return re.fullmatch(rf"{_RANK} \d+", identity) is not None


def signature_groups(programs: Sequence[ProgramRecord]) -> tuple[tuple[frozenset[str], tuple[ProgramRecord, ...]], ...]:
    """The ranks by the set of calls that they compiled; more than one group means that ranks compile different things."""
    groups: dict[str, list[ProgramRecord]] = {}
    for program in programs:
        if program.rank is not None:
            groups.setdefault(digest(sorted(program.signatures)), []).append(program)
    return tuple((frozenset(members[0].signatures), tuple(members)) for members in groups.values())


def _of(kind: type[E], said: Iterable[object]) -> list[E]:
    return [event for event in said if isinstance(event, kind)]


def _last(found: Sequence[E]) -> E | None:
    return found[-1] if found else None
