"""The main job on an NVIDIA GPU: Triton kernels, forward and backward, other ranks and other device indices."""

from __future__ import annotations

from pathlib import Path

import pytest

from flexwarm import toolchain
from flexwarm.inventory import changed, snapshot
from tests.harness import Flexwarm

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.torch,
    pytest.mark.skipif(not toolchain.gpus(), reason="no NVIDIA GPU on this machine"),
]

BASE = """
[[workload]]
name = "{name}"
mask_mod = "causal"
q_heads = 4
kv_heads = 2
head_dim = 64
q_len = {q_len}
dtype = "bfloat16"
grad = true
{more}
"""


def spec(*workloads: str, role: str = 'devices = "cuda:0"') -> str:
    return f'schema = 1\n[[role]]\nname = "r"\n{role}\n' + "".join(workloads)


def workload(name: str = "w", q_len: object = 256, more: str = "") -> str:
    return BASE.format(name=name, q_len=q_len, more=more)


def build_then_verify(flexwarm: Flexwarm) -> dict[str, dict[str, object]]:
    """Build what the spec says and prove it; the verified jobs by id."""
    built = flexwarm.run_json("build")
    assert (built.code, built.json["verdict"]) == (0, "built"), built.messages() or built.err
    before = snapshot(flexwarm.bucket)
    done = flexwarm.run_json("verify")
    assert (done.code, done.json["verdict"]) == (0, "warm"), done.messages() or done.err
    assert changed(before, snapshot(flexwarm.bucket)) == ()
    for job in done.json["jobs"]:
        assert job["compiles"] == []
        assert all(shape["agrees"] for shape in job["shapes"])
    return {job["id"]: job for job in done.json["jobs"]}


def test_the_example_is_built_and_proven_forward_and_backward(flexwarm: Flexwarm, repository: Path) -> None:
    flexwarm.spec((repository / "examples" / "cuda.toml").read_text())
    jobs = build_then_verify(flexwarm)
    # Forward and backward, static and then dynamic.
    assert jobs["causal/trainer:0"]["counters"]["inductor.fxgraph_cache_hit"] == 4  # type: ignore[index]
    assert jobs["drafter/trainer:0"]["counters"]["inductor.fxgraph_cache_hit"] == 2  # type: ignore[index]


@pytest.mark.parametrize("call_site", ["module", "checkpoint"])
def test_the_nesting_of_the_call_site_is_reproduced(flexwarm: Flexwarm, call_site: str) -> None:
    flexwarm.spec(spec(workload(more=f'call_site = "{call_site}"')))
    build_then_verify(flexwarm)


def test_captured_tensors_scores_layout_and_a_compiled_mask_are_proven(flexwarm: Flexwarm) -> None:
    flexwarm.spec(
        spec(
            workload("document", more="").replace('"causal"', '"document"\nmask_args = { documents = 4 }'),
            # In its default configuration this kernel wants more shared memory than an H200 has.
            workload("bias", more='score_mod = "relative_bias"\nlayout = "bshd"\nkernel_options = { num_stages = 1 }'),
            workload("masked", more="compile_mask = true"),
        )
    )
    build_then_verify(flexwarm)


def test_autotuned_choices_are_stored_and_not_made_again(flexwarm: Flexwarm) -> None:
    flexwarm.spec(spec(workload(more='compile = { mode = "max-autotune-no-cudagraphs" }')))
    build_then_verify(flexwarm)


def test_isolated_ranks_share_one_compile(flexwarm: Flexwarm) -> None:
    flexwarm.spec(spec(workload(), role='processes = 2\ndevices = "cuda:0"\nisolate = true'))
    built = flexwarm.run_json("build")
    assert built.code == 0, built.messages()
    assert [job["outcome"] for job in built.json["jobs"]] == ["compiled", "hit"]
    assert flexwarm.run_json("verify").json["verdict"] == "warm"


@pytest.mark.skipif(len(toolchain.gpus()) < 2, reason="fewer than two GPUs on this machine")
def test_another_device_index_is_cold_until_it_is_built_too(flexwarm: Flexwarm) -> None:
    flexwarm.spec(spec(workload()))
    assert flexwarm.run_json("build").code == 0
    flexwarm.spec(spec(workload(), role='processes = 2\ndevices = "cuda:0-1"'))
    done = flexwarm.run_json("verify")
    assert (done.code, done.json["verdict"]) == (1, "cold")
    assert {job["device"]: job["outcome"] for job in done.json["jobs"]}["cuda:1"] == "not_run"
    assert flexwarm.run_json("build").code == 0
    assert flexwarm.run_json("verify").json["verdict"] == "warm"


def test_a_shape_that_the_device_cannot_run_fails_that_job_alone(flexwarm: Flexwarm) -> None:
    bad = workload("bad", more="kernel_options = { BLOCK_M = 4096, BLOCK_N = 4096 }")
    flexwarm.spec(spec(bad, workload("good")))
    done = flexwarm.run_json("build")
    outcomes = {job["workload"]: job["outcome"] for job in done.json["jobs"]}
    assert done.code == 5, done.messages()
    assert outcomes == {"bad": "failed", "good": "compiled"}
