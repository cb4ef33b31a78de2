"""On a GPU that is not there: let Inductor fold constants on the processor.

Inductor computes constants such as ``1 - beta`` of an optimizer on the device, reads them back, and compiles what it read into
kernels. A GPU that is not there answers zero. The key of the graph is taken before, so a real GPU would be served the wrong
kernel. Read in torch 2.9.1 to 2.14.1; ``tests/absent`` compares what is generated.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from flexwarm.observer.torch_api.probe import _function, _module, _part


class _OnProcessor(TorchDispatchMode):  # type: ignore[misc] # torch is untyped for us
    """Whatever would be made on a GPU is made on the processor, and so is what follows of it."""

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        named = {name: _moved(value) for name, value in (kwargs or {}).items()}
        return function(*map(_moved, args), **named)


def _moved(value: Any) -> Any:
    if isinstance(value, torch.device) and value.type == "cuda":
        return torch.device("cpu")
    if isinstance(value, torch.Tensor) and value.is_cuda and value.numel() == 1:
        return value.cpu()
    return value


def fold_on_processor() -> None:
    """From now on, in this process.

    Raises:
        UnsupportedError: this torch folds in a way that is not known.
    """
    folder = _part(_module("torch._inductor.fx_passes.joint_graph"), "UniformValueConstantFolder")
    run = _function(folder, "run")

    @functools.wraps(run)
    def run_on_processor(self: Any, *args: Any, **kwargs: Any) -> Any:
        with _OnProcessor():
            return run(self, *args, **kwargs)

    folder.run = run_on_processor
