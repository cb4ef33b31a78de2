"""Launch lines on real GPUs: backward in autograd's own threads, device indices, lanes, and torchrun."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from flexwarm import toolchain
from tests.harness import Flexwarm

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.torch,
    pytest.mark.skipif(not toolchain.gpus(), reason="no NVIDIA GPU on this machine"),
]

TRAIN = """
import argparse, os, threading
import torch
import torch.distributed as dist
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

parser = argparse.ArgumentParser()
parser.add_argument("--lengths", type=int, nargs="*", default=[512])
parser.add_argument("--threads", type=int, default=0)
parser.add_argument("--device", type=int, default=int(os.environ.get("LOCAL_RANK", 0)))
given = parser.parse_args()
if "RANK" in os.environ:
    dist.init_process_group("nccl" if torch.cuda.device_count() > 1 else "gloo")
flex = torch.compile(flex_attention)


def causal(b, h, q, kv):
    return q >= kv


def step(length, device):
    torch.cuda.set_device(device)
    make = lambda heads: torch.randn(1, heads, length, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    q, k, v = make(8), make(2), make(2)
    mask = create_block_mask(causal, None, None, length, length, device="cuda")
    flex(q, k, v, block_mask=mask, enable_gqa=True).float().square().mean().backward()
    assert torch.isfinite(q.grad).all()


for length in given.lengths:
    step(length, given.device)
lanes = [threading.Thread(target=step, args=(given.lengths[0], n % torch.cuda.device_count())) for n in range(given.threads)]
for lane in lanes:
    lane.start()
for lane in lanes:
    lane.join()
print("trained", flush=True)
if dist.is_initialized():
    dist.destroy_process_group()
"""


@pytest.fixture
def job(flexwarm: Flexwarm) -> Flexwarm:
    """The command, beside a training program with forward and backward."""
    flexwarm.module(TRAIN, "train")
    return flexwarm


def python(*arguments: str) -> list[str]:
    return ["--", sys.executable, "train.py", *arguments]


def torchrun(ranks: int, *arguments: str) -> list[str]:
    return ["--", sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "train.py", *arguments]


def test_a_training_program_is_built_and_then_hits_everything_its_backward_too(
    job: Flexwarm, no_process_left: Callable[[], None]
) -> None:
    built = job.run_json("build", *python("--lengths", "512", "1024"))
    assert (built.code, built.json["verdict"]) == (0, "built"), built.messages() + built.err
    proven = job.run_json("verify", *python("--lengths", "512", "1024"))
    assert (proven.code, proven.json["verdict"]) == (0, "warm"), proven.messages() + proven.err
    (program,) = proven.json["jobs"]
    assert program["device"] == "cuda:0"
    assert [call["hit"] for call in program["calls"]] == [True, True]
    assert proven.json["hazards"] == []
    no_process_left()


def test_a_longer_length_is_held_before_anything_is_compiled(job: Flexwarm, no_process_left: Callable[[], None]) -> None:
    assert job.run_json("build", *python()).code == 0
    cold = job.run_json("verify", *python("--lengths", "512", "2048"))
    assert (cold.code, cold.json["verdict"], cold.json["compiles"]) == (1, "cold", 0)
    assert "1x8x2048" in cold.messages()
    assert "train.py" in cold.messages()
    stopped = job.run_json("run", "--on-miss", "fail", *python("--lengths", "512", "2048"))
    assert (stopped.code, stopped.json["command_exit_code"]) == (1, None)
    no_process_left()
    ran = job.run_json("run", *python("--lengths", "512", "2048"))
    assert (ran.code, ran.json["command_exit_code"], ran.json["verdict"]) == (0, 0, "cold")
    assert ran.json["compile_seconds"] > 0


def test_threads_of_a_warm_program_have_lanes_of_their_own_and_no_hazard(job: Flexwarm) -> None:
    built = job.run_json("build", *python("--threads", "3"))
    assert (built.code, built.json["verdict"]) == (0, "built"), built.messages() + built.err
    proven = job.run_json("verify", *python("--threads", "3"))
    assert (proven.code, proven.json["verdict"]) == (0, "warm"), proven.messages() + proven.err
    (program,) = proven.json["jobs"]
    # A thread that begins when another has ended takes its number.
    assert {"lane-0", "lane-1"} <= set(program["checks"])
    assert sum(program["checks"].values()) >= 4


@pytest.mark.skipif(len(toolchain.gpus()) < 2, reason="needs two NVIDIA GPUs")
def test_what_was_built_on_one_device_is_cold_on_the_next_and_the_reason_names_it(job: Flexwarm) -> None:
    assert job.run_json("build", *torchrun(1)).code == 0
    cold = job.run_json("verify", *torchrun(2))
    assert (cold.code, cold.json["verdict"]) == (1, "cold")
    outcomes = {program["rank"]: program["outcome"] for program in cold.json["jobs"]}
    assert outcomes == {0: "hit", 1: "missed"}, cold.messages()
    assert "device-changed" in cold.codes()
    assert "cuda:1" in cold.messages()
    built = job.run_json("build", *torchrun(2))
    assert (built.code, built.json["verdict"]) == (0, "built"), built.messages() + built.err
    proven = job.run_json("verify", *torchrun(2))
    assert (proven.code, proven.json["verdict"]) == (0, "warm"), proven.messages() + proven.err


#: A kernel of the user's own that Triton tunes.
TUNED = """
import torch
import triton
import triton.language as tl

@triton.autotune(configs=[triton.Config({"BLOCK": block}) for block in (128, 256, 512)], key=["count"])
@triton.jit
def double(source, target, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(target + at, tl.load(source + at, mask=at < count) * 2, mask=at < count)

source = torch.arange(4096.0, device="cuda")
target = torch.empty_like(source)
double[lambda meta: (triton.cdiv(4096, meta["BLOCK"]),)](source, target, 4096)
assert torch.equal(target, source * 2)

@torch.compile
def work(x):
    return x.sin() + 1

work(source)
"""


def test_a_kernel_that_tunes_at_each_launch_is_not_warm_until_triton_keeps_what_it_tuned(job: Flexwarm) -> None:
    job.module(TUNED, "tuned")
    line = ["--", sys.executable, "tuned.py"]
    assert job.run_json("build", *line).json["verdict"] == "built"
    cold = job.run_json("verify", *line)
    assert (cold.code, cold.json["verdict"], cold.codes()) == (1, "cold", {"compiled"}), cold.messages()
    assert "@triton.autotune of double, 3 configurations" in cold.messages()
    kept = {"TRITON_CACHE_AUTOTUNING": "1"}
    built = job.run_json("build", *line, env=kept)
    assert built.json["verdict"] == "built", built.messages() + built.err
    proven = job.run_json("verify", *line, env=kept)
    assert (proven.code, proven.json["verdict"]) == (0, "warm"), proven.messages() + proven.err
