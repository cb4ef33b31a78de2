"""Where torch keeps the state of a trace, who is tracing, and hooks into both: questions, traces, patches, backward passes.

A hook replaces the *code* of a function of torch and not the function: the wrapper that ``torch.compile`` returns holds
the function, so functions that were compiled before are seen too, and no name that another module imported is missed.
The code that torch shipped is put back when the last hook is gone. Names that start with ``_flexwarm_`` stay in torch's
modules, because another thread may be in the middle of code that reads them.

The shapes were read in the released sources of 2.9.1, 2.10.0 and 2.12.0 as well; ``tests/contract`` holds them, and was run,
on 2.11.0, 2.13.0 and 2.14.1.
"""

from __future__ import annotations

import inspect
import linecache
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import wraps
from importlib.util import find_spec
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from flexwarm.canonical import StrEnum
from flexwarm.observer.torch_api.probe import _function, _module, _part, _refuse


class Where(StrEnum):
    """Where torch keeps the flag that says that FX is tracing."""

    PROCESS = "process"
    THREAD = "thread"


class Fate(StrEnum):
    """What torch does with a call of a compiled function."""

    PASS = "pass"
    RAISE = "raise"
    INLINE = "inline"


@dataclass(frozen=True, slots=True, kw_only=True)
class TracingApi:
    """The resolved parts.

    Attributes:
        where: where the flag lives: in the process up to 2.13, in each thread from 2.14.
        fx: ``torch.fx._symbolic_trace``.
        query: the function that every compiled call asks; the wrapper of ``torch.compile`` holds it.
        tracing: ``is_fx_tracing``.
        trace: ``Tracer.trace``.
        make_fx: ``_MakefxTracer.trace``, which writes the process's current tracer before it begins a trace.
        patch_method: ``_Patcher.patch_method``, which replaces methods of classes while a trace is open.
        revert: the generator of ``_maybe_revert_all_patches``, which every Dynamo compile runs.
        convert_frame: the module whose global ``compile_lock`` every compile takes.
        config: Dynamo's config; from 2.12 on a thread has values of its own.
        forces: whether this torch has ``force_compile_during_fx_trace``.
        compiler: ``torch.compiler``, whose ``_is_compiling_flag`` is one for the process.
        compiling: ``torch.compiler.is_compiling``, which reads it.
        sessions: the generators that set that flag.
        annotate: the generator of ``torch.fx.traceback.annotate``; ``None`` in 2.9, which has none.
        context: ``TracingContext``, one a thread.
        backward: ``_engine_run_backward``, through which every backward pass of Python goes.
        autotune: ``CachingAutotuner.autotune_to_one_config``, which the first run of a kernel with several candidates calls;
            ``None`` without Triton.
        module: ``torch.nn.Module``.
        skip: tells Dynamo never to compile a code object.
    """

    where: Where
    fx: ModuleType
    query: FunctionType
    tracing: FunctionType
    trace: FunctionType
    make_fx: FunctionType
    patch_method: FunctionType
    revert: FunctionType
    convert_frame: ModuleType
    config: Any
    forces: bool
    compiler: ModuleType
    compiling: FunctionType
    sessions: tuple[FunctionType, ...]
    annotate: FunctionType | None
    context: Any
    backward: FunctionType
    autotune: FunctionType | None
    module: Any
    skip: Callable[[CodeType], None]

    def active(self) -> bool:
        """The flag as the calling thread reads it, with the remedy or without."""
        if self.where is Where.PROCESS:
            return bool(self.fx._is_fx_tracing_flag)
        return bool(self.fx._get_is_fx_tracing())

    def set_active(self, value: bool) -> None:
        """Write the flag as the calling thread would: for the process, or with the remedy and from 2.14 for itself."""
        if self.where is Where.PROCESS:
            self.fx._is_fx_tracing_flag = value  # type: ignore[attr-defined]
        else:
            self.fx._set_is_fx_tracing(value)

    def fate(self, answer: bool) -> Fate:
        """What becomes of a compiled call of this thread whose question was answered with ``answer``."""
        if not answer or (self.forces and self.config.force_compile_during_fx_trace):
            return Fate.PASS
        return Fate.INLINE if self.silenced() else Fate.RAISE

    def silenced(self) -> bool:
        """Whether ``error_on_nested_fx_trace`` is off for the calling thread."""
        return not self.config.error_on_nested_fx_trace

    def tracing_threads(self) -> dict[int, FrameType]:
        """Thread ident -> the frame of its outermost ``Tracer.trace``; a trace that waits for its turn is not one yet."""
        original = _original(self.trace)
        found: dict[int, FrameType] = {}
        for ident, innermost in sys._current_frames().items():
            frame: FrameType | None = innermost
            while frame is not None:
                if frame.f_code is original:
                    found[ident] = frame
                elif frame.f_code is _inside_trace.__code__:
                    found[ident] = _trace_frame(frame)
                frame = frame.f_back
        return found

    def patcher(self) -> object | None:
        """The FX patcher that is at work, whichever thread made it."""
        patcher: object | None = self.fx.CURRENT_PATCHER
        return patcher

    def module_patched(self) -> bool:
        """Whether ``nn.Module.__call__`` or ``__getattr__`` is one that a trace put there; others' patches are theirs."""
        return _is_fx_patch(self, self.module.__call__) or _is_fx_patch(self, self.module.__getattr__)

    def lock(self) -> Any:
        """The lock that every compile takes, as torch finds it."""
        return self.convert_frame.compile_lock

    def lock_owner(self) -> int | None:
        """The ident of the thread that holds it."""
        return _lock_owner(self.lock())

    def lock_waiters(self) -> tuple[int, ...]:
        """Threads that wait for it: at a ``with compile_lock`` of torch, or before a trace whose turn it is not yet."""
        owner = self.lock_owner()
        here = os.path.join(os.path.dirname(_torch_file()), "")
        waiting = []
        for ident, frame in sys._current_frames().items():
            at: FrameType | None = frame
            while at is not None and at.f_code.co_filename in (_GUARD_FILE, threading.__file__):
                at = at.f_back
            if at is None or ident == owner:
                continue
            code = at.f_code
            line = linecache.getline(code.co_filename, at.f_lineno)
            if code is _in_turn.__code__ or (code.co_filename.startswith(here) and "compile_lock" in line):
                waiting.append(ident)
        return tuple(sorted(waiting))


