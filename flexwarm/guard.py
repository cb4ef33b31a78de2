"""For training code that compiles from several threads: ``install()`` once, before the threads start.

What it closes, on the torch that is installed:

- a warm compiled call that raises because another thread traces (torch up to 2.13);
- a compile that fails because another thread's ``make_fx`` has patches in place (every torch): traces and compiles take
  turns, with the lock that torch has for compiles; warm calls go on meanwhile;
- a compiled module that meets the patches of another thread's trace (every torch);
- ``torch.fx.traceback.annotate``, which ``create_block_mask`` uses too, beside another thread's compile: annotations wait
  in their thread until a trace or compile of that thread takes them up;
- ``torch.compiler.is_compiling()``, which from 2.13 on says yes to every thread while one compiles: under the guard only
  the thread that compiles or exports, one with a tracing context, and autograd's own threads are told so. Threads that a
  compile starts to help it are told no, as they are up to 2.12. The flag itself and every cache key stay as they are;
- the first run of a kernel with several candidates in two threads at once, of which one drops what the other still measures;
- a crash of torch 2.11's CUDA build where there is no GPU, once the first thread that compiled has ended; for this one the
  thread that calls ``install()`` must outlive the others, as the main thread does.

- the deadlock of threads that share a device: autograd's thread of the device waits for the compile lock, whose holder waits
  for that thread. Under the guard a backward pass that a compile or a trace asks for stays in its own thread.

``install(backward="caller")`` keeps all backward passes off autograd's threads, which from 2.12 on see the settings of Dynamo
and Inductor through a copy of the caller's context at best.

What stays: functions that ``torch.fx.wrap`` or a tracer replaces in a module's *globals* are replaced for every thread while
a trace is open; a warm call that guards on one compiles once more. ``compile_barrier`` is for what no remedy knows: calls
beside it run together, and none beside a compile.

Importing this module does not import torch.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, overload

from flexwarm.errors import BusyError, UsageError

if TYPE_CHECKING:
    from flexwarm.observer.torch_api.tracing import TracingApi

P = ParamSpec("P")
R = TypeVar("R")
Backward = Literal["engine", "caller"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """What the guard does in this process.

    Attributes:
        installed: whether the remedies are in force.
        torch: the version of torch.
        where: where torch itself keeps the tracing flag: ``process`` or ``thread``.
        backward: which threads run backward passes: autograd's own (``engine``) or the calling one (``caller``).
        repaired: what this call found left behind by traces that had ended: ``flag``, ``modules``.
        barrier: whether some ``compile_barrier`` was made since the last uninstall.
    """

    installed: bool
    torch: str
    where: str
    backward: str
    repaired: tuple[str, ...]
    barrier: bool


_mutex = threading.RLock()
_backward: Backward = "engine"


def install(*, backward: Backward = "engine", wait_seconds: float = 30.0) -> Status:
    """Put the remedies in force for every thread, also for functions that were compiled before.

    Args:
        backward: ``caller`` runs each backward pass in the thread that asked for it, instead of autograd's own threads.
            A second call changes it.
        wait_seconds: how long other threads may take to finish the traces and the compile that they are in.

    Raises:
        UnsupportedError: this torch is not known to flexwarm.
        BusyError: a thread was still tracing or compiling; nothing was changed.
    """
    global _backward
    from flexwarm.observer.torch_api import tracing

    if backward not in ("engine", "caller"):
        raise UsageError(f'backward is "engine" or "caller", not {backward!r}')
    with _mutex:
        api = tracing.resolve_tracing()
        repaired: tuple[str, ...] = ()
        if not tracing.is_thread_local():
            with _nobody_traces(api, wait_seconds, "install"):
                repaired = _repair(api)
                tracing.enter_fake_mode()
                tracing.make_thread_local(api)
        tracing.backward_in_caller(api, backward == "caller")
        _backward = backward
        return _status(api, repaired)


def uninstall(*, wait_seconds: float = 30.0) -> Status:
    """Put back what torch shipped, with the barrier's part too; without an install that is a no-op.

    Raises:
        BusyError: a thread was still tracing or compiling; nothing was changed.
    """
    global _backward
    from flexwarm.observer.torch_api import tracing

    with _mutex:
        api = tracing.resolve_tracing()
        if tracing.is_thread_local() or _barrier.lock is not None:
            with _nobody_traces(api, wait_seconds, "uninstall"):
                tracing.restore(api)
                _barrier.unhook(api)
        tracing.backward_in_caller(api, False)
        _backward = "engine"
        return _status(api, ())


def status() -> Status:
    """What is in force now.

    Raises:
        UnsupportedError: this torch is not known to flexwarm.
    """
    from flexwarm.observer.torch_api import tracing

    return _status(tracing.resolve_tracing(), ())


@contextmanager
def installed(*, backward: Backward = "engine") -> Iterator[Status]:
    """``install()`` for a block; afterwards the guard is as it was before, so an outer one stays installed."""
    from flexwarm.observer.torch_api import tracing

    before, backward_before = tracing.is_thread_local(), _backward
    now = install(backward=backward)
    try:
        yield now
    finally:
        if before:
            install(backward=backward_before)
        else:
            uninstall()


def _status(api: TracingApi, repaired: tuple[str, ...]) -> Status:
    import torch

    from flexwarm.observer.torch_api import tracing

    return Status(
        installed=tracing.is_thread_local(),
        torch=str(torch.__version__),
        where=str(api.where),
        backward=_backward,
        repaired=repaired,
        barrier=_barrier.lock is not None,
    )


def _repair(api: TracingApi) -> tuple[str, ...]:
    """Undo what traces that have ended left behind; no trace is open."""
    from flexwarm.observer.torch_api import tracing

    repaired = []
    if api.active():
        api.set_active(False)
        repaired.append("flag")
    if tracing.repair_patches(api):
        repaired.append("modules")
    return tuple(repaired)


@contextmanager
def _nobody_traces(api: TracingApi, wait_seconds: float, what: str) -> Iterator[None]:
    """A block in which no thread traces or compiles: new traces wait for the compile lock, open ones are waited for."""
    from flexwarm.observer.torch_api import tracing

    me = threading.get_ident()
    if me in api.tracing_threads() or api.lock_owner() == me:
        raise BusyError(f"guard.{what}() was called from inside a trace or a compile", "call it before either begins")
    deadline = time.monotonic() + wait_seconds
    tracing.take_turns(api, True)
    try:
        while True:
            lock = api.lock()
            mine = lock.acquire(timeout=max(0.0, deadline - time.monotonic()))
            try:
                open_traces = api.tracing_threads()
                if mine and not open_traces:
                    yield
                    return
            finally:
                if mine:
                    lock.release()
            if time.monotonic() >= deadline:
                names = {thread.ident: thread.name for thread in threading.enumerate()}
                doing = "tracing" if open_traces else "compiling"
                who = ", ".join(names.get(ident, str(ident)) for ident in open_traces or [api.lock_owner()] if ident)
                raise BusyError(
                    f"guard.{what}() waited {wait_seconds:g} s for a thread that is {doing} ({who or 'ended just now'})",
                    f"call guard.{what}() before the threads start, or give it a longer wait_seconds",
                )
            time.sleep(0.002)  # an open trace may need the lock to end
    finally:
        tracing.take_turns(api, False)


# ---- calls beside each other, and none beside a compile ------------------------------------------------------------------


@overload
def compile_barrier(function: None = None) -> Barrier: ...
@overload
def compile_barrier(function: Callable[P, R]) -> Callable[P, R]: ...
def compile_barrier(function: Callable[P, R] | None = None) -> Barrier | Callable[P, R]:
    """Calls inside it run together, and none of them while another thread compiles or, under the guard, traces.

    ``with compile_barrier(): ...`` or ``flex = compile_barrier(flex)``; all barriers of a process are one.

    A call holds a share. A compile gives up the share of its own thread, takes torch's compile lock, and then waits until
    no share is held; calls that begin meanwhile wait for it. Why that cannot deadlock on its own:

    - Two calls that must both compile: each gives up its share *before* it waits for the lock, so the one that has the lock
      never waits for one that wants it. A share is taken back after the lock is released, by a thread that holds neither.
    - Backward: a thread that is in a backward pass has given up its share until the pass returns, so a compile on autograd's
      thread waits for nobody who waits for that thread. What that thread calls itself takes no share and waits for none. A
      backward pass that a compile asks for stays in the thread that compiles, so the lock's owner waits for no thread of
      autograd that waits for the lock.
    - Nested barriers of one thread share one share. An exception gives back what was taken, in the same order.

    A share must not be held while waiting for another thread's call: put the barrier around the compiled call, not around a
    collective, a queue or a lock that the other thread uses in its own barrier.

    Raises:
        UnsupportedError: this torch is not known to flexwarm.
    """
    barrier = Barrier()
    return barrier if function is None else barrier(function)


class Barrier:
    """What ``compile_barrier`` returns: a context manager that can be entered any number of times, and a decorator."""

    def __init__(self) -> None:
        _barrier.hook()

    def __enter__(self) -> Barrier:
        _barrier.enter()
        return self

    def __exit__(self, *exc: object) -> None:
        _barrier.exit()

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """``function`` inside the barrier; a function that is compiled as a whole has it without."""
        from torch.compiler import is_dynamo_compiling

        @wraps(function)
        def inside(*args: P.args, **kwargs: P.kwargs) -> R:
            if is_dynamo_compiling():
                return function(*args, **kwargs)
            with self:
                return function(*args, **kwargs)

        return inside


class _Thread(threading.local):
    """What a thread has of the barrier."""

    def __init__(self) -> None:
        self.counted = False  # it holds a share
        self.took: list[bool] = []  # for each barrier it is in: whether that one took the share


class _Shares:
    """The one barrier of the process: how many threads hold a share, and whether a compile is to be made way for."""

    def __init__(self) -> None:
        self.lock: _Lock | None = None
        self._changed = threading.Condition(threading.Lock())
        self._shares = 0
        self._compiling = False
        self._thread = _Thread()

    def hook(self) -> None:
        """Have compiles and backward passes heed the barrier. A compile that is under way is waited for."""
        from flexwarm.observer.torch_api import tracing

        if self.lock is not None:
            return
        api = tracing.resolve_tracing()
        while self.lock is None:
            with api.lock():
                # install() has the mutex and waits for the lock, so nobody may wait for the mutex with the lock.
                if _mutex.acquire(blocking=False):
                    try:
                        if self.lock is None:
                            self.lock = _Lock(api.lock(), self)
                            tracing.replace_lock(api, self.lock)
                            tracing.around_backward(api, self.apart)
                    finally:
                        _mutex.release()
            if self.lock is None:
                time.sleep(0.002)

    def unhook(self, api: TracingApi) -> None:
        """Put torch's lock back; barriers that exist hook again when they are entered."""
        from flexwarm.observer.torch_api import tracing

        if self.lock is not None and api.lock() is self.lock:
            tracing.replace_lock(api, self.lock.real)
        tracing.around_backward(api, None)
        self.lock = None

    def enter(self) -> None:
        self.hook()
        thread, lock = self._thread, self.lock
        # Autograd's threads work for one that may hold a share or the lock, so they must wait for neither.
        engine = isinstance(threading.current_thread(), threading._DummyThread)
        takes = not (thread.counted or engine or (lock is not None and lock._is_owned()))
        if takes:
            self.take()
        thread.took.append(takes)

    def exit(self) -> None:
        if self._thread.took.pop():
            self.give()

    def take(self) -> None:
        """Take a share, after the compile that is under way."""
        with self._changed:
            while self._compiling:
                self._changed.wait()
            self._shares += 1
            self._thread.counted = True

    def give(self) -> bool:
        """Give up the calling thread's share; whether it had one."""
        had, self._thread.counted = self._thread.counted, False
        if had:
            with self._changed:
                self._shares -= 1
                self._changed.notify_all()
        return had

    def exclude(self, deadline: float | None) -> bool:
        """Let no call begin, and wait for those that run; false, and nothing changed, where the time is over first."""
        with self._changed:
            self._compiling = True
            done = False
            try:
                done = self._changed.wait_for(
                    lambda: not self._shares, None if deadline is None else max(0.0, deadline - time.monotonic())
                )
            finally:
                if not done:
                    self._compiling = False
                    self._changed.notify_all()
        return done

    def admit(self) -> None:
        """The compile is over."""
        with self._changed:
            self._compiling = False
            self._changed.notify_all()

    @contextmanager
    def apart(self) -> Iterator[None]:
        """A block without the calling thread's share."""
        had = self.give()
        try:
            yield
        finally:
            if had:
                self.take()


