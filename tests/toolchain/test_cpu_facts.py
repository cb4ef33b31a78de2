"""The CPU's facts from the kernel's text."""

from __future__ import annotations

import pytest

from flexwarm.toolchain import cpu

SAPPHIRE = (
    "fpu sse sse2 avx avx2 fma f16c avx512f avx512dq avx512bw avx512vl avx512_vnni avx512_bf16 amx_tile amx_bf16 amx_int8"
)
HASWELL = "fpu sse sse2 avx avx2 fma f16c hypervisor arch_capabilities"
OLD = "fpu sse sse2 avx"


def flags(text: str) -> frozenset[str]:
    return cpu.read_flags(f"processor\t: 0\nmodel name\t: some\nflags\t\t: {text}\n\nprocessor\t: 1\nflags\t\t: nothing\n")


def test_the_flags_are_those_of_the_first_processor() -> None:
    assert flags(OLD) == {"fpu", "sse", "sse2", "avx"}
    assert cpu.read_flags("processor : 0\nFeatures : fp asimd sve\n") == {"fp", "asimd", "sve"}


def test_a_text_without_flags_has_none() -> None:
    assert cpu.read_flags("cpu : POWER9\n") == frozenset()


def test_this_machine_has_flags() -> None:
    assert cpu.flags()


@pytest.mark.parametrize(
    ("text", "asked", "capability", "isa"),
    [
        (SAPPHIRE, None, "AVX512", "avx512 avx512_vnni amx_tile"),
        (SAPPHIRE, "avx2", "AVX2", "avx2"),
        (SAPPHIRE, "avx512", "AVX512", "avx512 avx512_vnni amx_tile"),
        (SAPPHIRE, "default", "DEFAULT", "INVALID_VEC_ISA"),
        (SAPPHIRE, "AVX2", "AVX512", "avx512 avx512_vnni amx_tile"),
        (SAPPHIRE, "", "AVX512", "avx512 avx512_vnni amx_tile"),
        (HASWELL, None, "AVX2", "avx2"),
        (OLD, None, "DEFAULT", "INVALID_VEC_ISA"),
    ],
)
def test_capability_follows_the_flags_and_the_variable_as_torch_does(
    text: str, asked: str | None, capability: str, isa: str
) -> None:
    environ = {} if asked is None else {"ATEN_CPU_CAPABILITY": asked}
    assert cpu.capability("x86_64", flags(text), 0, environ) == capability
    assert cpu.vector_isa("x86_64", flags(text), 0, environ) == isa


def test_a_cpu_with_one_instruction_set_more_is_another_machine_class() -> None:
    assert cpu.extensions("x86_64", flags(SAPPHIRE + " avx512_fp16")) != cpu.extensions("x86_64", flags(SAPPHIRE))


def test_a_flag_that_no_compiler_uses_does_not_split_the_class() -> None:
    assert cpu.extensions("x86_64", flags(HASWELL + " constant_tsc rtm md_clear")) == cpu.extensions("x86_64", flags(HASWELL))


def test_the_extensions_are_in_order_and_never_empty() -> None:
    assert cpu.extensions("x86_64", flags("sse2 avx sse fpu")) == "avx sse sse2"
    assert cpu.extensions("x86_64", flags("fpu")) == "none"


def test_arm_machines_are_told_apart_by_their_vectors() -> None:
    sve = frozenset({"asimd", "sve", "bf16"})
    assert cpu.vector_isa("aarch64", sve, 256, {}) != cpu.vector_isa("aarch64", sve, 128, {})
    assert cpu.capability("aarch64", frozenset({"asimd"}), 0, {}) == "DEFAULT"
