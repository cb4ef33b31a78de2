"""An observed call of flex_attention as a spec has it, or why a spec cannot have it; and what Dynamo learnt before it.

Keys depend on more than a call's arguments: with ``dynamic`` not given, Dynamo compiles a size, or a captured number, for
any value once it has seen two. What it has seen is of the function and not of the wrapper, so all compiled calls of
flex_attention in a process share it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, TypeAlias

from flexwarm.calls import AttentionCall, CompiledCall, FunctionRef, TensorSpec
from flexwarm.canonical import digest, plain
from flexwarm.workload import RECOMPILE_LIMIT, Dtype, Layout, Shape

#: Tokens in a block of a mask that ``create_block_mask`` makes unless told otherwise.
_BLOCK = (128, 128)
#: What such a mask has: indices of partial and of full blocks, by query and by key.
_MASK_INDICES = 4
#: torch's own mask function for none; it has a name like any other.
NO_MASK = "torch.nn.attention.flex_attention:noop_mask"


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """A mask or score function by the name that a spec gives it. ``args``: of a factory; None where it is no factory's."""

    name: str
    args: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unnamed:
    """A function that a spec cannot name, and why."""

    why: str


Names: TypeAlias = Mapping[str, Named | Unnamed]


def identity(function: FunctionRef) -> str:
    """By which a function is looked up in :data:`Names`: it, with what it captures."""
    return digest(plain(function))


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenCall:
    """One call as a spec has it.

    Attributes:
        keys: of its workload, but for the grid; in the order in which they are written.
        attention: with the sizes of the shape.
        source: what was observed.
    """

    keys: Mapping[str, Any]
    shape: Shape
    layout: Layout
    attention: AttentionCall
    source: CompiledCall

    @property
    def dynamic(self) -> bool | None:
        return self.source.compile.dynamic

    @property
    def captures_tensors(self) -> bool:
        functions = (self.attention.mask, self.attention.score)
        return any(_is_tensor(value) for function in functions if function for value in function.captured.values())


def write_call(call: CompiledCall, names: Names) -> WrittenCall | str:
    """The call, or why it cannot be written."""
    problem = next(_problems(call, names), "")
    if problem:
        return problem
    (attention,) = call.attention
    query, key = attention.query, attention.key
    shape = Shape(
        batch=query.shape[0],
        q_heads=query.shape[1],
        kv_heads=key.shape[1],
        head_dim=query.shape[3],
        q_len=query.shape[2],
        kv_len=key.shape[2],
        dtype=Dtype(query.dtype),
    )
    layout = _layout(attention)
    assert layout is not None  # or there was a problem
    keys: dict[str, Any] = {}
    for name, named in (("mask", _mask(attention, names)), ("score", _named(attention.score, names))):
        if named is not None:
            keys[f"{name}_mod"] = named.name
            if named.args is not None:
                keys[f"{name}_args"] = dict(named.args)
    if query.requires_grad:
        keys["grad"] = True
    if layout is not Layout.BHSD:
        keys["layout"] = layout.value
    arguments = call.compile
    compiled: dict[str, Any] = {"dynamic": arguments.dynamic, "mode": arguments.mode}
    compiled |= {"fullgraph": arguments.fullgraph or None, "options": dict(arguments.options) or None}
    if given := {name: value for name, value in compiled.items() if value is not None}:
        keys["compile"] = given
    if attention.kernel_options:
        keys["kernel_options"] = dict(attention.kernel_options)
    if (scale := _scale(attention)) is not None:
        keys["scale"] = scale
    return WrittenCall(keys=keys, shape=shape, layout=layout, attention=attention, source=call)


def _problems(call: CompiledCall, names: Names) -> Iterator[str]:
    """Why the call cannot be written, the first thing first."""
    if not call.attention:
        yield "there is no flex_attention in it"
    if len(call.attention) != 1 or not call.attention[0].direct:
        yield "flex_attention is a part of a larger graph, whose keys depend on all of it"
    (attention,) = call.attention
    if call.unread:
        yield f"it could not be read in full: {call.unread[0]}"
    if call.autocast:
        yield f"it is called under autocast ({call.autocast}), which is in the key and which a workload has not"
    if attention.partial:
        yield "a functools.partial of flex_attention is compiled, which has other keys than flex_attention itself"
    if attention.return_lse:
        yield "it asks for the log-sum-exp (return_lse), which a workload does not"
    if call.compile.backend != "inductor":
        yield f"its backend is {call.compile.backend}"
    for what, values in (("option", call.compile.options), ("kernel option", attention.kernel_options or {})):
        for name, value in values.items():
            if not _is_scalar(value):
                yield f"the {what} {name} is neither a number, a text nor a truth value"
    yield from _tensor_problems(call.grad, attention)
    yield from _mask_problems(call, attention)
    for function in (attention.mask, attention.score):
        named = names.get(identity(function)) if function is not None else None
        if isinstance(named, Unnamed):
            yield named.why


