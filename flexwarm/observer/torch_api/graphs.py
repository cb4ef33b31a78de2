"""Tell each graph that Dynamo hands to Inductor: of which function, from which line, with which tensors, compiled how.

The hook is the module global ``torch._inductor.compile_fx.compile_fx``, which the backend that ``torch.compile`` makes looks
up at each call. All else is on the stack at that moment: the backend's own frame, Dynamo's frame with the real arguments of
the function, and the line that called. Frames are known by the identity of their code, which is looked up when the hook is
set. Attributes are read and nothing more: no tensor operation, no guard, no change of a graph.

Read in the released sources of 2.11.0, 2.13.0 and 2.14.1; ``tests/contract`` holds them.
"""

from __future__ import annotations

import dis
import functools
import inspect
import math
import os
import re
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any, TypeVar

from flexwarm.calls import AttentionCall, CompileArguments, CompiledCall, FunctionRef, TensorSpec
from flexwarm.observer.torch_api.probe import _function, _module, _part, _refuse

_T = TypeVar("_T")
_NO_TENSORS: tuple[TensorSpec, ...] = ()
_NO_CALLS: tuple[AttentionCall, ...] = ()
_NO_NAMES: tuple[str, ...] = ()

_HERE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
#: What stands between a program's own lines and torch's.
_OWN = tuple(os.path.join(_HERE, name, "") for name in ("attach", "observer"))
_STACK_LINE = re.compile(r'^\s*File "(.+)", line (\d+), in (.+)$', re.MULTILINE)
_FUNCTIONS = (FunctionType, MethodType, BuiltinFunctionType)
#: Longer texts, and lists of more, are told by their length.
_LONGEST, _MOST = 200, 16


@dataclass(frozen=True, slots=True, kw_only=True)
class _Api:
    """The resolved parts.

    Attributes:
        compile_module: the module whose global ``compile_fx`` is replaced.
        compile_fx: the code that torch has there; it calls the global again.
        backend: the code of the backend's ``__call__``, whose frame has ``self``, ``model_`` and ``inputs_``.
        compiling: the code of Dynamo's ``_compile``, whose frame has ``code``, ``locals`` and ``one_graph``.
        inline: the code of the frame that ``torch.compile`` puts around what Dynamo would not look into, such as a Linear.
        module_calls: the codes of ``nn.Module.__call__``, which call ``forward``.
        original_codes: code that Dynamo made -> the code that it was made of.
        resumed: code of what follows a graph break -> what has, as ``code``, the function that it is a part of.
        resumed_name: how Dynamo calls such a part; the group is the function's name.
        attention: ``torch.nn.attention.flex_attention.flex_attention``.
        attention_operator: the operator that it becomes in a graph.
        no_score, no_mask: what torch puts where no function was given.
        modes: answers mode -> options.
        undisturbed: while one of these is entered, a tensor's class does not see that its attributes are read.
        package: where torch's files are.
    """

    compile_module: ModuleType
    compile_fx: CodeType
    backend: CodeType
    compiling: CodeType
    inline: CodeType
    module_calls: tuple[CodeType, ...]
    original_codes: Any
    resumed: Any
    resumed_name: re.Pattern[str]
    module: Any
    graph_module: Any
    tensor: Any
    block_mask: Any
    operator: Any
    attention: FunctionType
    attention_operator: Any
    no_score: Any
    no_mask: Any
    modes: Callable[[], Mapping[str, Mapping[str, Any]]]
    undisturbed: Callable[[], Any]
    package: str


# ---- finding the parts -------------------------------------------------------------------------------------------------


