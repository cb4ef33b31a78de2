"""Step functions on NVIDIA GPUs: the how-to's own example with its backward, in one lane and in two that share a device."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from flexwarm import toolchain
from tests.harness import Flexwarm

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.torch,
    pytest.mark.skipif(not toolchain.gpus(), reason="no NVIDIA GPU on this machine"),
]

#: Up to 2.12 nothing hides the trace of a compile from the calls of other threads.
REMEDY = ("--guard", "fix") if toolchain.require_supported().minor < (2, 13) else ()

SPEC = 'schema = 1\n[[role]]\nname = "r"\n{role}\n[[workload]]\nname = "step"\nstep = "warm:step"\n'


def write(flexwarm: Flexwarm, repository: Path, role: str) -> None:
    page = (repository / "docs" / "how-to" / "step-functions.md").read_text(encoding="utf-8")
    (module,) = re.findall(r"^```python\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE)
    flexwarm.module(module, "warm")
    flexwarm.spec(SPEC.format(role=role))


def test_a_training_step_with_flex_and_its_backward_is_built_and_proven(flexwarm: Flexwarm, repository: Path) -> None:
    write(flexwarm, repository, 'devices = "cuda:0"')
    built = flexwarm.run_json("build")
    assert (built.code, built.json["verdict"]) == (0, "built"), built.messages() or built.err
    done = flexwarm.run_json("verify")
    assert (done.code, done.json["verdict"], done.json["hazards"]) == (0, "warm", []), done.messages()
    (job,) = done.json["jobs"]
    # A graph to train and one to evaluate.
    assert all(step["checks"] >= 2 for step in job["steps"])


def test_lanes_that_share_a_gpu_are_drilled_inside_the_step(flexwarm: Flexwarm, repository: Path) -> None:
    write(flexwarm, repository, 'lanes = 2\ndevices = "cuda:0"')
    built = flexwarm.run_json("build")
    assert (built.code, built.json["verdict"]) == (0, "built"), built.messages() or built.err
    done = flexwarm.run_json("verify", *REMEDY)
    assert (done.code, done.json["verdict"], done.json["hazards"]) == (0, "warm", []), done.messages()
    drill = done.json["drill"]
    assert drill["state"] == "ran"
    assert 2 <= drill["holds"] <= drill["calls"]
