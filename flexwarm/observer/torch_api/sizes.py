"""On a GPU that is not there: count on the processor what sizes its result by values.

Values that came from the host are there, such as the lengths of packed sequences, and so the size is the right one. Of values
that a kernel should have computed it is what zeros give, or whatever was there: without a bound that would be billions. What
selects by value (``nonzero``, ``unique``) needs nothing here: the null GPU says that nothing is selected. Read in torch 2.11 to
2.14.1.
"""

from __future__ import annotations

import warnings

import torch

from flexwarm.observer.torch_api.probe import _function, _module

#: More than any program has; and what was there is above it more often than not.
_MOST = 1 << 28

#: What is registered here is for as long as this is.
_library: torch.library.Library | None = None


def count_on_processor() -> None:
    """In this process, until it ends: the two operators of torch that read a size off the device."""
    global _library
    if _library is None:
        _library = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that there is a kernel already
            _library.impl("repeat_interleave.Tensor", _repeat_interleave, "CUDA")
            _library.impl("bincount", _bincount, "CUDA")


def hide_from_dynamo() -> None:
    """Once Dynamo is there, which would compile these functions as if they were the program's.

    Raises:
        UnsupportedError: this torch has no such part.
    """
    skip = _function(_module("torch._dynamo.eval_frame"), "skip_code")
    for function in (_repeat_interleave, _bincount):
        skip(function.__code__)


def _repeat_interleave(repeats: torch.Tensor, *, output_size: int | None = None) -> torch.Tensor:
    if output_size is not None:
        return repeats.new_zeros(output_size)
    here = repeats.cpu()
    lowest, size = (here.min().item(), here.double().sum().item()) if here.numel() else (0, 0)
    if lowest < 0 or size > _MOST:
        raise RuntimeError(_refusal("repeat_interleave", "give it output_size", lowest, size))
    return torch.repeat_interleave(here).to(repeats.device, repeats.dtype)


def _bincount(values: torch.Tensor, weights: torch.Tensor | None = None, minlength: int = 0) -> torch.Tensor:
    strict = torch.are_deterministic_algorithms_enabled() and not torch.is_deterministic_algorithms_warn_only_enabled()
    if weights is not None and strict:  # as on a GPU; the processor's is deterministic
        raise RuntimeError("bincount_cuda does not have a deterministic implementation")
    here = values.cpu()
    lowest, highest = (here.min().item(), here.max().item()) if here.numel() else (0, 0)
    if lowest < 0 or highest > _MOST:
        raise RuntimeError(_refusal("bincount", "count on the CPU", lowest, highest))
    return torch.bincount(here, None if weights is None else weights.cpu(), minlength).to(values.device)


def _refusal(name: str, instead: str, lowest: float, most: float) -> str:
    found = f"{lowest:.0f}" if lowest < 0 else f"{most:.0f}"
    return f"flexwarm: {name} takes the size of its result from values of a GPU that is not there, and found {found}: {instead}"