def _resolve() -> _Api:
    """Probe the installed torch; works while the hook is in place.

    Raises:
        UnsupportedError: names the version and the part that is missing or has another shape.
    """
    torch = _module("torch")
    compile_module = _module("torch._inductor.compile_fx")
    backend = _part(torch, "_TorchCompileInductorWrapper")
    made = _code(backend, "__init__", ())
    for name in ("config", "dynamic"):
        if name not in made.co_names:
            raise _refuse(f"{backend.__name__} has no {name}")
    called = _code(backend, "__call__", ("self", "model_", "inputs_"))
    if not {"torch._inductor.compile_fx", "compile_fx"} <= set(called.co_names):
        raise _refuse(f"{backend.__name__}.__call__ does not look up torch._inductor.compile_fx.compile_fx")
    module = _part(_module("torch.nn"), "Module")
    resume = _module("torch._dynamo.resume_execution")
    prefix = _part(resume, "TORCH_DYNAMO_RESUME_IN_PREFIX")
    numbers = _part(_module("torch.fx.experimental.sym_node"), "SymNode")
    for name in ("hint", "maybe_as_int"):
        _part(numbers, name)
    flex = _module("torch.nn.attention.flex_attention")
    attention = _part(flex, "flex_attention")
    _code(flex, "flex_attention", ("query", "key", "value", "score_mod", "block_mask", "scale", "enable_gqa", "return_lse"))
    for name in ("kernel_options", "return_aux"):
        if name not in inspect.signature(attention).parameters:
            raise _refuse(f"{flex.__name__}.flex_attention has no {name}")
    block_mask = _part(flex, "BlockMask")
    for name in ("mask_mod", "seq_lengths", "kv_num_blocks", "BLOCK_SIZE"):
        if name not in getattr(block_mask, "__annotations__", {}):
            raise _refuse(f"{block_mask.__name__} has no {name}")
    operator = _part(_module("torch._higher_order_ops.flex_attention"), "flex_attention")
    _code(type(operator), "__call__", ("self", "query", "key", "value", "score_mod", "block_mask", "scale"))
    modes = _function(_module("torch._inductor"), "list_mode_options")
    _part(_module("torch._higher_order_ops.wrap"), "TagActivationCheckpoint")
    _current_id()
    return _Api(
        compile_module=compile_module,
        compile_fx=_code(compile_module, "compile_fx", ("model_", "example_inputs_")),
        backend=called,
        compiling=_names(_code(_module("torch._dynamo.convert_frame"), "_compile", ("code",)), "locals", "one_graph"),
        inline=_inline(),
        module_calls=tuple(_code(module, name, ("self",)) for name in ("_call_impl", "_wrapped_call_impl")),
        original_codes=_mapping(_module("torch._dynamo.utils"), "orig_code_map"),
        resumed=_mapping(_part(resume, "ContinueExecutionCache"), "generated_code_metadata"),
        resumed_name=re.compile(rf"{re.escape(str(prefix))}_(.+)_at_\d+"),
        module=module,
        graph_module=_part(_module("torch.fx"), "GraphModule"),
        tensor=_part(torch, "Tensor"),
        block_mask=block_mask,
        operator=_part(_module("torch._ops"), "HigherOrderOperator"),
        attention=attention,
        attention_operator=operator,
        no_score=_function(flex, "_identity"),
        no_mask=_function(flex, "noop_mask"),
        modes=modes,
        undisturbed=_function(_module("torch._C"), "DisableTorchFunction"),
        package=os.path.join(os.path.dirname(str(torch.__file__)), ""),
    )


def _code(owner: Any, name: str, arguments: tuple[str, ...]) -> CodeType:
    """The code of a Python function that begins with these arguments."""
    function = inspect.unwrap(_function(owner, name))
    if not isinstance(function, FunctionType):
        raise _refuse(f"{owner.__name__}.{name} is not a Python function")
    code = function.__code__
    if code.co_varnames[: len(arguments)] != arguments or code.co_argcount < len(arguments):
        raise _refuse(f"{owner.__name__}.{name} has other arguments")
    return code


def _names(code: CodeType, *arguments: str) -> CodeType:
    missing = set(arguments) - set(code.co_varnames[: code.co_argcount])
    if missing:
        raise _refuse(f"{code.co_name} has no argument {', '.join(sorted(missing))}")
    return code


def _inline() -> CodeType:
    wrap = _function(_module("torch._dynamo.external_utils"), "wrap_inline")
    code: CodeType = wrap(_inline).__code__
    if code.co_freevars != ("fn",) or code.co_varnames[:2] != ("args", "kwargs"):
        raise _refuse(f"what {wrap.__name__} makes has other variables")
    return code


def _mapping(owner: Any, name: str) -> Any:
    value = _part(owner, name)
    _function(value, "get")
    return value


def _current_id() -> Any:
    return _function(_part(_module("torch._guards"), "CompileContext"), "current_compile_id")()


# ---- the hook ----------------------------------------------------------------------------------------------------------