def _torch_file() -> str:
    import torch

    return str(torch.__file__)


_GUARD_FILE = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "guard.py")


def _lock_owner(lock: Any) -> int | None:
    found = re.search(r"owner=(\d+)", repr(lock))
    return (int(found.group(1)) or None) if found else None


def _trace_frame(inside: FrameType) -> FrameType:
    """The frame of ``Tracer.trace``, whose code is ours, from a frame that it called."""
    frame = inside
    while frame.f_back is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    return frame


# ---- finding the parts -------------------------------------------------------------------------------------------------


def resolve_tracing(*, autotune: bool = True) -> TracingApi:
    """Probe the installed torch; works while hooks are in place.

    Args:
        autotune: find the autotuner too, which the remedy needs; that imports a part of Inductor.

    Raises:
        UnsupportedError: names the version and the part that is missing or has another shape.
    """
    fx = _module("torch.fx._symbolic_trace")
    fields = vars(fx)
    if "_is_fx_tracing_flag" in fields:
        where, flag = Where.PROCESS, "_is_fx_tracing_flag"
    elif {"_is_fx_tracing_tls", "_get_is_fx_tracing", "_set_is_fx_tracing"} <= fields.keys():
        where, flag = Where.THREAD, "_get_is_fx_tracing"
    else:
        raise _refuse(f"{fx.__name__} has neither _is_fx_tracing_flag nor _is_fx_tracing_tls and its accessors")
    convert_frame = _module("torch._dynamo.convert_frame")
    lock = _part(convert_frame, "compile_lock")
    if not isinstance(getattr(lock, "real", lock), type(threading.RLock())) or "owner=" not in repr(lock):
        raise _refuse(f"{convert_frame.__name__}.compile_lock is not an RLock that tells its owner")
    _part(fx, "CURRENT_PATCHER")
    for name in ("_orig_module_call", "_orig_module_getattr"):
        _function(fx, name)
    config = _module("torch._dynamo.config")
    _part(config, "error_on_nested_fx_trace")
    compiler = _module("torch.compiler")
    _part(compiler, "_is_compiling_flag")
    notes = _module("torch.fx.traceback")
    export = _module("torch._export.utils")
    sessions = [_generator(export, "_compiling_state_context", ())]
    if hasattr(compiler, "_compile_session_context"):  # from 2.13: every Dynamo compile sets the flag
        sessions.append(_generator(compiler, "_compile_session_context", ()))
    return TracingApi(
        where=where,
        fx=fx,
        query=_code(fx, "is_fx_symbolic_tracing", (), flag, "is_compiling"),
        tracing=_code(fx, "is_fx_tracing", (), flag, "is_fx_tracing_warning"),
        trace=_code(_part(fx, "Tracer"), "trace", ("self", "root", "concrete_args"), "_new_patcher", flag),
        make_fx=_code(_part(_module("torch.fx.experimental.proxy_tensor"), "_MakefxTracer"), "trace", ("self", "f")),
        patch_method=_code(
            _part(fx, "_Patcher"), "patch_method", ("self", "cls", "name", "new_fn", "deduplicate"), "_PatchedFnSetAttr"
        ),
        revert=_generator(fx, "_maybe_revert_all_patches", (), "CURRENT_PATCHER"),
        convert_frame=convert_frame,
        config=config,
        forces=hasattr(config, "force_compile_during_fx_trace"),
        compiler=compiler,
        compiling=_code(compiler, "is_compiling", (), "_is_compiling_flag"),
        sessions=tuple(sessions),
        annotate=_generator(notes, "annotate", ("annotation_dict",), "current_meta") if hasattr(notes, "annotate") else None,
        context=_part(_module("torch._guards"), "TracingContext"),
        backward=_code(_module("torch.autograd.graph"), "_engine_run_backward", ("t_outputs",), "_execution_engine"),
        autotune=_autotune_function() if autotune else None,
        module=_part(_module("torch.nn"), "Module"),
        skip=_function(_module("torch._dynamo.eval_frame"), "skip_code"),
    )


