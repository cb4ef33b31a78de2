"""Find the private parts of the installed torch that the witnesses rest on, or say which is missing.

Read in the released sources of 2.9.1, 2.10.0, 2.11.0, 2.12.0, 2.13.0 and 2.14.1: every name below is there with the
same meaning. ``tests/contract`` holds them against the torch that is installed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any

from flexwarm.errors import UnsupportedError


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchApi:
    """The resolved parts.

    Attributes:
        fx_cache: ``FxGraphCache``; its static ``prepare_key`` answers (key and lines, info), ``load_with_key`` answers
            (graph or None, info).
        aot_cache: ``AOTAutogradCache``; its static ``try_load`` counts a hit, a miss or a bypass.
        aot_module: the module whose global ``autograd_cache_key`` is called once a lookup and answers (key, lines).
        counters: Dynamo's counters: group -> name -> count.
        compile_module: the module whose global ``fx_codegen_and_compile`` is called once for each graph that no cache served.
        convert_frame: the module whose global ``exceeds_recompile_limit`` answers (exceeded, name of the limit) before each
            compile.
        flex_module: the module whose global ``math_attention`` materialises the score matrix.
        fake_tensors: tensor types that carry no data; a call with them is tracing, not attention.
        inductor_config: Inductor's config module, part of every key.
        dynamo_config: Dynamo's config module.
    """

    fx_cache: Any
    aot_cache: Any
    aot_module: Any
    counters: Mapping[str, Mapping[str, int]]
    compile_module: Any
    convert_frame: Any
    flex_module: Any
    fake_tensors: tuple[type, ...]
    inductor_config: Any
    dynamo_config: Any
    reset: Callable[[], None]

    @staticmethod
    def autotuner() -> Any:
        """``CachingAutotuner``, whose ``benchmark_all_configs`` times kernel candidates; needs Triton, so it is probed last."""
        autotuner = _part(_module("torch._inductor.runtime.triton_heuristics"), "CachingAutotuner")
        _function(autotuner, "benchmark_all_configs")
        return autotuner


def resolve() -> TorchApi:
    """Probe the installed torch.

    Raises:
        UnsupportedError: names the version and the part that is missing or has another shape.
    """
    codecache = _module("torch._inductor.codecache")
    aot_module = _module("torch._functorch._aot_autograd.autograd_cache")
    flex_module = _module("torch._higher_order_ops.flex_attention")
    fx_cache = _part(codecache, "FxGraphCache")
    aot_cache = _part(aot_module, "AOTAutogradCache")
    for owner, names in ((fx_cache, ("prepare_key", "load_with_key")), (aot_cache, ("try_load", "save"))):
        for name in names:
            _static(owner, name)
    _function(aot_module, "autograd_cache_key")
    _function(flex_module, "math_attention")
    compile_module = _module("torch._inductor.compile_fx")
    _function(compile_module, "fx_codegen_and_compile")
    convert_frame = _module("torch._dynamo.convert_frame")
    _function(convert_frame, "exceeds_recompile_limit")
    fake = _part(_module("torch._subclasses.fake_tensor"), "FakeTensor")
    functional = _part(_module("torch._subclasses.functional_tensor"), "FunctionalTensor")
    return TorchApi(
        fx_cache=fx_cache,
        aot_cache=aot_cache,
        aot_module=aot_module,
        counters=_part(_module("torch._dynamo.utils"), "counters"),
        compile_module=compile_module,
        convert_frame=convert_frame,
        flex_module=flex_module,
        fake_tensors=(fake, functional),
        inductor_config=_module("torch._inductor.config"),
        dynamo_config=_module("torch._dynamo.config"),
        reset=_function(_module("torch._dynamo"), "reset"),
    )


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
