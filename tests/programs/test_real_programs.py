"""Programs that were not written for flexwarm, unmodified: transformers' Llama with flex_attention, and accelerate.

An optional group: ``make programs`` installs what it needs from the package index and runs it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.util import find_spec

import pytest

from tests.harness import Flexwarm

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(
        find_spec("transformers") is None or find_spec("accelerate") is None,
        reason="transformers and accelerate are not installed; `make programs` installs and runs this group",
    ),
]

OFFLINE = {"HF_HUB_OFFLINE": "1"}

LLAMA = """
import sys
import torch
from transformers import LlamaConfig, LlamaForCausalLM

config = LlamaConfig(
    vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=512, attn_implementation="flex_attention",
)
model = LlamaForCausalLM(config).eval()
with torch.no_grad():
    for length in map(int, sys.argv[1:]):
        print(tuple(model(torch.randint(0, 64, (1, length))).logits.shape), flush=True)
"""

ACCELERATE = """
import torch
from accelerate import Accelerator

accelerator = Accelerator(cpu=True)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
step = torch.compile(model)
for _ in range(2):
    accelerator.backward(step(torch.randn(4, 8)).sum())
    optimizer.step()
    optimizer.zero_grad()
accelerator.print("trained")
"""


def test_a_llama_of_transformers_is_built_by_its_own_run_and_proven_by_the_next(
    flexwarm: Flexwarm, no_process_left: Callable[[], None]
) -> None:
    flexwarm.module(LLAMA, "llama")
    line = ["--", sys.executable, "llama.py", "128"]
    built = flexwarm.run_json("build", *line, env=OFFLINE)
    assert (built.code, built.json["verdict"]) == (0, "built"), built.messages()
    (job,) = built.json["jobs"]
    flex = [call["call"] for call in job["calls"] if call["call"] and call["call"]["attention"]]
    assert flex, "no compiled flex_attention was seen"
    assert flex[0]["attention"][0]["query"]["shape"] == [1, 4, 128, 8]
    proven = flexwarm.run_json("verify", *line, env=OFFLINE)
    assert (proven.code, proven.json["verdict"]) == (0, "warm"), proven.messages()
    assert "(1, 128, 64)" in proven.err, "the program's own output goes to standard error"
    longer = flexwarm.run_json("verify", *line, "256", env=OFFLINE)
    assert (longer.code, longer.json["verdict"]) == (1, "cold")
    # The first thing that is not there is the mask's own compiled call; the program's own line is named beside transformers'.
    assert "Q_LEN=256" in longer.messages()
    assert "llama.py:" in longer.messages()
    no_process_left()


def test_accelerate_launch_is_observed_through_its_own_processes(flexwarm: Flexwarm) -> None:
    flexwarm.module(ACCELERATE, "train")
    accelerate = [sys.executable, "-m", "accelerate.commands.launch"]
    options = ["--cpu", "--num_processes", "1", "--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]
    line = ["--", *accelerate, *options, "train.py"]
    built = flexwarm.run_json("build", *line)
    assert (built.code, built.json["verdict"]) == (0, "built"), built.messages()
    assert built.json["launch"]["launcher"] == "accelerate"
    proven = flexwarm.run_json("verify", *line)
    assert (proven.code, proven.json["verdict"]) == (0, "warm"), proven.messages()
    assert proven.json["compiles"] == 0
    assert proven.json["hits"] == built.json["compiles"] > 0
