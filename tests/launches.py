"""What the programs of a launch line say, made by hand: one warm launch, and the smallest changes of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flexwarm.calls import CompileArguments, CompiledCall, TensorSpec
from flexwarm.canonical import plain
from flexwarm.events import Answer, Bye, Compiled, Event, Layer, Lookup, Refused, from_line, to_line
from flexwarm.launch_verdict import Expectation, LaunchVerdict, judge_verified_launch
from flexwarm.program_events import Called, Program, Raised, Summary
from flexwarm.programs import Ended, LaunchRecord, Told, fold_launch
from flexwarm.reasons import Code

COMPONENTS = {"torch.version": "2.13.0"}
KEYS = frozenset({("aot", "akey"), ("fx", "fkey")})
HITS = {"inductor.fxgraph_cache_hit": 1, "aot_autograd.autograd_cache_hit": 1}

Change = Callable[[list[Event]], list[Event]]


def program(**changes: Any) -> Program:
    values: dict[str, Any] = {
        "t": 1.0, "pid": 100, "parent": 10, "started": 1000, "host": "node0", "argv": ("python", "train.py"),
        "components": COMPONENTS, "environ": {}, "place": {}, "forked_from": None,
    }  # fmt: skip
    return Program(**{**values, **changes})


def rank(number: int, *, of: int = 2, local: int | None = None, **changes: Any) -> Program:
    """The program of one rank as torchrun starts it."""
    place = {"rank": number, "local_rank": number, "world_size": of, "local_world_size": of if local is None else local}
    return program(**{"pid": 100 + number, "place": place, **changes})


def call(graph: str = "0/0", length: int = 128, **changes: Any) -> CompiledCall:
    values: dict[str, Any] = {
        "graph": graph, "function": "attend", "file": "/job/train.py", "line": 3, "caller": f"/job/train.py:{length} in step",
        "compile": CompileArguments(), "grad": False, "autocast": "", "nesting": (), "attention": (),
        "inputs": (TensorSpec(dtype="float32", shape=(1, 2, length, 32), stride=(64 * length, 32 * length, 32, 1)),),
    }  # fmt: skip
    return CompiledCall(**{**values, **changes})


def called(graph: str = "0/0", length: int = 128, *, job: str = "lane-0", **changes: Any) -> Called:
    return Called(t=2.0, job=job, call=plain(call(graph, length, **changes)))


def lookup(
    layer: Layer, answer: Answer = Answer.HIT, key: str | None = None, *, graph: str = "0/0", reason: str = ""
) -> Lookup:
    found = f"{layer.value[0]}key" if key is None else key
    return Lookup(t=3.0, job="lane-0", layer=layer, answer=answer, key=found, reason=reason, graph=graph)


def compiled(what: str = "inductor", graph: str = "0/0", detail: str = "a graph") -> Compiled:
    return Compiled(t=3.5, job="lane-0", what=what, detail=detail, graph=graph)


def summary(**changes: Any) -> Summary:
    values: dict[str, Any] = {"t": 9.0, "counters": HITS, "checks": {"lane-0": 1}, "how": "exit"}
    return Summary(**{**values, **changes})


def raised(t: float = 5.0, **changes: Any) -> Raised:
    values: dict[str, Any] = {"error": "ValueError", "message": "no such data", "place": "/job/train.py:9 in load"}
    return Raised(t=t, **{**values, **changes})


def bye() -> Bye:
    return Bye(t=9.1)


def refused(message: str = "torch has no such part") -> Refused:
    return Refused(t=2.5, message=message, hint="use another torch")


def warm(first: Program | None = None) -> list[Event]:
    """What a program says whose one call hits in both caches."""
    return [first or program(), called(), lookup(Layer.FX), lookup(Layer.AOT), summary(), bye()]


def silent(first: Program) -> list[Event]:
    """What a program says that imports torch and makes no compiled call."""
    return [first, summary(counters={}, checks={}), bye()]


def warm_ranks() -> list[list[Event]]:
    """Two ranks of one node, and the launcher, which imports torch as well."""
    return [silent(program(pid=10, parent=1, argv=("torchrun", "train.py"))), warm(rank(0)), warm(rank(1))]


def without(kind: type) -> Change:
    return lambda events: [event for event in events if not isinstance(event, kind)]


def plus(*new: Event) -> Change:
    """With more said, before the summary."""

    def change(events: list[Event]) -> list[Event]:
        at = next((n for n, event in enumerate(events) if isinstance(event, Summary)), len(events))
        return [*events[:at], *new, *events[at:]]

    return change


def instead(old: type, new: Event) -> Change:
    return lambda events: [new if isinstance(event, old) else event for event in events]


def answered(layer: Layer, new: Lookup) -> Change:
    """With another answer of one layer."""
    return lambda events: [new if isinstance(event, Lookup) and event.layer is layer else event for event in events]


def record(
    said: Sequence[Sequence[Event]],
    *,
    gone: Sequence[float | None] = (),
    silenced: Sequence[int | None] = (),
    **changes: Any,
) -> LaunchRecord:
    # Through the text form, as it comes from a program.
    told = [
        Told(
            events=tuple(from_line(to_line(event)) for event in events),
            gone_unix=gone[number] if number < len(gone) else None,
            silenced=silenced[number] if number < len(silenced) else None,
        )
        for number, events in enumerate(said)
    ]
    values: dict[str, Any] = {
        "status": 0, "ended": Ended.BY_ITSELF, "signum": None, "seconds": 12.0, "unseen": (), "left": (), "store": "/store",
    }  # fmt: skip
    return fold_launch(told, **{**values, **changes})


def expectation(**changes: Any) -> Expectation:
    values: dict[str, Any] = {
        "ranks": None, "said_by": "", "components": COMPONENTS, "listed": KEYS, "recorded": {}, "disk": (), "blind": "",
    }  # fmt: skip
    return Expectation(**{**values, **changes})


def judge(said: Sequence[Sequence[Event]], expected: Expectation | None = None, **changes: Any) -> LaunchVerdict:
    """The verdict of a verification."""
    return judge_verified_launch(record(said, **changes), expected or expectation(), {})


def codes(verdict: LaunchVerdict) -> set[Code]:
    return {reason.code for reason in verdict.reasons}.union(*({r.code for r in p.reasons} for p in verdict.programs), set())


def messages(verdict: LaunchVerdict) -> str:
    every = [*verdict.reasons, *(reason for one in verdict.programs for reason in one.reasons)]
    return "\n".join(reason.message for reason in every)