def _autotune_function() -> FunctionType | None:
    if find_spec("triton") is None:
        return None
    autotuner = _part(_module("torch._inductor.runtime.triton_heuristics"), "CachingAutotuner")
    return _code(autotuner, "autotune_to_one_config", ("self",), "launchers", "benchmark_all_configs")


def _code(owner: Any, name: str, arguments: tuple[str, ...], *names: str) -> FunctionType:
    """A plain function whose arguments are these and whose code uses these names; else nothing may be put in its place."""
    function = inspect.unwrap(_function(owner, name))
    return _shaped(function, f"{owner.__name__}.{name}", arguments, names)


def _generator(owner: Any, name: str, arguments: tuple[str, ...], *names: str) -> FunctionType:
    """The generator function under ``contextlib.contextmanager``."""
    function = getattr(_function(owner, name), "__wrapped__", None)
    shaped = _shaped(function, f"{owner.__name__}.{name}", arguments, names)
    if not inspect.isgeneratorfunction(shaped):
        raise _refuse(f"{owner.__name__}.{name} is not a context manager made of a generator")
    return shaped


def _shaped(function: Any, name: str, arguments: tuple[str, ...], names: tuple[str, ...]) -> FunctionType:
    if not isinstance(function, FunctionType):
        raise _refuse(f"{name} is not a Python function")
    code = _original(function)
    if code.co_freevars or code.co_varnames[: code.co_argcount] != arguments or code.co_kwonlyargcount:
        raise _refuse(f"{name} has other arguments or closes over something")
    missing = set(names) - set(code.co_names)
    if missing:
        raise _refuse(f"the code of {name} does not use {', '.join(sorted(missing))}")
    return function


# ---- replacing code ----------------------------------------------------------------------------------------------------


