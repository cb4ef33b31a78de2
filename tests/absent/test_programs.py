"""Programs and machines as others have them, on GPUs that are not there: transformers, eight devices, and what is refused."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest

from flexwarm import toolchain
from tests.absent.test_target import choices, torchrun
from tests.conftest import ROOT
from tests.harness import Done, Flexwarm

_INSTALL = toolchain.find_torch()
#: Up to 2.12 nothing hides the trace of a compile from the calls of other threads.
REMEDY = ("--guard", "fix") if _INSTALL is not None and _INSTALL.minor < (2, 13) else ()
pytestmark = [
    pytest.mark.torch,
    pytest.mark.xdist_group("absent programs"),
    pytest.mark.skipif(_INSTALL is None or not _INSTALL.cuda, reason="this torch is a build without CUDA"),
]

#: As its users write it, but for the sizes.
LLAMA = """
import sys
import torch
from transformers import LlamaConfig, LlamaForCausalLM

config = LlamaConfig(
    vocab_size=64, hidden_size=128, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=512, attn_implementation="flex_attention",
)
model = LlamaForCausalLM(config).to("cuda", torch.bfloat16)
for length in map(int, sys.argv[1:]):
    tokens = torch.randint(0, 64, (1, length), device="cuda")
    model(tokens, labels=tokens).loss.backward()
    print("trained", length, flush=True)
