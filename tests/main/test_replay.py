"""A spec's jobs in the ranks of a real launcher: on one node, and on two that each have a flexwarm of their own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock

from tests.harness import TIMEOUT_SECONDS, Done, Flexwarm

pytestmark = pytest.mark.torch

#: Each role has keys of its own, and both have those of the first workload.
TWO_ROLES = """schema = 1

[[role]]
name = "front"

[[role]]
name = "back"

[[workload]]
name = "small"
mask_mod = "causal"
q_heads = 2
head_dim = 32
q_len = 128
dtype = "float32"

[[workload]]
name = "second"
roles = ["back"]
mask_mod = "causal"
score_mod = "alibi"
q_heads = 2
head_dim = 32
q_len = 128
dtype = "float32"
"""

#: torchrun sets it where it starts several ranks; here it is the same whoever starts them.
ENV = {"OMP_NUM_THREADS": "1"}

TORCHRUN = ("--", sys.executable, "-m", "torch.distributed.run")
REPLAY = ("-m", "flexwarm.replay", "flexwarm.toml")
ON_ONE_NODE = (*TORCHRUN, "--nproc-per-node", "2", *REPLAY)


@pytest.fixture(scope="session")
def replayed_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that ``flexwarm build -- torchrun ... flexwarm.replay`` has warmed with ``TWO_ROLES``."""
    shared = tmp_path_factory.getbasetemp()
    if os.environ.get("PYTEST_XDIST_WORKER"):
        shared = shared.parent
    root = shared / "replayed"
    with FileLock(shared / "replayed.lock"):
        if not (root / "done").exists():
            (root / "project").mkdir(parents=True, exist_ok=True)
            command = Flexwarm(root / "project", root / "store")
            command.spec(TWO_ROLES)
            done = command.run_json("build", *ON_ONE_NODE, env=ENV)
            assert (done.code, done.json["verdict"], done.json["published"]) == (0, "built", True), done.err
            assert done.json["launch"]["ranks"] == [0, 1]
            (root / "done").write_text(done.out)
    return root / "store"


@pytest.fixture
def replayed(flexwarm: Flexwarm, replayed_store: Path) -> Flexwarm:
    """The command with ``TWO_ROLES`` as its spec and a store in which a replay has built it."""
    shutil.copytree(replayed_store, flexwarm.store, symlinks=True)
    flexwarm.spec(TWO_ROLES)
    return flexwarm


