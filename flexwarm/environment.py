"""What each environment variable does to compiled kernels and their caches: data, and the questions asked of it.

Read in the sources of torch 2.9 to 2.14 and Triton 3.8; ``tests/toolchain/test_contract_torch.py`` measures what it can.
A relevant variable without a row counts as :attr:`Effect.KEY`: not knowing a variable must never make a verdict green.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from flexwarm import known_variables
from flexwarm.canonical import StrEnum


class Effect(StrEnum):
    """What a variable can do."""

    KEY = "key"
    """It enters a compiler's key; or it is not known, and might."""
    CODE = "code"
    """It can change which code is made, and enters no key."""
    DISABLES = "disables"
    """One of its values turns a cache, or compiling, off."""
    MOVES = "moves"
    """It moves a cache directory, or replaces the code that keeps it."""
    NEUTRAL = "neutral"
    """It is known to change neither keys nor code."""


#: A variable that begins like this is relevant.
PREFIXES: Final = (
    *("AMDGCN_", "AOT_", "AOTINDUCTOR_", "ATEN_", "CC", "CFLAGS", "CUDA", "CUTEDSL_", "CUTLASS_", "CXX", "CXXFLAGS"),
    *("FLEXWARM_", "GOMP", "INDUCTOR", "KMP", "LDFLAGS", "LLVM_", "MKL", "MLIR_", "NCCL", "NVPTX_", "OMP", "PYTORCH"),
    *("TORCH", "TRITON"),
)

#: Relevant without one of the prefixes.
NAMES: Final = frozenset(
    {
        # AOTAutograd's key from torch 2.11 on (`error_on_custom_op_aliasing`), and flex backward's autotune list: what a CI
        # machine builds misses where CI is not set.
        "CI",
        # Triton's own list of variables that enter its key (`get_cache_invalidating_env_vars`, 3.8).
        *("ALLOW_LHS_TMEM_LAYOUT_CONVERSION", "DISABLE_LLVM_OPT", "DISABLE_MMA_V3", "DISABLE_MMA_V5", "DISABLE_PTXAS_OPT"),
        *("PTXAS_OPTIONS", "USE_IR_LOC"),
        # Inductor's configuration under names of no pattern.
        *("ENABLE_HOST_SIDE_TMA", "ENABLE_PERSISTENT_TMA_MATMUL", "ENABLE_TEMPLATE_AUTOWS", "ENABLE_TEMPLATE_TMA_STORE"),
        *("ENABLE_TMA_LOAD_FOR_TEMPLATE_EPILOGUE", "FAKE_ALLOW_META", "PARTITIONER_MEMORY_BUDGET_PARETO"),
        *("TENSORIFY_PYTHON_SCALARS", "UNSAFE_SKIP_FSDP_MODULE_GUARDS"),
        # Where g++ looks for headers and libraries.
        *("CPATH", "CPLUS_INCLUDE_PATH", "C_INCLUDE_PATH", "LIBRARY_PATH"),
    }
)

#: Name, or beginning of a name with ``*``. The most specific row wins.
EFFECTS: Final[Mapping[str, Effect]] = {
    # A custom manager keeps Triton's files wherever it likes, so to us it moves the cache.
    **dict.fromkeys(("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"), Effect.MOVES),
    **dict.fromkeys(("TRITON_CACHE_MANAGER", "TRITON_REMOTE_CACHE_BACKEND"), Effect.MOVES),
    **dict.fromkeys(
        (
            # Logging. TORCH_COMPILE_DEBUG and TORCH_TRACE are not here: the first enters the FX key (measured).
            *("TORCH_LOGS", "TORCH_LOGS_FORMAT", "TORCH_LOGS_OUT", "TORCH_CPP_LOG_LEVEL", "TORCH_SHOW_CPP_STACKTRACES"),
            *("TORCHDYNAMO_VERBOSE", "TRITON_PRINT_AUTOTUNING"),
            # How compiling is spread over processes: `compile_threads`, `worker_start_method` are left out of the key.
            *("TORCHINDUCTOR_COMPILE_THREADS", "TORCHINDUCTOR_WORKER_START"),
            # Launchers and collectives. OMPI_ is Open MPI, which only looks like OpenMP.
            *("TORCHELASTIC_*", "TORCH_NCCL_*", "TORCH_FR_*", "TORCH_DISTRIBUTED_DEBUG", "OMPI_*"),
            *("NCCL_ASYNC_ERROR_HANDLING", "NCCL_BLOCKING_WAIT", "NCCL_DEBUG*", "NCCL_IB_*", "NCCL_NET*", "NCCL_SOCKET_*"),
            "NCCL_VERSION",
            # Which devices a process sees: the index and the GPU's name are in the key, how it came to see them is not.
            "CUDA_VISIBLE_DEVICES",
            # The driver and the allocators at run time.
            *("CUDA_CACHE_*", "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_LAUNCH_BLOCKING", "CUDA_MODULE_LOADING", "CUDA_VERSION"),
            *("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_KERNEL_CACHE_PATH", "PYTORCH_VERSION"),
            # Only where Triton's directories are that no variable names; the bucket's variables name its cache.
            "TRITON_HOME",
            # Where Triton looks for the driver; `--target` sets it.
            "TRITON_LIBCUDA_PATH",
            # Caches of other things.
            *("TORCH_EXTENSIONS_DIR", "TORCH_HOME", "CCACHE_*"),
            # Neither Inductor nor Triton hands these to the compiler; conda sets them in every shell.
            *("CFLAGS", "CXXFLAGS", "LDFLAGS"),
            # How OpenMP threads wait; how many there are is another matter.
            *("GOMP_SPINCOUNT", "GOMP_STACKSIZE", "KMP_BLOCKTIME", "KMP_SETTINGS", "KMP_WARNINGS", "MKL_VERBOSE"),
            *("OMP_DISPLAY_ENV", "OMP_STACKSIZE", "OMP_WAIT_POLICY"),
            # Our own options; what is compiled never reads them.
            "FLEXWARM_*",
        ),
        Effect.NEUTRAL,
    ),
}