class _Lock:
    """torch's compile lock with the barrier before it; torch's own lock, which is reentrant, stays the one that is held.

    Attributes:
        real: torch's own.
    """

    def __init__(self, real: Any, shares: _Shares) -> None:
        self.real = real
        self._shares = shares
        self._depth = 0  # both are touched by the owner alone
        self._had = False

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """As ``RLock.acquire``, in seconds."""
        if self.real._is_owned():
            self._depth += 1 if self._depth else 0
            return bool(self.real.acquire())
        deadline = time.monotonic() + timeout if timeout >= 0 else None if blocking else time.monotonic()
        had, ready = self._shares.give(), False
        try:
            if self.real.acquire(blocking, timeout):
                try:
                    ready = self._shares.exclude(deadline)
                finally:
                    if ready:
                        self._depth, self._had = 1, had
                    else:
                        self.real.release()
        finally:
            if had and not ready:
                self._shares.take()
        return ready

    def release(self) -> None:
        """As ``RLock.release``; then the thread waits for its share, if it gave one up."""
        if not self.real._is_owned() or self._depth != 1:
            self._depth -= 1 if self._depth and self.real._is_owned() else 0
            self.real.release()
            return
        had, self._depth, self._had = self._had, 0, False
        self._shares.admit()
        self.real.release()
        if had:
            self._shares.take()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *exc: object) -> None:
        self.release()

    def _is_owned(self) -> bool:
        return bool(self.real._is_owned())

    def __repr__(self) -> str:
        return repr(self.real)


_barrier = _Shares()
