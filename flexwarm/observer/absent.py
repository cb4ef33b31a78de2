"""On a GPU that is not there: nothing that only the GPU can say gets into what is kept.

It has no times. Where a choice by time decides what code is made of a graph, the graph is not stored: neither Inductor's entry
nor AOTAutograd's. The kernels that were compiled to choose between are, so that a build on the GPU only times them.

It has no values. What Inductor is known to read from the device it computes on the processor instead; any other read while a
graph is compiled ends the compile, because the key does not show it and a real GPU would be served the wrong kernel.
"""

from __future__ import annotations

import functools
import sys
import threading
import time
from collections.abc import Callable, Set
from typing import Any

from flexwarm.events import Layer, Open, Read
from flexwarm.observer import caches, compilers, stand_in, threads
from flexwarm.observer.recorder import Recorder
from flexwarm.observer.torch_api import TorchApi, folding

#: Files in which Inductor keeps how long a fused kernel took, to decide what to fuse.
_TIMES = ".kernel_perf"


class Choices:
    """Which of the graphs of this process depend on a choice by time."""

    def __init__(self, api: TorchApi, recorder: Recorder) -> None:
        self._api = api
        self._recorder = recorder
        self._here = threading.local()
        #: Choices that were announced, by any thread: their timing may be done by another than the one that compiles.
        self._made = 0
        self._told: set[tuple[str | None, str]] = set()
        #: Keys of entries that are not to be stored, of both caches; and whether there was a choice at all.
        self._left_out: set[str] = set()
        self._chosen = False

    def made(self, name: str) -> None:
        """A kernel is about to be chosen by time, to be part of a graph."""
        self._made += 1
        self._recorder.untuned(name, Open.GRAPH)

    @property
    def _compiling(self) -> bool:
        return getattr(self._here, "compiling", False)

    def variants(self, kernel: str) -> None:
        """A kernel's variants are about to be timed. While a graph is compiled it is one of the kernels to choose between."""
        variants = (self._recorder.job, kernel)
        if not self._compiling and variants not in self._told:
            self._told.add(variants)
            self._recorder.untuned(kernel, Open.VARIANT)

    def during(self, function: Callable[..., Any], *, above: bool = False) -> Callable[..., Any]:
        """A part of a compile, after which it is known whether anything was chosen or read in it.

        Args:
            above: before Inductor's key of the graph, which then shows the choice; AOTAutograd's does not.
        """

        @functools.wraps(function)
        def watched(*args: Any, **kwargs: Any) -> Any:
            reads, timings, made = self._values_read(), stand_in.timings(), self._made
            outer = self._compiling
            self._here.chosen, self._here.compiling = False, True
            try:
                result = function(*args, **kwargs)
            finally:
                self._here.compiling = outer
                settings = self._api.settings_that_choose()
                for name in settings:
                    self._recorder.untuned(name, Open.GRAPH)
                if stand_in.timings() != timings and self._made == made and not settings:
                    self._recorder.untuned("a choice by time while a graph was compiled", Open.GRAPH)
                if settings or stand_in.timings() != timings or self._made != made:
                    self._here.chosen = self._chosen = True
                    if above:
                        self._left_out.add(caches.aot_key_here())
            if self._values_read() != reads:
                self._recorder.untuned("a value that was read while a graph was compiled", Open.VALUE)
                raise RuntimeError("flexwarm: a value was read from a GPU that is not there, to be compiled into a kernel")
            return result

        return watched

    def _values_read(self) -> int:
        return stand_in.reads() - getattr(self._here, "set_aside", 0)

    def setting_aside(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """What copies arguments off the device to put them back after a benchmark: nothing depends on these values."""

        @functools.wraps(function)
        def copying(*args: Any, **kwargs: Any) -> Any:
            reads, self._here.copying = stand_in.reads(), True
            try:
                return function(*args, **kwargs)
            finally:
                self._here.copying = False
                self._here.set_aside = getattr(self._here, "set_aside", 0) + stand_in.reads() - reads

        return copying

    @property
    def copying(self) -> bool:
        """Whether the calling thread copies for a benchmark."""
        return getattr(self._here, "copying", False)

    def saving_graph(self, save: Callable[..., Any]) -> Callable[..., Any]:
        """Inductor's storing of the graph that the calling thread has just compiled."""

        @functools.wraps(save)
        def save_unless_chosen(key: str, *args: Any, **kwargs: Any) -> Any:
            if getattr(self._here, "chosen", False):
                self._left_out.add(key)
                self._recorder.left_out(Layer.FX, key)
                return None
            return save(key, *args, **kwargs)

        return save_unless_chosen

    def saving_entry(self, save: Callable[..., Any], refers_to: Callable[[Any], Set[str] | None]) -> Callable[..., Any]:
        """AOTAutograd's storing; ``refers_to``: as :meth:`flexwarm.observer.torch_api.TorchApi.graphs_of`."""

        @functools.wraps(save)
        def save_unless_chosen(key: str, entry: Any, *args: Any, **kwargs: Any) -> Any:
            graphs = refers_to(entry)
            # An entry that holds its graphs does not say which of them were compiled here.
            held = graphs is None and self._chosen
            if held or self._left_out & {key, *(graphs or ())}:
                self._recorder.left_out(Layer.AOT, key)
                return None
            return save(key, entry, *args, **kwargs)

        return save_unless_chosen


def watch(api: TorchApi, recorder: Recorder) -> None:
    """All of it, in a process that has imported everything."""
    choices = Choices(api, recorder)
    watch_inductor(api, choices)
    watch_selection(api, choices)
    watch_variants(api, choices)
    watch_kernel_variants(api, choices)
    watch_times(choices)
    watch_reads(recorder, lambda: recorder.own_seat is not None and not choices.copying)


def watch_inductor(api: TorchApi, choices: Choices) -> None:
    """See :class:`Choices`; to be installed once Inductor's compiler is there."""
    folding.fold_on_processor()
    module, cache, aot_cache = api.compile_module, api.fx_cache, api.aot_cache
    module.joint_graph_passes = choices.during(module.joint_graph_passes, above=True)
    module.fx_codegen_and_compile = choices.during(module.fx_codegen_and_compile)
    cache._save_graph = staticmethod(choices.saving_graph(cache._save_graph))
    aot_cache.save = staticmethod(choices.saving_entry(aot_cache.save, api.graphs_of))
    times = api.local_cache()
    # A choice that is remembered is one that nobody sees.
    times.get_local_cache, times.update_local_cache = _nothing_kept, _keep_nothing


def _nothing_kept(self: Any) -> dict[str, Any]:
    """In place of the times of matrix products that Inductor keeps on disk."""
    return {}


def _keep_nothing(self: Any, local_cache: Any) -> None:
    """The same, for what is to be kept."""


def watch_selection(api: TorchApi, choices: Choices) -> None:
    """Each choice between kernels of which one is to be part of a graph."""
    selector = api.algorithm_selector()
    make = selector.make_benchmark_fn

    @functools.wraps(make)
    def announced(offered: Any, *args: Any, **kwargs: Any) -> Any:
        choices.made(compilers.choice_of(offered))
        return make(offered, *args, **kwargs)

    selector.make_benchmark_fn = staticmethod(announced)


def watch_variants(api: TorchApi, choices: Choices) -> None:
    """Inductor's tuning of kernels that are compiled: nothing is kept of it."""
    autotuner = api.autotuner()
    benchmark = autotuner.benchmark_all_configs

    @functools.wraps(benchmark)
    def announced(self: Any, *args: Any, **kwargs: Any) -> Any:
        choices.variants(api.kernel_of(self))
        return benchmark(self, *args, **kwargs)

    autotuner.benchmark_all_configs = announced
    autotuner.copy_args_to_cpu_if_needed = choices.setting_aside(autotuner.copy_args_to_cpu_if_needed)
    compilers.keep_no_choice(api)


def watch_kernel_variants(api: TorchApi, choices: Choices) -> None:
    """Triton's own tuning, of kernels under ``@triton.autotune``: nor of that."""
    autotuner = api.kernel_autotuner()
    benchmark_one = autotuner._bench

    @functools.wraps(benchmark_one)
    def announced(self: Any, *args: Any, **kwargs: Any) -> Any:
        choices.variants(api.kernel_of(self))
        return benchmark_one(self, *args, **kwargs)

    def benchmark_anew(self: Any, key: Any, configs: Any, benchmark: Callable[[], None]) -> bool:
        """In place of Triton's cache of times: they are not kept, and not looked for."""
        benchmark()
        return False

    autotuner._bench, autotuner.check_disk_cache = announced, benchmark_anew


def watch_times(choices: Choices) -> None:
    """Times that a file says instead of the GPU: nobody here writes any, but another process may have."""

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(args[0], str) and args[0].endswith(_TIMES) and "r" in (args[1] or ""):
            choices.made("a fusion")

    sys.addaudithook(hook)


def watch_reads(recorder: Recorder, counts: Callable[[], bool]) -> None:
    """Tell from where the program reads values off the GPU, each place once: what depends on them may be otherwise there.

    Args:
        counts: whether the calling thread's reading matters now.
    """
    told: set[tuple[str | None, str]] = set()

    def on_read() -> None:
        if not counts():
            return
        # A thread that only reads is given no seat for that; and one of autograd's may have no frame.
        seat = recorder.own_seat
        job = seat.job if seat is not None else None
        place = threads.place_of(sys._getframe().f_back)
        if place and (job, place) not in told:
            told.add((job, place))
            recorder.emit(Read(t=time.time(), job=job, place=place))

    stand_in.on_read(on_read)
