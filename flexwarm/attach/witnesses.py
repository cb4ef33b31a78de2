"""Put the witnesses into this program: called by ``sitecustomize`` once the program has imported torch.

Each witness is put in place when the program itself loads the part of torch that it watches: loading Inductor early would
freeze settings that the program has not made yet. Whatever goes wrong here is told to the parent, and the program goes on.
"""

from __future__ import annotations

import atexit
import functools
import os
import platform
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, NoReturn

import torch

from flexwarm import __version__, environment, reaper
from flexwarm.attach import imports
from flexwarm.attach.leaving import Leaving
from flexwarm.attach.meeting import Meeting
from flexwarm.attach.recorder import ProgramRecorder, place_by_variables
from flexwarm.calls import CompiledCall
from flexwarm.canonical import digest, plain
from flexwarm.environment import Effect
from flexwarm.events import Bye, Refused, Settings, Sources
from flexwarm.observation import Observation
from flexwarm.observer import absent, caches, compilers, dense, limits, modes, recompiles, sources, stand_in, watchdog
from flexwarm.observer.costs import Meter
from flexwarm.observer.guard import GuardWatch
from flexwarm.observer.torch_api import TorchApi, graphs, sizes
from flexwarm.observer.torch_api.tracing import resolve_tracing
from flexwarm.program_events import COMPILE_WORKER, Called, Moved, Placed, Program, Raised, Summary
from flexwarm.request import Guard
from flexwarm.target import STANDS_IN

_here: Attached | None = None


def attach(told: Mapping[str, Any]) -> None:
    """Begin; ``told``: an :class:`flexwarm.observation.Observation` as JSON has it.

    Raises:
        ValueError: it is of another flexwarm.
    """
    global _here
    _here = Attached(Observation.from_json(told))
    _here.begin()


def here() -> Attached | None:
    """The observer of this process, if it has one."""
    return _here


def torch_took(seconds: float) -> None:
    """What the import of torch has cost, before there was anything here to measure it."""
    if _here is not None:
        _here.meter.imported(seconds)


def end() -> None:
    """The interpreter ends, and nothing else of the program will run."""
    if _here is not None:
        _here.end()
        _here.forget()