class _Swap:
    """One function of torch and the code that was shipped with it."""

    def __init__(self, function: FunctionType) -> None:
        self.function = function
        self.shipped = function.__code__
        self.made: dict[Any, CodeType] = {}

    def original(self) -> Callable[..., Any]:
        """The shipped code as a function of its own."""
        return FunctionType(self.shipped, self.function.__globals__, self.function.__name__, self.function.__defaults__)

    def of(self, template: Any) -> CodeType:
        """A template's code that says it is where the shipped one is: Dynamo's rules and ``inspect`` go by the file."""
        if template not in self.made:
            fields: dict[str, Any] = {"co_name": self.shipped.co_name}
            if sys.version_info >= (3, 11):
                fields["co_qualname"] = self.shipped.co_qualname
            self.made[template] = template.__code__.replace(
                co_filename=self.shipped.co_filename, co_firstlineno=self.shipped.co_firstlineno, **fields
            )
        return self.made[template]

    def put(self, code: CodeType) -> None:
        """Run ``code`` from now on, unless someone else has replaced it meanwhile: theirs stays, and ours behind it."""
        if self.function.__code__ is self.shipped or any(self.function.__code__ is ours for ours in self.made.values()):
            self.function.__code__ = code


_swaps: dict[FunctionType, _Swap] = {}


def _original(function: FunctionType) -> CodeType:
    return _swaps[function].shipped if function in _swaps else function.__code__


class _Local(threading.local):
    """What one thread is doing."""

    flag = False  # it traces: what the process-wide flag should have been
    depth = 0  # how many Tracer.trace it is in
    sessions = 0  # how many compiles or exports it is in
    pending: tuple[dict[str, Any], ...] = ()  # annotations to which no trace of its own has come yet


class _Shared:
    """Reads the flag as torch does without the remedy."""

    def __init__(self, fx: ModuleType) -> None:
        self._fields = vars(fx)

    @property
    def flag(self) -> bool:
        return bool(self._fields["_is_fx_tracing_flag"])


class _Module(ModuleType):
    """The class of ``torch.fx._symbolic_trace`` under the remedy: torch reads and writes the flag by attribute as well."""

    @property
    def _is_fx_tracing_flag(self) -> bool:
        return _local.flag

    @_is_fx_tracing_flag.setter
    def _is_fx_tracing_flag(self, value: bool) -> None:
        _local.flag = value


@dataclass
class _Hooks:
    """What is wanted; ``_apply`` makes it so, and the hooks read it when they run."""

    queries: Callable[[bool], None] | None = None
    seats: threading.local | None = None  # where a thread's questions are counted without a call of the observer
    traces: Callable[[], AbstractContextManager[None]] | None = None
    patches: Callable[[], None] | None = None
    backward: Callable[[], AbstractContextManager[None]] | None = None
    single: bool = False  # backward passes stay in the thread that asked
    gate: bool = False
    remedy: bool = False
    sessions: int = 0  # compiles and exports of all threads
    outside: bool = False  # the flag torch.compiler had before the first of them
    api: TracingApi | None = None


_local = _Local()
_hooks = _Hooks()
_mutex = threading.RLock()
_sessions_mutex = threading.Lock()
_tuning = threading.RLock()


def _apply(api: TracingApi) -> None:
    """Give every function of torch the code that the wanted hooks need."""
    with _mutex:
        _hooks.api = api
        own_flag = _hooks.remedy and api.where is Where.PROCESS
        query = _swap(api.query)
        inject = vars(api.fx)
        inject["_flexwarm_local"] = _local if own_flag or api.where is Where.THREAD else _Shared(api.fx)
        inject["_flexwarm_query"] = FunctionType(query.of(_query), inject) if own_flag else query.original()
        inject["_flexwarm"] = _Entry
        if _hooks.seats is not None:
            inject["_flexwarm_seats"] = _hooks.seats
        plain = query.of(_query) if own_flag else query.shipped
        query.put(query.of(_observed(query.shipped, own_flag)) if _hooks.queries else plain)
        if own_flag or isinstance(api.fx, _Module):
            api.fx.__class__ = _Module if own_flag else ModuleType
        _put(api.tracing, _tracing, own_flag)
        _put(api.trace, _trace, _hooks.remedy or _hooks.gate or _hooks.traces is not None)
        _put(api.make_fx, _make_fx, _hooks.remedy or _hooks.gate)
        _put(api.patch_method, _patch_method, _hooks.remedy)
        _put(api.revert, _revert, _hooks.remedy or _hooks.patches is not None)
        if api.annotate is not None:
            _put(api.annotate, _annotate, _hooks.remedy)
        for session in api.sessions:
            _put(session, _session, _hooks.remedy)
        _put(api.compiling, _is_compiling, _hooks.remedy)
        if api.autotune is not None:
            _put(api.autotune, _autotune, _hooks.remedy)
        _put(api.backward, _run_backward, _hooks.remedy or _hooks.single or _hooks.backward is not None)


