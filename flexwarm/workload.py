"""One attention call, or a step of the user's own, as a value: what training calls, in which shapes, compiled how."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flexwarm.canonical import StrEnum, plain

#: Dynamo's default for how often one function is recompiled before it runs uncompiled (torch 2.9 to 2.14).
RECOMPILE_LIMIT = 8


#: How often the function of a step is called in one job: the first call compiles or loads, the second must need nothing.
STEP_CALLS = 2

#: What ``torch.compile`` takes as mode (torch 2.9 to 2.14).
MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


class Dtype(StrEnum):
    """Element types that flex_attention takes."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


class CallSite(StrEnum):
    """How training reaches the call: the nesting is part of what is traced, so of the key."""

    COMPILED = "compiled"  # torch.compile(flex_attention)(...)
    MODULE = "module"  # torch.compile(module), whose forward calls flex_attention
    CHECKPOINT = "checkpoint"  # a compiled module that checkpoints the call
    SELECTIVE_CHECKPOINT = "selective_checkpoint"  # the same with a selective checkpoint policy


class Layout(StrEnum):
    """Memory order of q, k and v: strides are part of the key."""

    BHSD = "bhsd"  # contiguous as (batch, heads, length, head_dim)
    BSHD = "bshd"  # made as (batch, length, heads, head_dim) and transposed, as after a projection


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """A mask or score function, or a step function.

    Attributes:
        name: a builtin's name, or ``module:attribute``.
        args: arguments of a builtin, of the user's factory or of a step; None where a mask's attribute is the function itself.
    """

    name: str
    args: Mapping[str, Any] | None = None

    @property
    def is_builtin(self) -> bool:
        return ":" not in self.name

    @property
    def module(self) -> str:
        return self.name.partition(":")[0]

    @property
    def attribute(self) -> str:
        return self.name.partition(":")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One point of a workload's grid. Lengths in tokens; q is (batch, q_heads, q_len, head_dim)."""

    batch: int
    q_heads: int
    kv_heads: int
    head_dim: int
    q_len: int
    kv_len: int
    dtype: Dtype

    def __str__(self) -> str:
        heads = str(self.q_heads) if self.q_heads == self.kv_heads else f"{self.q_heads}/{self.kv_heads}"
        lengths = str(self.q_len) if self.q_len == self.kv_len else f"{self.q_len}x{self.kv_len}"
        return f"{self.batch}x{heads}x{lengths}x{self.head_dim} {self.dtype.value}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compile:
    """Arguments of ``torch.compile`` at the call site."""

    dynamic: bool | None = None
    mode: str | None = None
    fullgraph: bool = False
    options: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One attention call as training makes it; its grid is called in order through one compiled function.

    Or a step function of the user's, which is called as it is: then there are no shapes, and what describes an attention
    call has its default.

    Attributes:
        roles: names of the roles that make this call; all when empty.
        calls: calls of the compiled function in one step, as layers make them.
        steps: steps for each shape; mask and score functions are made anew in each, so that anchors are fresh. Of a step
            function: how often it is called.
        compile_mask: the block mask is made by ``torch.compile(create_block_mask)``.
        recompile_limit: what the training code sets ``torch._dynamo.config.recompile_limit`` to.
        scale: score scale; 1 / sqrt(head_dim) when None.
        step: the function of a step; None for an attention call.
        step_dtype: what a step's context says; it decides nothing here. None for an attention call.
    """

    name: str
    roles: tuple[str, ...]
    mask: Function | None
    score: Function | None
    shapes: tuple[Shape, ...]
    grad: bool
    calls: int
    steps: int
    call_site: CallSite
    layout: Layout
    compile: Compile
    compile_mask: bool
    kernel_options: Mapping[str, Any] | None
    recompile_limit: int
    scale: float | None
    step: Function | None = None
    step_dtype: Dtype | None = None

    def subject(self) -> dict[str, Any]:
        """What is compiled, as data: everything but names."""
        data: dict[str, Any] = plain(self)
        attention = () if self.step is not None else ("step", "step_dtype")
        for key in ("name", "roles", *attention):
            del data[key]
        return data

    @property
    def parts(self) -> int:
        """What a job of it goes through, one after the other: shapes, or calls of the step."""
        return len(self.shapes) if self.step is None else self.steps

    @property
    def functions(self) -> tuple[tuple[str, Function], ...]:
        """The key in the spec and the function, of those that are there."""
        pairs = (("mask_mod", self.mask), ("score_mod", self.score), ("step", self.step))
        return tuple((key, function) for key, function in pairs if function is not None)


def workload_from_json(data: Mapping[str, Any]) -> Workload:
    """Inverse of :func:`flexwarm.canonical.plain` on a workload; for the worker, which reads it from its request."""

    def function(item: Mapping[str, Any] | None) -> Function | None:
        return None if item is None else Function(name=item["name"], args=item["args"])

    fields = dict(data)
    fields["roles"] = tuple(data["roles"])
    for key in ("mask", "score", "step"):
        fields[key] = function(data[key])
    fields["step_dtype"] = None if data["step_dtype"] is None else Dtype(data["step_dtype"])
    fields["shapes"] = tuple(Shape(**{**shape, "dtype": Dtype(shape["dtype"])}) for shape in data["shapes"])
    fields["call_site"], fields["layout"] = CallSite(data["call_site"]), Layout(data["layout"])
    fields["compile"] = Compile(**data["compile"])
    return Workload(**fields)