@dataclass
class _Hook:
    """What is reported to; the function that is in place of torch's own."""

    report: Callable[[CompiledCall], None] | None = None
    original: Any = None
    placed: Any = None


_hook = _Hook()
_mutex = threading.Lock()


def observe_graphs(report: Callable[[CompiledCall], None] | None) -> None:
    """Tell each graph that Dynamo hands to Inductor, in the compiling thread, before anything is looked up or compiled.

    A number is told again when torch begins the analysis of that function anew, with a graph that takes the place of the
    one before, and once for each part where DDP splits a graph. Not told are graphs that reach Inductor otherwise: by a
    call of ``compile_fx``, through a backend of the user's, or from export. A detail that cannot be read is named in the
    call's ``unread``. What ``report`` raises, the compile raises.

    Args:
        report: takes one call; None takes the hook off.

    Raises:
        UnsupportedError: a part of torch is missing or has another shape; nothing was changed.
    """
    with _mutex:
        if report is None:
            _hook.report = None
            module = sys.modules.get("torch._inductor.compile_fx")
            # Where someone else has put theirs around ours, ours stays behind it and does nothing.
            if module is not None and _hook.placed is not None and vars(module).get("compile_fx") is _hook.placed:
                module.compile_fx = _hook.original  # type: ignore[attr-defined]
                _hook.placed = _hook.original = None
            return
        api = _resolve()
        if _hook.placed is None:
            _hook.original = vars(api.compile_module)["compile_fx"]
            _hook.placed = _reporting(api, _hook.original)
            api.compile_module.compile_fx = _hook.placed  # type: ignore[attr-defined]
        _hook.report = report