"""

STEP = """
import os
import torch
from torch.nn.attention.flex_attention import flex_attention

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
q, k, v = (torch.randn(1, 2, 128, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
torch.compile(flex_attention)(q, k, v).sum().backward()
"""

#: Packed sequences, whose lengths come from the host and say how long the whole is.
PACKED = """
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

lengths = torch.tensor([100, 28, 200, 56]).cuda()
documents = torch.repeat_interleave(lengths)
total = documents.shape[0]
mask = create_block_mask(lambda b, h, q, k: documents[q] == documents[k], None, None, total, total, device="cuda")
flex = torch.compile(flex_attention, dynamic=False)
for _ in range(2):
    q, k, v = (torch.randn(1, 2, total, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    flex(q, k, v, block_mask=mask)
    print("counted", torch.bincount(torch.repeat_interleave(lengths), minlength=6).tolist(), flush=True)
try:
    torch.repeat_interleave(torch.tensor([1, 1 << 40]).cuda())
except RuntimeError as error:
    print(error, flush=True)
"""

BATCH_NORM = "torch.nn.BatchNorm2d(8).cuda()(x[None, None].expand(2, 8, 8, 8))"
REDUCED_OVERHEAD = "[torch.compile(torch.sin, mode='reduce-overhead')(x) for _ in range(3)]"

EIGHT = """
schema = 1

[[role]]
name = "trainer"
processes = 8
devices = "cuda:0-7"

[[workload]]
name = "small"
mask_mod = "causal"
q_heads = 2
head_dim = 64
q_len = 128
dtype = "bfloat16"
grad = true
"""


def proven(command: Flexwarm, target: str, *arguments: str, remedy: Sequence[str] = ()) -> Done:
    """What ``verify`` says, after a build, of what must be warm."""
    built = command.run_json("build", "--target", target, *arguments, env={"HF_HUB_OFFLINE": "1"})
    assert (built.code, built.json["verdict"]) == (0, "built"), built.messages() + built.err
    done = command.run_json("verify", *remedy, "--target", target, *arguments, env={"HF_HUB_OFFLINE": "1"})
    assert (done.code, done.json["verdict"], done.codes()) == (0, "warm", set()), done.messages() + done.err
    assert {job["outcome"] for job in done.json["jobs"]} == {"hit"}
    assert choices(command) == []
    assert command.processes_left() == []
    return done


@pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed; `make contract-one` installs it")
def test_a_llama_of_transformers_trains_at_two_lengths_and_every_key_is_hit(flexwarm: Flexwarm) -> None:
    flexwarm.module(LLAMA, "llama")
    done = proven(flexwarm, "h200", "--", sys.executable, "llama.py", "256", "384")
    assert (done.json["compiles"], "trained 384" in done.err) == (0, True)
    (job,) = done.json["jobs"]
    attention = [call for call in job["calls"] if call["call"] and call["call"]["attention"]]
    assert {call["call"]["attention"][0]["query"]["shape"][2] for call in attention} == {256, 384}
    assert all(call["hit"] and call["call"]["grad"] for call in attention)
    missed = {name: count for name, count in job["counters"].items() if name.endswith(("_miss", "_bypass")) and count}
    assert missed == {}


def test_each_of_eight_ranks_is_built_and_hits_on_its_own_device(flexwarm: Flexwarm) -> None:
    flexwarm.module(STEP, "train")
    done = proven(flexwarm, "h200:8", *torchrun(ranks=8))
    assert [(job["rank"], job["device"]) for job in done.json["jobs"]] == [(rank, f"cuda:{rank}") for rank in range(8)]
    assert done.json["compiles"] == 0


def test_each_of_eight_processes_of_a_role_hits_on_its_own_device(flexwarm: Flexwarm) -> None:
    flexwarm.spec(EIGHT)
    done = proven(flexwarm, "h200:8")
    assert [(job["rank"], job["device"]) for job in done.json["jobs"]] == [(rank, f"cuda:{rank}") for rank in range(8)]
    assert all(key["answer"] == "hit" for job in done.json["jobs"] for key in job["keys"])


def test_five_ranks_and_three_drafter_threads_have_a_gpu_each_of_another_architecture(flexwarm: Flexwarm) -> None:
    """The example as it is, for eight RTX PRO 6000; and what was built for them is no bucket of another GPU."""
    shutil.copy(ROOT / "examples" / "dflash.toml", flexwarm.directory / "flexwarm.toml")
    done = proven(flexwarm, "rtx-pro-6000:8", remedy=REMEDY)
    jobs = [(job["role"], job["rank"], job["lane"], job["device"]) for job in done.json["jobs"]]
    assert jobs == [
        *(("target", rank, 0, f"cuda:{rank}") for rank in range(5)),
        *(("drafter", 5, lane, f"cuda:{5 + lane}") for lane in range(3)),
    ]
    assert all(key["answer"] == "hit" for job in done.json["jobs"] for key in job["keys"])
    assert (done.json["drill"]["state"], done.json["hazards"]) == ("ran", [])
    assert {path.read_text().partition(".target ")[2].partition("\n")[0] for path in kernels(flexwarm)} == {"sm_120a"}
    other = flexwarm.run_json("verify", "--target", "h200:8")
    assert (other.code, other.json["verdict"], other.codes()) == (1, "cold", {"fingerprint-changed"})
    assert "'NVIDIA RTX PRO 6000 Blackwell Workstation Edition cc12.0' -> 'NVIDIA H200 cc9.0'" in other.messages()


def kernels(command: Flexwarm) -> list[Path]:
    found = list(command.bucket.path.rglob("*.ptx"))
    assert found
    return found


@pytest.mark.parametrize(
    ("call", "symbol", "instead"),
    [
        ("torch.fft.fft(x)", "cufft cufftCreate", "compute that on the CPU"),
        ("torch.linalg.svd(x)", "cusolver cusolverDnCreate", "compute that on the CPU"),
        (BATCH_NORM, "cudnn cudnnCreateTensorDescriptor", "use another implementation"),
        (REDUCED_OVERHEAD, "cuda_runtime cudaStreamBeginCapture", "use a mode of torch.compile without CUDA graphs"),
        ("[dist.init_process_group('nccl'), dist.all_reduce(x)]", "nccl ncclGetUniqueId", "use the gloo backend"),
    ],
)
def test_what_is_not_answered_ends_the_program_and_is_named(flexwarm: Flexwarm, call: str, symbol: str, instead: str) -> None:
    flexwarm.module(f"import torch\nimport torch.distributed as dist\nx = torch.randn(8, 8, device='cuda')\n{call}\n", "train")
    done = flexwarm.run_json("build", "--target", "h200", *torchrun(ranks=1))
    assert (done.code, done.json["verdict"], done.json["command_exit_code"]) == (5, "broken", 1), done.err
    assert done.codes() == {"command-failed"}
    assert f"unanswered: {symbol}" in done.err
    assert "Error: " in done.messages()
    (reason,) = done.json["reasons"]
    assert reason["hint"].startswith(f"a GPU that is not there did not answer {symbol}")
    assert instead in reason["hint"]
    assert "flexwarm/" not in done.err
    assert done.json["published"] is False
    assert flexwarm.processes_left() == []


def test_sizes_that_come_from_values_of_the_host_are_the_right_ones(flexwarm: Flexwarm) -> None:
    flexwarm.module(PACKED, "packed")
    done = proven(flexwarm, "h200", "--", sys.executable, "packed.py")
    ((call,),) = [job["calls"] for job in done.json["jobs"]]
    assert call["call"]["attention"][0]["query"]["shape"] == [1, 2, 384, 64]
    assert done.err.count("counted [100, 28, 200, 56, 0, 0]") == 2
    assert "repeat_interleave takes the size of its result from values of a GPU that is not there, and found 10995" in done.err
    reads = [place for job in done.json["jobs"] for place in job["reads"]]
    assert any("packed.py:13 in <module>" in place for place in reads)


NORMED = """
import torch

def step(context):
    assert torch.repeat_interleave(torch.tensor([1, 2]).to(context.device)).tolist() == [0, 1, 1]
    torch.nn.BatchNorm2d(8, device=context.device)(torch.randn(2, 8, 8, 8, device=context.device))
"""

NORMED_SPEC = """
schema = 1

[[role]]
name = "trainer"
devices = "cuda:0"

[[workload]]
name = "normed"
step = "normed:step"
dtype = "float32"
"""


def test_what_is_not_answered_is_named_in_the_reason_of_its_job(flexwarm: Flexwarm) -> None:
    flexwarm.module(NORMED, "normed")
    flexwarm.spec(NORMED_SPEC)
    done = flexwarm.run_json("build", "--target", "h200")
    assert (done.code, done.json["verdict"], done.codes()) == (5, "broken", {"raised"}), done.err
    ((reason,),) = [job["reasons"] for job in done.json["jobs"]]
    call = "cudnn cudnnCreateTensorDescriptor; use another implementation, such as flex_attention, or compile it"
    assert reason["hint"].startswith(f"a GPU that is not there did not answer {call}; log: ")
