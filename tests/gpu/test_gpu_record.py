"""A spec that is recorded from training on real GPUs builds the keys of its forward and backward, for each device."""

from __future__ import annotations

import sys

import pytest

from flexwarm import spec, toolchain
from tests.harness import Flexwarm

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.torch,
    pytest.mark.skipif(not toolchain.gpus(), reason="no NVIDIA GPU on this machine"),
]

#: Training as it projects: (batch, length, heads, head_dim) transposed, fewer key heads, and gradients.
TRAIN = """
import os
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import mymasks

device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
torch.cuda.set_device(device)
flex = torch.compile(flex_attention)
for length in (512, 1024):
    x = torch.randn(1, length, 12 * 64, device=device, dtype=torch.bfloat16, requires_grad=True)
    q, k, v = (part.clone().unflatten(-1, (-1, 64)).transpose(1, 2) for part in x.split([512, 128, 128], dim=-1))
    mask = create_block_mask(mymasks.make_window(256), None, None, length, length, device="cuda")
    flex(q, k, v, block_mask=mask, enable_gqa=True).float().square().mean().backward()
"""

MASKS = """
def make_window(window):
    def window_mask(b, h, q, kv):
        return (q >= kv) & (q - kv < window)

    return window_mask
"""


def expect_warm(flexwarm: Flexwarm, *line: str) -> spec.Spec:
    """The spec, once a store in which only it was built has served the job."""
    done = flexwarm("record", "--", *line)
    assert done.code == 0, done.err
    assert ", 0 steps" in done.err
    fresh = Flexwarm(flexwarm.directory, flexwarm.store.with_name("fresh"))
    built = fresh.run_json("build")
    assert (built.code, built.json["verdict"]) == (0, "built"), built.messages() + built.err
    proven = fresh("verify", "--format", "json", "--", *line)
    assert (proven.code, proven.json["verdict"]) == (0, "warm"), proven.messages() + proven.err
    return spec.parse((flexwarm.directory / "flexwarm.toml").read_text(), "flexwarm.toml")


def test_a_recorded_training_step_is_warm_with_its_backward(flexwarm: Flexwarm) -> None:
    flexwarm.module(MASKS)
    flexwarm.module(TRAIN, "train")
    (workload,) = expect_warm(flexwarm, sys.executable, "train.py").workloads
    assert (workload.grad, workload.layout.value, [shape.q_len for shape in workload.shapes]) == (True, "bshd", [512, 1024])


@pytest.mark.skipif(len(toolchain.gpus()) < 2, reason="needs two GPUs")
def test_the_ranks_of_a_recorded_launch_have_their_devices(flexwarm: Flexwarm) -> None:
    flexwarm.module(MASKS)
    flexwarm.module(TRAIN, "train")
    line = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "train.py")
    (role,) = expect_warm(flexwarm, *line).roles
    assert (role.processes, role.devices) == (2, ("cuda:0", "cuda:1"))
