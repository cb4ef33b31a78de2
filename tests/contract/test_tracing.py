"""What flexwarm believes of tracing in the installed torch: whose state is whose, and where the hooks take hold."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

from flexwarm.errors import ExitCode, UnsupportedError
from flexwarm.observer.torch_api import tracing
from flexwarm.observer.torch_api.tracing import Fate, TracingApi, Where, resolve_tracing
from tests.guard import Held, Other, compiled, open_trace, trace

pytestmark = pytest.mark.torch

REMEDY = pytest.mark.parametrize("remedy", [False, True], ids=["as shipped", "with the remedy"])


@pytest.fixture
def api() -> Iterator[TracingApi]:
    api = resolve_tracing()
    yield api
    tracing.observe_queries(api, None)
    tracing.observe_traces(api, None)
    tracing.observe_patches(api, None)
    tracing.restore(api)


@contextmanager
def lock_held(api: TracingApi) -> Iterator[Other]:
    """A block during which another thread holds the compile lock."""
    held = Held()

    def hold() -> None:
        with api.lock():
            held()

    other = Other(hold)
    held.wait()
    try:
        yield other
    finally:
        held.go.set()
        other.done()


def test_the_flag_is_the_threads_own_from_2_14_on(api: TracingApi) -> None:
    import torch
    from packaging.version import Version

    # From 2.14 torch keeps it in a thread-local; the names, not the version, decide.
    assert api.where is (Where.PROCESS if Version(torch.__version__).release < (2, 14) else Where.THREAD)
    with open_trace():
        assert api.active() is (api.where is Where.PROCESS)
    assert api.active() is False


@pytest.mark.parametrize(
    ("module", "name", "said"),
    [
        ("torch.fx._symbolic_trace", "is_fx_symbolic_tracing", "is_fx_symbolic_tracing"),
        ("torch.fx._symbolic_trace", "Tracer", "Tracer"),
        ("torch.fx._symbolic_trace", "CURRENT_PATCHER", "CURRENT_PATCHER"),
        ("torch.fx._symbolic_trace", "_maybe_revert_all_patches", "_maybe_revert_all_patches"),
        ("torch._dynamo.convert_frame", "compile_lock", "compile_lock"),
        ("torch.autograd.graph", "_engine_run_backward", "_engine_run_backward"),
    ],
)
def test_a_torch_that_lacks_a_part_is_refused_by_version_and_name(
    monkeypatch: pytest.MonkeyPatch, api: TracingApi, module: str, name: str, said: str
) -> None:
    import importlib

    import torch

    # `api` came first: Dynamo looks its functions up once in a process, and is to find this one.
    monkeypatch.delattr(importlib.import_module(module), name)
    with pytest.raises(UnsupportedError, match=said) as caught:
        resolve_tracing()
    assert torch.__version__ in caught.value.message
    assert caught.value.exit_code is ExitCode.UNSUPPORTED


def test_a_torch_with_neither_flag_is_refused(monkeypatch: pytest.MonkeyPatch, api: TracingApi) -> None:
    name = "_is_fx_tracing_flag" if api.where is Where.PROCESS else "_set_is_fx_tracing"
    monkeypatch.delattr(api.fx, name)
    with pytest.raises(UnsupportedError, match="neither"):
        resolve_tracing()


def test_a_question_of_another_shape_is_refused(monkeypatch: pytest.MonkeyPatch, api: TracingApi) -> None:
    monkeypatch.setattr(api.fx, "is_fx_symbolic_tracing", lambda: False)
    with pytest.raises(UnsupportedError, match=r"does not use .*is_compiling"):
        resolve_tracing()
    monkeypatch.setattr(api.fx, "is_fx_symbolic_tracing", lambda thread=None: False)
    with pytest.raises(UnsupportedError, match="other arguments"):
        resolve_tracing()


def test_a_lock_that_is_not_an_rlock_is_refused(monkeypatch: pytest.MonkeyPatch, api: TracingApi) -> None:
    monkeypatch.setattr(api.convert_frame, "compile_lock", threading.Lock())
    with pytest.raises(UnsupportedError, match="not an RLock"):
        resolve_tracing()


@REMEDY
@pytest.mark.parametrize("kind", ["make_fx", "symbolic_trace"])
def test_what_a_warm_call_gets_beside_another_threads_trace(api: TracingApi, kind: str, remedy: bool) -> None:
    import torch

    function, graphs = compiled()
    function(torch.ones(3))
    if remedy:
        tracing.make_thread_local(api)
    answers: list[bool] = []
    tracing.observe_queries(api, answers.append)
    # Up to 2.13 the answer is the process's; from 2.14, and with the remedy, the thread's own.
    raises = api.where is Where.PROCESS and not remedy
    with open_trace(kind):
        if raises:
            with pytest.raises(RuntimeError, match="using FX to symbolically trace"):
                function(torch.ones(3))
        else:
            assert function(torch.ones(3)).tolist() == [3.0, 3.0, 3.0]
        assert answers == [raises]
        assert api.fate(answers[0]) is (Fate.RAISE if raises else Fate.PASS)
    tracing.observe_queries(api, None)
    function(torch.ones(3))
    assert (len(answers), len(graphs)) == (1, 1)


@REMEDY
def test_a_threads_own_trace_is_told_so(api: TracingApi, remedy: bool) -> None:
    import torch

    function, _ = compiled()
    function(torch.ones(3))
    if remedy:
        tracing.make_thread_local(api)
    answers: list[bool] = []
    tracing.observe_queries(api, answers.append)
    with pytest.raises(RuntimeError, match="using FX to symbolically trace"):
        trace("make_fx", lambda: function(torch.ones(3)))
    assert answers == [True]
    assert api.active() is False


def test_fate_follows_what_the_calling_thread_has_set(api: TracingApi) -> None:
    import torch._dynamo.config as config

    assert (api.fate(False), api.fate(True)) == (Fate.PASS, Fate.RAISE)
    with config.patch(error_on_nested_fx_trace=False):
        assert api.silenced()
        assert api.fate(True) is Fate.INLINE
    if api.forces:  # not in 2.9 and 2.10
        with config.patch(force_compile_during_fx_trace=True):
            assert api.fate(True) is Fate.PASS
    assert not api.silenced()


def test_what_an_observer_of_questions_raises_ends_the_call(api: TracingApi) -> None:
    import torch

    class Stop(BaseException):
        pass

    def stop(answer: bool) -> None:
        raise Stop

    function, graphs = compiled()
    tracing.observe_queries(api, stop)
    with pytest.raises(Stop):
        function(torch.ones(3))
    tracing.observe_queries(api, None)
    function(torch.ones(3))
    assert len(graphs) == 1


def frames_of(function: Callable[[], object]) -> list[str]:
    """The Python functions that a call of a function enters, but for itself."""
    entered: list[str] = []

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            entered.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return entered[1:]


def seats_with_one_here() -> tuple[threading.local, SimpleNamespace]:
    seats, seat = threading.local(), SimpleNamespace(checks=0)
    seats.seat = seat
    return seats, seat


@REMEDY
def test_a_question_that_is_counted_enters_no_function_more(api: TracingApi, remedy: bool) -> None:
    import torch

    function, _ = compiled()
    x = torch.ones(3)
    function(x)
    if remedy:
        tracing.make_thread_local(api)
    bare, bare_call = frames_of(api.query), frames_of(lambda: function(x))
    seats, seat = seats_with_one_here()
    answers: list[bool] = []
    tracing.observe_queries(api, answers.append, seats)
    # Fails for a torch that asks in another way: it is observed all the same, at several times the cost.
    assert (frames_of(api.query), frames_of(lambda: function(x))) == (bare, bare_call)
    assert (seat.checks, answers) == (2, [])
    assert api.query() is False


@REMEDY
def test_only_a_no_in_a_thread_with_a_seat_is_counted_and_all_else_is_told(api: TracingApi, remedy: bool) -> None:
    import torch

    function, graphs = compiled()
    function(torch.ones(3))
    if remedy:
        tracing.make_thread_local(api)
    seats, seat = seats_with_one_here()
    answers: list[tuple[int, bool]] = []
    tracing.observe_queries(api, lambda answer: answers.append((threading.get_ident(), answer)), seats)
    for _ in range(3):
        function(torch.ones(3))
    assert (seat.checks, answers) == (3, [])
    # A yes is told, and counted by whom it is told to.
    with pytest.raises(RuntimeError, match="using FX to symbolically trace"):
        trace("make_fx", lambda: function(torch.ones(3)))
    assert (seat.checks, answers) == (3, [(threading.get_ident(), True)])
    answers.clear()

    def without_a_seat() -> None:
        function(torch.ones(3))
        seats.seat = None
        function(torch.ones(3))
        seats.seat = SimpleNamespace(checks=0)
        function(torch.ones(3))
        assert seats.seat.checks == 1

    other = Other(without_a_seat)
    assert other.done().raised is None
    assert (seat.checks, answers) == (3, [(other.ident, False), (other.ident, False)])
    tracing.observe_queries(api, None)
    function(torch.ones(3))
    assert (seat.checks, len(answers), len(graphs)) == (3, 2, 1)


def test_what_is_told_of_the_first_call_of_a_thread_may_raise_an_error_of_its_own(api: TracingApi) -> None:
    def refuse(answer: bool) -> None:
        raise ValueError("no seat")

    tracing.observe_queries(api, refuse, threading.local())
    with pytest.raises(ValueError, match="no seat") as caught:
        api.query()
    assert caught.value.__context__ is None


@REMEDY
def test_while_torch_compiles_a_set_flag_is_a_no_that_is_told(api: TracingApi, remedy: bool) -> None:
    if remedy:
        tracing.make_thread_local(api)
    seats, seat = seats_with_one_here()
    answers: list[bool] = []
    tracing.observe_queries(api, answers.append, seats)
    api.set_active(True)
    try:
        api.compiler._is_compiling_flag = True  # type: ignore[attr-defined]
        assert api.query() is False
    finally:
        api.compiler._is_compiling_flag = False  # type: ignore[attr-defined]
        api.set_active(False)
    assert (seat.checks, answers) == (0, [False])


def test_a_question_of_unknown_code_is_told_with_each_answer(monkeypatch: pytest.MonkeyPatch, api: TracingApi) -> None:
    monkeypatch.setattr(tracing, "_same", lambda one, other: False)
    seats, seat = seats_with_one_here()
    answers: list[bool] = []
    tracing.observe_queries(api, answers.append, seats)
    assert api.query() is False
    assert (seat.checks, answers) == (0, [False])


def test_the_known_codes_differ_from_others() -> None:
    def another() -> bool:
        return not torch.compiler.is_compiling() and _is_fx_tracing_flag  # type: ignore[name-defined] # noqa: F821

    known = (tracing._shipped_for_process, tracing._shipped_for_thread, another)
    assert [[tracing._same(a.__code__, b.__code__) for a in known] for b in known] == [
        [True, False, False],
        [False, True, False],
        [False, False, True],
    ]


@REMEDY
def test_dynamo_does_not_look_into_a_question_that_is_counted(api: TracingApi, remedy: bool) -> None:
    import torch

    graphs: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph

    def asks(x: Any) -> Any:
        return x + (1 if api.query() else 2)

    @torch._dynamo.disable(recursive=False)  # type: ignore[untyped-decorator]
    def beside(x: Any) -> Any:
        return asks(x) if not api.query() else x

    if remedy:
        tracing.make_thread_local(api)
    seats, seat = seats_with_one_here()
    told: list[bool] = []
    tracing.observe_queries(api, told.append, seats)
    whole = torch.compile(asks, backend=backend, fullgraph=True)
    for _ in range(3):
        assert whole(torch.ones(3)).tolist() == [3.0, 3.0, 3.0]
    assert (len(graphs), seat.checks, told) == (1, 3, [])
    torch._dynamo.reset()
    # A function that Dynamo leaves alone asks while Dynamo looks at every frame.
    broken = torch.compile(lambda x: beside(x), backend=backend)
    for _ in range(3):
        assert broken(torch.ones(3)).tolist() == [3.0, 3.0, 3.0]
    assert (len(graphs), seat.checks, told) == (2, 9, [])


@REMEDY
def test_tracing_threads_are_found_with_and_without_hooks(api: TracingApi, remedy: bool) -> None:
    assert api.tracing_threads() == {}
    if remedy:
        tracing.make_thread_local(api)
    with open_trace("symbolic_trace") as other:
        found = api.tracing_threads()
        assert list(found) == [other.ident]
        frame = found[other.ident or 0]
        assert frame.f_code.co_name == "trace"
        assert frame.f_back is not None
        assert "tracing.py" not in frame.f_back.f_code.co_filename
        assert api.patcher() is not None
        assert api.module_patched()
    assert api.tracing_threads() == {}
    assert api.patcher() is None
    assert not api.module_patched()


@REMEDY
def test_a_trace_is_observed_from_inside(api: TracingApi, remedy: bool) -> None:
    seen: list[tuple[str, bool, bool, bool]] = []
    held = Held()

    @contextmanager
    def observer() -> Iterator[None]:
        me = threading.get_ident()
        seen.append(("in", api.active(), me in api.tracing_threads(), api.patcher() is None))
        held()
        yield
        seen.append(("out", api.active(), me in api.tracing_threads(), api.patcher() is None))

    if remedy:
        tracing.make_thread_local(api)
    tracing.observe_traces(api, observer)
    other = Other(lambda: trace("make_fx", lambda: None))
    held.wait()
    # What is held in the observer is held in the trace, for other threads as well.
    assert list(api.tracing_threads()) == [other.ident]
    assert api.active() is (api.where is Where.PROCESS and not remedy)
    held.go.set()
    assert other.done().raised is None
    assert seen == [("in", True, True, True), ("out", True, True, True)]
    assert api.active() is False


def test_an_error_in_a_trace_passes_through_its_observer(api: TracingApi) -> None:
    seen: list[BaseException] = []

    @contextmanager
    def observer() -> Iterator[None]:
        try:
            yield
        except ValueError as error:
            seen.append(error)
            raise

    def fail() -> None:
        raise ValueError("in the trace")

    tracing.observe_traces(api, observer)
    with pytest.raises(ValueError, match="in the trace"):
        trace("make_fx", fail)
    assert len(seen) == 1
    assert api.active() is False
    assert not api.module_patched()


@REMEDY
def test_each_compile_tells_before_it_takes_foreign_patches_off(api: TracingApi, remedy: bool) -> None:
    import torch

    patched: list[tuple[int, bool]] = []
    if remedy:
        tracing.make_thread_local(api)
    tracing.observe_patches(api, lambda: patched.append((threading.get_ident(), api.module_patched())))
    function, graphs = compiled()
    function(torch.ones(3))
    function(torch.ones(3))
    assert (patched, len(graphs)) == ([(threading.get_ident(), False)], 1)
    # Beside an open trace; forced, so that up to 2.13 the call gets as far as a compile.
    patched.clear()
    tracing.observe_queries(api, None)

    def inside() -> None:
        with torch._dynamo.config.patch(force_compile_during_fx_trace=True):
            function(torch.ones(4))

    trace("symbolic_trace", inside)
    assert patched == [(threading.get_ident(), True)]


def test_the_lock_tells_its_owner_and_who_waits(api: TracingApi) -> None:
    import torch

    function, graphs = compiled()
    assert api.lock_owner() is None
    assert api.lock_waiters() == ()
    with lock_held(api) as owner:
        assert api.lock_owner() == owner.ident
        waiting = Other(lambda: function(torch.ones(3)))
        deadline = threading.Event()
        for _ in range(3000):
            if api.lock_waiters():
                break
            deadline.wait(0.01)
        assert api.lock_waiters() == (waiting.ident,)
        assert graphs == []
    assert waiting.done().raised is None
    assert len(graphs) == 1
    assert api.lock_owner() is None


@pytest.mark.parametrize("seats", [None, threading.local()], ids=["told", "counted"])
def test_hooks_compose_in_any_order_and_leave_the_shipped_code(api: TracingApi, seats: threading.local | None) -> None:
    functions = [api.query, api.tracing, api.trace, api.make_fx, api.patch_method, api.revert, api.compiling]
    functions += [api.backward, *api.sessions, *(f for f in (api.annotate, api.autotune) if f is not None)]
    shipped = [function.__code__ for function in functions]
    steps: list[Any] = [
        lambda on: tracing.observe_queries(api, (lambda answer: None) if on else None, seats),
        lambda on: tracing.observe_patches(api, (lambda: None) if on else None),
        lambda on: tracing.make_thread_local(api) if on else tracing.restore(api),
        lambda on: tracing.backward_in_caller(api, on),
    ]
    for first in range(len(steps)):
        order = steps[first:] + steps[:first]
        for step in order:
            step(True)
        assert api.query.__code__ is not shipped[0]
        assert resolve_tracing() == api  # also while hooks are in place
        for step in order:
            step(False)
        assert all(function.__code__ is code for function, code in zip(functions, shipped, strict=True))
        assert type(api.fx).__name__ == "module"
