"""Traces and compiles of other threads, held where a test wants them: scripted with events, never slept for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

LIMIT = 30.0  # seconds; a script that takes longer is broken


class Other(threading.Thread):
    """A thread that runs one function; what it raised is kept."""

    def __init__(self, function: Callable[[], object]) -> None:
        from torch._subclasses.fake_tensor import FakeTensorMode

        with FakeTensorMode():
            pass  # the first of the process, or torch 2.11 crashes when that thread has ended (see test_guard.py)
        super().__init__(daemon=True)
        self._function = function
        self.result: Any = None
        self.raised: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self.result = self._function()
        except BaseException as error:  # noqa: BLE001 - handed to the test, which asserts on it
            self.raised = error

    def done(self) -> Other:
        self.join(LIMIT)
        assert not self.is_alive(), "the other thread hangs"
        return self


class Held:
    """A point at which another thread stops until it is told to go on."""

    def __init__(self) -> None:
        self.reached, self.go = threading.Event(), threading.Event()

    def __call__(self) -> None:
        self.reached.set()
        assert self.go.wait(LIMIT), "nobody let the other thread go on"

    def wait(self) -> None:
        assert self.reached.wait(LIMIT), "the other thread did not come to its point"


def trace(kind: str, body: Callable[[], object]) -> None:
    """Trace with FX, and call ``body`` inside the trace."""
    import torch
    from torch.fx.experimental.proxy_tensor import make_fx

    def traced(x: Any) -> Any:
        body()
        return x + 1

    if kind == "make_fx":
        make_fx(traced)(torch.ones(3))
    else:
        torch.fx.symbolic_trace(traced)


@contextmanager
def open_trace(kind: str = "make_fx") -> Iterator[Other]:
    """A block during which another thread is inside a trace."""
    held = Held()
    other = Other(lambda: trace(kind, held))
    held.wait()
    try:
        yield other
    finally:
        held.go.set()
        other.done()


def compiled(backend: Any = "eager") -> tuple[Callable[[Any], Any], list[Any]]:
    """A function of one tensor, compiled anew for each length, and the graphs that were made of it."""
    import torch

    graphs: list[Any] = []
    given = backend

    def remember(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward if given == "eager" else given(graph, inputs)

    namespace: dict[str, Any] = {}
    # Dynamo keeps what it compiled with the code object, so each function needs one of its own, and from a real file: up to
    # 2.11 those of no file share a wrapper, and its limit of recompiles.
    exec(compile("def double(x):\n    return x * 2 + 1", __file__, "exec"), namespace)
    function: Callable[[Any], Any] = torch.compile(namespace["double"], backend=remember, dynamic=False)
    return function, graphs
