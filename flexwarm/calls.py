"""One compiled call as a program made it: which function, from where, with which arguments, compiled how. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from flexwarm import canonical


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """A tensor without its data.

    Attributes:
        dtype: such as ``float32``.
        shape, stride: sizes as they were in this call, -1 for one that only the run brings; strides in elements, none where
            the layout has none.
        dynamic: the dimensions that were compiled for any size.
        device: such as ``cpu`` or ``cuda:0``.
    """

    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dynamic: tuple[int, ...] = ()
    device: str = "cpu"
    requires_grad: bool = False

    def __str__(self) -> str:
        sizes = (f"{size}*" if number in self.dynamic else str(size) for number, size in enumerate(self.shape))
        return f"{'x'.join(sizes) or 'scalar'} {self.dtype}"

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TensorSpec:
        return cls(**{**data, **{name: tuple(data[name]) for name in ("shape", "stride", "dynamic")}})


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionRef:
    """A mask or score function that a call was given.

    Attributes:
        module: where it was defined; ``__main__`` for the program itself.
        name: its qualified name, such as ``causal`` or ``make_window.<locals>.mask``.
        file, line: of its definition.
        captured: what it closes over, reads from its module or from its object (``self.width``), or was bound to: name -> a
            number, text, truth value or None; anything else is told as text in angle brackets, such as
            ``<tensor 4096 int32>``.
    """

    module: str
    name: str
    file: str = ""
    line: int = 0
    captured: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCall:
    """One call of flex_attention inside of a compiled function.

    Attributes:
        query, key, value: as the call has them, (batch, heads, length, head_dim).
        line: of the user's code that makes the call, as ``file:line in function``.
        direct: flex_attention itself is what was compiled, so that what follows was read from its arguments; otherwise the
            call is a part of a larger graph, and only scale is known.
        partial: what is compiled is a ``functools.partial`` of flex_attention, which has keys of its own.
        mask, score: the functions; None where the call has none (or is not direct).
        mask_lengths: (q_len, kv_len) that the block mask was made for.
        mask_heads: the block mask's own number of heads; more than 1 costs memory for each.
        mask_batch: and of batches.
        mask_block: tokens in a block of it, of queries and of keys.
        kernel_options: as the caller gave them.
    """

    query: TensorSpec
    key: TensorSpec
    value: TensorSpec
    line: str = ""
    direct: bool = False
    partial: bool = False
    mask: FunctionRef | None = None
    score: FunctionRef | None = None
    mask_lengths: tuple[int, int] | None = None
    mask_heads: int | None = None
    mask_batch: int | None = None
    mask_block: tuple[int, int] | None = None
    scale: float | None = None
    enable_gqa: bool | None = None
    return_lse: bool = False
    kernel_options: Mapping[str, Any] | None = None

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> AttentionCall:
        fields = dict(data)
        for name in ("query", "key", "value"):
            fields[name] = TensorSpec.from_json(data[name])
        for name in ("mask", "score"):
            fields[name] = FunctionRef(**data[name]) if data[name] is not None else None
        for name in ("mask_lengths", "mask_block"):
            fields[name] = tuple(data[name]) if data[name] is not None else None
        return cls(**fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileArguments:
    """What ``torch.compile`` was given. ``options``: those that ``mode`` does not stand for."""

    backend: str = "inductor"
    mode: str | None = None
    dynamic: bool | None = None
    fullgraph: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledCall:
    """One graph that Dynamo made of a function and handed to Inductor.

    Attributes:
        graph: Dynamo's number of it in the process, such as ``0/1``: the function, and which variant.
        function: name of the function that is compiled, ``forward`` or ``flex_attention``.
        file, line: of that function's definition.
        caller: the line that made the call, as ``file:line in function``.
        grad: gradients were switched on.
        autocast: the dtype of an autocast region around the call; empty outside of one.
        nesting: what wraps parts of the graph, such as ``tag_activation_checkpoint``, in order and once each.
        inputs: tensors that enter the graph, parameters included.
        attention: calls of flex_attention in it.
        unread: what could not be read, and why; its field then has its least value.
        own_line: the nearest line that is not of an installed package, where the caller's is; so mostly the user's own.
        numbers: those among the function's arguments: name -> number, text or truth value.
        made_on: devices that it makes tensors on, as it names them: ``cuda:0`` for a ``torch.device``, ``'cuda'`` for a text;
            they are not the same to a key.
    """

    graph: str
    function: str
    file: str
    line: int
    caller: str
    compile: CompileArguments
    grad: bool
    autocast: str
    nesting: tuple[str, ...]
    inputs: tuple[TensorSpec, ...]
    attention: tuple[AttentionCall, ...]
    unread: tuple[str, ...] = ()
    made_on: tuple[str, ...] = ()
    own_line: str = ""
    numbers: Mapping[str, Any] = field(default_factory=dict)

    @property
    def place(self) -> str:
        """The compiled function, as ``file:line in function``."""
        return f"{self.file}:{self.line} in {self.function}"

    @property
    def title(self) -> str:
        """What was called, in a few words: the attention calls where there are any, else the inputs."""
        if self.attention:
            found = []
            for call in self.attention:
                query, key = str(call.query), str(call.key)
                found.append(query if query == key else f"{query}, key {key}")
            more = f" and {len(found) - 1} more" if len(found) > 1 else ""
            if self.attention[0].direct:
                return f"{self.function} {found[0]}"
            return f"{self.function} with attention {found[0]}{more}"
        shown = ", ".join(str(tensor) for tensor in self.inputs[:3])
        more = f" and {len(self.inputs) - 3} more" if len(self.inputs) > 3 else ""
        numbers = ", ".join(f"{name}={value}" for name, value in self.numbers.items() if type(value) is int)
        if not shown and numbers:
            return f"{self.function}({numbers})"
        return f"{self.function} of {shown}{more}" if shown else self.function

    @property
    def called(self) -> str:
        """The title, and the line that made the call; from a package's line, the program's own as well."""
        own = f", from {self.own_line}" if self.own_line else ""
        return f"{self.title}, called at {self.caller}{own}"

    def signature(self) -> str:
        """Digest of what was compiled, without the device's index: ranks that make the same calls have the same ones."""
        inputs = [canonical.plain(replace(x, device=x.device.partition(":")[0])) for x in self.inputs]
        return canonical.digest(
            {
                "function": [self.function, self.file, self.line],
                "inputs": inputs,
                "numbers": dict(self.numbers),
                "compile": canonical.plain(self.compile),
                "grad": self.grad,
                "autocast": self.autocast,
                # The same tensors under another mask are another graph.
                "attention": [canonical.plain([x.mask, x.score, x.scale, x.kernel_options]) for x in self.attention],
            }
        )

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CompiledCall:
        """Inverse of :func:`flexwarm.canonical.plain`.

        Raises:
            KeyError, TypeError: the data is not one.
        """
        fields = dict(data)
        fields["compile"] = CompileArguments(**data["compile"])
        fields["nesting"] = tuple(data["nesting"])
        fields["inputs"] = tuple(TensorSpec.from_json(item) for item in data["inputs"])
        fields["attention"] = tuple(AttentionCall.from_json(item) for item in data["attention"])
        fields["unread"] = tuple(data["unread"])
        fields["made_on"] = tuple(data["made_on"])
        return cls(**fields)