def _observed(shipped: CodeType, own_flag: bool) -> Callable[[], bool]:
    """The template that observes the question: one that counts where what torch ships is known to the instruction."""
    if _hooks.seats is None:
        return _observed_query
    if own_flag:
        return _counted_query
    if _same(shipped, _shipped_for_process.__code__):
        return _counted_query_of_process
    if _same(shipped, _shipped_for_thread.__code__):
        return _counted_query_of_thread
    return _observed_query


def _same(one: CodeType, other: CodeType) -> bool:
    """Whether two codes without arguments and inner functions do the same, wherever they are from."""
    return (one.co_code, one.co_names, one.co_consts) == (other.co_code, other.co_names, other.co_consts)


def _swap(function: FunctionType) -> _Swap:
    return _swaps.setdefault(function, _Swap(function))


def _put(function: FunctionType, template: Any, wanted: bool) -> None:
    """Run a template in place of a function's code, which the template finds as ``_flexwarm_was`` and its own name."""
    if not wanted and function not in _swaps:
        return
    swap, api = _swap(function), _hooks.api
    assert api is not None
    function.__globals__["_flexwarm"] = _Entry
    function.__globals__[f"_flexwarm_was{template.__name__}"] = swap.original()
    code = swap.of(template)
    for ours in (code, *_NEVER_COMPILED):
        api.skip(ours)
    swap.put(code if wanted else swap.shipped)


# ---- code that runs in torch's place: its globals are those of the module of torch that it runs in -----------------------

if TYPE_CHECKING:
    _flexwarm: Any = None
    _flexwarm_local: Any = None
    _flexwarm_query: Any = None
    _flexwarm_seats: Any = None
    _flexwarm_was_trace: Any = None
    _flexwarm_was_make_fx: Any = None
    _flexwarm_was_patch_method: Any = None
    _flexwarm_was_revert: Any = None
    _flexwarm_was_annotate: Any = None
    _flexwarm_was_session: Any = None
    _flexwarm_was_run_backward: Any = None
    _flexwarm_was_autotune: Any = None
    _get_is_fx_tracing: Any = None
    _is_compiling_flag: Any = None
    _is_fx_tracing_flag: Any = None
    is_fx_tracing_warning: Any = None
    torch: Any = None


def _query() -> bool:
    return _flexwarm_local.flag and not torch.compiler.is_compiling()


def _observed_query() -> bool:
    answer: bool = _flexwarm_query()
    _flexwarm.query(answer)
    return answer


# What torch ships, up to 2.13 and from 2.14 on: where the flag is not set, the answer is no, and nothing else is asked.
def _shipped_for_process() -> bool:
    return _is_fx_tracing_flag and not torch.compiler.is_compiling()


def _shipped_for_thread() -> bool:
    return _get_is_fx_tracing() and not torch.compiler.is_compiling()


# Every compiled call runs one of these: no frame more than without it, and one look at a thread-local. A thread without a
# seat has no such attribute, or None there; then, and where the flag is set, it is as in `_observed_query`.
def _counted_query_of_process() -> bool:
    if not _is_fx_tracing_flag:
        try:
            _flexwarm_seats.seat.checks += 1
            return False
        except AttributeError:
            pass
    answer: bool = _flexwarm_query()
    _flexwarm.query(answer)
    return answer


def _counted_query_of_thread() -> bool:
    if not _get_is_fx_tracing():
        try:
            _flexwarm_seats.seat.checks += 1
            return False
        except AttributeError:
            pass
    answer: bool = _flexwarm_query()
    _flexwarm.query(answer)
    return answer


