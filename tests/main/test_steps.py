"""Step functions: the user's own model and call sites are called as they are, and proven by the same evidence."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from flexwarm import toolchain
from tests.harness import SMALL, Flexwarm

pytestmark = pytest.mark.torch

#: Up to 2.12 nothing hides the trace of a compile from the calls of other threads.
RACES = toolchain.require_supported().minor < (2, 13)
REMEDY = ("--guard", "fix") if RACES else ()

#: A model with flex inside of the compiled graph, called without gradients in both modes: flex has no backward on the CPU.
FLEX = """
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention


def causal(b, h, q, kv):
    return q >= kv


class Block(torch.nn.Module):
    def __init__(self, heads, size):
        super().__init__()
        self.heads, self.size = heads, size
        self.project = torch.nn.Linear(heads * size, 3 * heads * size)
        self.drop = torch.nn.Dropout(0.1)

    def forward(self, x, mask):
        b, n, d = x.shape
        q, k, v = (y.reshape(b, n, self.heads, self.size).transpose(1, 2) for y in self.project(x).chunk(3, dim=-1))
        y = flex_attention(q.contiguous(), k.contiguous(), v.contiguous(), block_mask=mask)
        return self.drop(x + y.transpose(1, 2).reshape(b, n, d))


def step(context, *, length):
    model = Block(2, 32).to(context.device, context.dtype)
    compiled = torch.compile(model)
    mask = create_block_mask(causal, None, None, length, length, device=context.device)
    x = torch.randn(1, length, 64, generator=context.generator).to(context.device, context.dtype)
    for training in (True, False):
        compiled.train(training)
        with torch.no_grad():
            assert compiled(x, mask).dtype is context.dtype
"""

#: A whole training step: forward under autocast and checkpointing, backward, optimizer, and an evaluation.
TRAIN = """
import torch
from torch.utils.checkpoint import checkpoint


class Model(torch.nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(16, 16) for _ in range(layers))

    def forward(self, x):
        for layer in self.layers:
            x = x + checkpoint(layer, x, use_reentrant=False).tanh()
        return x


def step(context, layers=1):
    model = torch.compile(Model(layers).to(context.device))
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(8, 16, generator=context.generator)
    with torch.autocast(context.device.type, torch.bfloat16):
        loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    model.eval()
    with torch.no_grad():
        model(x)
"""

#: The smallest compiled call, and a line in which a test can act between the calls.
TINY = """
import torch

compiled = torch.compile(lambda x: x * 2 + 1)


def step(context):
    compiled(torch.ones(8))
    {body}
