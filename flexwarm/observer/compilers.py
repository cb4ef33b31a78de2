"""Second witness: every compiler that runs, seen where the process is started and where Triton and autotuning report."""

from __future__ import annotations

import functools
import os
import sys
import time
import weakref
from collections.abc import Callable
from typing import Any

from flexwarm.compiler_lines import classify, split
from flexwarm.events import Answer, Layer
from flexwarm.observer import key_details
from flexwarm.observer.caches import say
from flexwarm.observer.recorder import Recorder
from flexwarm.observer.torch_api import TorchApi, triton_keys
from flexwarm.observer.torch_api.triton_keys import Kernel
from flexwarm.request import Tuning

_EVENTS = ("subprocess.Popen", "os.posix_spawn", "os.exec", "os.system")


def watch_processes(recorder: Recorder) -> None:
    """Report each compiler process that this one starts, by Python's audit events: no private name is involved."""

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event not in _EVENTS:
            return
        argv = _argv(event, args)
        what = classify(argv)
        if what:
            recorder.compiled(what, " ".join(argv)[:400])

    sys.addaudithook(hook)


def _argv(event: str, args: tuple[Any, ...]) -> list[str]:
    if event == "os.system":
        return ["sh", "-c", os.fsdecode(args[0])]
    raw = args[1]
    if isinstance(raw, (str, bytes, os.PathLike)):
        return split(os.fsdecode(raw))
    return [os.fsdecode(item) for item in raw]


def watch_inductor(api: TorchApi, recorder: Recorder) -> None:
    """Report each graph that Inductor compiles, also one for which no cache was asked."""
    compile_graph = api.compile_module.fx_codegen_and_compile

    @functools.wraps(compile_graph)
    def reporting_compile(*args: Any, **kwargs: Any) -> Any:
        recorder.compiled("inductor", "a graph")
        began = time.perf_counter()
        try:
            return compile_graph(*args, **kwargs)
        finally:
            recorder.spent(time.perf_counter() - began)

    api.compile_module.fx_codegen_and_compile = reporting_compile


def watch_triton(recorder: Recorder) -> None:
    """Report Triton's own compiles and cache hits; a listener of the user's keeps its place.

    A miss is told before the kernel is compiled, so that a verification compiles none; Triton's report of it comes after.
    """
    from triton import knobs

    previous = knobs.compilation.listener
    told: set[str] = set()

    def on_miss(kernel: Kernel) -> None:
        told.add(kernel.hash)
        key_details.tell_kernel(recorder, kernel)
        say(recorder, Layer.TRITON, Answer.MISS, kernel.hash, kernel.name)
        recorder.compiled("triton", kernel.name)

    triton_keys.watch(on_miss)

    def listener(**report: Any) -> None:
        if previous is not None:
            previous(**report)
        metadata = report.get("metadata") or {}
        name, key = str(metadata.get("name", "kernel")), str(metadata.get("hash", ""))
        if report.get("cache_hit"):
            say(recorder, Layer.TRITON, Answer.HIT, key, name)
        elif key in told:
            told.discard(key)
        else:
            say(recorder, Layer.TRITON, Answer.MISS, key, name)
            recorder.compiled("triton", name)

    knobs.compilation.listener = listener


def watch_tuning(api: TorchApi, recorder: Recorder) -> None:
    """All tuning, in a process that has imported everything."""
    watch_autotune(api, recorder)
    watch_kernel_autotune(api, recorder)
    watch_selection(api, recorder)


def watch_autotune(api: TorchApi, recorder: Recorder) -> None:
    """Report each benchmark of kernel candidates: its winner depends on the moment, so a warm launch has none.

    A search around the fastest compiles as it goes, so it is a compile also where tuning is not.
    """
    autotuner = api.autotuner()
    benchmark = autotuner.benchmark_all_configs

    def reporting_benchmark(self: Any, *args: Any, **kwargs: Any) -> Any:
        kernel = api.kernel_of(self)
        if api.searches_on(self):
            recorder.compiled("autotune", kernel)
        else:
            recorder.tunes(kernel)
        with recorder.tuning(kernel):
            return benchmark(self, *args, **kwargs)

    autotuner.benchmark_all_configs = reporting_benchmark
    for name in api.searches():
        setattr(autotuner, name, _reporting_search(api, recorder, getattr(autotuner, name)))
    if recorder.on_tuning is Tuning.TRY:
        keep_no_choice(api)


def _reporting_search(api: TorchApi, recorder: Recorder, search: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(search)
    def reporting_search(self: Any, *args: Any, **kwargs: Any) -> Any:
        recorder.compiled("autotune", f"variants of {api.kernel_of(self)} that are made while it is tuned")
        return search(self, *args, **kwargs)

    return reporting_search


def keep_no_choice(api: TorchApi) -> None:
    """Inductor does not write which of a kernel's variants was the fastest; it still reads what others wrote."""
    cache = api.autotune_cache()

    # A stored kernel names this function, by the name that it has: elsewhere that is torch's own.
    @functools.wraps(cache.save)
    def keep_nothing(self: Any, *args: Any, **kwargs: Any) -> None:
        """In place of writing it."""

    cache.save = keep_nothing


def watch_kernel_autotune(api: TorchApi, recorder: Recorder) -> None:
    """Report each tuning of a kernel under ``@triton.autotune``; without Triton's own cache each process tunes anew.

    The program can read what was chosen, and compile something else for it: that it may tune does not cover this.
    """
    autotuner = api.kernel_autotuner()
    benchmark = autotuner._bench
    told: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    @functools.wraps(benchmark)
    def reporting_benchmark(self: Any, *args: Any, **kwargs: Any) -> Any:
        tuned, name = len(self.cache), api.kernel_of(self)
        if told.get(self) != tuned:  # the first configuration of this tuning
            told[self] = tuned
            recorder.compiled("autotune", f"@triton.autotune of {name}, {len(self.configs)} configurations")
        with recorder.tuning(name):
            return benchmark(self, *args, **kwargs)

    autotuner._bench = reporting_benchmark


def triton_cache() -> dict[str, str]:
    """Where Triton keeps its files, and by which class: a program may set both without a variable of the environment."""
    from triton import knobs

    names = ("dir", "manager_class", "remote_manager_class")
    return {f"triton.knobs.cache.{name}": _named(getattr(knobs.cache, name)) for name in names}


def _named(value: Any) -> str:
    return f"{value.__module__}.{value.__qualname__}" if isinstance(value, type) else str(value)


def watch_selection(api: TorchApi, recorder: Recorder) -> None:
    """Tell how long each choice between kernels took of which one becomes part of a graph."""
    selector = api.algorithm_selector()
    make = selector.make_benchmark_fn

    @functools.wraps(make)
    def make_reporting(choices: Any, *args: Any, **kwargs: Any) -> Any:
        benchmark = make(choices, *args, **kwargs)

        def reporting_benchmark(*args: Any, **kwargs: Any) -> Any:
            with recorder.tuning(choice_of(choices)):
                return benchmark(*args, **kwargs)

        return reporting_benchmark

    selector.make_benchmark_fn = staticmethod(make_reporting)


def choice_of(choices: Any) -> str:
    """What is chosen, in words."""
    return f"one of {len(choices)} for {choices[0].name}"
