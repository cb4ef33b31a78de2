"""``flexwarm doctor``: what is wrong with this machine is named with what to do, and nothing is started or made."""

from __future__ import annotations

from pathlib import Path

import pytest

from flexwarm import toolchain
from tests.harness import Flexwarm

pytestmark = pytest.mark.torch


def test_all_is_well_and_nothing_is_made(flexwarm: Flexwarm) -> None:
    done = flexwarm.run_json("doctor")
    assert (done.code, done.json["verdict"]) == (0, None), done.err
    assert {check["status"] for check in done.json["checks"]} == {"ok"}
    names = [check["name"] for check in done.json["checks"]]
    assert names == ["toolchain", "GPU", "C++ compiler", "variables", "store", "space", "bucket"]
    assert not flexwarm.store.exists()
    assert done.json["known_faults"]
    assert not any(fault["certain"] for fault in done.json["known_faults"])


def test_a_spec_says_which_faults_matter_and_verify_names_the_same(warm: Flexwarm) -> None:
    without = {"OMP_NUM_THREADS": None}
    doctor = warm.run_json("doctor", "flexwarm.toml", env=without)
    assert doctor.code == 0
    assert doctor.json["checks"][-1]["message"].endswith("was built for this toolchain")
    certain = {fault["id"] for fault in doctor.json["known_faults"] if fault["certain"]}
    minor = toolchain.require_supported().minor
    in_key = minor >= (2, 13)
    older = {"vector-probe-imports-torch", "threads-not-in-the-key"}
    header = {"header-outside-the-cache"} if minor < (2, 12) else set()
    assert certain == ({"threads-in-the-key"} if in_key else older | header)
    verified = warm.run_json("verify", "--fast", env=without)
    assert verified.json["known_faults"] == doctor.json["known_faults"]
    told = warm("verify", "--fast", env=without)
    cold = verified.json["verdict"] != "warm"
    assert ("known fault (torch " in told.out) is (cold or not in_key)
    assert "known fault (torch " in warm("verify", "--fast", "-v", env=without).out
    assert told.code == verified.code  # nothing is decided by them


@pytest.mark.parametrize(
    ("env", "name", "code", "said"),
    [
        ({"TORCHINDUCTOR_FX_GRAPH_CACHE": "0"}, "variables", 1, "TORCHINDUCTOR_FX_GRAPH_CACHE=0 turns a cache off"),
        ({"TRITON_CACHE_DIR": "/elsewhere"}, "variables", 0, "TRITON_CACHE_DIR=/elsewhere is set"),
        ({"CXX": "no-such-compiler"}, "C++ compiler", 3, "CXX=no-such-compiler is not a C++ compiler"),
    ],
)
@pytest.mark.skipif(bool(toolchain.gpus()), reason="with a GPU no C++ compiler is needed")
def test_what_is_wrong_is_named_with_the_next_step(
    flexwarm: Flexwarm, env: dict[str, str], name: str, code: int, said: str
) -> None:
    done = flexwarm.run_json("doctor", env=env)
    assert done.code == code
    wrong = [check for check in done.json["checks"] if check["status"] != "ok"]
    assert [check["name"] for check in wrong] == [name]
    assert said in wrong[0]["message"]
    assert wrong[0]["hint"]
    quiet = flexwarm("doctor", "-q", env=env)
    assert (quiet.code, said in quiet.out, "toolchain" in quiet.out) == (code, True, False)


GPU_SPEC = """
schema = 1
[[role]]
name = "r"
devices = "cuda:7"
[[workload]]
name = "w"
q_heads = 2
head_dim = 64
q_len = 128
"""


@pytest.mark.skipif(len(toolchain.gpus()) > 7, reason="the GPU is here")
def test_a_spec_whose_gpus_are_not_here_cannot_run_here_and_needs_no_compiler(flexwarm: Flexwarm) -> None:
    flexwarm.spec(GPU_SPEC)
    done = flexwarm.run_json("doctor", "flexwarm.toml", env={"CXX": "no-such-compiler"})
    wrong = {check["name"]: check for check in done.json["checks"] if check["status"] != "ok"}
    assert (done.code, {name: check["status"] for name, check in wrong.items()}) == (3, {"GPU": "fail", "C++ compiler": "warn"})
    assert "role 'r': devices: cuda:7 is not there" in wrong["GPU"]["message"]
    assert "threads-in-the-key" not in {fault["id"] for fault in done.json["known_faults"]}


def test_a_store_that_others_can_write_fails_and_the_other_checks_are_made(flexwarm: Flexwarm) -> None:
    flexwarm.store.mkdir()
    flexwarm.store.chmod(0o777)
    done = flexwarm.run_json("doctor")
    failed = {check["name"] for check in done.json["checks"] if check["status"] == "fail"}
    assert (done.code != 0, failed) == (True, {"store", "bucket"}), done.out
    assert len(done.json["checks"]) == 7


def test_a_spec_that_is_not_there_is_a_usage_error(flexwarm: Flexwarm, tmp_path: Path) -> None:
    done = flexwarm("doctor", str(tmp_path / "none.toml"))
    assert (done.code, "there is no spec file" in done.err) == (2, True)
