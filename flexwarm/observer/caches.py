"""First witness: every question to AOTAutograd's and Inductor's caches, with its key and its answer."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Mapping
from typing import Any

from flexwarm.events import Answer, Layer, Lookup, Phase
from flexwarm.observer import key_details, recompiles
from flexwarm.observer.key_details import Asked
from flexwarm.observer.recorder import Recorder
from flexwarm.observer.torch_api import TorchApi, keys

_COUNTED = {
    "inductor": ("fxgraph_cache_hit", "fxgraph_cache_miss", "fxgraph_cache_bypass"),
    "aot_autograd": ("autograd_cache_hit", "autograd_cache_miss", "autograd_cache_bypass", "autograd_cache_saved"),
}


def read_counters(api: TorchApi) -> dict[str, int]:
    """torch's own counts of each layer since the process began, as ``group.name``."""
    return {
        f"{group}.{name}": int(api.counters.get(group, {}).get(name, 0)) for group, names in _COUNTED.items() for name in names
    }


def counted_since(api: TorchApi, before: Mapping[str, int]) -> dict[str, int]:
    return {name: count - before[name] for name, count in read_counters(api).items()}


def watch(api: TorchApi, recorder: Recorder) -> None:
    """Replace the lookups on their classes by ones that report. The answers are torch's own, untouched."""
    watch_fx(api, recorder)
    watch_aot(api, recorder)


def say(recorder: Recorder, layer: Layer, answer: Answer, key: str, reason: str = "") -> None:
    """Report one question and its answer."""
    graph = recorder.graph_here()
    recorder.emit(Lookup(t=time.time(), job=recorder.job, layer=layer, answer=answer, key=key, reason=reason, graph=graph))


def watch_fx(api: TorchApi, recorder: Recorder) -> None:
    """The FX graph cache alone."""
    prepare_key, load_with_key = api.fx_cache.prepare_key, api.fx_cache.load_with_key

    @functools.wraps(prepare_key)
    def reporting_prepare_key(gm: Any, *args: Any, **kwargs: Any) -> Any:
        key_info, info = prepare_key(gm, *args, **kwargs)
        _last.fx = Asked(key_info[0], key_info[1], gm) if key_info is not None else None
        if key_info is None:
            say(recorder, Layer.FX, Answer.BYPASS, "", str(info.get("cache_bypass_reason", "torch gave no reason")))
            recorder.phase(Phase.COMPILE)
            recorder.stop_if_verifying()
        return key_info, info

    @functools.wraps(load_with_key)
    def reporting_load_with_key(key: str, *args: Any, **kwargs: Any) -> Any:
        recorder.phase(Phase.LOAD)
        asked, _last.fx = _last.fx, None  # the graph is large, and nobody else would let go of it
        graph, info = load_with_key(key, *args, **kwargs)
        if graph is not None:
            say(recorder, Layer.FX, Answer.HIT, key)
        else:
            if asked is not None and asked.key == key:
                key_details.tell(recorder, Layer.FX, asked)
            recompiles.tell(recorder)
            say(recorder, Layer.FX, Answer.MISS, key, str(info.get("cache_status_detailed", "")))
            recorder.phase(Phase.COMPILE)
            recorder.stop_if_verifying()
        if _last.missed_above:
            # The graph is there, but AOTAutograd has to trace again to reach it: a launch would, so it is not warm.
            # Stopped here and not at the outer miss, so that both layers are named.
            recorder.stop_if_verifying()
        return graph, info

    api.fx_cache.prepare_key = staticmethod(reporting_prepare_key)
    api.fx_cache.load_with_key = staticmethod(reporting_load_with_key)


class _Last(threading.local):
    """What the lookup under way in this thread has learnt so far."""

    def __init__(self) -> None:
        self.key = ""
        self.refusal = ""
        self.missed_above = False
        self.loading = False
        #: Of what the keys were made.
        self.aot: Asked | None = None
        self.fx: Asked | None = None


_last = _Last()


def aot_key_here() -> str:
    """AOTAutograd's key of the graph that the calling thread asked for last; empty if it has none."""
    return _last.key


def watch_aot(api: TorchApi, recorder: Recorder) -> None:
    """AOTAutograd's cache alone."""
    keys.say_parts_of_aot_keys(api.aot_module)
    make_key, try_load = api.aot_module.autograd_cache_key, api.aot_cache.try_load

    @functools.wraps(make_key)
    def remembering_key(*args: Any, **kwargs: Any) -> Any:
        try:
            key, lines = make_key(*args, **kwargs)
        except Exception as error:
            _last.refusal = f"{type(error).__name__}: {error}"
            raise
        _last.key = str(key)
        if _last.loading:
            # The graph comes first, under a name that is not the same in every torch.
            _last.aot = Asked(str(key), lines, next(iter((*args, *kwargs.values())), None))
        return key, lines

    @functools.wraps(try_load)
    def reporting_try_load(*args: Any, **kwargs: Any) -> Any:
        _last.key, _last.refusal, _last.missed_above, _last.loading = "", "", False, True
        before = read_counters(api)
        try:
            result = try_load(*args, **kwargs)
        finally:
            asked, _last.aot, _last.loading = _last.aot, None, False
        seen = counted_since(api, before)
        if seen["aot_autograd.autograd_cache_hit"]:
            say(recorder, Layer.AOT, Answer.HIT, _last.key)
        elif seen["aot_autograd.autograd_cache_bypass"]:
            _last.missed_above = True
            say(recorder, Layer.AOT, Answer.BYPASS, _last.key, _last.refusal or "torch gave no reason")
        else:
            # A miss, or an outcome that torch did not count: both mean that it will trace again.
            _last.missed_above = True
            if asked is not None:
                key_details.tell(recorder, Layer.AOT, asked)
            recompiles.tell(recorder)
            say(recorder, Layer.AOT, Answer.MISS, _last.key)
        return result

    api.aot_module.autograd_cache_key = remembering_key
    api.aot_cache.try_load = staticmethod(reporting_try_load)