def _tensor_problems(grad: bool, attention: AttentionCall) -> Iterator[str]:
    query, key, value = tensors = (attention.query, attention.key, attention.value)
    if any(len(tensor.shape) != 4 or min(tensor.shape) < 1 for tensor in tensors):
        yield "its tensors are not of the form (batch, heads, length, head_dim), or of unknown size"
    if len({tensor.dtype for tensor in tensors}) > 1 or query.dtype not in [dtype.value for dtype in Dtype]:
        known = ", ".join(dtype.value for dtype in Dtype)
        yield f"its tensors are {', '.join(tensor.dtype for tensor in tensors)}, and a workload has one of {known}"
    if key.shape != value.shape or key.shape[0] != query.shape[0] or key.shape[3] != query.shape[3]:
        yield "key and value have sizes that a workload does not give them: another batch or head_dim than query, or each other"
    if query.shape[1] % key.shape[1]:
        yield "the number of query heads is no multiple of that of key heads"
    if len({tensor.device for tensor in tensors}) > 1 or query.device.partition(":")[0] not in ("cpu", "cuda"):
        yield "its tensors are not all on one device that is the cpu or a CUDA device"
    required = {tensor.requires_grad for tensor in tensors}
    if required == {False} and grad:
        yield (
            "gradients are switched on and no input requires one: a workload without gradients runs under torch.no_grad(), "
            "which is another key"
        )
    elif required != {grad}:
        yield "only a part of its inputs requires gradients, or all do where gradients are switched off"
    elif grad and query.device == "cpu":
        yield "its inputs require gradients on the cpu, where flex_attention has no backward that a workload could call"
    if _layout(attention) is None:
        yield (
            "query, key and value do not lie in memory as (batch, heads, length, head_dim) or as (batch, length, heads, "
            f"head_dim): strides {', '.join(str(tensor.stride) for tensor in tensors)}"
        )