class Attached:
    """The observer of this process.

    Attributes:
        guard: None where it is not asked for, and until Dynamo is loaded.
    """

    def __init__(self, observation: Observation) -> None:
        self.observation = observation
        self._api = TorchApi()
        self._place = place_by_variables(os.environ)
        self._environ = {**os.environ, **observation.variables}
        self.recorder = ProgramRecorder(observation, self._describe)
        self.meeting = Meeting(observation, self.recorder)
        self.guard: GuardWatch | None = None
        self._settings: dict[str, tuple[str, dict[str, str]]] = {}
        self._moved: set[str] = set()
        self._called: dict[str, CompiledCall] = {}
        self._last = ""
        self._triton_cache: dict[str, str] = {}
        self._began = time.time()
        self._leaving = Leaving()
        self._choices = absent.Choices(self._api, self.recorder) if stand_in.is_own() else None
        self.meter = Meter(self.recorder, alone=True)
        #: With which status, and why, it said that it ends.
        self._ended: tuple[int | None, str] | None = None
        #: torch's counters as they came with a fork: what they say is of the parent.
        self._inherited: dict[str, int] = {}

    def begin(self) -> None:
        if any(COMPILE_WORKER in argument for argument in _argv()):
            os.register_at_fork(after_in_child=self.recorder.after_fork)
            return
        recorder, api = self.recorder, self._api
        choices = self._choices
        self._try("the null GPU", stand_in.refuse_others)
        if choices is not None:
            self._try("sizes", sizes.count_on_processor)
            self._when("torch._dynamo", sizes.hide_from_dynamo)
            absent.watch_times(choices)
            absent.watch_reads(recorder, lambda: bool(self._called) and not choices.copying)
        recorder.device_here = lambda: f"cuda:{torch.cuda.current_device()}" if torch.cuda.is_initialized() else ""
        self._follow_ends()
        imports.around = self.meter.importing
        self._when("torch._dynamo", self._watch_dynamo)
        self._when("torch._inductor.codecache", lambda: caches.watch_fx(api, recorder))
        self._when("torch._functorch._aot_autograd.autograd_cache", lambda: caches.watch_aot(api, recorder))
        self._when("torch._inductor.compile_fx", self._watch_inductor)
        if choices is None:
            tuning: dict[str, Callable[[], None]] = {
                "torch._inductor.runtime.triton_heuristics": lambda: compilers.watch_autotune(api, recorder),
                "torch._inductor.select_algorithm": lambda: compilers.watch_selection(api, recorder),
                "triton.runtime.autotuner": lambda: compilers.watch_kernel_autotune(api, recorder),
            }
        else:
            tuning = {
                "torch._inductor.runtime.triton_heuristics": lambda: absent.watch_variants(api, choices),
                "torch._inductor.select_algorithm": lambda: absent.watch_selection(api, choices),
                "triton.runtime.autotuner": lambda: absent.watch_kernel_variants(api, choices),
            }
        self._when("torch._higher_order_ops.flex_attention", lambda: dense.watch(api, recorder))
        self._when("triton", self._watch_triton)
        # After the witnesses of the same modules, so that these are timed with what they watch.
        self._when("torch._dynamo.utils", self.meter.follow_torch)
        self._when("torch._inductor.codecache", lambda: self.meter.follow_fx_lookups(api))
        self._when("torch._functorch._aot_autograd.autograd_cache", lambda: self.meter.follow_aot_lookups(api))
        self._when("torch._inductor.cpu_vec_isa", self.meter.follow_probes)
        for module, action in tuning.items():
            self._when(module, action)

    def _when(self, module: str, action: Callable[[], None]) -> None:
        imports.after(module, lambda: self._try(module, action))

    def _try(self, what: str, action: Callable[[], None]) -> None:
        """Do a part of the observer's work. If it fails, the program goes on; the parent is told, and never says green."""
        try:
            action()
        except Exception as error:  # noqa: BLE001 - the program is the user's, and no error of ours may be one of its own
            hint = getattr(error, "hint", "") or "this is a bug in flexwarm; please report it"
            text = str(error) or traceback.format_exc(limit=-3)
            self.recorder.emit(Refused(t=time.time(), message=f"{what}: {text}", hint=hint))

    # ---- what is watched -----------------------------------------------------------------------------------------------

    def _watch_dynamo(self) -> None:
        recompiles.watch(self._api, self.recorder)
        if self.observation.guard is Guard.OFF:
            return
        if self.observation.guard is Guard.FIX:
            from flexwarm import guard as remedy

            remedy.install(backward=self.observation.backward.value)
        tracing = resolve_tracing(autotune=False)
        self.guard = GuardWatch(tracing, self.recorder)
        self.guard.start()
        watchdog.watch(tracing, self.recorder, self.observation.hang_seconds)

    def _watch_inductor(self) -> None:
        compilers.watch_inductor(self._api, self.recorder)
        if self._choices is not None:
            absent.watch_inductor(self._api, self._choices)
        compilers.watch_processes(self.recorder)
        graphs.observe_graphs(lambda call: self._try(f"graph {call.graph}", lambda: self._graph(call)))
        # What a thread of a compiler's pool does is of the graph that was handed over last: compiles take turns.
        self.recorder.graph_here = lambda: graphs.current_graph() or self._last
        self.recorder.subject_here = self._subject_here
        self.recorder.before_hold = self._before_hold

    def _watch_triton(self) -> None:
        compilers.watch_triton(self.recorder)
        self._triton_cache = compilers.triton_cache()

    def _graph(self, call: CompiledCall) -> None:
        """Dynamo hands a graph to Inductor, in this thread."""
        self._follow_place()
        self.meeting.follow()
        self._follow_variables()
        self._called[call.graph], self._last = call, call.graph
        self.recorder.emit(Called(t=time.time(), job=self.recorder.job, call=plain(call)))
        self._read_settings()

    def _subject_here(self) -> str:
        call = self._called.get(self.recorder.graph_here())
        return call.called if call else ""

    def _before_hold(self) -> None:
        self._tell_sources()
        rank = self._place.get("rank")
        who = f"rank {rank}" if rank is not None else f"process {os.getpid()}"
        self.meeting.missed(f"{who}: {self._subject_here() or 'something outside of a graph'}")

    def _read_settings(self) -> None:
        """The settings in which this thread compiles or loads: once a thread, unless they have changed since."""
        job = self.recorder.job or ""
        read = limits.read(self._api)
        if self._settings.get(job, ("", {}))[1] == read:
            return
        inductor = {name: repr(value) for name, value in self._api.inductor_config.save_config_portable().items()}
        self._settings[job] = (self.recorder.name_of_caller(), read)
        self.recorder.emit(Settings(t=time.time(), job=job, config_digest=digest(inductor), config=inductor))
        modes.tell_modes(self._api, self.recorder, job)

    # ---- who this is ---------------------------------------------------------------------------------------------------

    def _describe(self, forked_from: int | None) -> Program:
        environ = stand_in.without(os.environ) if stand_in.present() else os.environ
        return Program(
            t=time.time(),
            pid=os.getpid(),
            parent=os.getppid(),
            started=reaper.started(os.getpid()),
            host=socket.gethostname(),
            argv=_argv(),
            components={
                "torch.version": torch.__version__,
                "torch.git": str(torch.version.git_version),
                "torch.cuda": str(torch.version.cuda or "none"),
                "python.version": platform.python_version(),
                "cpu.capability": torch.backends.cpu.get_cpu_capability(),
                "flexwarm.version": __version__,
                STANDS_IN: stand_in.identity(),
                "flexwarm.path": str(Path(__file__).resolve().parents[1]),
            },
            environ=environment.key_variables(environ),
            variables=environment.comparable(environ),
            place=dict(self._place),
            forked_from=forked_from,
            image=reaper.image(os.getpid()),
        )

    def _follow_place(self) -> None:
        """A program that spawns its ranks by itself tells each who it is in arguments, and torch.distributed in the end."""
        found = {**self._place, **place_by_variables(os.environ)}
        distributed = sys.modules.get("torch.distributed")
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            found |= {"rank": distributed.get_rank(), "world_size": distributed.get_world_size()}
        if found != self._place:
            self._place = found
            self.recorder.emit(Placed(t=time.time(), place=found))

    def _follow_variables(self) -> None:
        """torch reads its cache directories anew at each use: a program that sets one takes itself out of the bucket."""
        for name in {*self._environ, *os.environ} - self._moved:
            old, new = self._environ.get(name), os.environ.get(name)
            if old != new and environment.effect(name) in (Effect.MOVES, Effect.DISABLES):
                self._say_moved(name, old, new)
        # What a program sets on Triton itself need not show in the environment; where it does, it was told just now.
        now = compilers.triton_cache() if self._triton_cache and not self._moved else {}
        for name, new in now.items():
            if new != self._triton_cache[name]:
                self._say_moved(name, self._triton_cache[name], new)

    def _say_moved(self, name: str, old: str | None, new: str | None) -> None:
        self._moved.add(name)
        self.recorder.emit(Moved(t=time.time(), name=name, old=old, new=new))

    # ---- how it ends ---------------------------------------------------------------------------------------------------

    def _follow_ends(self) -> None:
        """Say so when the program ends by itself: one that ends without a word was killed."""
        os.register_at_fork(after_in_child=self._after_fork)
        atexit.register(self.end)
        leave, replace, replace_with = os._exit, os.execv, os.execve

        @functools.wraps(leave)
        def telling_exit(status: int) -> NoReturn:
            try:
                self._end("os._exit", self._leaving.at_once(status, _caller()))
            finally:
                leave(status)

        @functools.wraps(replace)
        def telling_execv(path: Any, argv: Any, /) -> Any:
            self._end("exec", None)
            return replace(path, argv)

        @functools.wraps(replace_with)
        def telling_execve(path: Any, argv: Any, env: Any) -> Any:
            self._end("exec", None)
            return replace_with(path, argv, env)

        os._exit, os.execv, os.execve = telling_exit, telling_execv, telling_execve
        self._follow_statuses()
        hook = sys.excepthook

        @functools.wraps(hook)
        def telling_hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> Any:
            self._leaving.raised(error)
            self._try("the error of its end", lambda: self._raised(kind, error, trace))
            hook(kind, error, trace)

        sys.excepthook = telling_hook
        thread_hook = threading.excepthook

        @functools.wraps(thread_hook)
        def telling_thread_hook(told: threading.ExceptHookArgs) -> Any:
            # A lane that dies makes no more calls, and its program may end as if nothing had happened.
            if self.recorder.has_seat and told.exc_type is not SystemExit and told.exc_value is not None:
                kind, error, trace = told.exc_type, told.exc_value, told.exc_traceback
                self._try("the error of a thread", lambda: self._raised(kind, error, trace))
            thread_hook(told)

        threading.excepthook = telling_thread_hook

    def _follow_statuses(self) -> None:
        """``sys.exit``, and ``exit`` and ``quit``, which raise by themselves."""
        leave, site = sys.exit, sys.modules.get("_sitebuiltins")

        @functools.wraps(leave)
        def telling_sys_exit(*status: Any) -> NoReturn:
            caller = _caller()
            self._try("its exit", lambda: self._leaving.ask(status[0] if status else None, caller))
            leave(*status)

        sys.exit = telling_sys_exit
        if site is None:  # python -S
            return
        ask = site.Quitter.__call__

        @functools.wraps(ask)
        def telling_quitter(quitter: Any, code: Any = None) -> Any:
            caller = _caller()
            self._try("its exit", lambda: self._leaving.ask(code, caller))
            return ask(quitter, code)

        site.Quitter.__call__ = telling_quitter

    def _raised(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        frames = traceback.extract_tb(trace)
        place = f"{frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name}" if frames else ""
        try:
            message = str(error)[:500]
        except Exception:  # noqa: BLE001 - an error may fail to say what it is
            message = ""
        self.recorder.emit(Raised(t=time.time(), error=kind.__name__, message=message, place=place))

    def _after_fork(self) -> None:
        self.recorder.after_fork()
        self.meeting.after_fork()
        self.meter.forget()
        self._settings, self._called, self._last = {}, {}, ""
        self._inherited = self._count()
        if self.guard is not None:
            self.guard.after_fork()

    def end(self) -> None:
        """The interpreter ends. What the program does after that, in functions of ``atexit``, is told by another call."""
        self._end("exit", self._leaving.at_exit())

    def forget(self) -> None:
        """Nothing of the program runs any more but the ends of its objects."""
        self._leaving.forget()

    def _end(self, how: str, left: tuple[int | None, str] | None) -> None:
        """``left``: with which status, and why; None where another program takes the place of this one."""
        over = left is not None and left == self._ended and self.recorder.said_bye
        if over or not self.recorder.has_a_file:
            return
        self._ended = left
        self._try("its end", lambda: self._tell_end(how, left or (None, "")))
        self.recorder.emit(Bye(t=time.time()))

    def _tell_end(self, how: str, left: tuple[int | None, str]) -> None:
        recorder = self.recorder
        self.meeting.end(wait=how == "exit")
        self._follow_variables()
        if self._called:
            self._judge_settings()
            if self.guard is not None and how == "exit":
                self.guard.at_rest()
            self._tell_sources()
            self._try("what its start cost", self.meter.tell)
        counters = {name: count - self._inherited.get(name, 0) for name, count in self._count().items()}
        checks = recorder.checks()
        recorder.emit(
            Summary(
                t=time.time(),
                counters=counters,
                checks=checks,
                how=how,
                status=left[0],
                why=left[1],
                unanswered=stand_in.unanswered() if stand_in.is_own() else "",
            )
        )

    def _count(self) -> dict[str, int]:
        return caches.read_counters(self._api) if "torch._dynamo.utils" in sys.modules else {}

    def _tell_sources(self) -> None:
        """The program's own files, as they were when it imported them: not those of packages, of flexwarm or of the cache."""
        skipped = (self.observation.home + os.sep, *(f"{os.path.dirname(path)}{os.sep}" for path in self._caches()))
        files = sources.loaded_since(frozenset(), self._began, packages=False)
        own = {path: digest for path, digest in files.items() if not path.startswith(skipped)}
        self.recorder.emit(Sources(t=time.time(), job="", files=own))

    def _caches(self) -> list[str]:
        return [value for value in self.observation.variables.values() if value.startswith(os.sep)]

    def _judge_settings(self) -> None:
        """What a thread compiled with, against what the main thread has at its end."""
        here = limits.read(self._api)
        for job, (name, read) in self._settings.items():
            if job != "lane-0":
                limits.report_drift(self.recorder, here, "the main thread", read, name)


def _caller() -> FrameType | None:
    """Who called the wrapper that asks; None where that is no Python, as for what ``atexit`` or a new thread begins with."""
    return sys._getframe(1).f_back


def _argv() -> tuple[str, ...]:
    return tuple(getattr(sys, "orig_argv", sys.argv))
