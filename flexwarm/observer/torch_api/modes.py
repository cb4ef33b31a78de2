"""Settings of torch that decide what is compiled, beside those that Inductor's own config has."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

from flexwarm.environment_difference import AOTAUTOGRAD, DYNAMO
from flexwarm.observer.torch_api.probe import TorchApi

#: Where debug output goes, what is logged, and what a worker sets itself: they change no code. Read in 2.11, 2.13 and 2.14.
_ASIDE: Final = frozenset(
    {
        *("automatic_dynamic_local_pgo", "base_dir", "debug_dir_root", "log_compilation_metrics", "log_file_name"),
        *("log_graph_in_out_metadata", "verbose", "_save_config_ignore"),
    }
)

#: An object without a text of its own has its address in it, which is another one in each process.
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")

#: Public calls, by the names that they have in :data:`flexwarm.environment_difference.TOLD_BY_TORCH`.
ASKED: Final[Mapping[str, Callable[[], Any]]] = {
    "torch.get_float32_matmul_precision()": torch.get_float32_matmul_precision,
    "torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction": (
        lambda: torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction
    ),
    "torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction": (
        lambda: torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction
    ),
    "torch.are_deterministic_algorithms_enabled()": torch.are_deterministic_algorithms_enabled,
    "torch.is_deterministic_algorithms_warn_only_enabled()": torch.is_deterministic_algorithms_warn_only_enabled,
    "torch.get_default_dtype()": torch.get_default_dtype,
    "torch.get_num_threads()": torch.get_num_threads,
}


def read_modes(api: TorchApi) -> dict[str, str]:
    """As the calling thread sees them: name -> value as a text that is the same in each process with the same settings."""
    found = {f"{DYNAMO}.{name}": text_of(value) for name, value in api.dynamo_config.get_config_copy().items()}
    found |= {f"{AOTAUTOGRAD}.{name}": text_of(value) for name, value in api.functorch_config.save_config_portable().items()}
    found = {name: value for name, value in found.items() if name.rpartition(".")[2] not in _ASIDE}
    return found | {name: _asked(ask) for name, ask in ASKED.items()}


def _asked(ask: Callable[[], Any]) -> str:
    try:
        return str(ask())
    except RuntimeError as error:
        # From 2.9 on a precision that was set for one backend alone is not told as one of all.
        return f"not told: {str(error)[:60]}"


def text_of(value: Any) -> str:
    """A setting as a text that is the same in each process."""
    if isinstance(value, (set, frozenset)):  # which has its order from Python's hash seed
        return "{" + ", ".join(sorted(text_of(item) for item in value)) + "}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{text_of(key)}: {text_of(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(text_of(item) for item in value) + "]"
    return _ADDRESS.sub("", repr(value))
