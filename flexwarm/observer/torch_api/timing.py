"""The events with which torch says what a compile is in: the name of each, and when it begins and ends in its thread.

Read in 2.9.1 to 2.14.1: every ``dynamo_timed(key, phase_name)`` calls ``log_event_start(name, ...)`` and, however its block
ends, ``log_event_end(name, ...)`` of ``torch._dynamo.utils.ChromiumEventLogger``, in the same thread. ``name`` is the phase's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from flexwarm.costs import Part
from flexwarm.observer.torch_api.probe import _function, _module, _part

#: The part that an event begins. What has another name goes on with the part that it is in.
EVENTS: Mapping[str, Part] = {
    "dynamo": Part.DYNAMO,
    "entire_frame_compile": Part.DYNAMO,
    "build_guards": Part.GUARDS,
    "inductor_import": Part.IMPORT,
    "backend_compile": Part.AOT,
    "create_aot_dispatcher_function": Part.AOT,
    "inductor_codecache_torch_key": Part.KEYS,
    "CacheBase.get_system.triton_key": Part.KEYS,
    "AOTAutogradCache.inductor_load": Part.LOAD,
    "PyCodeCache.load_by_key_path": Part.LOAD,
    "TritonBundler.read_and_emit": Part.LOAD,
    "TritonBundler.load_cached_static_autotuners": Part.LOAD,
    "fx_codegen_and_compile": Part.COMPILE,
    "entire_backward_compile": Part.AOT,
}
#: Parts that only torch's events tell. If a compile was seen without one of these, it has another name in this torch.
TOLD_BY_EVENTS = (Part.DYNAMO, Part.GUARDS, Part.AOT)


def follow(begin: Callable[[str], None], end: Callable[[str], None]) -> None:
    """Call ``begin`` and ``end`` with the name of each event, in its thread; neither may raise.

    Raises:
        UnsupportedError: this torch has no such events.
    """
    logger = _part(_module("torch._dynamo.utils"), "ChromiumEventLogger")
    log_start, log_end = (_function(logger, name) for name in ("log_event_start", "log_event_end"))

    @functools.wraps(log_start)
    def telling_start(self: Any, event_name: str, *args: Any, **kwargs: Any) -> Any:
        # Last, so that an event that could not begin, which torch then does not end, is none.
        result = log_start(self, event_name, *args, **kwargs)
        begin(event_name)
        return result

    @functools.wraps(log_end)
    def telling_end(self: Any, event_name: str, *args: Any, **kwargs: Any) -> Any:
        end(event_name)
        return log_end(self, event_name, *args, **kwargs)

    logger.log_event_start, logger.log_event_end = telling_start, telling_end


def instructions() -> Any:
    """``VecISA``; its method ``check_build(code)`` loads a small library in another process, to see that this processor can.

    Asked of each kind of instructions before the first code for the processor is loaded, once in a process.
    ``TORCHINDUCTOR_VEC_ISA_OK=1`` answers it for the plain kinds, but not for bfloat16 and AMX. Read in 2.9.1 to 2.14.1.

    Raises:
        UnsupportedError: this torch has no such method.
    """
    kind = _part(_module("torch._inductor.cpu_vec_isa"), "VecISA")
    _function(kind, "check_build")
    return kind
