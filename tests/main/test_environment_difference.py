"""What the environment has now and had at the build: named with both values and what it does, for specs, lines and nodes."""

from __future__ import annotations

import shutil
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from flexwarm import canonical, toolchain
from flexwarm.inventory import changed, snapshot
from tests.harness import SMALL, Done, Flexwarm

pytestmark = [pytest.mark.torch, pytest.mark.xdist_group("environment")]

threads_in_key = pytest.mark.skipif(
    toolchain.require_supported().minor < (2, 13), reason="up to torch 2.12 the number of CPU threads is in no key"
)

#: The workload of ``SMALL`` as a program calls it; with a process group if the launch has several ranks and asks for it.
JOB = """
import os, sys
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

def causal(b, h, q, kv):
    return q >= kv

if "--group" in sys.argv:
    torch.distributed.init_process_group("gloo")
if "--dtype" in sys.argv:
    torch.set_default_dtype(torch.float64)
    torch._dynamo.config.capture_scalar_outputs = True
with torch.no_grad():
    mask = create_block_mask(causal, None, None, 128, 128, device="cpu")
    q, k, v = (torch.randn(1, 2, 128, 32, dtype=torch.float32) for _ in range(3))
    torch.compile(flex_attention)(q, k, v, block_mask=mask)
if "--group" in sys.argv:
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
"""

PYTHON = ["--", sys.executable, "job.py"]
TORCHRUN = ["--", sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "job.py"]
TWO = {"OMP_NUM_THREADS": "2"}


def project(base: Path) -> Flexwarm:
    (base / "project").mkdir()
    flexwarm = Flexwarm(base / "project", base / "store")
    flexwarm.spec(SMALL)
    flexwarm.module(JOB, "job")
    return flexwarm


def built_by(done: Done) -> None:
    assert (done.code, done.json["verdict"]) == (0, "built"), done.messages() + done.err


@pytest.fixture(scope="module")
def by_spec(tmp_path_factory: pytest.TempPathFactory) -> Flexwarm:
    flexwarm = project(tmp_path_factory.mktemp("spec"))
    built_by(flexwarm.run_json("build", env=TWO))
    return flexwarm


@pytest.fixture(scope="module")
def by_line(tmp_path_factory: pytest.TempPathFactory) -> Flexwarm:
    flexwarm = project(tmp_path_factory.mktemp("line"))
    built_by(flexwarm.run_json("build", *PYTHON, env=TWO))
    return flexwarm


def found(done: Done) -> dict[str, dict[str, Any]]:
    """Name -> difference, of a command whose jobs all differ alike."""
    (one,) = done.json["environment"]
    return {difference["name"]: difference for difference in one["differences"]}


def matter(done: Done) -> set[str]:
    return {name for name, difference in found(done).items() if difference["effect"] != "neutral"}


@threads_in_key
@pytest.mark.parametrize("how", ["by_spec", "by_line"])
def test_a_launch_by_torchrun_is_cold_for_the_threads_that_it_sets(how: str, request: pytest.FixtureRequest) -> None:
    flexwarm: Flexwarm = request.getfixturevalue(how)
    before = snapshot(flexwarm.bucket)
    done = flexwarm.run_json("explain", *TORCHRUN)
    assert (done.code, done.json["verdict"]) == (1, "cold"), done.messages()
    assert matter(done) == {"OMP_NUM_THREADS", "torch.get_num_threads()"}
    threads = found(done)["OMP_NUM_THREADS"]
    assert (threads["old"], threads["new"], threads["change"]) == ("2", "1", "changed")
    assert (threads["effect"], threads["known"]) == ("key", True)
    (one,) = done.json["environment"]
    assert (one["compared"], one["jobs"]) == ("all", ["rank 0", "rank 1"])
    assert "OMP_NUM_THREADS was '2' when this was built and is '1' now" in done.messages()
    told = flexwarm("explain", *TORCHRUN)
    assert "environment, build -> now (rank 0 and 1 more)" in told.out
    assert "  OMP_NUM_THREADS: '2' -> '1': enters Inductor's key (for a CPU, from torch 2.13 on;" in told.out
    assert not changed(before, snapshot(flexwarm.bucket))


@threads_in_key
def test_what_torchrun_built_is_cold_for_a_launch_with_other_threads(tmp_path: Path) -> None:
    flexwarm = project(tmp_path)
    built_by(flexwarm.run_json("build", *TORCHRUN))
    warm = flexwarm.run_json("explain", *TORCHRUN)
    assert (warm.code, warm.json["verdict"], matter(warm)) == (0, "warm", set()), warm.messages()
    done = flexwarm.run_json("explain", *TORCHRUN, env=TWO)
    assert (done.code, done.json["verdict"]) == (1, "cold"), done.messages()
    assert matter(done) == {"OMP_NUM_THREADS", "torch.get_num_threads()"}
    assert [found(done)["OMP_NUM_THREADS"][side] for side in ("old", "new")] == ["1", "2"]


