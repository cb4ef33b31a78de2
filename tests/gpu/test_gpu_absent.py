"""Built with the GPU hidden behind one that is not there, launched with it: what a fleet does with the bucket of a CI job."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from flexwarm import toolchain
from flexwarm.inventory import changed, snapshot
from tests.harness import Done, Flexwarm

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.torch,
    pytest.mark.skipif(not toolchain.gpus(), reason="no NVIDIA GPU on this machine"),
]

ATTENTION = """
schema = 1

[[role]]
name = "trainer"
processes = 1
devices = "cuda:0"

[[workload]]
name = "attention"
mask_mod = "causal"
q_heads = 8
kv_heads = 2
head_dim = 64
q_len = [512, 640]
dtype = "bfloat16"
grad = {grad}
"""
STEP = 'schema = 1\n[[role]]\nname = "r"\ndevices = "cuda:0"\n[[workload]]\nname = "step"\nstep = "warm:step"\n'

#: gloo, for nothing answers NCCL without a GPU.
TRAIN = """
import os, torch
import torch.distributed as dist
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

dist.init_process_group("gloo")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
q, k, v = (torch.randn(1, 4, 512, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
mask = create_block_mask(lambda b, h, q, kv: q >= kv, None, None, 512, 512, device="cuda")
torch.compile(flex_attention)(q, k, v, block_mask=mask).float().square().mean().backward()
dist.barrier()
dist.destroy_process_group()
"""


@pytest.fixture
def target(flexwarm: Flexwarm) -> str:
    """A profile of the GPU that is here."""
    assert flexwarm("fingerprint", "--profile", "-o", "here.json").code == 0
    return "./here.json"


def all_hit(done: Done) -> bool:
    """Whether nothing that was asked for was missing."""
    answers = [key["answer"] for job in done.json["jobs"] for key in job.get("keys", ())]
    answers += [key["answer"] for job in done.json["jobs"] for call in job.get("calls", ()) for key in call["keys"]]
    return bool(answers) and set(answers) == {"hit"}


def choices(flexwarm: Flexwarm) -> list[Path]:
    return list(flexwarm.bucket.path.rglob("*.best_config"))


def warm_but_for_tuning(flexwarm: Flexwarm, *line: str) -> None:
    """Nothing is compiled on the GPU, and nothing is kept until a build there keeps it."""
    assert choices(flexwarm) == []
    strict = flexwarm.run_json("verify", *line)
    assert (strict.code, strict.codes()) == (1, {"compiled"}), strict.messages()
    assert "kernels are tuned" in strict.messages()
    assert all_hit(strict)
    before = snapshot(flexwarm.bucket)
    allowed = flexwarm.run_json("verify", "--allow-tuning", *line)
    assert (allowed.code, allowed.json["verdict"]) == (0, "warm"), allowed.messages()
    assert all_hit(allowed)
    assert all(job["tuned"] for job in allowed.json["jobs"])
    assert any("nothing of it is kept" in note for note in allowed.json["notes"])
    assert allowed.json["tuning"] == "try"
    assert not changed(before, snapshot(flexwarm.bucket))


def tuned_once_for_all(flexwarm: Flexwarm, *line: str) -> None:
    built = flexwarm.run_json("build", *line)
    assert (built.code, built.json["verdict"]) == (0, "built"), built.messages()
    assert all_hit(built)
    assert choices(flexwarm)
    proven = flexwarm.run_json("verify", *line)
    assert (proven.code, proven.json["verdict"]) == (0, "warm"), proven.messages()


def test_a_forward_that_was_built_without_the_gpu_is_warm_on_it_at_once(flexwarm: Flexwarm, target: str) -> None:
    flexwarm.spec(ATTENTION.format(grad="false"))
    assert flexwarm.run_json("build", "--target", target).json["verdict"] == "built"
    done = flexwarm.run_json("verify")
    assert (done.code, done.json["verdict"]) == (0, "warm"), done.messages()
    assert all(shape["agrees"] for job in done.json["jobs"] for shape in job["shapes"])


@pytest.mark.parametrize("kind", ["attention", "step"])
def test_a_backward_that_was_built_without_the_gpu_has_only_to_be_tuned(
    flexwarm: Flexwarm, target: str, repository: Path, kind: str, no_process_left: Callable[[], None]
) -> None:
    flexwarm.spec(ATTENTION.format(grad="true") if kind == "attention" else STEP)
    if kind == "step":
        page = (repository / "docs" / "how-to" / "step-functions.md").read_text(encoding="utf-8")
        (module,) = re.findall(r"^```python\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE)
        flexwarm.module(module, "warm")
    built = flexwarm.run_json("build", "--target", target)
    assert (built.code, built.json["verdict"]) == (0, "built"), built.messages()
    absent = flexwarm.run_json("verify", "--target", target)
    assert (absent.code, absent.json["verdict"]) == (0, "warm"), absent.messages()
    warm_but_for_tuning(flexwarm)
    assert flexwarm.run_json("verify", "--fast", "--allow-tuning").code == 0
    assert flexwarm.run_json("verify", "--fast").codes() == {"not-proven"}
    tuned_once_for_all(flexwarm)
    assert flexwarm.run_json("verify", "--fast").code == 0
    no_process_left()


def test_ranks_that_were_built_for_without_gpus_compile_nothing_on_them(
    flexwarm: Flexwarm, target: str, no_process_left: Callable[[], None]
) -> None:
    count = min(len(toolchain.gpus()), 2)
    flexwarm.module(TRAIN, "train")
    line = ("--", sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(count), "train.py")
    built = flexwarm.run_json("build", "--target", f"{target}:{count}", *line)
    assert (built.code, built.json["verdict"]) == (0, "built"), built.messages()
    warm_but_for_tuning(flexwarm, *line)
    ran = flexwarm("run", "--on-miss", "fail", "--allow-tuning", *line)
    assert (ran.code, "verdict: warm" in ran.err) == (0, True), ran.err
    # A launch keeps what it chooses, so the next has nothing to tune.
    assert choices(flexwarm)
    proven = flexwarm.run_json("verify", *line)
    assert (proven.code, proven.json["verdict"], proven.json["tuning"]) == (0, "warm", "miss"), proven.messages()
    no_process_left()
