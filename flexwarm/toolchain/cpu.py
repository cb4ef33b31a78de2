"""What the CPU can do, as torch and the C++ compiler will see it, read from the kernel."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

CPUINFO: Final = Path("/proc/cpuinfo")
SVE_LENGTH: Final = Path("/proc/sys/abi/sve_default_vector_length")

#: x86 instruction sets that a compiler may use in code that does not ask for them, by the beginning of the kernel's name.
#: Inductor passes -march=native, and its key holds these two words, not what they meant: a kernel with AVX512-FP16 would
#: be served to, and crash on, a CPU without it.
_X86_CODE: Final = (
    *("3dnow", "abm", "adx", "aes", "amx", "apx", "avx", "bmi", "cmpccxadd", "cx16", "f16c", "fma", "gfni", "lahf_lm", "lzcnt"),
    *("mmx", "movbe", "movdir", "pclmul", "pni", "popcnt", "raoint", "sha", "sm3", "sm4", "sse", "ssse", "tbm", "vaes"),
    *("vpclmul", "xop"),
)

_AVX512 = frozenset({"avx512f", "avx512vl", "avx512bw", "avx512dq", "fma"})
_AVX2 = frozenset({"avx2", "fma"})

#: What Inductor prefers, in its order, with the kernel's flags that it takes (`torch/_inductor/cpu_vec_isa.py`).
_X86_VECTOR: Final = (
    ("avx512 avx512_vnni amx_tile", _AVX512 | _AVX2 | {"avx512_vnni", "amx_tile"}),
    ("avx512 avx512_vnni", _AVX512 | {"avx512_vnni"}),
    ("avx512", _AVX512),
    ("avx2", _AVX2),
)
_NO_VECTOR: Final = "INVALID_VEC_ISA"


def read_flags(text: str) -> frozenset[str]:
    """The feature flags of the first processor in the text of ``/proc/cpuinfo``."""
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features", "features"):
            return frozenset(value.split())
    return frozenset()


def flags() -> frozenset[str]:
    """The feature flags of this machine's first processor."""
    with CPUINFO.open(encoding="utf-8", errors="replace") as file:
        for line in file:  # not the whole file: it takes long to make on a machine with hundreds of processors
            if found := read_flags(line):
                return found
    return frozenset()


def model() -> str:
    """What the kernel calls this machine's first processor; empty where it does not say, as on most that are not x86."""
    with CPUINFO.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return ""


def sve_bits() -> int:
    """The length in bits of this machine's SVE vectors, 0 without SVE."""
    return int(SVE_LENGTH.read_text()) * 8 if SVE_LENGTH.exists() else 0


def capability(machine: str, flags: frozenset[str], sve_bits: int, environ: Mapping[str, str]) -> str:
    """What ``torch.backends.cpu.get_cpu_capability()`` would return.

    Checked against torch on x86_64 only; elsewhere it tells machines apart.
    """
    asked = environ.get("ATEN_CPU_CAPABILITY", "")  # in small letters; torch ignores any other value, with a warning
    if machine == "x86_64":
        if asked in ("avx512", "avx2", "default"):
            return asked.upper()
        if flags >= _AVX512:
            return "AVX512"
        return "AVX2" if flags >= _AVX2 else "DEFAULT"
    if machine == "aarch64":
        if asked in ("sve128", "sve256", "default"):
            return asked.upper()
        return f"SVE{sve_bits}" if {"sve", "bf16"} <= flags and sve_bits in (128, 256) else "DEFAULT"
    return "DEFAULT"


def vector_isa(machine: str, flags: frozenset[str], sve_bits: int, environ: Mapping[str, str]) -> str:
    """What ``str(torch._inductor.cpu_vec_isa.pick_vec_isa())`` would be with a compiler that can do all that the CPU can.

    On aarch64 torch calls all of them ``asimd``; here they are told apart.
    """
    if machine == "aarch64":
        return f"sve{sve_bits}" if {"sve", "bf16"} <= flags else "asimd"
    if machine != "x86_64":
        return _NO_VECTOR
    usable = [name for name, needs in _X86_VECTOR if flags >= needs]
    asked = environ.get("ATEN_CPU_CAPABILITY", "")
    if asked == "default" or not usable:
        return _NO_VECTOR
    # "avx512" takes the best that contains it, AMX included, as Inductor does.
    matching = [name for name in usable if asked in ("avx2", "avx512") and asked in name]
    return (matching or usable)[0]


def extensions(machine: str, flags: frozenset[str]) -> str:
    """The instruction sets that ``-march=native`` may put in a kernel, in order of name."""
    chosen = (flag for flag in flags if machine != "x86_64" or flag.startswith(_X86_CODE))
    return " ".join(sorted(chosen)) or "none"
