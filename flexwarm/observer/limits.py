"""Settings and limits as each thread sees them: torch 2.12 and later keep them for each thread's context."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

import torch

from flexwarm.events import Hazard
from flexwarm.hazards import HazardCode
from flexwarm.observer import threads
from flexwarm.observer.recorder import Recorder
from flexwarm.observer.torch_api import TorchApi
from flexwarm.workload import CallSite, Workload

NAMED = 3


DYNAMO, INDUCTOR = "torch._dynamo.config", "torch._inductor.config"


def read(api: TorchApi) -> dict[str, str]:
    """Dynamo's settings, and Inductor's that enter its keys, as the calling thread sees them, as text."""
    dynamo = {f"{DYNAMO}.{name}": repr(value) for name, value in api.dynamo_config.get_config_copy().items()}
    inductor = {f"{INDUCTOR}.{name}": repr(value) for name, value in api.inductor_config.save_config_portable().items()}
    return {**dynamo, **inductor}


def read_for_backward(settings: Mapping[str, str], workload: Workload) -> dict[str, str]:
    """Of a thread's settings those that matter where backward passes run.

    A backward is compiled there, by Inductor. Dynamo compiles there only where a checkpoint calls the function again.
    """
    recomputes = workload.call_site in (CallSite.CHECKPOINT, CallSite.SELECTIVE_CHECKPOINT)
    return {name: value for name, value in settings.items() if recomputes or name.startswith(INDUCTOR)}


def report_drift(recorder: Recorder, main: Mapping[str, str], there: str, here: Mapping[str, str], where: str) -> None:
    """Report the settings that a thread (``where``) does not see as another one (``there``) does."""
    names = sorted(name for name in main.keys() | here.keys() if main.get(name) != here.get(name))
    if not names:
        return
    unset = "unset"
    told = "; ".join(f"{n} is {main.get(n, unset)} in {there} and {here.get(n, unset)} in {where}" for n in names[:NAMED])
    more = f"; and {len(names) - NAMED} more" if len(names) > NAMED else ""
    recorder.emit(Hazard(t=time.time(), job=recorder.job, code=HazardCode.LANE_CONFIG_DRIFT, message=told + more))


def read_in_autograd(api: TorchApi, device: torch.device) -> tuple[str, dict[str, str]] | None:
    """What the thread that runs backward passes for ``device`` sees; None where that is the calling thread.

    Returns:
        (the thread's name for people, its settings)
    """
    seen: list[tuple[int, dict[str, str]]] = []

    class Probe(torch.autograd.Function):  # type: ignore[misc] # torch is untyped for us
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            seen.append((threading.get_ident(), read(api)))
            return gradient

    with torch.enable_grad():
        x = torch.zeros(1, device=device, requires_grad=True)
        torch.autograd.grad(Probe.apply(x).sum(), x)
    ((ident, settings),) = seen
    if ident == threading.get_ident():
        return None
    kind = "autograd's thread" if threads.is_engines(ident) else "the thread"
    return f"{kind} of {device}", settings
