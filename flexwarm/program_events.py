"""What an observed program of a launch line says, beside the events that workers have too. See :mod:`flexwarm.events`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, TypeAlias

#: The name of an event file and this: a link to the number of the error for which that file could not be made or opened.
SILENCED: Final = ".silenced"
#: A file that could not be written any more has the number of the error as its time, in seconds since 1970: that needs no
#: space. No other time is below this.
ERROR_TIMES: Final = 4096

#: In the command line of Inductor's own helpers, which compile for the program that started them; that one says what they did.
COMPILE_WORKER: Final = "compile_worker"


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A Python process of the launch has imported torch. The first line of its file.

    Attributes:
        started: when the kernel started it, in clock ticks since boot; with the pid it names one process.
        image: which of the programs that the process runs one after the other: see :func:`flexwarm.reaper.image`.
        argv: its command line.
        components: as :attr:`flexwarm.events.Hello.components`.
        environ: the variables that enter keys or choose code.
        variables: all that can be held against those of another run: see :func:`flexwarm.environment.comparable`.
        place: who it is in the launch, from the launcher's variables: ``rank``, ``local_rank``, ``world_size``,
            ``local_world_size``; those that are known.
        forked_from: the pid of the observed program that it was forked from; such a one is told of when it has something to
            say.
    """

    KIND: ClassVar[str] = "program"
    t: float
    pid: int
    parent: int
    started: int
    host: str
    argv: tuple[str, ...]
    components: Mapping[str, str]
    environ: Mapping[str, str]
    place: Mapping[str, int]
    forked_from: int | None
    image: int = 0
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Forked:
    """The program has forked: the child is not another program that torch was imported into unseen."""

    KIND: ClassVar[str] = "forked"
    t: float
    pid: int
    started: int
    image: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Silenced:
    """In the file of a program: what it had forked could not make a file of its own, so nothing is known of that child.

    Attributes:
        error: number of the error.
    """

    KIND: ClassVar[str] = "silenced"
    t: float
    pid: int
    error: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Who the program is in its launch, as torch.distributed says it: a program that was spawned learns it late."""

    KIND: ClassVar[str] = "placed"
    t: float
    place: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Called:
    """Dynamo has made a graph of a function and is about to look for it in the caches.

    Attributes:
        job: the thread, as in every other event: ``lane-0`` is the main thread.
        call: a :class:`flexwarm.calls.CompiledCall` as JSON has it.
    """

    KIND: ClassVar[str] = "called"
    t: float
    job: str | None
    call: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """The program stands still at something that the bucket does not have, before anything is compiled or written."""

    KIND: ClassVar[str] = "held"
    t: float
    job: str | None
    graph: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """A compile has ended: how long the program waited for it."""

    KIND: ClassVar[str] = "spent"
    t: float
    job: str | None
    graph: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Raised:
    """The program ends with an error that nothing caught."""

    KIND: ClassVar[str] = "raised"
    t: float
    error: str
    message: str
    place: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """The program has changed a variable on which all evidence rests: torch reads its cache directories anew at each use."""

    KIND: ClassVar[str] = "moved"
    t: float
    name: str
    old: str | None
    new: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """What the nodes of the launch told each other: once all ranks were there, at each miss, or what was there in the end.

    Attributes:
        own: the number of this node's run.
        nodes: number of each node's run -> a :class:`flexwarm.nodes.NodeFacts` as JSON has it.
        missed: number of a node's run -> what one of its ranks was stopped at.
    """

    KIND: ClassVar[str] = "nodes"
    t: float
    own: str
    nodes: Mapping[str, Any]
    missed: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What the program came to, when it ended by itself or put another program in its place.

    Attributes:
        counters: torch's own counts of the cache layers, as in :class:`flexwarm.events.JobDone`; empty if it loaded none.
        checks: thread -> how often torch asked it whether FX traces.
        how: ``exit``, ``os._exit`` or ``exec``.
        status: the exit status, as far as the program can know it: see :mod:`flexwarm.attach.leaving`.
        why: of a status that is not 0: the error that was being handled when it was asked for, the words that the program
            left with, or the place where it asked.
        unanswered: as :attr:`flexwarm.events.JobFailed.unanswered`.
    """

    KIND: ClassVar[str] = "summary"
    t: float
    counters: Mapping[str, int]
    checks: Mapping[str, int]
    how: str
    status: int | None = None
    why: str = ""
    unanswered: str = ""


ProgramEvent: TypeAlias = Program | Forked | Silenced | Placed | Called | Held | Spent | Raised | Moved | Nodes | Summary