def _counted_query() -> bool:
    if not _flexwarm_local.flag:
        try:
            _flexwarm_seats.seat.checks += 1
            return False
        except AttributeError:
            pass
    answer: bool = _flexwarm_query()
    _flexwarm.query(answer)
    return answer


def _tracing() -> Any:
    is_fx_tracing_warning()
    return _flexwarm_local.flag


def _trace(self: Any, root: Any, concrete_args: Any = None) -> Any:
    return _flexwarm.trace(_flexwarm_was_trace, self, root, concrete_args)


def _make_fx(self: Any, f: Any, *args: Any) -> Any:
    return _flexwarm.in_turn(_flexwarm_was_make_fx, self, f, *args)


def _patch_method(self: Any, cls: Any, name: Any, new_fn: Any, deduplicate: Any = True) -> None:
    _flexwarm_was_patch_method(self, cls, name, _flexwarm.patched(cls, name, new_fn), deduplicate)


def _revert() -> Iterator[None]:
    with _flexwarm.compile():
        yield from _flexwarm_was_revert()


def _annotate(annotation_dict: Any) -> Iterator[None]:
    if _flexwarm.outside():
        with _flexwarm.later(annotation_dict):
            yield
    else:
        yield from _flexwarm_was_annotate(annotation_dict)


def _session() -> Iterator[None]:
    with _flexwarm.session():
        yield from _flexwarm_was_session()


def _is_compiling() -> Any:
    if torch.jit.is_scripting():
        return False
    return _is_compiling_flag and _flexwarm.compiles_here()


def _run_backward(t_outputs: Any, *args: Any, **kwargs: Any) -> Any:
    with _flexwarm.backward():
        return _flexwarm_was_run_backward(t_outputs, *args, **kwargs)


def _autotune(self: Any, *args: Any, **kwargs: Any) -> None:
    _flexwarm.tune(_flexwarm_was_autotune, self, *args, **kwargs)


# ---- what that code calls ----------------------------------------------------------------------------------------------


def _tell_query(answer: bool) -> None:
    observer = _hooks.queries
    if observer is not None:
        observer(answer)


