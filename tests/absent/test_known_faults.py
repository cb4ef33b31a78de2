"""A fault of a GPU's kernels that needs no GPU to be seen: what the table says of it, and what it says to do."""

from __future__ import annotations

import pytest

from flexwarm import toolchain
from tests.harness import Flexwarm

_INSTALL = toolchain.find_torch()
pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(_INSTALL is None or not _INSTALL.cuda, reason="this torch is a build without CUDA"),
]

SPEC = """
schema = 1
[[role]]
name = "drafter"
devices = "cuda:0"
[[workload]]
name = "short"
mask_mod = "causal"
q_heads = 4
kv_heads = 2
head_dim = 64
q_len = 100
kv_len = 512
dtype = "bfloat16"
"""
FAULT = "short-grouped-queries-do-not-compile"


def test_a_short_query_with_grouped_heads_does_not_compile_as_doctor_says_and_does_as_it_advises(flexwarm: Flexwarm) -> None:
    def told() -> bool:
        doctor = flexwarm.run_json("doctor", "flexwarm.toml")
        return FAULT in {fault["id"] for fault in doctor.json["known_faults"] if fault["certain"]}

    flexwarm.spec(SPEC)
    assert told()
    failed = flexwarm.run_json("build", "--target", "h200")
    assert (failed.code, failed.json["verdict"]) == (5, "broken"), failed.messages()
    assert "NoValidChoicesError" in failed.messages() or "decode kernel options" in failed.messages()
    flexwarm.spec(SPEC + "kernel_options = { FORCE_USE_FLEX_ATTENTION = true }\n")
    assert not told()
    built = flexwarm.run_json("build", "--target", "h200")
    assert (built.code, built.json["verdict"]) == (0, "built"), built.messages()
