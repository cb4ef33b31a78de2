"""Threads of a rank on NVIDIA GPUs: the drill, the deadlock of lanes that share a device, and the remedies."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from flexwarm import toolchain
from tests.harness import Done, Flexwarm

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.torch,
    pytest.mark.skipif(not toolchain.gpus(), reason="no NVIDIA GPU on this machine"),
]

SPEC = """schema = 1

[[role]]
name = "drafter"
lanes = {lanes}
devices = {devices}

[[workload]]
name = "anchors"
mask_mod = "anchor_block"
q_heads = 4
kv_heads = 2
head_dim = 64
q_len = 512
dtype = "bfloat16"
grad = true
calls = 3
steps = 2
"""

#: A hang is found in this time; a hang costs as much.
HANG = ("--hang-timeout", "10")


def flag_of_the_process() -> bool:
    """Up to 2.13 one flag says for all threads that FX traces, and up to 2.12 nothing masks it while Dynamo compiles."""
    return toolchain.require_supported().minor < (2, 13)


def hazards(done: Done) -> set[str]:
    return {hazard["code"] for hazard in done.json["hazards"]}


def built(flexwarm: Flexwarm, lanes: int, devices: str) -> None:
    flexwarm.spec(SPEC.format(lanes=lanes, devices=devices))
    # In turns: also lanes that share a device are built without a deadlock.
    done = flexwarm.run_json("build")
    assert (done.code, done.json["verdict"]) == (0, "built"), done.messages() or done.err


@pytest.mark.skipif(len(toolchain.gpus()) < 2, reason="fewer than two GPUs on this machine")
def test_one_thread_a_gpu_the_drill_finds_the_race_and_the_remedy_closes_it(flexwarm: Flexwarm) -> None:
    built(flexwarm, 2, '"cuda:0-1"')
    done = flexwarm.run_json("verify", *HANG)
    expected = {"fx-race"} if flag_of_the_process() else set()
    assert (done.code, hazards(done)) == (8 if expected else 0, expected), done.messages()
    fixed = flexwarm.run_json("verify", *HANG, "--guard", "fix")
    assert (fixed.code, fixed.json["verdict"], hazards(fixed)) == (0, "warm", set()), fixed.messages()


def test_threads_that_share_a_gpu_deadlock_in_the_drill_and_with_the_remedy_they_do_not(
    flexwarm: Flexwarm, no_process_left: Callable[[], None]
) -> None:
    built(flexwarm, 3, '"cuda:0"')
    done = flexwarm.run_json("verify", *HANG)
    assert (done.code, done.json["verdict"]) == (8, "unsafe"), done.messages()
    assert "compile-deadlock" in hazards(done)
    (hang,) = [hazard for hazard in done.json["hazards"] if hazard["code"] == "compile-deadlock"]
    assert "holds torch's compile lock and waits for the autograd engine" in hang["message"]
    assert "compile_fx_backward" in hang["message"]
    no_process_left()
    for backward in ("engine", "caller"):
        fixed = flexwarm.run_json("verify", *HANG, "--guard", "fix", "--guard-backward", backward)
        assert (fixed.code, fixed.json["verdict"], hazards(fixed)) == (0, "warm", set()), fixed.messages()
        no_process_left()
