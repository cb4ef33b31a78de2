"""Find the private parts of the installed torch that the witnesses rest on, or say which is missing.

Read in the released sources of 2.9.1, 2.10.0, 2.11.0, 2.12.0, 2.13.0 and 2.14.1: every name below is there with the
same meaning. ``tests/contract`` holds them against the torch that is installed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from importlib import import_module
from types import ModuleType
from typing import Any

from flexwarm.errors import UnsupportedError

_CHOOSING = (
    *("coordinate_descent_tuning", "combo_kernels", "benchmark_combo_kernel"),
    *("pipeline_max_autotune_gemm", "distributed_max_autotune_gemm"),
)
_SEARCHES = ("_coordinate_descent_tuning", "_combo_sequential_autotune")


class TorchApi:
    """The private parts, each looked up when it is first asked for: only then is its module imported.

    A program that is observed imports torch's compilers in its own time, after it has set its own variables. A worker asks
    for all parts at once with :func:`resolve`.

    Raises (each attribute):
        UnsupportedError: names the version and the part that is missing or has another shape.
    """

    @cached_property
    def fx_cache(self) -> Any:
        """``FxGraphCache``; static ``prepare_key`` answers (key and lines, info), ``load_with_key`` (graph or None, info).

        Static ``_save_graph(key, graph, ...)`` stores what ``fx_codegen_and_compile`` has made, in the same thread.
        """
        cache = _part(_module("torch._inductor.codecache"), "FxGraphCache")
        for name in ("prepare_key", "load_with_key", "_save_graph"):
            _static(cache, name)
        return cache

    @cached_property
    def aot_module(self) -> Any:
        """The module whose global ``autograd_cache_key`` is called once a lookup and answers (key, lines)."""
        module = _module("torch._functorch._aot_autograd.autograd_cache")
        _function(module, "autograd_cache_key")
        return module

    @cached_property
    def aot_cache(self) -> Any:
        """``AOTAutogradCache``; static ``try_load`` counts a hit, a miss or a bypass, ``save(key, ...)`` stores an entry."""
        cache = _part(self.aot_module, "AOTAutogradCache")
        for name in ("try_load", "save"):
            _static(cache, name)
        return cache

    @cached_property
    def counters(self) -> Mapping[str, Mapping[str, int]]:
        """Dynamo's counters: group -> name -> count."""
        counters: Mapping[str, Mapping[str, int]] = _part(_module("torch._dynamo.utils"), "counters")
        return counters

    @cached_property
    def compile_module(self) -> Any:
        """The module whose global ``fx_codegen_and_compile`` is called once for each graph that no cache served.

        Its global ``joint_graph_passes`` is called before, and folds constants.
        """
        module = _module("torch._inductor.compile_fx")
        for name in ("fx_codegen_and_compile", "joint_graph_passes"):
            _function(module, name)
        return module

    @cached_property
    def convert_frame(self) -> Any:
        """The module whose global ``exceeds_recompile_limit`` answers (exceeded, name of the limit) before each compile.

        Its global ``get_and_maybe_log_recompilation_reasons(entries, frame, ...)`` answers texts before that, if the function
        was compiled before: of each variant the guard that the frame fails.
        """
        module = _module("torch._dynamo.convert_frame")
        for name in ("exceeds_recompile_limit", "get_and_maybe_log_recompilation_reasons"):
            _function(module, name)
        return module

    @cached_property
    def flex_module(self) -> Any:
        """The module whose global ``math_attention`` materialises the score matrix."""
        module = _module("torch._higher_order_ops.flex_attention")
        _function(module, "math_attention")
        return module

    @cached_property
    def fake_tensors(self) -> tuple[type, ...]:
        """Tensor types that carry no data; a call with them is tracing, not attention."""
        fake = _part(_module("torch._subclasses.fake_tensor"), "FakeTensor")
        return (fake, _part(_module("torch._subclasses.functional_tensor"), "FunctionalTensor"))

    @cached_property
    def inductor_config(self) -> Any:
        """Inductor's config module, part of every key."""
        return _module("torch._inductor.config")

    @cached_property
    def dynamo_config(self) -> Any:
        """Dynamo's config module."""
        return _module("torch._dynamo.config")

    @cached_property
    def functorch_config(self) -> Any:
        """AOTAutograd's config module; ``save_config_portable()`` answers what of it is in its key and can be read."""
        module = _module("torch._functorch.config")
        _function(module, "save_config_portable")
        return module

    @cached_property
    def reset(self) -> Callable[[], None]:
        """Forgets everything that Dynamo compiled."""
        return _function(_module("torch._dynamo"), "reset")

    def autotuner(self) -> Any:
        """``CachingAutotuner``, whose ``benchmark_all_configs`` times kernel candidates; needs Triton, so it comes last."""
        autotuner = _part(_module("torch._inductor.runtime.triton_heuristics"), "CachingAutotuner")
        for name in ("benchmark_all_configs", "copy_args_to_cpu_if_needed"):
            _function(autotuner, name)
        return autotuner

    def searches(self) -> tuple[str, ...]:
        """Methods of :meth:`autotuner` that compile more variants around the fastest; that of combo kernels from 2.13 on."""
        autotuner = self.autotuner()
        _function(autotuner, "_coordinate_descent_tuning")
        return tuple(name for name in _SEARCHES if hasattr(autotuner, name))

    @staticmethod
    def searches_on(autotuner: Any) -> bool:
        """Whether an instance goes on to one of :meth:`searches` once it has timed what it has."""
        meta = autotuner.inductor_meta
        return bool(meta.get("coordinate_descent_tuning") or meta.get("combo_tuning_groups"))

    def autotune_cache(self) -> Any:
        """``AutotuneCache``, which keeps which variant was the fastest: its ``save(config, ...)`` writes.

        A compiled kernel has that method of an instance, and is stored with it.
        """
        cache = _part(_module("torch._inductor.runtime.autotune_cache"), "AutotuneCache")
        _function(cache, "save")
        return cache

    def settings_that_choose(self) -> list[str]:
        """Settings that are on and let torch choose by time where nobody can follow it, by name.

        With them it chooses in another process or rank, in the partitioner, or while kernels run and by compiling more of
        them. Read in 2.9.1 to 2.14.1; one that a version does not have is off.
        """
        inductor, functorch = self.inductor_config, _module("torch._functorch.config")
        found = [name for name in _CHOOSING if getattr(inductor, name, False)]
        if getattr(getattr(inductor, "triton", None), "multi_kernel", False):
            found.append("triton.multi_kernel")
        estimator = getattr(functorch, "activation_memory_budget_runtime_estimator", "")
        if estimator == "profile" and getattr(functorch, "activation_memory_budget", 1.0) < 1.0:
            found.append("activation_memory_budget_runtime_estimator")
        return found

    def kernel_autotuner(self) -> Any:
        """Triton's ``Autotuner`` of a kernel under ``@triton.autotune``, whose ``_bench`` times one configuration.

        Its ``cache`` maps what it was tuned for to the winner, and grows when the last configuration was timed;
        ``check_disk_cache(key, configs, benchmark)`` answers whether its own cache had the times. Read in Triton 3.5 to 3.9.
        """
        autotuner = _part(_module("triton.runtime.autotuner"), "Autotuner")
        for name in ("_bench", "check_disk_cache"):
            _function(autotuner, name)
        return autotuner

    @staticmethod
    def kernel_of(autotuner: Any) -> str:
        """The name of the kernel that an instance of one of the two tunes."""
        named = getattr(autotuner, "inductor_meta", {}).get("kernel_name")
        return str(named or getattr(getattr(autotuner, "base_fn", None), "__name__", "a kernel"))

    def local_cache(self) -> Any:
        """``CacheBase``, which keeps times of matrix products, and choices by them.

        ``get_local_cache()`` answers a dict, ``update_local_cache(dict)`` writes it.
        """
        cache = _part(_module("torch._inductor.codecache"), "CacheBase")
        for name in ("get_local_cache", "update_local_cache"):
            _function(cache, name)
        return cache

    @staticmethod
    def graphs_of(entry: Any) -> frozenset[str] | None:
        """Inductor's keys of the graphs that an entry of AOTAutograd's refers to; None for one that holds them itself.

        In 2.9.1 to 2.14.1 ``compiled_fw`` and ``compiled_bw``, if there is one, have ``fx_graph_cache_info``: (key, lines).
        """
        parts = [part for part in (entry.compiled_fw, entry.compiled_bw) if part is not None]
        found = [getattr(part, "fx_graph_cache_info", None) for part in parts]
        return frozenset(info[0] for info in found if info) if all(found) else None

    def algorithm_selector(self) -> Any:
        """``AlgorithmSelectorCache``, which times kernels before code is generated from the fastest.

        Its class method ``make_benchmark_fn(choices, ...)`` is called for each such choice, and answers the function that
        times ``choices``, each of which has a ``name``.
        """
        selector = _part(_module("torch._inductor.select_algorithm"), "AlgorithmSelectorCache")
        _function(selector, "make_benchmark_fn")
        return selector