def _reporting(api: _Api, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def reporting_compile_fx(*args: Any, **kwargs: Any) -> Any:
        report = _hook.report
        if report is not None:
            _tell(api, sys._getframe(1), report)
        return original(*args, **kwargs)

    return reporting_compile_fx


def _tell(api: _Api, frame: FrameType, report: Callable[[CompiledCall], None]) -> None:
    """Report, if it is Dynamo that hands over; apart from the hook, whose frame lives on and must keep no frame alive."""
    backend = _outward(frame, api.backend, (api.compile_fx, api.compiling))
    compiling = _outward(backend, api.compiling, (api.compile_fx,))
    if backend is not None and compiling is not None:
        report(_read(api, backend, compiling))


def _outward(frame: FrameType | None, wanted: CodeType, stop: Sequence[CodeType]) -> FrameType | None:
    """The nearest frame with this code, unless one with another code comes first."""
    while frame is not None and frame.f_code is not wanted:
        frame = None if any(frame.f_code is code for code in stop) else frame.f_back
    return frame


def current_graph() -> str:
    """Dynamo's number of the compile that the calling thread works on, such as ``0/1``; empty outside of one.

    Also in autograd's thread while a backward is compiled there: torch enters the forward's compile context again.
    """
    if "torch._guards" not in sys.modules:
        return ""
    found = _current_id()
    # What compiled autograd compiles outside of Dynamo has a number of its own and no frame.
    if found is None or found.frame_id is None:
        return ""
    return f"{found.frame_id}/{found.frame_compile_id}"


_STANDARD_LIBRARY = sysconfig.get_path("stdlib") + os.sep


# ---- reading one call --------------------------------------------------------------------------------------------------


class _Unread(list[str]):
    """What could not be read, and why."""

    def read(self, what: str, otherwise: _T, function: Callable[..., _T], *args: Any) -> _T:
        try:
            return function(*args)
        except Exception as error:  # noqa: BLE001 - the program is the user's and goes on; what is missing is in the call
            self.append(f"{what}: {type(error).__name__}: {error}")
            return otherwise


@dataclass(frozen=True, slots=True, kw_only=True)
class _Function:
    """What Dynamo compiles.

    Attributes:
        code: of the function as the user wrote it; None for a builtin one.
        resumed: it is the part of the function that follows a graph break.
        arguments: those of flex_attention, if it is that.
        partial: what was compiled is a ``functools.partial`` of it.
    """

    name: str
    code: CodeType | None
    resumed: bool = False
    arguments: Mapping[str, Any] | None = None
    partial: bool = False


def _read(api: _Api, backend: FrameType, compiling: FrameType) -> CompiledCall:
    unread = _Unread()
    given, dynamo = backend.f_locals, compiling.f_locals
    code: CodeType = dynamo["code"]
    graph_module = given["model_"]
    with api.undisturbed():
        function = unread.read(
            "function", _Function(name=code.co_name, code=code), _compiled_function, api, code, dynamo["locals"]
        )
        caller = unread.read("caller", "", _caller, api, compiling, function)
        inputs = unread.read("inputs", _NO_TENSORS, _inputs, api, graph_module, given["inputs_"])
        attention = unread.read("attention", _NO_CALLS, _attention, api, graph_module, function, caller, unread)
        compiled = unread.read(
            "compile",
            CompileArguments(fullgraph=bool(dynamo["one_graph"])),
            *(_compile_arguments, api, given["self"], bool(dynamo["one_graph"])),
        )
        return CompiledCall(
            graph=current_graph(),
            function=function.name,
            file=function.code.co_filename if function.code else "",
            line=function.code.co_firstlineno if function.code else 0,
            caller=caller,
            compile=compiled,
            grad=unread.read("grad", False, _grad),
            autocast=unread.read("autocast", "", _autocast, inputs),
            nesting=unread.read("nesting", _NO_NAMES, _nesting, api, graph_module),
            inputs=inputs,
            attention=attention,
            own_line=unread.read("own line", "", _own_line, api, compiling, caller),
            numbers=unread.read("numbers", {}, _numbers, code, dynamo["locals"]),
            made_on=unread.read("devices", _NO_NAMES, _made_on, api, graph_module),
            unread=tuple(unread),
        )


def _grad() -> bool:
    import torch

    return bool(torch.is_grad_enabled())


def _autocast(inputs: Sequence[TensorSpec]) -> str:
    import torch

    # Every kind of device has a state of its own, and a number may enter as a tensor of the CPU before all others.
    for kind in dict.fromkeys(tensor.device.partition(":")[0] for tensor in inputs):
        if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
            return _dtype(torch.get_autocast_dtype(kind))
    return ""


def _compile_arguments(api: _Api, backend: Any, fullgraph: bool) -> CompileArguments:
    config, dynamic = dict(backend.config), backend.dynamic
    # torch.compile takes a mode or options, so what is exactly a mode's options was a mode, or is the same as one.
    modes = api.modes()
    mode = next((name for name, options in modes.items() if options and dict(options) == config), None)
    options = {} if mode else {str(name): _plain(value) for name, value in config.items()}
    return CompileArguments(mode=mode, dynamic=dynamic, fullgraph=fullgraph, options=options)


# ---- the function and its caller ---------------------------------------------------------------------------------------


def _compiled_function(api: _Api, code: CodeType, values: Mapping[str, Any]) -> _Function:
    """The function that the user compiled, where Dynamo compiles a part of it or a frame around it."""
    metadata = api.resumed.get(code)
    if metadata is not None:
        original = metadata.code
        return _Function(name=f"{original.co_name} (resumed at line {code.co_firstlineno})", code=original, resumed=True)
    if code is api.attention.__code__:
        return _Function(name=code.co_name, code=code, arguments=values)
    if any(code is call for call in api.module_calls):
        return _forward(api, values["self"].forward)
    if code is api.inline:
        return _inlined(api, values["fn"], values["args"], values["kwargs"])
    return _Function(name=code.co_name, code=code)


def _inlined(api: _Api, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> _Function:
    partial = isinstance(function, functools.partial)
    while isinstance(function, functools.partial):
        args, kwargs, function = (*function.args, *args), {**function.keywords, **kwargs}, function.func
    if function is api.attention:
        bound = inspect.signature(function).bind(*args, **kwargs)
        bound.apply_defaults()
        return _Function(name=function.__name__, code=function.__code__, arguments=bound.arguments, partial=partial)
    return _forward(api, function)


def _forward(api: _Api, function: Any) -> _Function:
    """A callable; of a module, or its ``__call__``, the ``forward`` that it ends in."""
    owner = getattr(function, "__self__", None)
    if isinstance(owner, api.module) and any(_code_of(function) is call for call in api.module_calls):
        function = owner
    if isinstance(function, api.module):
        function = function.forward
    code = _code_of(inspect.unwrap(function))
    return _Function(name=code.co_name if code else getattr(function, "__name__", type(function).__name__), code=code)


def _code_of(function: Any) -> CodeType | None:
    """The code that a callable runs; None for one that is not written in Python."""
    called = function if isinstance(function, _FUNCTIONS) else type(function).__call__
    code = getattr(called, "__code__", None)
    return code if isinstance(code, CodeType) else None


def _numbers(code: CodeType, values: Mapping[str, Any]) -> dict[str, Any]:
    """Of a function's arguments those that are numbers, texts or truth values; they are a part of what is traced."""
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return {name: values[name] for name in names if isinstance(values.get(name), (bool, int, str))}


def _own_line(api: _Api, compiling: FrameType, caller: str) -> str:
    """The nearest line that no installed package has; empty if that is the caller's, or there is none."""
    if not _is_installed(caller):
        return ""
    frame = compiling.f_back
    while frame is not None:
        name = frame.f_code.co_filename
        if not _foreign(api, name) and not _is_installed(name) and not name.startswith("<"):
            return f"{name}:{frame.f_lineno} in {frame.f_code.co_name}"
        frame = frame.f_back
    return ""


def _is_installed(place: str) -> bool:
    """In a package of the installation, or of Python itself."""
    return "/site-packages/" in place or "/dist-packages/" in place or place.startswith(_STANDARD_LIBRARY)


def _caller(api: _Api, compiling: FrameType, function: _Function) -> str:
    """The line that called: the nearest that is neither torch's nor ours. What follows a graph break is called by itself."""
    frame = compiling.f_back
    while frame is not None:
        code, name = _written(api, frame.f_code)
        if not _foreign(api, code.co_filename) and not (function.resumed and code is function.code):
            return f"{code.co_filename}:{frame.f_lineno} in {name}"
        frame = frame.f_back
    return ""


def _written(api: _Api, code: CodeType) -> tuple[CodeType, str]:
    """The code that the user wrote, of one that runs, and its name."""
    code = api.original_codes.get(code) or code
    metadata = api.resumed.get(code)
    code = metadata.code if metadata is not None else code
    return code, code.co_name


def _foreign(api: _Api, file: str) -> bool:
    return file.startswith((api.package, *_OWN))


# ---- the graph ---------------------------------------------------------------------------------------------------------


def _walk(api: _Api, graph_module: Any, seen: set[int]) -> Iterator[tuple[Any, list[Any]]]:
    """Every call in a graph and in the graphs in it, outer ones first, each with the graphs that it is given."""
    seen.add(id(graph_module))
    for node in graph_module.graph.nodes:
        if node.op not in ("call_function", "call_module", "call_method"):
            continue
        names = [argument.target for argument in node.all_input_nodes if argument.op == "get_attr"]
        if node.op == "call_module":
            names.append(node.target)
        found = (functools.reduce(lambda owner, name: getattr(owner, name, None), n.split("."), graph_module) for n in names)
        inner = [value for value in found if isinstance(value, api.graph_module)]
        yield node, inner
        for value in inner:
            if id(value) not in seen:
                yield from _walk(api, value, seen)


def _nesting(api: _Api, graph_module: Any) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for node, inner in _walk(api, graph_module, set()):
        if node.op == "call_function" and isinstance(node.target, api.operator) and node.target is not api.attention_operator:
            # A checkpoint that chooses what it keeps has a function that says what, beside its graph.
            chooses = any("_checkpoint_context_fn" in value.meta for value in inner)
            found["selective_checkpoint" if chooses else str(node.target.name())] = None
    return tuple(found)


def _made_on(api: _Api, graph_module: Any) -> tuple[str, ...]:
    given = (node.kwargs["device"] for node, _ in _walk(api, graph_module, set()) if "device" in node.kwargs)
    return tuple(dict.fromkeys(repr(device) if isinstance(device, str) else str(device) for device in given))


def _inputs(api: _Api, graph_module: Any, inputs: Sequence[Any]) -> tuple[TensorSpec, ...]:
    """The tensors that enter a graph; numbers that enter beside them are left out."""
    found = []
    for number, node in enumerate(node for node in graph_module.graph.nodes if node.op == "placeholder"):
        value = node.meta.get("example_value")
        if value is None and number < len(inputs):
            value = inputs[number]
        if isinstance(value, api.tensor):
            found.append(_spec(value))
    return tuple(found)


def _attention(api: _Api, graph_module: Any, function: _Function, caller: str, unread: _Unread) -> tuple[AttentionCall, ...]:
    found = []
    for node, _ in _walk(api, graph_module, set()):
        if node.op != "call_function" or node.target is not api.attention_operator:
            continue
        query, key, value = (_spec(argument.meta["example_value"]) for argument in node.args[:3])
        line = _line(api, node.stack_trace or "") or caller
        scale = unread.read("scale", None, _scale, node.args[5])
        call = AttentionCall(query=query, key=key, value=value, line=line, scale=scale, partial=function.partial)
        if function.arguments is not None:
            call = unread.read("arguments of flex_attention", call, _direct, api, call, function.arguments, caller)
        found.append(call)
    return tuple(found)


def _direct(api: _Api, call: AttentionCall, arguments: Mapping[str, Any], caller: str) -> AttentionCall:
    """What only the arguments of flex_attention itself tell."""
    specs: dict[str, Any] = {}
    for name, traced in (("query", call.query), ("key", call.key), ("value", call.value)):
        real = arguments[name]
        specs[name] = replace(_spec(real), dynamic=traced.dynamic) if isinstance(real, api.tensor) else traced
    given = arguments["block_mask"]
    mask = given if isinstance(given, api.block_mask) else None
    options, wanted, scale = (arguments[name] for name in ("kernel_options", "return_aux", "scale"))
    return replace(
        call,
        **specs,
        line=caller,
        direct=True,
        mask=_ref(api, mask.mask_mod, api.no_mask) if mask is not None else None,
        score=_ref(api, arguments["score_mod"], api.no_score),
        mask_lengths=(_number(mask.seq_lengths[0]), _number(mask.seq_lengths[1])) if mask is not None else None,
        mask_heads=_heads(mask.kv_num_blocks.shape) if mask is not None else None,
        mask_batch=_batch(mask.kv_num_blocks.shape) if mask is not None else None,
        mask_block=(_number(mask.BLOCK_SIZE[0]), _number(mask.BLOCK_SIZE[1])) if mask is not None else None,
        scale=_scale(scale) if call.scale is None and scale is not None else call.scale,
        enable_gqa=bool(arguments["enable_gqa"]),
        return_lse=bool(arguments["return_lse"] or getattr(wanted, "lse", False)),
        kernel_options={str(name): _plain(value) for name, value in options.items()} if options is not None else None,
    )


def _heads(shape: Sequence[Any]) -> int:
    """Of a block mask's counts, which are (batch, heads, rows) or less of that."""
    return _number(shape[-2]) if len(shape) > 1 else 1


def _batch(shape: Sequence[Any]) -> int:
    return _number(shape[-3]) if len(shape) > 2 else 1


def _line(api: _Api, stack: str) -> str:
    """The innermost line of a node's stack that is not torch's."""
    for file, line, name in reversed(_STACK_LINE.findall(stack)):
        if not _foreign(api, file):
            part = api.resumed_name.fullmatch(name)
            return f"{file}:{line} in {part.group(1) if part else name}"
    return ""


def _scale(value: Any) -> float | None:
    """The scale in a graph: a number, or a node that stands for one that the run brings; None where that is not known."""
    if hasattr(value, "meta"):
        value = value.meta.get("example_value")
    if not isinstance(value, (int, float)):
        value = getattr(getattr(value, "node", None), "hint", None)
    number = float(value) if isinstance(value, (int, float)) else math.nan
    return number if math.isfinite(number) else None


# ---- values ------------------------------------------------------------------------------------------------------------


def _dtype(value: Any) -> str:
    return str(value).removeprefix("torch.")


def _spec(value: Any) -> TensorSpec:
    shape = tuple(value.shape)
    return TensorSpec(
        dtype=_dtype(value.dtype),
        shape=tuple(_number(size) for size in shape),
        stride=_strides(value),
        dynamic=tuple(number for number, size in enumerate(shape) if _fixed(size) is None),
        device=str(value.device),
        requires_grad=bool(value.requires_grad),
    )


def _strides(value: Any) -> tuple[int, ...]:
    """Empty where the layout has none: sparse and nested tensors."""
    try:
        return tuple(_number(step) for step in value.stride())
    except (RuntimeError, NotImplementedError):
        return ()


def _fixed(size: Any) -> int | None:
    """A size that was compiled in; None for one that stands for any. ``int()`` of a symbolic one would be a guard."""
    if isinstance(size, int):
        return size
    value = size.node.maybe_as_int()
    return int(value) if value is not None else None


def _number(size: Any) -> int:
    """A size as it was in this call; -1 for one that only the run brings, which has no hint."""
    fixed = _fixed(size)
    hint = fixed if fixed is not None else getattr(size.node, "hint", None)
    return hint if isinstance(hint, int) else -1


def _plain(value: Any) -> Any:
    """A value as JSON has it: numbers, text and truth values as they are, small lists and dicts, all else as text."""
    if isinstance(value, Enum):
        value = value.value
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else f"<{value}>"
    if isinstance(value, str) and len(value) <= _LONGEST:
        return str(value)
    if isinstance(value, (list, tuple)) and len(value) <= _MOST:
        return [_plain(item) for item in value]
    if isinstance(value, dict) and len(value) <= _MOST:
        return {str(name): _plain(item) for name, item in value.items()}
    return _told(value)


def _told(value: Any) -> str:
    """A value in a few words, in angle brackets."""
    import torch

    if isinstance(value, torch.Tensor):
        return f"<tensor {_spec(value)}>"
    if isinstance(value, _FUNCTIONS):
        return f"<function {value.__name__}>"
    if isinstance(value, (str, list, tuple, dict)):
        return f"<{type(value).__name__} of {len(value)}>"
    return f"<{type(value).__name__}>"


def _ref(api: _Api, function: Any, none: Any) -> FunctionRef | None:
    if function is None or function is none:
        return None
    captured: dict[str, Any] = {}
    given: list[tuple[Sequence[Any], Mapping[str, Any]]] = []
    while isinstance(function, functools.partial):
        given.append((function.args, function.keywords))
        function = function.func
    code = _code_of(function)
    plain = function if isinstance(function, _FUNCTIONS) else None
    if code is not None:
        captured |= _captured(plain if plain is not None else type(function).__call__, code)
        captured |= _of_self(function if plain is None else getattr(function, "__self__", None), code)
        bound = plain is None or isinstance(plain, MethodType)
        for args, keywords in reversed(given):
            captured |= {name: _capture(value) for name, value in zip(code.co_varnames[bound:], args, strict=False)}
            captured |= {name: _capture(value) for name, value in keywords.items()}
    named = plain if plain is not None else type(function)
    return FunctionRef(
        module=str(getattr(named, "__module__", "") or ""),
        name=str(getattr(named, "__qualname__", named.__name__)),
        file=code.co_filename if code else "",
        line=code.co_firstlineno if code else 0,
        captured=captured,
    )


def _capture(value: Any) -> Any:
    """A captured value: lists and dicts are told in one line, for what is not a number or text is in angle brackets."""
    if isinstance(value, (list, tuple)) and len(value) <= _MOST:
        return f"<{type(value).__name__} of {', '.join(str(_capture(item)).strip('<>') for item in value)}>"
    return _told(value) if isinstance(value, dict) else _plain(value)


def _captured(function: Any, code: CodeType) -> dict[str, Any]:
    """What a function closes over, and what it reads from its module but for functions, classes and modules."""
    function = getattr(function, "__func__", function)
    found = {}
    for name, cell in zip(code.co_freevars, getattr(function, "__closure__", None) or (), strict=False):
        try:
            found[name] = _capture(cell.cell_contents)
        except ValueError:
            found[name] = "<nothing yet>"
    names = getattr(function, "__globals__", {})
    for name in dict.fromkeys(_globals_of(code)):
        if name in names and not isinstance(names[name], (ModuleType, type)) and not callable(names[name]):
            found[name] = _capture(names[name])
    return found


def _of_self(owner: Any, code: CodeType) -> dict[str, Any]:
    """Attributes of an object that its method or ``__call__`` names."""
    values = getattr(owner, "__dict__", {})
    return {f"self.{name}": _capture(values[name]) for name in code.co_names if name in values}


def _globals_of(code: CodeType) -> Iterator[str]:
    for instruction in dis.get_instructions(code):
        if instruction.opname == "LOAD_GLOBAL":
            yield str(instruction.argval)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _globals_of(constant)
