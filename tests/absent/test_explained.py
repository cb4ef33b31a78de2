"""Two GPUs that are not there: what was built for one of them is not there for the other, and the explanation says so alone."""

from __future__ import annotations

import sys

import pytest

from flexwarm import toolchain
from tests.harness import Flexwarm

_INSTALL = toolchain.find_torch()
pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(_INSTALL is None or not _INSTALL.cuda, reason="this torch is a build without CUDA"),
]

#: The device, and a number that the mask function captures.
CALL = """
import sys
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

device, window = f"cuda:{sys.argv[1]}", int(sys.argv[2])
torch.cuda.set_device(device)
q, k, v = (torch.randn(1, 4, 256, 64, device=device, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
mask = create_block_mask(lambda b, h, q, kv: (q >= kv) & (q - kv < window), None, None, 256, 256, device=device)
torch.compile(flex_attention)(q, k, v, block_mask=mask).float().square().mean().backward()
"""


@pytest.mark.parametrize(
    ("arguments", "cause"), [(("1", "24"), ("device", "cuda:0", "cuda:1")), (("0", "40"), ("constant", "24", "40"))]
)
def test_the_device_and_the_mask_are_named_and_nothing_else(
    flexwarm: Flexwarm, arguments: tuple[str, ...], cause: tuple[str, str, str]
) -> None:
    flexwarm.module(CALL, "call")
    built = flexwarm.run_json("build", "--target", "h200:2", "--", sys.executable, "call.py", "0", "24")
    assert (built.code, built.json["verdict"]) == (0, "built"), built.messages() + built.err
    done = flexwarm.run_json("explain", "--target", "h200:2", "--", sys.executable, "call.py", *arguments)
    assert (done.code, done.json["verdict"]) == (1, "cold"), done.messages()
    found = {(x["kind"], x["old"], x["new"]) for job in done.json["jobs"] for miss in job["misses"] for x in miss["causes"]}
    assert found == {cause}
