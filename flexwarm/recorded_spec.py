"""The spec that builds what a launch was seen to compile: roles, workloads, and a step for what no workload can say."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from flexwarm import commandline, environment
from flexwarm.calls import CompileArguments, CompiledCall, FunctionRef
from flexwarm.canonical import digest, plain
from flexwarm.plan import bucket_environment, make_plan
from flexwarm.programs import Ended, GraphRecord, LaunchRecord, ProgramRecord
from flexwarm.recorded_calls import (
    Grid,
    Memory,
    Names,
    Observed,
    WrittenCall,
    attention_facts,
    grids,
    identity,
    marked,
    mask_facts,
    with_limit,
    write_call,
)
from flexwarm.spec import SCHEMA, Spec
from flexwarm.topology import CPU, Role
from flexwarm.workload import Dtype

#: The function that a step names until the user names another.
STEP = "warm"
#: Where nothing says which module it could be in.
UNKNOWN_MODULE = "my_module"

_MASK_MAKER = ("create_block_mask", "torch/nn/attention/flex_attention.py")
_COLUMNS = 118
#: Shapes of one compiled function that a step's comment shows.
_SHOWN = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What is known beside the record.

    Attributes:
        line: the launch line.
        directory: where it was started; paths in it are told from there.
        environ: of flexwarm itself, over which a build lays what a role sets.
        names: of the functions of :func:`functions_of`.
        modules: (host, pid) of a program -> the module that holds its script; missing where there is none.
    """

    line: Sequence[str]
    directory: str
    environ: Mapping[str, str]
    names: Names
    modules: Mapping[tuple[str, int], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRole:
    role: Role
    comments: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedWorkload:
    """One workload.

    Attributes:
        roles: who makes it; empty for all.
        keys: as the spec has them, in order.
        why: of a step, a line for each compiled function: what it is, and why it is no workload.
    """

    name: str
    roles: tuple[str, ...]
    keys: Mapping[str, Any]
    comments: tuple[str, ...] = ()
    why: tuple[str, ...] = ()

    @property
    def is_step(self) -> bool:
        return "step" in self.keys


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedSpec:
    """What was recorded. ``notes``: what the spec does not say of the launch."""

    line: tuple[str, ...]
    roles: tuple[RecordedRole, ...]
    workloads: tuple[RecordedWorkload, ...]
    notes: tuple[str, ...]

    @property
    def steps(self) -> tuple[RecordedWorkload, ...]:
        return tuple(workload for workload in self.workloads if workload.is_step)


def functions_of(record: LaunchRecord) -> tuple[FunctionRef, ...]:
    """Mask and score functions of the calls that may become workloads, each once."""
    found: dict[str, FunctionRef] = {}
    for program in record.judged:
        for graph in program.graphs:
            for attention in graph.call.attention if graph.call else ():
                for function in (attention.mask, attention.score):
                    if function is not None:
                        found.setdefault(identity(function), function)
    return tuple(found.values())


def from_record(record: LaunchRecord, around: Surroundings) -> RecordedSpec | None:
    """The spec of what the programs compiled; None if none of them compiled anything."""
    parts: dict[str, list[_Part]] = {}
    for program in record.judged:
        for part in _parts(program, around):
            parts.setdefault(part.group, []).append(part)
    if not parts:
        return None
    roles: list[RecordedRole] = []
    workloads: dict[str, _Draft] = {}
    makers: dict[str, list[str]] = {}
    notes = list(_notes(record))
    for members in parts.values():
        made, told = _roles(members, around, [known.role.name for known in roles])
        roles += made
        notes += told
        for draft in members[0].drafts:
            workloads.setdefault(draft.digest, draft)
            makers.setdefault(draft.digest, []).extend(role.role.name for role in made)
    names: list[str] = []
    written = []
    for key, draft in workloads.items():
        names.append(_unique(draft.name, names))
        by = () if len(makers[key]) == len(roles) else tuple(makers[key])
        written.append(RecordedWorkload(name=names[-1], roles=by, keys=draft.keys, comments=draft.comments, why=draft.why))
    return RecordedSpec(
        line=tuple(around.line), roles=tuple(roles), workloads=tuple(written), notes=tuple(dict.fromkeys(notes))
    )


def _notes(record: LaunchRecord) -> Iterable[str]:
    """What may be missing, or may be different in a build."""
    if record.ended is not Ended.BY_ITSELF or record.status != 0:
        yield "the command did not end well: what it would have called after that is missing"
    for unseen in record.unseen:
        title = commandline.title(unseen.argv)
        yield f"process {unseen.pid} ({title}) used torch and could not be observed: its calls are missing"
    for refused in (*record.nameless, *(refused for program in record.programs for refused in program.refused)):
        yield f"not all was seen: {refused.message}"
    for program in record.judged:
        if program.silenced is not None:
            yield f"the event file of {program.name} could not be written to its end: calls may be missing"
        elif not program.said_bye:
            yield f"{program.name} ended without a word: calls may be missing"
        if any(graph.call is None and graph.compiled for graph in program.graphs):
            yield f"{program.name} compiled something in a way that is not seen call by call: it is missing"
        if program.dense:
            yield f"{program.name} ran flex_attention without compiling it: that has no keys, and is not in the spec"
        for moved in program.moved:
            yield f"{program.name} changed {moved.name} in its own code; the build does not"


def _unique(name: str, taken: Sequence[str]) -> str:
    number, found = 1, name
    while found in taken:
        number += 1
        found = f"{name}-{number}"
    return found


# ---- what one program called -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Draft:
    """A workload without its roles."""

    name: str
    keys: Mapping[str, Any]
    comments: tuple[str, ...] = ()
    why: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        return digest({"keys": dict(self.keys), "why": list(self.why)})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """What a role makes in one process.

    Attributes:
        name: of the role that it will be.
        devices: one for each lane.
    """

    program: ProgramRecord
    name: str
    devices: tuple[str, ...]
    drafts: tuple[_Draft, ...]

    @property
    def group(self) -> str:
        """Equal for processes of one role."""
        cpu = CPU in self.devices
        calls = [draft.digest for draft in self.drafts]
        return digest([self.name, len(self.devices), cpu, calls, dict(self.program.program.environ)])


@dataclass(slots=True)
class _Calls:
    """The calls of a program, sorted.

    Attributes:
        seats: (lane, device) -> calls that can be written, in order.
        rest: what cannot, with the reason.
        all: everything that can be written, in order.
    """

    seats: dict[tuple[str, str], list[Observed]] = field(default_factory=dict)
    rest: list[tuple[CompiledCall, str]] = field(default_factory=list)
    all: list[WrittenCall] = field(default_factory=list)


def _parts(program: ProgramRecord, around: Surroundings) -> list[_Part]:
    """The roles that one program has: one, unless its threads or devices call different things."""
    if not any(graph.call for graph in program.graphs):
        return []
    calls = _sorted(program.graphs, around.names)
    module = around.modules.get((program.program.host, program.program.pid), UNKNOWN_MODULE)
    name = module.rpartition(".")[2] if module != UNKNOWN_MODULE else "job"
    lanes = _lanes(calls)
    drafted = {}
    for seat, observed in calls.seats.items():
        drafted[seat] = _drafts(observed, calls.all, lanes=len(calls.seats) if lanes else 1)
    for _, lost in drafted.values():
        calls.rest += lost
    steps = _step(module, calls.rest, around)
    if not drafted:
        devices = [tensor.device for graph in program.graphs if graph.call for tensor in graph.call.inputs]
        device = next((x for x in devices if x.startswith("cuda:")), CPU)
        return [_Part(program=program, name=name, devices=(device,), drafts=steps)]
    if lanes or len(drafted) == 1:
        drafts = next(iter(drafted.values()))[0]
        devices = [device for _, device in drafted]
        return [_Part(program=program, name=name, devices=tuple(devices), drafts=(*drafts, *steps))]
    parts = []
    for number, ((lane, device), (drafts, _)) in enumerate(drafted.items()):
        place = device.replace(":", "") if len({key[0] for key in drafted}) == 1 else lane
        own = (*drafts, *(steps if number == 0 else ()))
        parts.append(_Part(program=program, name=f"{name}-{place}", devices=(device,), drafts=own))
    return [part for part in parts if part.drafts]


def _lanes(calls: _Calls) -> bool:
    """Whether each of several threads makes the same calls, on one device of its own."""
    if len({lane for lane, _ in calls.seats}) != len(calls.seats) or len(calls.seats) < 2:
        return False
    told = {
        digest([[dict(x.call.keys), plain(x.call.shape), sorted(x.learnt)] for x in found]) for found in calls.seats.values()
    }
    return len(told) == 1


def _sorted(graphs: Sequence[GraphRecord], names: Names) -> _Calls:
    """Sort the calls of a program; what Dynamo learns is of the process, so they are gone through in their order."""
    found = _Calls()
    memory, mask_memory = Memory(), Memory()
    numbers: set[str] = set()
    before: CompiledCall | None = None
    masks: list[CompiledCall] = []
    for graph in graphs:
        call = graph.call
        if call is None:
            continue
        direct = len(call.attention) == 1 and call.attention[0].direct
        if _begins_anew(call, before, numbers):
            # torch.compile's state was reset: its numbers begin anew, and what Dynamo knew is gone.
            memory, mask_memory, numbers = Memory(), Memory(), set()
        numbers.add(call.graph)
        before = call
        if _makes_a_mask(call):
            masks.append(call)
            continue
        if not direct:
            found.rest.append((call, _why(call, names)))
            continue
        (attention,) = call.attention
        # A partial is another function to Dynamo, and what it meets there is known there only.
        learnt = memory.meet({} if attention.partial else attention_facts(attention), call.compile.dynamic)
        learnt_mask: frozenset[str] | None = None
        if masks and attention.mask is not None:
            *others, mask = masks
            masks = others
            problem = _mask_problem(mask, attention.query.device)
            if problem:
                found.rest.append((mask, problem))
            else:
                learnt_mask = mask_memory.meet(mask_facts(attention), None)
        written = write_call(call, names)
        if not isinstance(written, str) and call.compile.dynamic is None and (dimension := marked(attention, learnt)):
            written = f"{dimension} is compiled for any size, by mark_dynamic or a setting of the job"
        if isinstance(written, str):
            found.rest.append((call, written))
            continue
        found.all.append(written)
        seat = (graph.lane, attention.query.device)
        found.seats.setdefault(seat, []).append(Observed(call=written, learnt=learnt, learnt_mask=learnt_mask))
    found.rest += [(mask, "no call of flex_attention with a mask followed it") for mask in masks]
    return found


def _why(call: CompiledCall, names: Names) -> str:
    problem = write_call(call, names)
    assert isinstance(problem, str)  # it is no direct call
    return problem


def _begins_anew(call: CompiledCall, before: CompiledCall | None, numbers: Collection[str]) -> bool:
    """Whether Dynamo counts from the beginning: a function's first number is above those of the functions before it."""
    function, _, variant = call.graph.partition("/")
    if call.graph in numbers:
        return before is None or not _again(before, call)
    known = [int(number) for number in (known.partition("/")[0] for known in numbers) if number.isdigit()]
    return variant == "0" and function.isdigit() and bool(known) and int(function) < max(known)


def _again(before: CompiledCall, call: CompiledCall) -> bool:
    """Dynamo has begun the same call anew, or DDP has split its graph: there is another one under the same number."""
    if (before.graph, before.place, before.caller) != (call.graph, call.place, call.caller):
        return False
    direct = any(attention.direct for attention in call.attention)
    return not direct or [x.shape for x in before.inputs] == [x.shape for x in call.inputs]


def _makes_a_mask(call: CompiledCall) -> bool:
    return call.function == _MASK_MAKER[0] and call.file.endswith(_MASK_MAKER[1])


def _mask_problem(mask: CompiledCall, device: str) -> str:
    if mask.compile != CompileArguments() or mask.autocast:
        return "a workload's compile_mask gives torch.compile no arguments, and has no autocast"
    if not mask.grad:
        return "gradients are switched off around it, and a workload's compile_mask makes the mask where they are on"
    if mask.made_on != (device,):
        given = ", ".join(mask.made_on) or "no device"
        return f"it is given {given} as device, and a workload's compile_mask gives the torch.device {device}: another key"
    return ""


def _drafts(
    observed: Sequence[Observed], before: Sequence[WrittenCall], *, lanes: int
) -> tuple[list[_Draft], list[tuple[CompiledCall, str]]]:
    """The workloads of one thread's calls, and the calls of which none could be made."""
    kinds: dict[str, list[Observed]] = {}
    for one in observed:
        kinds.setdefault(digest(dict(one.call.keys)), []).append(one)
    drafts, lost = [], []
    for members in kinds.values():
        keys = members[0].call.keys
        found, left = grids(members, before)
        for grid in found:
            function = str(keys.get("mask_mod", keys.get("score_mod", "attention")))
            name = function.partition(":")[2] or function
            made = {**_functions(keys), **with_limit(grid, lanes), **_others(keys)}
            if grid.compiles_mask:
                made["compile_mask"] = True
            drafts.append(_Draft(name=name, keys=made, comments=_comments(grid)))
        lost += [(one.call.source, _LOST) for one in left]
    return drafts, lost


_LOST = (
    "what Dynamo had learnt when it was compiled (which sizes and captured numbers to take for any value) comes from calls "
    "that one workload cannot make before it"
)

#: Keys that name functions, which stand before the grid.
_FUNCTION_KEYS = ("mask_mod", "mask_args", "score_mod", "score_args")


def _functions(keys: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in keys.items() if name in _FUNCTION_KEYS}


def _others(keys: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in keys.items() if name not in _FUNCTION_KEYS}


def _comments(grid: Grid) -> tuple[str, ...]:
    callers = dict.fromkeys(call.source.caller for call in grid.calls[grid.primed :])
    told = [f"Called at {', '.join(callers)}."]
    if grid.primed:
        told.append(
            f"{grid.calls[0].shape} comes first for Dynamo, which compiles a size for any value once it has met two, and which "
            "in the job had met this one in another call."
        )
    return tuple(told)


def _step(module: str, rest: Sequence[tuple[CompiledCall, str]], around: Surroundings) -> tuple[_Draft, ...]:
    """One step for all that is no workload."""
    if not rest:
        return ()
    grouped: dict[tuple[str, str, str], list[CompiledCall]] = {}
    for call, why in rest:
        grouped.setdefault((call.place, call.caller, why), []).append(call)
    lines = []
    for (_, caller, why), calls in grouped.items():
        first = calls[0]
        titles = list(dict.fromkeys(call.title for call in calls))
        more = f" and {len(titles) - _SHOWN} more" if len(titles) > _SHOWN else ""
        graphs = f"{len(calls)} graph{'s' if len(calls) > 1 else ''}"
        shown = f"{'; '.join(titles[:_SHOWN])}{more}"
        own = f", from {first.own_line}" if first.own_line else ""
        at = f", called at {caller}{own}" if caller else ""
        lines.append(f"{first.function} ({first.file}:{first.line}){at}, {graphs}: {shown}. Why no workload: {why}.")
    file = "a module of yours" if module == UNKNOWN_MODULE else f"module {module}"
    comments = (
        f"No workload can say what follows. Write the function {STEP}(context) in {file}: it makes these calls as the job "
        'does. How is in "Warm a whole training step" in the documentation of flexwarm. Until it is there, build refuses '
        "this spec.",
    )
    dtypes = [x.dtype for call, _ in rest for x in call.inputs if x.dtype in [dtype.value for dtype in Dtype]]
    keys = {"step": f"{module}:{STEP}"} | ({"dtype": dtypes[0]} if dtypes else {})
    told = tuple(_short(line, around.directory) for line in lines)
    return (_Draft(name=f"{module.rpartition('.')[2]}-step", keys=keys, comments=comments, why=told),)


# ---- roles -----------------------------------------------------------------------------------------------------------------


def _roles(members: Sequence[_Part], around: Surroundings, taken: Sequence[str]) -> tuple[list[RecordedRole], list[str]]:
    """The role of processes that call the same: one, or one for each device where it could not be one."""
    ranks = [member.program.rank for member in members if member.program.rank is not None]
    comments = (f"Rank {_ranges(sorted(ranks))} of the job.",) if ranks else ()
    wanted = members[0].program.program.environ
    name = _unique(members[0].name, taken)
    whole = _role(name, [member.devices for member in members])
    env, unset = _environment(whole, wanted, around.environ)
    if not unset or len(members) == 1:
        made = [RecordedRole(role=replace(whole, env=env), comments=comments)]
        return made, [
            f"{variable} is set here and was not in the programs of role {name!r}: build with {variable} unset"
            for variable in unset
        ]
    # Several processes get what torchrun would set for them, and these had it not: each device has a process of its own.
    roles: list[RecordedRole] = []
    notes: list[str] = []
    for devices in dict.fromkeys(member.devices for member in members):
        alone = [member for member in members if member.devices == devices][:1]
        some, told = _roles(alone, around, [*taken, *(known.role.name for known in roles)])
        why = f"One process for all that use {', '.join(devices)}: several would get {', '.join(unset)}, and these had it not."
        roles += [replace(role, comments=(*comments, why)) for role in some]
        notes += told
    return roles, notes


def _role(name: str, devices: Sequence[tuple[str, ...]]) -> Role:
    """A role with these devices for the lanes of each process."""
    dealt = [device for process in devices for device in process]
    period = next(n for n in range(1, len(dealt) + 1) if len(dealt) % n == 0 and dealt == dealt[:n] * (len(dealt) // n))
    return Role(name=name, processes=len(devices), lanes=len(devices[0]), devices=tuple(dealt[:period]), env={})


def _environment(role: Role, wanted: Mapping[str, str], environ: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """What the role has to set, so that a worker has the variables of the job; and what a worker has too many."""
    plan = make_plan(Spec(roles=(role,), workloads=()), environ=environ, bucket_path="/b", cores=1)
    had = environment.key_variables({**environ, **plan.workers[0].env})
    # The bucket is chosen by the first, before there is any role; the others are flexwarm's own in each run.
    given = {*environment.SELECTING, *bucket_environment("/b")}
    missing = {name: value for name, value in wanted.items() if had.get(name) != value and name not in given}
    return missing, [name for name in had if name not in wanted and name not in given]


def _ranges(numbers: Sequence[int]) -> str:
    """``0-3, 5``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _devices(devices: Sequence[str]) -> str:
    if devices[0] == CPU:
        return CPU
    return ", ".join(f"cuda:{text}" for text in _ranges([int(device.partition(":")[2]) for device in devices]).split(", "))


# ---- text ------------------------------------------------------------------------------------------------------------------


def to_toml(recorded: RecordedSpec, directory: str) -> str:
    """The spec file. ``directory``: as in :class:`Surroundings`."""
    lines = [*_comment(f"Recorded by flexwarm from: {commandline.title(recorded.line)}", directory)]
    for note in recorded.notes:
        lines += _comment(f"Note: {note}.", directory)
    lines += [f"schema = {SCHEMA}"]
    for known in recorded.roles:
        role = known.role
        keys: dict[str, Any] = {"name": role.name, "processes": role.processes, "devices": _devices(role.devices)}
        if role.lanes > 1:
            keys["lanes"] = role.lanes
        if role.env:
            keys["env"] = dict(role.env)
        lines += ["", *(line for text in known.comments for line in _comment(text, directory)), "[[role]]", *_pairs(keys)]
    for workload in recorded.workloads:
        keys = {"name": workload.name}
        if workload.roles:
            keys["roles"] = list(workload.roles)
        lines += ["", *(line for text in workload.comments for line in _comment(text, directory))]
        for text in workload.why:
            lines += _comment(text, directory, "- ")
        lines += ["[[workload]]", *_pairs({**keys, **workload.keys})]
    return "\n".join(lines) + "\n"


def _comment(text: str, directory: str, mark: str = "") -> list[str]:
    text = "".join(char if char.isprintable() else " " for char in _short(text, directory))
    indent = " " * len(mark)
    wrapped = textwrap.wrap(text, _COLUMNS - 2 - len(mark), break_long_words=False, break_on_hyphens=False)
    return [f"# {indent if number else mark}{line}" for number, line in enumerate(wrapped)]


def _short(text: str, directory: str) -> str:
    """Paths below the directory, or of installed packages, without what is before them."""
    return re.sub(r"/\S*/site-packages/", "", text.replace(f"{directory.rstrip('/')}/", ""))


def _pairs(keys: Mapping[str, Any]) -> list[str]:
    return [f"{_key(name)} = {_value(value)}" for name, value in keys.items()]


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name, re.ASCII) else _text(name)


def _value(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str():
            return _text(value)
        case list() | tuple():
            return f"[{', '.join(_value(item) for item in value)}]"
        case Mapping():
            return f"{{ {', '.join(_pairs(value))} }}" if value else "{}"
    raise TypeError(f"{type(value).__name__} has no place in a spec")


def _text(text: str) -> str:
    # JSON's text is TOML's, but for this one character.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