def test_under_the_same_environment_nothing_differs(by_spec: Flexwarm, by_line: Flexwarm) -> None:
    for done in (by_spec.run_json("explain", env=TWO), by_line.run_json("explain", *PYTHON, env=TWO)):
        assert (done.code, done.json["verdict"]) == (0, "warm"), done.messages()
        assert found(done) == {}
        assert done.json["environment"][0]["compared"] == "all"


def test_another_place_of_the_same_bucket_and_another_hash_seed_are_no_difference(by_spec: Flexwarm, tmp_path: Path) -> None:
    shutil.copytree(by_spec.store, tmp_path / "store", symlinks=True)
    moved = Flexwarm(by_spec.directory, tmp_path / "store")
    done = moved.run_json("verify", env={**TWO, "PYTHONHASHSEED": "7"})
    assert done.json["verdict"] == "warm", done.messages()
    # Where the store is, is said with a name that changes nothing.
    assert set(found(done)) == {"FLEXWARM_STORE"}
    assert matter(done) == set()


@pytest.mark.parametrize(("value", "shown"), [("", "''"), ("0", "'0'")])
def test_empty_and_zero_are_not_unset_and_each_variable_has_its_effect(by_spec: Flexwarm, value: str, shown: str) -> None:
    env = {**TWO, "CPATH": "", "TORCHINDUCTOR_NOBODY_KNOWS": value, "NCCL_DEBUG": value}
    done = by_spec.run_json("explain", env=env)
    told = found(done)
    assert {name: told[name]["effect"] for name in told} == {
        "CPATH": "code", "TORCHINDUCTOR_NOBODY_KNOWS": "key", "NCCL_DEBUG": "neutral",
    }  # fmt: skip
    assert [(x["old"], x["new"], x["change"]) for x in told.values()] == [
        (None, value, "added"), (None, "", "added"), (None, value, "added"),
    ]  # fmt: skip
    assert [told[name]["known"] for name in ("CPATH", "TORCHINDUCTOR_NOBODY_KNOWS")] == [True, False]
    plain, verbose = by_spec("explain", env=env), by_spec("explain", "-v", env=env)
    unknown = f"TORCHINDUCTOR_NOBODY_KNOWS: unset -> {shown}: is not known to flexwarm, and counts as part of a key"
    assert unknown in plain.out
    assert "CPATH: unset -> '': can change code without entering a key" in plain.out
    assert "NCCL_DEBUG" not in plain.out
    assert f"NCCL_DEBUG: unset -> {shown}: is known to change nothing" in verbose.out


@threads_in_key
def test_a_cold_job_names_each_variable_that_is_not_as_it_was(by_spec: Flexwarm) -> None:
    env = {"OMP_NUM_THREADS": "1", "CPATH": "", "NCCL_NOBODY_KNOWS": "0", "NCCL_DEBUG": "INFO"}
    done = by_spec.run_json("verify", env=env)
    assert done.json["verdict"] == "cold", done.messages()
    (job,) = done.json["jobs"]
    assert [reason["message"] for reason in job["reasons"] if reason["code"] == "env-changed"] == [
        "CPATH was unset when this was built and is '' now, which enters no key and can change code",
        "NCCL_NOBODY_KNOWS was unset when this was built and is '0' now",
        "OMP_NUM_THREADS was '2' when this was built and is '1' now",
    ]


def test_settings_that_the_program_makes_are_named(by_line: Flexwarm) -> None:
    done = by_line.run_json("explain", *PYTHON, "--dtype", env=TWO)
    assert matter(done) == {"torch.get_default_dtype()", "torch._dynamo.config.capture_scalar_outputs"}
    dtype = found(done)["torch.get_default_dtype()"]
    assert (dtype["old"], dtype["new"], dtype["subject"]) == ("torch.float32", "torch.float64", "setting")
    assert found(done)["torch._dynamo.config.capture_scalar_outputs"]["effect"] == "code"