def on_two_nodes(first: Flexwarm, second: Flexwarm, program: tuple[str, ...] = REPLAY) -> tuple[Done, Done]:
    """A verification of one launch, by a flexwarm on each of two nodes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{free.getsockname()[1]}"
    agent = ("--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint)
    line = (*TORCHRUN, *agent, *program)
    nodes = [node.start("verify", "--format", "json", *line, env=ENV) for node in (first, second)]
    done = []
    for node in nodes:
        with node:
            out, err = node.communicate(timeout=TIMEOUT_SECONDS)
        done.append(Done(node.returncode, out, err))
    return done[0], done[1]


def test_what_a_replay_built_is_warm_for_the_next_one(replayed: Flexwarm, no_process_left: Callable[[], None]) -> None:
    done = replayed.run_json("verify", *ON_ONE_NODE, env=ENV)
    assert (done.code, done.json["verdict"]) == (0, "warm"), done.messages() + done.err
    assert [(job["rank"], job["outcome"], len(job["calls"])) for job in done.json["jobs"]] == [(0, "hit", 1), (1, "hit", 2)]
    # One flexwarm for all ranks is one node: there is nobody to compare it with.
    assert len(done.json["launch"]["nodes"]) == 1
    assert done.json["notes"][-1].startswith("ranks that compile different calls")
    no_process_left()


def test_the_keys_of_a_replay_are_those_of_the_spec(replayed: Flexwarm) -> None:
    done = replayed.run_json("build", env=ENV)
    assert (done.code, done.json["verdict"]) == (0, "warm"), done.messages()
    assert {job["outcome"] for job in done.json["jobs"]} == {"hit"}


def test_two_nodes_with_a_store_that_they_share_are_warm(replayed: Flexwarm) -> None:
    for done in on_two_nodes(replayed, replayed):
        assert (done.code, done.json["verdict"]) == (0, "warm"), done.messages() + done.err
        assert [(node["built"], node["missed"]) for node in done.json["launch"]["nodes"]] == [(True, None)] * 2
        assert [node["own"] for node in done.json["launch"]["nodes"]].count(True) == 1
        assert done.json["notes"] == []


def test_the_node_where_nothing_was_built_is_named_by_the_flexwarm_of_the_other_one(replayed: Flexwarm, tmp_path: Path) -> None:
    empty = Flexwarm(replayed.directory, tmp_path / "empty")
    warm, cold = on_two_nodes(replayed, empty)
    assert (cold.code, cold.json["verdict"]) == (1, "cold"), cold.err
    assert cold.codes() >= {"no-bucket", "aot-miss", "fx-miss"}
    # Nothing is made for a verification, also where it is started for the others to hear of it.
    assert not empty.store.exists()

    assert (warm.code, warm.json["verdict"]) == (1, "cold"), warm.err
    assert warm.codes() == {"no-bucket", "not-built"}
    assert str(empty.store) in warm.messages()
    assert {job["outcome"] for job in warm.json["jobs"]} == {"hit"}
    assert {node["store"]: node["built"] for node in warm.json["launch"]["nodes"]} == {
        str(replayed.store): True,
        str(empty.store): False,
    }


def test_a_program_that_knows_nothing_of_it_tells_and_hears_as_well(flexwarm: Flexwarm, tmp_path: Path) -> None:
    flexwarm.module(
        "import torch\n"
        "import torch._inductor.compile_fx  # takes a while, and the nodes are to come to their calls together\n"
        "torch.distributed.init_process_group('gloo')\n"
        "torch.distributed.barrier()\n"
        "torch.compile(lambda x: x.sin() * 2)(torch.randn(64))\n"
        "torch.distributed.barrier()\n"
        "torch.distributed.destroy_process_group()\n",
        "train",
    )
    both = (flexwarm, Flexwarm(flexwarm.directory, tmp_path / "other"))
    done = on_two_nodes(*both, program=("train.py",))
    assert [one.json["verdict"] for one in done] == ["cold", "cold"]
    # Each is stopped at its first call, a moment after it came to it: on a busy machine one may be too early for the other.
    heard = [str(other.store) in one.messages() for one, other in zip(done, reversed(both), strict=True)]
    assert any(heard), [one.messages() for one in done]


def test_a_step_that_raises_in_one_rank_is_what_the_verdict_says(replayed: Flexwarm) -> None:
    replayed.module("def step(context):\n    if context.rank == 1:\n        raise ValueError(f'no data for {context.role}')\n")
    replayed.spec(TWO_ROLES + '\n[[workload]]\nname = "train"\nstep = "mymasks:step"\n')
    before = replayed.manifest()
    done = replayed.run_json("build", *ON_ONE_NODE, env=ENV)
    assert (done.code, done.json["verdict"], done.json["published"]) == (5, "broken", False), done.messages()
    assert "command-failed" in done.codes()
    assert "rank 1: ValueError: no data for back (job train/back:1)" in done.messages()
    assert "flexwarm: train/back:1: ValueError: no data for back" in done.err
    assert replayed.manifest() == before


def test_a_rank_whose_result_is_wrong_says_so_and_ends_with_5_also_without_an_observer(
    flexwarm: Flexwarm, tmp_path: Path
) -> None:
    flexwarm.module(
        "import torch\n\n"
        "def mask(b, h, q, kv):\n"
        "    # Traced and eager disagree, as after a miscompile.\n"
        "    return q >= kv + (1 if torch.compiler.is_compiling() else 0)\n"
    )
    flexwarm.spec(TWO_ROLES.replace('"causal"', '"mymasks:mask"').replace('[[role]]\nname = "front"\n\n', ""))
    environ = flexwarm.environ({**ENV, "RANK": "0", "WORLD_SIZE": "1", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")})
    done = subprocess.run(
        [sys.executable, *REPLAY], cwd=flexwarm.directory, env=environ, capture_output=True, text=True, timeout=TIMEOUT_SECONDS
    )
    assert done.returncode == 5, done.stderr
    assert "flexwarm: small/back:0: WrongResult: shape 0: the result differs from dense attention by" in done.stderr


def test_a_launch_of_another_size_is_refused_and_the_verdict_quotes_why(flexwarm: Flexwarm) -> None:
    flexwarm.spec(TWO_ROLES)
    done = flexwarm.run_json("build", *TORCHRUN, "--nproc-per-node", "1", *REPLAY, env=ENV)
    assert done.code == 5
    assert "command-failed" in done.codes()
    assert "the launch has 1 ranks (this one is rank 0), and the roles of the spec have 2" in done.messages()
    assert "flexwarm: the launch has 1 ranks" in done.err
