"""Why Dynamo compiles a function again: the guard of an earlier variant that fails, told with the miss of its graph."""

from __future__ import annotations

import functools
import threading
import time
from dataclasses import dataclass
from types import CodeType
from typing import Any

from flexwarm.events import Hazard, Recompiled
from flexwarm.hazards import HazardCode
from flexwarm.observer.recorder import Recorder
from flexwarm.observer.torch_api import TorchApi

#: Guards that are told, one of each earlier variant, and characters of each: torch adds the line that it comes from.
_GUARDS, _LONGEST = 4, 400


@dataclass(frozen=True, slots=True)
class _Again:
    """A function that is compiled once more."""

    code: CodeType
    guards: tuple[str, ...]


class _Here(threading.local):
    """What the calling thread compiles, if it is a function that was compiled before and nothing was said of it yet."""

    def __init__(self) -> None:
        self.asked: _Again | None = None
        self.again: _Again | None = None


_here = _Here()


def watch(api: TorchApi, recorder: Recorder) -> None:
    """Remember which guards fail, and report each function that Dynamo gives up compiling for having compiled it too often."""
    frames = api.convert_frame
    reasons, exceeds = frames.get_and_maybe_log_recompilation_reasons, frames.exceeds_recompile_limit

    @functools.wraps(reasons)
    def remembering_reasons(entries: Any, frame: Any, *args: Any, **kwargs: Any) -> Any:
        found = reasons(entries, frame, *args, **kwargs)
        if not kwargs.get("skip_logging"):  # else it is asked for something else
            _here.asked = _Again(frame.f_code, tuple(" ".join(str(one).split())[:_LONGEST] for one in found[:_GUARDS]))
        return found

    @functools.wraps(exceeds)
    def reporting_exceeds(*args: Any, **kwargs: Any) -> Any:
        # Asked before each compile, and after the reasons of one that is a recompile.
        _here.again, _here.asked = _here.asked, None
        exceeded, limit = exceeds(*args, **kwargs)
        if exceeded:
            value = getattr(api.dynamo_config, str(limit), "its value")
            message = f"Dynamo compiles a function at most {value} times ({limit}) and now runs it as it is written"
            again, _here.again = _here.again, None
            if again is not None:
                message = f"{message}: {_named(again.code)}{_failed(again.guards)}"
            recorder.emit(Hazard(t=time.time(), job=recorder.job, code=HazardCode.RECOMPILE_LIMIT, message=message))
        return exceeded, limit

    frames.get_and_maybe_log_recompilation_reasons = remembering_reasons
    frames.exceeds_recompile_limit = reporting_exceeds


def tell(recorder: Recorder) -> None:
    """A graph was not in a cache: if its function is compiled again, say why; once."""
    again, _here.again = _here.again, None
    if again is not None:
        code = again.code
        recorder.emit(
            Recompiled(
                t=time.time(),
                job=recorder.job,
                function=code.co_name,
                file=code.co_filename,
                line=code.co_firstlineno,
                guards=again.guards,
                graph=recorder.graph_here(),
            )
        )


def _named(code: CodeType) -> str:
    return f"{code.co_name} ({code.co_filename}:{code.co_firstlineno})"


def _failed(guards: tuple[str, ...]) -> str:
    return f", where this guard failed last: {guards[0]}" if guards else ""