OFF = {"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}


def test_where_a_cache_is_off_the_variable_is_told_all_the_same(by_spec: Flexwarm, by_line: Flexwarm) -> None:
    done = by_spec.run_json("explain", env={**TWO, **OFF})
    assert (done.code, done.codes()) == (1, {"cache-disabled"})
    (one,) = done.json["environment"]
    assert one["compared"] == "variables"
    assert [(x["name"], x["effect"], x["does"]) for x in one["differences"]] == [(*OFF, "disables", "turns a cache off")]
    # torchrun would set OMP_NUM_THREADS, which is not set here: nothing is said of it.
    line = by_line.run_json("explain", *TORCHRUN, env=OFF)
    assert (line.code, line.codes()) == (1, {"cache-disabled"})
    (one,) = line.json["environment"]
    assert (one["jobs"], one["compared"]) == ([], "here")
    assert [x["name"] for x in one["differences"]] == [*OFF]
    told = by_line("explain", *TORCHRUN, env=OFF)
    assert "no program was started, so only the variables that are set here are compared" in told.out


def test_where_nothing_was_built_there_is_nothing_to_compare_with(tmp_path: Path) -> None:
    empty = project(tmp_path)
    for done in (empty.run_json("explain"), empty.run_json("explain", *PYTHON)):
        assert (done.code, done.codes()) == (1, {"no-bucket"})
        (one,) = done.json["environment"]
        assert (one["compared"], one["differences"]) == ("none", [])
    assert "there is no build to compare with" in empty("explain").out


@threads_in_key
def test_of_a_manifest_that_kept_only_what_enters_keys_that_is_compared(by_spec: Flexwarm, tmp_path: Path) -> None:
    shutil.copytree(by_spec.store, tmp_path / "store", symlinks=True)
    old = Flexwarm(by_spec.directory, tmp_path / "store")
    data = old.manifest().to_json()
    del data["variables"], data["modes"]
    for job in data["jobs"].values():
        del job["variables_digest"], job["modes_digest"]
    old.bucket.manifest.write_text(canonical.text({**data, "digest": canonical.digest(data, 64)}) + "\n")
    done = old.run_json("explain", env={"OMP_NUM_THREADS": "1", "NCCL_DEBUG": "INFO"})
    assert done.json["verdict"] == "cold", done.messages()
    assert done.json["environment"][0]["compared"] == "keys"
    assert set(found(done)) == {"OMP_NUM_THREADS"}


def test_a_build_that_finds_everything_there_leaves_the_manifest_as_it_is(by_spec: Flexwarm) -> None:
    before = by_spec.bucket.manifest.read_bytes()
    done = by_spec.run_json("build", env={**TWO, "NCCL_DEBUG": "INFO"})
    assert (done.code, done.json["verdict"], done.json["published"]) == (0, "warm", False)
    assert by_spec.bucket.manifest.read_bytes() == before


# ---- two nodes -------------------------------------------------------------------------------------------------------------


def two_nodes(nodes: list[Flexwarm], verb: str, second: dict[str, str]) -> list[Done]:
    """Two launchers that wait for each other, each under a flexwarm of its own; ``second``: variables of the second node."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    rendezvous = ["--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "job"]
    line = ["--", sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "1", *rendezvous, "job.py", "--group"]
    started = [
        node.start(verb, "--format", "json", *line, env={**TWO, **env}) for node, env in zip(nodes, ({}, second), strict=True)
    ]
    try:
        outputs = [process.communicate(timeout=240) for process in started]
    finally:
        for process in started:
            process.kill()
    return [Done(process.returncode, *output) for process, output in zip(started, outputs, strict=True)]


def test_before_a_launch_the_cold_node_is_named_by_what_the_nodes_tell_each_other(by_line: Flexwarm, tmp_path: Path) -> None:
    cold = Flexwarm(by_line.directory, tmp_path / "cold")
    done = two_nodes([by_line, cold], "verify", {})
    assert [(x.code, x.json["verdict"]) for x in done] == [(1, "cold")] * 2, done[0].messages() + done[0].err
    # On the warm one the other is named, with its store; on the cold one it is said what is missing there.
    (named,) = [x["message"] for x in done[0].json["reasons"] if x["code"] == "no-bucket"]
    assert f"(store {tmp_path / 'cold'}): nothing was built" in named
    assert "no-bucket" in done[1].codes()
    for side in done:
        nodes = side.json["launch"]["nodes"]
        assert {(node["store"], node["built"]) for node in nodes} == {(str(by_line.store), True), (str(cold.store), False)}
        # Their toolchains are the same.
        assert [node["changes"] for node in nodes] == [[], []]


def test_a_node_with_another_processor_is_named_with_every_component_and_both_values(by_line: Flexwarm, tmp_path: Path) -> None:
    if toolchain.fingerprint({}, store=None).select["cpu.capability"] == "DEFAULT":
        pytest.skip("this processor has nothing to take away")
    other = Flexwarm(by_line.directory, tmp_path / "other")
    done = two_nodes([by_line, other], "verify", {"ATEN_CPU_CAPABILITY": "default", "NCCL_NOBODY_KNOWS": "1"})
    for side in done:
        assert side.json["verdict"] == "cold"
        assert "fingerprint-changed" in side.codes()
        changes = [node["changes"] for node in side.json["launch"]["nodes"]]
        assert sorted(map(len, changes))[0] == 0
        (named,) = [every for every in changes if every]
        by_name = {change["component"]: change for change in named}
        assert by_name["cpu.capability"]["selects"] is True
        assert "DEFAULT" in (by_name["cpu.capability"]["old"], by_name["cpu.capability"]["new"])
        assert by_name["env.NCCL_NOBODY_KNOWS"]["selects"] is False
        assert {"1", None} == {by_name["env.NCCL_NOBODY_KNOWS"][which] for which in ("old", "new")}
        assert any("what can make a key miss" in note for note in side.json["notes"])
