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
from flexwarm.observer import stand_in
from flexwarm.observer.caches import say
from flexwarm.observer.recorder import Recorder
from flexwarm.observer.torch_api import TorchApi, folding

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
    """Report Triton's own compiles and cache hits; a listener of the user's keeps its place."""
    from triton import knobs

    previous = knobs.compilation.listener

    def listener(**report: Any) -> None:
        if previous is not None:
            previous(**report)
        metadata = report.get("metadata") or {}
        name, key = str(metadata.get("name", "kernel")), str(metadata.get("hash", ""))
        if report.get("cache_hit"):
            say(recorder, Layer.TRITON, Answer.HIT, key, name)
        else:
            say(recorder, Layer.TRITON, Answer.MISS, key, name)
            recorder.compiled("triton", name)

    knobs.compilation.listener = listener


def watch_autotune(api: TorchApi, recorder: Recorder) -> None:
    """Report each benchmark of kernel candidates: its winner depends on the moment, so a warm launch has none.

    On a GPU that is not there it is the same each time: nothing was chosen, and nothing of it is kept.
    """
    autotuner = api.autotuner()
    benchmark = autotuner.benchmark_all_configs
    absent = stand_in.present()

    def reporting_benchmark(self: Any, *args: Any, **kwargs: Any) -> Any:
        kernel = str(getattr(self, "inductor_meta", {}).get("kernel_name", "kernel"))
        if absent:
            self.save_cache_hook = None
            recorder.untuned(kernel)
        else:
            recorder.compiled("autotune", kernel)
        return benchmark(self, *args, **kwargs)

    autotuner.benchmark_all_configs = reporting_benchmark


def watch_kernel_autotune(api: TorchApi, recorder: Recorder) -> None:
    """Report each tuning of a kernel under ``@triton.autotune``; without Triton's own cache each process tunes anew."""
    autotuner = api.kernel_autotuner()
    benchmark = autotuner._bench
    absent = stand_in.present()
    told: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    @functools.wraps(benchmark)
    def reporting_benchmark(self: Any, *args: Any, **kwargs: Any) -> Any:
        tuned = len(self.cache)
        if told.get(self) != tuned:  # the first configuration of this tuning
            told[self] = tuned
            name = getattr(getattr(self, "base_fn", None), "__name__", "kernel")
            if absent:
                recorder.untuned(name)
            else:
                recorder.compiled("autotune", f"@triton.autotune of {name}, {len(self.configs)} configurations")
        return benchmark(self, *args, **kwargs)

    autotuner._bench = reporting_benchmark
    if absent:
        autotuner.check_disk_cache = _keep_nothing


def _keep_nothing(self: Any, key: Any, configs: Any, benchmark: Callable[[], None]) -> bool:
    """In place of Triton's cache of timings, where there are none."""
    benchmark()
    return False


def triton_cache() -> dict[str, str]:
    """Where Triton keeps its files, and by which class: a program may set both without a variable of the environment."""
    from triton import knobs

    names = ("dir", "manager_class", "remote_manager_class")
    return {f"triton.knobs.cache.{name}": _named(getattr(knobs.cache, name)) for name in names}


def _named(value: Any) -> str:
    return f"{value.__module__}.{value.__qualname__}" if isinstance(value, type) else str(value)


def watch_selection(api: TorchApi, recorder: Recorder) -> None:
    """On a GPU that is not there, report each choice between kernels by time that goes into the code."""
    if not stand_in.present():
        return
    selector = api.algorithm_selector()
    choose = selector.autotune

    @functools.wraps(choose)
    def reporting_choice(self: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        recorder.untuned(name, baked=True)
        return choose(self, name, *args, **kwargs)

    selector.autotune = reporting_choice


def watch_compiles(api: TorchApi, recorder: Recorder) -> None:
    """On a GPU that is not there, see to it that nothing of it gets into what is compiled.

    What Inductor is known to read from the device it computes on the processor instead. Whatever else is read is no result,
    and the compile ends: its key does not show it, so a real GPU would be served the wrong kernel. What is chosen by time is
    right, if not the fastest; it is reported, and nobody is given it.
    """
    if not stand_in.present():
        return
    folding.fold_on_processor()
    for name in ("joint_graph_passes", "fx_codegen_and_compile"):
        _watch_compile(api.compile_module, name, recorder)


def _watch_compile(module: Any, name: str, recorder: Recorder) -> None:
    function = getattr(module, name)

    @functools.wraps(function)
    def watched(*args: Any, **kwargs: Any) -> Any:
        reads, timings = stand_in.reads(), stand_in.timings()
        try:
            result = function(*args, **kwargs)
        finally:
            if stand_in.timings() != timings:
                recorder.untuned("a choice by time while a graph was compiled", baked=True)
        if stand_in.reads() != reads:
            recorder.untuned("a value that was read while a graph was compiled", baked=True)
            raise RuntimeError("flexwarm: a value was read from a GPU that is not there, to be compiled into a kernel")
        return result

    setattr(module, name, watched)