def _in_turn(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function when no other thread traces or compiles."""
    api = _hooks.api
    if api is None or not (_hooks.remedy or _hooks.gate):
        return function(*args)
    # torch's own lock and no other: a thread that traces and one that compiles take turns, in one order of locks.
    with api.lock():
        return function(*args)


def _enter_trace(original: Callable[..., Any], tracer: Any, root: Any, concrete_args: Any) -> Any:
    if _local.depth:
        return _inside_trace(original, tracer, root, concrete_args)
    return _in_turn(_inside_trace, original, tracer, root, concrete_args)


def _inside_trace(original: Callable[..., Any], tracer: Any, root: Any, concrete_args: Any) -> Any:
    api = _hooks.api
    assert api is not None
    before, observer = api.active(), _hooks.traces
    _local.depth += 1
    api.set_active(True)
    try:
        with observer() if observer else nullcontext(), _annotations_due():
            return original(tracer, root, concrete_args)
    finally:
        api.set_active(before)
        _local.depth -= 1


def _patch_here(cls: type, name: str, new: Callable[..., Any]) -> Callable[..., Any]:
    """A replacement of a method that acts in the calling thread alone; in the others the method is what it was."""
    api = _hooks.api
    if not _hooks.remedy or api is None:
        return new
    owner, before = threading.get_ident(), getattr(cls, name)

    def method(*args: Any, **kwargs: Any) -> Any:
        return (new if threading.get_ident() == owner else before)(*args, **kwargs)

    api.skip(method.__code__)
    return wraps(new)(method)


@contextmanager
def _begin_compile() -> Iterator[None]:
    observer = _hooks.patches
    if observer is not None:
        observer()
    with _annotations_due():
        yield


def _outside() -> bool:
    """Whether the calling thread takes part in no trace and no compile."""
    api = _hooks.api
    return _hooks.remedy and api is not None and not _local.depth and not _takes_part(api)


def _takes_part(api: TracingApi) -> bool:
    """Holds the lock, has a tracing context, or was not started by Python: autograd's threads work for another one."""
    return (
        api.lock()._is_owned()
        or api.context.try_get() is not None
        or isinstance(threading.current_thread(), threading._DummyThread)
    )


@contextmanager
def _later(annotations: dict[str, Any]) -> Iterator[None]:
    """Keep annotations in the thread until a trace or compile of its own begins."""
    before = _local.pending
    _local.pending = (*before, annotations)
    try:
        yield
    finally:
        _local.pending = before


@contextmanager
def _annotations_due() -> Iterator[None]:
    """Hand the thread's annotations to torch, whose metadata are one for the process, now that it is its turn."""
    due, _local.pending = _local.pending, ()
    api = _hooks.api
    try:
        with ExitStack() as stack:
            if due and api is not None and api.annotate is not None:
                for annotations in due:
                    stack.enter_context(contextmanager(_swap(api.annotate).original())(annotations))
            yield
    finally:
        _local.pending = due


@contextmanager
def _in_session() -> Iterator[None]:
    """A compile or an export of the calling thread; counted, so that two that overlap cannot leave the flag set or unset."""
    if not _hooks.remedy:
        yield
        return
    api = _hooks.api
    assert api is not None
    with _sessions_mutex:
        if not _hooks.sessions:
            _hooks.outside = api.compiler._is_compiling_flag
        _hooks.sessions += 1
    _local.sessions += 1
    try:
        yield
    finally:
        _local.sessions -= 1
        with _sessions_mutex:
            _hooks.sessions -= 1
            api.compiler._is_compiling_flag = _hooks.outside if not _hooks.sessions else True  # type: ignore[attr-defined]


def _sees_compiling() -> bool:
    """Whether the compile or export that set the flag is the calling thread's; one that set it otherwise is everybody's."""
    api = _hooks.api
    return not _hooks.remedy or not _hooks.sessions or _local.sessions > 0 or api is None or _takes_part(api)


def _tune_once(original: Callable[..., Any], autotuner: Any, *args: Any, **kwargs: Any) -> None:
    """Choose among a kernel's candidates in one thread; another that runs the kernel waits, and finds one left."""
    if not _hooks.remedy:
        original(autotuner, *args, **kwargs)
        return
    # Taken with or without the compile lock, which nothing under it takes.
    with _tuning:
        if len(autotuner.launchers) > 1:
            original(autotuner, *args, **kwargs)


def _around_backward() -> AbstractContextManager[object]:
    """What a backward pass runs in. One that a compile or a trace asks for stays in its thread: autograd's thread of the
    device may wait for the lock that is held meanwhile.
    """
    api = _hooks.api
    guarded = _hooks.remedy or _hooks.backward is not None
    if not (_hooks.single or (guarded and api is not None and api.lock()._is_owned())):
        return _hooks.backward() if _hooks.backward is not None else _NOTHING
    from torch.autograd import set_multithreading_enabled

    stack = ExitStack()
    if _hooks.backward is not None:
        stack.enter_context(_hooks.backward())
    stack.enter_context(set_multithreading_enabled(False))
    return stack


_NOTHING = nullcontext()


class _Entry:
    """The names under which the code above finds the functions above."""

    query = staticmethod(_tell_query)
    trace = staticmethod(_enter_trace)
    in_turn = staticmethod(_in_turn)
    patched = staticmethod(_patch_here)
    compile = staticmethod(_begin_compile)
    outside = staticmethod(_outside)
    later = staticmethod(_later)
    session = staticmethod(_in_session)
    compiles_here = staticmethod(_sees_compiling)
    backward = staticmethod(_around_backward)
    tune = staticmethod(_tune_once)


_NEVER_COMPILED = tuple(
    inspect.unwrap(function).__code__
    for function in (
        *(_tell_query, _in_turn, _enter_trace, _inside_trace, _patch_here, _begin_compile, _outside, _takes_part, _later),
        *(_annotations_due, _in_session, _sees_compiling, _around_backward, _tune_once, TracingApi.lock, TracingApi.active),
        TracingApi.set_active,
    )
)


# ---- hooks -------------------------------------------------------------------------------------------------------------


def observe_queries(api: TracingApi, observer: Callable[[bool], None] | None, seats: threading.local | None = None) -> None:
    """Have every compiled call tell, in its thread, the answer that torch gets; what the observer raises, the call raises.

    Args:
        seats: what a thread has there as ``seat`` counts, as ``checks``, how often it was told that nobody traces; the observer
            is not called for these. It is told every other answer, also the first of a thread that has no seat yet, and is to
            count those itself. Where this torch asks in another way than any that is known, it is told all of them.
    """
    with _mutex:
        _hooks.queries, _hooks.seats = observer, seats if observer is not None else None
        _apply(api)


def observe_traces(api: TracingApi, observer: Callable[[], AbstractContextManager[None]] | None) -> None:
    """Run each ``Tracer.trace`` inside a context, in its thread; entered with the flag set, before anything is patched."""
    with _mutex:
        _hooks.traces = observer
        _apply(api)


def observe_patches(api: TracingApi, observer: Callable[[], None] | None) -> None:
    """Call in the compiling thread at each Dynamo compile, before torch looks at whose patches are in place."""
    with _mutex:
        _hooks.patches = observer
        _apply(api)


def around_backward(api: TracingApi, context: Callable[[], AbstractContextManager[None]] | None) -> None:
    """Run each backward pass inside a context, in the thread that asked for it."""
    with _mutex:
        _hooks.backward = context
        _apply(api)


def backward_in_caller(api: TracingApi, wanted: bool) -> None:
    """Run the whole of each backward pass in the thread that asked for it, and nothing in autograd's own threads."""
    with _mutex:
        _hooks.single = wanted
        _apply(api)


def take_turns(api: TracingApi, wanted: bool) -> None:
    """Let a trace that begins from now on wait for the lock that compiles take; traces that are open stay as they are."""
    with _mutex:
        _hooks.gate = wanted
        _apply(api)


def make_thread_local(api: TracingApi) -> None:
    """Give each thread a tracing state of its own; the caller sees to it that no trace is open and no compile under way."""
    with _mutex:
        _hooks.remedy = True
        _apply(api)


def restore(api: TracingApi) -> None:
    """Put back what torch shipped, but for what the observers still need; same condition."""
    with _mutex:
        _hooks.remedy = False
        if api.where is Where.PROCESS:
            vars(api.fx)["_is_fx_tracing_flag"] = False
        _apply(api)


def replace_lock(api: TracingApi, lock: Any) -> None:
    """Have every compile from now on take this lock; its ``real`` is the one that torch had, and is held with it."""
    api.convert_frame.compile_lock = lock  # type: ignore[attr-defined]


def enter_fake_mode() -> None:
    """Be the first thread to enter a ``FakeTensorMode``: a CUDA build of torch 2.11 without a GPU then registers a device
    guard for the process that ends with the thread, and the next fake tensor of any thread is a segmentation fault.
    """
    with _part(_module("torch._subclasses.fake_tensor"), "FakeTensorMode")():
        pass


def is_thread_local() -> bool:
    """Whether ``make_thread_local`` is in force."""
    return _hooks.remedy


def _is_fx_patch(api: TracingApi, method: Any) -> bool:
    """Whether a method of ``nn.Module`` is what FX puts in its place, or our wrapper around that."""
    for _ in range(2):
        code = getattr(method, "__code__", None)
        if code is not None and code.co_filename == api.fx.__file__ and code.co_name.startswith("module_"):
            return True
        method = getattr(method, "__wrapped__", None)
    return False


def repair_patches(api: TracingApi) -> bool:
    """Put ``nn.Module``'s own methods back where two interleaved traces left FX's; no trace may be open.

    Returns:
        Whether there was something to put back. A patch that is not FX's is left alone.
    """
    repaired = False
    for name, original in (("__call__", api.fx._orig_module_call), ("__getattr__", api.fx._orig_module_getattr)):
        if _is_fx_patch(api, getattr(api.module, name)):
            setattr(api.module, name, original)
            repaired = True
    return repaired