#: Variables that are other in each process or run by design: who a process is in its launch, and what we tell our own children.
#: They are compared with nothing.
_OF_ONE_PROCESS: Final = ("FLEXWARM_OBSERVE", "FLEXWARM_PYTEST_", "FLEXWARM_RUN", "OMPI_", "TORCHELASTIC_")

#: These decide what a fingerprint says of the machine, or where modules are found: one run cannot have two values of them.
SELECTING: Final = ("ATEN_CPU_CAPABILITY", "PYTHONHOME", "PYTHONPATH")


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """Variables that set one switch. The first one that is set decides; ``off`` says whether its value turns caching off."""

    names: tuple[str, ...]
    off: Callable[[str], bool]


def _is_one(value: str) -> bool:
    return value == "1"


def _is_torch_true(value: str) -> bool:
    # torch reads "1" and "0" as booleans and keeps any other text, so that "false" is true (measured, 2.13 and 2.14).
    return value not in ("", "0")


def _is_torch_false(value: str) -> bool:
    return value in ("", "0")


def _is_triton_true(value: str) -> bool:
    return value.lower() in ("1", "true", "on", "yes", "y")


SWITCHES: Final = (
    Switch(names=("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "TORCH_COMPILE_FORCE_DISABLE_CACHES"), off=_is_torch_true),
    # Without the FX graph cache AOTAutograd's is bypassed too. The default's variable exists from torch 2.10 on.
    Switch(names=("TORCHINDUCTOR_FX_GRAPH_CACHE", "TORCHINDUCTOR_FX_GRAPH_CACHE_DEFAULT"), off=_is_torch_false),
    Switch(names=("TORCHINDUCTOR_AUTOGRAD_CACHE",), off=_is_torch_false),
    # AOTAutograd: "Cannot cache a graph with freezing enabled".
    Switch(names=("TORCHINDUCTOR_FREEZING",), off=_is_one),
    # Nothing is compiled at all: flex runs dense.
    Switch(names=("TORCH_COMPILE_DISABLE",), off=_is_one),
    Switch(names=("TORCHDYNAMO_DISABLE",), off=_is_one),
    Switch(names=("TRITON_ALWAYS_COMPILE",), off=_is_triton_true),
    Switch(names=("TRITON_INTERPRET",), off=_is_triton_true),
)

_DISABLES: Final = frozenset(name for switch in SWITCHES for name in switch.names)


def effect(name: str) -> Effect:
    """What the variable can do; a variable that is not relevant is neutral."""
    if name in _DISABLES:
        return Effect.DISABLES
    if name in EFFECTS:
        return EFFECTS[name]
    if name in known_variables.NO_KEY:
        return Effect.CODE
    matching = [pattern for pattern in EFFECTS if pattern.endswith("*") and name.startswith(pattern[:-1])]
    if matching:
        return EFFECTS[max(matching, key=len)]
    return Effect.KEY if _is_relevant(name) else Effect.NEUTRAL


def relevant(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that are or could be the compiler's business, neutral ones included, in order of name."""
    return {name: environ[name] for name in sorted(environ) if _is_relevant(name)}


def key_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that enter a key or choose code, in order of name; those that could, too."""
    return {name: value for name, value in relevant(environ).items() if effect(name) in (Effect.KEY, Effect.CODE)}


def comparable(environ: Mapping[str, str]) -> dict[str, str]:
    """The relevant variables that can be held against those of another run, in order of name."""
    return {name: value for name, value in relevant(environ).items() if not name.startswith(_OF_ONE_PROCESS)}


def moving(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The variables that move a cache, or replace the code that keeps it."""
    return tuple(name for name in relevant(environ) if effect(name) is Effect.MOVES)


def disabling(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The variables whose value, as torch or Triton reads it, turns a cache or compiling off."""
    deciding = ((next((name for name in switch.names if name in environ), None), switch.off) for switch in SWITCHES)
    return tuple(name for name, off in deciding if name is not None and off(environ[name]))


def _is_relevant(name: str) -> bool:
    return name in NAMES or name.startswith(PREFIXES)