def _mask_problems(call: CompiledCall, attention: AttentionCall) -> Iterator[str]:
    if attention.mask_lengths is None:
        return
    called = (attention.query.shape[2], attention.key.shape[2])
    if attention.mask_lengths != called:
        yield f"its block mask is made for lengths {attention.mask_lengths}, and the call has {called}"
    if (attention.mask_batch, attention.mask_heads) != (1, 1):
        yield f"its block mask has {attention.mask_batch} batches and {attention.mask_heads} heads; a workload's has 1 and 1"
    if attention.mask_block != _BLOCK:
        yield f"its block mask has blocks of {attention.mask_block} tokens; a workload's has {_BLOCK}"
    blocks = [-(-length // block) for length, block in zip(called, _BLOCK, strict=True)]
    indices = [x for x in call.inputs if x.dtype == "int32" and sorted(x.shape) == sorted((1, 1, *blocks))]
    if len(indices) < _MASK_INDICES:
        yield "its block mask is not one that create_block_mask makes"


def _named(function: FunctionRef | None, names: Names) -> Named | None:
    named = names[identity(function)] if function is not None else None
    assert not isinstance(named, Unnamed)  # or there was a problem
    return named


def _mask(attention: AttentionCall, names: Names) -> Named | None:
    if attention.mask is None and attention.mask_lengths is not None:
        return Named(name=NO_MASK)
    return _named(attention.mask, names)


def _scale(attention: AttentionCall) -> float | None:
    """The scale that the caller gave; None for the default, which torch computes in the same way."""
    default = 1.0 / math.sqrt(attention.query.shape[3])
    return attention.scale if attention.scale != default else None


def _layout(attention: AttentionCall) -> Layout | None:
    tensors = (attention.query, attention.key, attention.value)
    return next((x for x in Layout if all(tensor.stride == strides(tensor.shape, x) for tensor in tensors)), None)


def strides(shape: Sequence[int], layout: Layout) -> tuple[int, ...]:
    """Of a tensor of (batch, heads, length, head_dim), as a worker makes it."""
    _, heads, length, size = shape
    if layout is Layout.BSHD:
        return (length * heads * size, size, heads * size, 1)
    return (heads * length * size, length * size, size, 1)


def _is_scalar(value: object) -> bool:
    return isinstance(value, (bool, int, float, str)) and not (isinstance(value, str) and value.startswith("<"))


def _is_tensor(value: object) -> bool:
    return isinstance(value, str) and value.startswith("<tensor")


# ---- what Dynamo learns ----------------------------------------------------------------------------------------------------

_SEVERAL = object()


class Memory:
    """What Dynamo remembers of one function: each size and number that it met, until it meets another one in its place."""

    def __init__(self) -> None:
        self._met: dict[str, object] = {}

    def meet(self, facts: Mapping[str, object], dynamic: bool | None) -> frozenset[str]:
        """One compile.

        Returns:
            Those of the facts that have had several values by now.
        """
        for name, value in facts.items():
            # Without dynamic shapes it forgets what it knew before.
            new = value if dynamic is False or name not in self._met or self._met[name] == value else _SEVERAL
            self._met[name] = new
        return frozenset(name for name in facts if self._met[name] is _SEVERAL)


def attention_facts(attention: AttentionCall) -> dict[str, object]:
    """The sizes and numbers in a direct call that Dynamo looks at."""
    found: dict[str, object] = {}
    for name, tensor in (("query", attention.query), ("key", attention.key), ("value", attention.value)):
        found |= {f"{name} size {number}": size for number, size in enumerate(tensor.shape)}
        found |= {f"{name} stride {number}": step for number, step in enumerate(_inferred(tensor))}
    if attention.mask_lengths is not None:
        found["mask batch"], found["mask heads"] = attention.mask_batch, attention.mask_heads
        pairs = zip(("query", "key"), attention.mask_lengths, attention.mask_block or _BLOCK, strict=True)
        for name, length, block in pairs:
            found |= {f"mask {name}": length, f"mask {name} block": block, f"mask {name} blocks": -(-length // max(block, 1))}
    found |= function_facts("mask", attention.mask) | function_facts("score", attention.score)
    found |= {f"kernel option {name}": x for name, x in (attention.kernel_options or {}).items() if _is_number(x)}
    if len(attention.query.shape) == 4 and (scale := _scale(attention)) is not None:
        found["scale"] = scale
    return found


def mask_facts(attention: AttentionCall) -> dict[str, object]:
    """The same of a compiled ``create_block_mask`` that made the call's mask."""
    lengths = dict(zip(("query", "key"), attention.mask_lengths or (), strict=False))
    return {**lengths, **function_facts("mask", attention.mask)}


def function_facts(kind: str, function: FunctionRef | None) -> dict[str, object]:
    """Numbers and tensors that a function captures. What a closure holds Dynamo knows by its place, whichever closure it is."""
    if function is None:
        return {}
    closure = "<locals>" in function.name
    values = [(name, x) for name, x in function.captured.items() if _is_number(x) or _is_tensor(x)]
    return {f"{kind} {number if closure else f'{function.module}.{name}'}": x for number, (name, x) in enumerate(values)}


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _inferred(tensor: TensorSpec) -> list[object]:
    """Strides as Dynamo remembers them: one that follows from a size is that size's, and no number."""
    found: list[object] = [None] * len(tensor.stride)
    follows: dict[int, object] = {}
    for step, number in sorted((step, -number) for number, step in enumerate(tensor.stride)):
        found[-number] = follows.get(step, step)
        follows.setdefault(step * tensor.shape[-number], f"after {-number}")
    return found


def marked(attention: AttentionCall, learnt: frozenset[str]) -> str:
    """A dimension that was compiled for any size though Dynamo had met one only; empty if there is none."""
    for name, tensor in (("query", attention.query), ("key", attention.key), ("value", attention.value)):
        for number in tensor.dynamic:
            if f"{name} size {number}" not in learnt:
                return f"dimension {number} of {name}"
    return ""


# ---- one workload for several calls ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """A call that can be written, and what Dynamo had learnt when it was compiled.

    Attributes:
        learnt_mask: the same of the compiled ``create_block_mask`` before it; None if none was compiled then.
    """

    call: WrittenCall
    learnt: frozenset[str]
    learnt_mask: frozenset[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Calls that one workload makes, in their order.

    Attributes:
        keys: the grid as the spec has it.
        primed: the first of them is there to teach Dynamo what it had learnt when the job made the others.
        compiles_mask: a compiled create_block_mask was compiled for one of them.
    """

    calls: tuple[WrittenCall, ...]
    keys: Mapping[str, Any]
    primed: bool
    compiles_mask: bool


def grids(calls: Sequence[Observed], before: Sequence[WrittenCall]) -> tuple[list[Grid], list[Observed]]:
    """As few workloads as make ``calls``, which differ in their shapes only, with the keys that they had.

    Args:
        before: all that was called in the process, from which the call is taken that comes first where one is needed.

    Returns:
        The workloads, and the calls of which no workload was found.
    """
    left = list({(str(x.call.shape), x.learnt, x.learnt_mask): x for x in calls}.values())
    found, lost = [], []
    while left:
        grid = _longest(left, None) or next(filter(None, (_longest(left, first) for first in _primers(left[0], before))), None)
        if grid is None:
            lost.append(left.pop(0))
            continue
        found.append(grid)
        left = left[len(grid.calls) - grid.primed :]
    return found, lost


def _longest(left: Sequence[Observed], first: WrittenCall | None) -> Grid | None:
    """The most of the calls, from the first of them on, that one workload makes as they were."""
    for number in range(len(left), 0, -1):
        wanted = left[:number]
        calls = (*((first,) if first else ()), *(x.call for x in wanted))
        keys = grid_keys([call.shape for call in calls])
        if keys is not None and _same_as_in_the_job(calls, wanted):
            compiles_mask = any(one.learnt_mask is not None for one in wanted)
            return Grid(calls=calls, keys=keys, primed=first is not None, compiles_mask=compiles_mask)
    return None


def _primers(wanted: Observed, before: Sequence[WrittenCall]) -> Iterator[WrittenCall]:
    """The call with other sizes that the job had called before, as far as a workload can give them to it."""
    seen = {str(wanted.call.shape)}
    for earlier in before:
        shape = earlier.shape
        if str(shape) in seen or (wanted.call.captures_tensors and earlier.keys != wanted.call.keys):
            continue  # what a function captures may have sizes of its own for each length
        seen.add(str(shape))
        yield earlier if earlier.keys == wanted.call.keys else _resized(wanted.call, shape)


def _resized(call: WrittenCall, shape: Shape) -> WrittenCall:
    def tensor(known: TensorSpec, heads: int, length: int) -> TensorSpec:
        sizes = (shape.batch, heads, length, shape.head_dim)
        return replace(known, dtype=shape.dtype.value, shape=sizes, stride=strides(sizes, call.layout), dynamic=())

    attention = replace(
        call.attention,
        query=tensor(call.attention.query, shape.q_heads, shape.q_len),
        key=tensor(call.attention.key, shape.kv_heads, shape.kv_len),
        value=tensor(call.attention.value, shape.kv_heads, shape.kv_len),
        mask_lengths=(shape.q_len, shape.kv_len) if call.attention.mask_lengths else None,
    )
    return replace(call, shape=shape, attention=attention)


def _same_as_in_the_job(calls: Sequence[WrittenCall], wanted: Sequence[Observed]) -> bool:
    """Whether Dynamo, which begins anew with each workload, has learnt the same at each call that is wanted."""
    memory, mask_memory = Memory(), Memory()
    skipped = len(calls) - len(wanted)
    for number, call in enumerate(calls):
        dynamic = call.dynamic
        learnt = memory.meet(attention_facts(call.attention), dynamic)
        learnt_mask = mask_memory.meet(mask_facts(call.attention), None)
        if number < skipped:
            continue
        observed = wanted[number - skipped]
        if dynamic is None and learnt != observed.learnt:
            return False
        if observed.learnt_mask is not None and learnt_mask != observed.learnt_mask:
            return False
    return True


#: In the order of a grid; the second of a pair follows the first where a spec does not name it.
_AXES = ("dtype", "batch", "q_heads", "head_dim", "q_len", "kv_heads", "kv_len")
_FOLLOWS = {"kv_heads": "q_heads", "kv_len": "q_len"}


def grid_keys(shapes: Sequence[Shape]) -> dict[str, Any] | None:
    """The grid that is exactly these shapes in this order; None if there is none."""
    values = {axis: list(dict.fromkeys(getattr(shape, axis) for shape in shapes)) for axis in _AXES}
    follow = [axis for axis, leader in _FOLLOWS.items() if all(getattr(x, axis) == getattr(x, leader) for x in shapes)]
    named = [axis for axis in _AXES if axis not in follow]
    made = []
    for point in product(*(values[axis] for axis in named)):
        sizes = dict(zip(named, point, strict=True))
        made.append(Shape(**{axis: sizes[_FOLLOWS[axis]] if axis in follow else sizes[axis] for axis in _AXES}))
    if made != list(shapes):
        return None
    keys = {axis: values[axis] for axis in ("batch", "q_heads", "kv_heads", "head_dim", "q_len", "kv_len", "dtype")}
    keys["dtype"] = [dtype.value for dtype in keys["dtype"]]
    written = {axis: x for axis, x in keys.items() if axis in named and not (axis == "batch" and x == [1])}
    return {axis: x[0] if len(x) == 1 else x for axis, x in written.items()}


def with_limit(grid: Grid, devices: int) -> Mapping[str, Any]:
    """The grid, and the limit that the job must have set to compile so many variants."""
    variants = len(grid.calls) * devices
    fixed = grid.calls[0].dynamic is False
    return {**grid.keys, "recompile_limit": variants} if fixed and variants > RECOMPILE_LIMIT else grid.keys