"""


def spec(flexwarm: Flexwarm, module: str, lines: str = "", roles: str = "") -> None:
    flexwarm.module(module, "mysteps")
    flexwarm.spec(f'schema = 1\n{roles}\n[[workload]]\nname = "step"\nstep = "mysteps:step"\ndtype = "float32"\n{lines}\n')


def test_a_model_with_flex_inside_is_built_and_proven_and_a_changed_source_is_cold_and_named(
    flexwarm: Flexwarm, no_process_left: Callable[[], None]
) -> None:
    spec(flexwarm, FLEX, "step_args = { length = 128 }")
    built = flexwarm.run_json("build")
    assert (built.code, built.json["verdict"]) == (0, "built"), built.messages()
    (job,) = built.json["jobs"]
    assert (job["outcome"], job["shapes"]) == ("compiled", [])
    assert [step["number"] for step in job["steps"]] == [0, 1]

    done = flexwarm.run_json("verify")
    assert (done.code, done.json["verdict"], done.json["hazards"]) == (0, "warm", []), done.messages()
    (job,) = done.json["jobs"]
    assert (job["outcome"], job["compiles"], job["reasons"]) == ("hit", [], [])
    # A graph in each mode, in each of the two calls.
    assert [step["checks"] for step in job["steps"]] == [2, 2]
    assert job["first_call_seconds"] == job["steps"][0]["seconds"] > job["steps"][1]["seconds"]
    assert done.json["drill"]["state"] == "not needed"
    assert flexwarm.run_json("verify", "--fast").code == 0

    spec(flexwarm, FLEX.replace("return self.drop(", "return 2 * self.drop("), "step_args = { length = 128 }")
    cold = flexwarm.run_json("verify")
    assert (cold.code, cold.json["verdict"]) == (1, "cold"), cold.messages()
    assert "source-changed" in cold.codes()
    assert "mysteps" in cold.messages()
    assert cold.json["jobs"][0]["steps"] == []
    assert flexwarm.run_json("verify", "--fast").codes() == {"source-changed"}
    spec(flexwarm, FLEX, "step_args = { length = 256 }")
    assert flexwarm.run_json("verify").codes() == {"not-built"}
    no_process_left()


def test_a_whole_training_step_is_warm_on_each_of_two_ranks(flexwarm: Flexwarm) -> None:
    roles = '[[role]]\nname = "trainer"\nprocesses = 2\n'
    asserting = TRAIN + (
        "    import os\n"
        "    assert (context.rank, context.local_rank, context.world_size) == (int(os.environ['RANK']),) * 2 + (2,)\n"
        "    assert (context.lane, context.role, context.device.type) == (0, 'trainer', 'cpu')\n"
        "    assert context.dtype is torch.float32\n"
        "    print('call', context.number, 'drew', x.sum().item())\n"
    )
    spec(flexwarm, asserting, "step_args = { layers = 2 }\nsteps = 3", roles)
    built = flexwarm.run_json("build")
    assert built.code == 0, built.messages()
    assert [(job["leader"], job["outcome"]) for job in built.json["jobs"]] == [
        (None, "compiled"),
        ("step/trainer:0", "hit"),
    ]
    done = flexwarm.run_json("verify")
    assert (done.code, done.json["verdict"]) == (0, "warm"), done.messages()
    for job in done.json["jobs"]:
        assert [step["number"] for step in job["steps"]] == [0, 1, 2]
        assert all(step["checks"] >= 2 for step in job["steps"])
    # Numbers are the same on every rank, and others in each call.
    drawn = [
        [line for line in (flexwarm.bucket.runs / run / f"rank-{rank}.log").read_text().splitlines() if " drew " in line]
        for run in flexwarm.run_ids()
        for rank in range(2)
    ]
    assert len(drawn[0]) == len(set(drawn[0])) == 3
    assert all(lines == drawn[0] for lines in drawn)


def test_a_plan_of_a_step_says_how_often_what_is_called(flexwarm: Flexwarm) -> None:
    spec(flexwarm, TRAIN, "steps = 3")
    assert "step: 3 steps of mysteps:step" in flexwarm("build", "--dry-run").out


def test_a_step_that_raises_is_broken_with_its_words_also_in_a_later_call(flexwarm: Flexwarm) -> None:
    spec(flexwarm, TINY.format(body="if context.number == 1:\n        raise ValueError('no data for the second call')"))
    done = flexwarm.run_json("build")
    assert (done.code, done.json["verdict"], done.codes()) == (5, "broken", {"raised"}), done.messages()
    assert "no data for the second call" in done.messages()
    (job,) = done.json["jobs"]
    assert (job["outcome"], [step["number"] for step in job["steps"]]) == ("failed", [0])
    assert "mysteps.py" in job["traceback"]
    assert done.json["published"] is False


def test_a_step_that_ends_the_process_or_is_no_function_fails_by_name(flexwarm: Flexwarm) -> None:
    spec(flexwarm, TINY.format(body="raise SystemExit(3)"))
    done = flexwarm.run_json("build")
    assert (done.code, done.codes()) == (5, {"raised"}), done.messages()
    assert "sys.exit(3)" in done.messages()
    spec(flexwarm, "step = 3\n")
    done = flexwarm.run_json("build")
    assert (done.code, done.codes()) == (5, {"raised"}), done.messages()
    assert "cannot be called" in done.messages()


def test_a_step_without_a_compiled_call_is_no_evidence(flexwarm: Flexwarm) -> None:
    spec(flexwarm, "import torch\ndef step(context):\n    torch.ones(3) + 1\n")
    done = flexwarm.run_json("build")
    assert (done.code, done.json["verdict"], done.codes()) == (1, "unknown", {"no-evidence"}), done.messages()
    assert "the step made no compiled call" in done.messages()
    assert done.json["published"] is False


def test_flex_uncompiled_in_one_branch_of_a_step_is_dense_and_its_line_is_named(flexwarm: Flexwarm) -> None:
    spec(flexwarm, TINY.format(body="pass"))
    assert flexwarm.run_json("build").code == 0
    branch = (
        "if context.number == 1:\n        attend(torch.randn(1, 2, 64, 32))\n\n\n"
        "def attend(x):\n"
        "    from torch.nn.attention.flex_attention import flex_attention\n"
        "    return flex_attention(x, x.clone(), x.clone())"
    )
    spec(flexwarm, TINY.format(body=branch))
    done = flexwarm.run_json("verify")
    assert (done.code, done.json["verdict"], done.codes()) == (8, "unsafe", {"dense-fallback"}), done.messages()
    (hazard,) = done.json["hazards"]
    assert any("mysteps.py" in line and "in attend" in line for line in hazard["stack"])
    assert "mysteps.py:" in hazard["message"]
    built = flexwarm.run_json("build")
    assert (built.code, built.codes(), built.json["published"]) == (8, {"dense-fallback"}, False), built.messages()


def test_a_stop_at_a_miss_that_the_step_swallows_is_cold_all_the_same(flexwarm: Flexwarm) -> None:
    spec(flexwarm, TINY.format(body="pass"))
    assert flexwarm.run_json("build").code == 0
    before = flexwarm.manifest().files
    other = "try:\n        torch.compile(lambda x: x - 3)(torch.ones(9))\n    except BaseException:\n        print('swallowed')"
    spec(flexwarm, TINY.format(body=other))
    done = flexwarm.run_json("verify")
    assert (done.code, done.json["verdict"]) == (1, "cold"), done.messages()
    assert {"aot-miss", "fx-miss"} & done.codes()
    assert "source-changed" in done.codes()
    assert done.json["jobs"][0]["outcome"] == "missed"
    assert flexwarm.manifest().files == before


#: The code blocks of the how-to: the module of the step, and the spec.
KINDS = ("python", "toml")

LANES = '[[role]]\nname = "r"\nlanes = 2\n'


def test_lanes_call_the_step_each_in_its_thread_and_the_drill_holds_it_in_its_traces(
    flexwarm: Flexwarm, no_process_left: Callable[[], None]
) -> None:
    asserting = TRAIN + (
        "    import threading\n"
        "    assert threading.current_thread().name == f'lane-{context.lane}'\n"
        "    assert (context.rank, context.local_rank, context.world_size) == (0, 0, 1)\n"
    )
    spec(flexwarm, asserting, roles=LANES)
    built = flexwarm.run_json("build")
    assert built.code == 0, built.messages()
    assert [(job["id"], job["outcome"]) for job in built.json["jobs"]] == [("step/r:0.0", "compiled"), ("step/r:0.1", "hit")]

    if RACES:
        found = flexwarm.run_json("verify")
        assert (found.code, found.json["verdict"], found.codes()) == (8, "unsafe", {"fx-race"}), found.messages()
        assert {(hazard["lane"], hazard["owner_lane"]) for hazard in found.json["hazards"]} == {(0, 1), (1, 0)}
        assert all(any("mysteps.py" in line for line in hazard["stack"]) for hazard in found.json["hazards"])
    done = flexwarm.run_json("verify", *REMEDY)
    assert (done.code, done.json["verdict"], done.json["hazards"]) == (0, "warm", []), done.messages()
    for job in done.json["jobs"]:
        assert job["outcome"] == "hit"
        assert [step["number"] for step in job["steps"]] == [0, 1]
        assert all(step["checks"] for step in job["steps"])
    # Each lane was held in traces of its own, and the other one called inside each of them.
    drill = done.json["drill"]
    assert (drill["state"], drill["ranks"]) == ("ran", [0])
    assert 2 <= drill["holds"] <= drill["calls"]
    assert not list(flexwarm.bucket.runs.glob("*/cache"))
    assert flexwarm.run_json("verify", "--fast", *REMEDY).code == 0
    no_process_left()


def test_a_lane_whose_step_fails_in_the_drill_alone_is_said_and_the_other_one_goes_on(flexwarm: Flexwarm) -> None:
    """The drill calls the step anew in each lane: a step that can be called once in a process is not what a launch does."""
    once = "import os\n    if context.lane == 1 and 'cache' in os.environ['TORCHINDUCTOR_CACHE_DIR'].split(os.sep):\n"
    spec(flexwarm, TINY.format(body=once + "        raise ValueError('not here')"), roles=LANES)
    assert flexwarm.run_json("build").code == 0
    done = flexwarm.run_json("verify", *REMEDY)
    assert (done.code, done.json["verdict"], done.codes()) == (5, "broken", {"raised"}), done.messages()
    assert "in the drill: ValueError: not here" in done.messages()
    assert done.json["jobs"][0]["reasons"] == []


def test_a_step_and_an_attention_call_in_one_spec_do_not_disturb_each_other(warm: Flexwarm) -> None:
    warm.module(TINY.format(body="pass"), "mysteps")
    warm.spec(SMALL + '[[workload]]\nname = "step"\nstep = "mysteps:step"\n')
    assert warm.run_json("build").code == 0
    done = warm.run_json("verify")
    assert (done.code, done.json["verdict"]) == (0, "warm"), done.messages()
    small, step = done.json["jobs"]
    assert ("steps" in small, len(small["shapes"])) == (False, 1)
    assert (len(step["steps"]), step["shapes"]) == (2, [])


def test_the_example_of_the_how_to_is_built_and_proven_as_it_stands(flexwarm: Flexwarm, repository: Path) -> None:
    page = (repository / "docs" / "how-to" / "step-functions.md").read_text(encoding="utf-8")
    (module,), (text,) = (re.findall(rf"^```{kind}\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE) for kind in KINDS)
    flexwarm.module(module, "warm")
    flexwarm.spec(text)
    built = flexwarm.run_json("build")
    assert (built.code, built.json["verdict"]) == (0, "built"), built.messages()
    done = flexwarm.run_json("verify")
    assert (done.code, done.json["verdict"]) == (0, "warm"), done.messages()
    # A graph of each mode.
    assert all(step["checks"] >= 2 for job in done.json["jobs"] for step in job["steps"])
