"""``record`` writes a spec from a job that runs; built in a new store, it makes that job warm."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from flexwarm import spec
from tests.harness import Flexwarm

pytestmark = pytest.mark.torch

MASKS = """
def causal(b, h, q, kv):
    return q >= kv


def make_window(window):
    def window_mask(b, h, q, kv):
        return (q >= kv) & (q - kv < window)

    return window_mask
"""

#: A factory's mask at two lengths; a mask that is first called at the second; and a call with all that a caller may give.
JOB = """
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import mymasks

CPU = torch.device("cpu")


def bias(score, b, h, q, kv):
    return score + (kv - q) * 0.5


def inputs(length, heads=2, bshd=False):
    if bshd:
        return [torch.randn(1, length, h, 32).transpose(1, 2) for h in (2, heads, heads)]
    return [torch.randn(1, h, length, 32) for h in (2, heads, heads)]


def main():
    flex = torch.compile(flex_attention)
    with torch.no_grad():
        for length in (128, 256):
            window = create_block_mask(mymasks.make_window(64), None, None, length, length, device=CPU)
            flex(*inputs(length), block_mask=window)
        causal = create_block_mask(mymasks.causal, None, None, 256, 256, device=CPU)
        flex(*inputs(256), block_mask=causal)
    causal = torch.compile(create_block_mask)(mymasks.causal, None, None, 128, 128, device=CPU)
    fixed = torch.compile(flex_attention, dynamic=False)
    with torch.no_grad():
        fixed(*inputs(128, 1, True), block_mask=causal, score_mod=bias, enable_gqa=True, scale=0.25)
    print("trained")


if __name__ == "__main__":
    main()
"""

RANKS = """
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import mymasks

with torch.no_grad():
    mask = create_block_mask(mymasks.causal, None, None, 128, 128, device="cpu")
    torch.compile(flex_attention)(*(torch.randn(1, 2, 128, 32) for _ in range(3)), block_mask=mask)
"""

#: A model that is compiled as a whole, with flex inside and without.
MODEL = """
import torch
from torch.nn.attention.flex_attention import flex_attention


class Block(torch.nn.Module):
    def forward(self, x):
        return flex_attention(x * 2, x * 3, x * 4)


with torch.no_grad():
    torch.compile(Block())(torch.randn(1, 2, 128, 32))
    torch.compile(torch.nn.Linear(4, 4))(torch.randn(2, 4))
print("trained")
"""


def fresh(flexwarm: Flexwarm) -> Flexwarm:
    """The same directory with a store in which nothing was compiled."""
    return Flexwarm(flexwarm.directory, flexwarm.store.with_name("fresh"))


def expect_warm(flexwarm: Flexwarm, *line: str) -> None:
    """A store in which only the spec was built serves the job."""
    store = fresh(flexwarm)
    built = store.run_json("build")
    assert (built.code, built.json["verdict"]) == (0, "built"), built.err
    verified = store("verify", "--format", "json", "--", *line)
    assert (verified.code, verified.json["verdict"]) == (0, "warm"), verified.messages()


def test_a_spec_that_was_recorded_makes_the_job_warm_in_a_store_of_its_own(flexwarm: Flexwarm) -> None:
    flexwarm.module(MASKS)
    flexwarm.module(JOB, "train")
    done = flexwarm("record", "-o", "-", "--", sys.executable, "train.py")
    assert done.code == 0, done.err
    assert "trained" in done.err
    assert "recorded: 1 role, 3 workloads, 0 steps" in done.err
    found = spec.parse(done.out, "recorded").workloads
    assert [(x.mask.name, [shape.q_len for shape in x.shapes]) for x in found if x.mask] == [
        ("mymasks:make_window", [128, 256]),
        ("mymasks:causal", [128, 256]),
        ("mymasks:causal", [128]),
    ]
    assert found[2].score is not None
    assert (found[2].score.name, found[2].layout.value, found[2].scale, found[2].compile_mask) == (
        "train:bias",
        "bshd",
        0.25,
        True,
    )
    flexwarm.spec(done.out)
    expect_warm(flexwarm, sys.executable, "train.py")


def test_the_ranks_of_torchrun_are_one_role_and_warm(flexwarm: Flexwarm) -> None:
    flexwarm.module(MASKS)
    flexwarm.module(RANKS, "train")
    line = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "train.py")
    done = flexwarm("record", "--", *line)
    assert done.code == 0, done.err
    found = spec.parse((flexwarm.directory / "flexwarm.toml").read_text(), "flexwarm.toml")
    assert [(role.processes, role.devices, dict(role.env)) for role in found.roles] == [(2, ("cpu",), {})]
    expect_warm(flexwarm, *line)


def test_a_compiled_model_becomes_a_step_that_build_asks_for(flexwarm: Flexwarm) -> None:
    flexwarm.module(MODEL, "train")
    done = flexwarm("record", "-o", "found.toml", "--format", "json", "--", sys.executable, "train.py")
    assert done.code == 0, done.err
    assert "trained" in done.err
    (step,) = done.json["workloads"]
    assert step["step"] == "train:warm"
    inside, model = step["why"]
    assert inside.startswith("forward (train.py:")
    assert "part of a larger graph" in inside
    assert "there is no flex_attention in it" in model
    text = (flexwarm.directory / "found.toml").read_text()
    assert text == done.json["spec"]
    assert "Write the function warm(context) in module train" in " ".join(text.replace("\n# ", " ").split())
    built = flexwarm("build", "found.toml")
    assert built.code == 2
    assert "workload 'train-step': step: module 'train'" in built.err
    assert "has no 'warm'" in built.err


def test_a_job_that_compiles_nothing_leaves_no_spec_and_gives_its_own_exit_code(flexwarm: Flexwarm) -> None:
    flexwarm.module("import sys, torch\nsys.exit(int(sys.argv[1]))\n", "train")
    for status, code in ((3, 3), (0, 1)):
        done = flexwarm("record", "--", sys.executable, "train.py", str(status))
        assert done.code == code, done.err
        assert "nothing to record: 1 program imported torch" in done.err
    assert not (flexwarm.directory / "flexwarm.toml").exists()


def test_a_spec_that_is_there_is_not_replaced_and_the_job_not_started(flexwarm: Flexwarm, tmp_path: Path) -> None:
    flexwarm.spec("schema = 1\n")
    touched = tmp_path / "touched"
    done = flexwarm("record", "--", "touch", str(touched))
    assert done.code == 2
    assert "flexwarm.toml is there already" in done.err
    assert flexwarm("record", "-o", "no/such/directory.toml", "--", "touch", str(touched)).code == 2
    assert not touched.exists()
    assert flexwarm("record", "--force", "--", "touch", str(touched)).code == 1
    assert touched.exists()
    assert (flexwarm.directory / "flexwarm.toml").read_text() == "schema = 1\n"