_PARTS = tuple(name for name, value in vars(TorchApi).items() if isinstance(value, cached_property))


def resolve() -> TorchApi:
    """Every part of the installed torch, but for the autotuner.

    Raises:
        UnsupportedError: names the version and the part that is missing or has another shape.
    """
    api = TorchApi()
    for name in _PARTS:
        getattr(api, name)
    return api


def _refuse(what: str) -> UnsupportedError:
    import torch

    return UnsupportedError(
        f"torch {torch.__version__} is not known to flexwarm: {what}",
        "use a release of a torch that flexwarm knows, or a flexwarm that knows this one",
    )


def _module(name: str) -> ModuleType:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise _refuse(f"there is no module {name}") from error


def _part(owner: Any, name: str) -> Any:
    try:
        return getattr(owner, name)
    except AttributeError as error:
        raise _refuse(f"{getattr(owner, '__name__', owner)} has no {name}") from error


def _function(owner: Any, name: str) -> Callable[..., Any]:
    value = _part(owner, name)
    if not callable(value):
        raise _refuse(f"{owner.__name__}.{name} is not a function")
    return value  # type: ignore[no-any-return]


def _static(owner: Any, name: str) -> None:
    """The witnesses replace these on the class; a method that takes ``self`` would be called wrongly."""
    value = next((vars(base)[name] for base in owner.__mro__ if name in vars(base)), None)
    if not isinstance(value, staticmethod):
        raise _refuse(f"{owner.__name__}.{name} is not a static method")
