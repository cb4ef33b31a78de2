"""A build for GPUs that are not there that is killed in its middle: nobody is served what it left."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from flexwarm import locks, manifest, toolchain
from flexwarm.ops.before_launch import settle
from flexwarm.store import Bucket, Store
from flexwarm.toolchain.profiles import host_components, read_profile
from tests.harness import Done, Flexwarm

_INSTALL = toolchain.find_torch()
pytestmark = [
    pytest.mark.torch,
    pytest.mark.xdist_group("absent killed"),
    pytest.mark.skipif(_INSTALL is None or not _INSTALL.cuda, reason="this torch is a build without CUDA"),
]

#: Compiles one graph for each length; stands still in the middle if there is a file for that.
TRAIN = """
import os, sys, time
import torch

double = torch.compile(lambda x: x.sin() * 2, dynamic=False)
for length in map(int, sys.argv[1:]):
    double(torch.ones(length, device="cuda"))
    while os.path.exists("stop"):
        open("stopped", "w").close()
        time.sleep(0.1)
"""

#: One graph for the GPU, and one for the processor.
ON_BOTH = """
import torch
double = torch.compile(lambda x: x.sin() * 2)
double(torch.ones(64, device="cuda"))
double(torch.ones(64))
"""

TITLE = "1 x NVIDIA H200"


def line(*lengths: int) -> list[str]:
    return ["--", sys.executable, "train.py", *map(str, lengths)]


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 300
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def kill_in_the_middle(command: Flexwarm, *lengths: int) -> None:
    """SIGKILL for the parent alone, once the first graph is compiled."""
    (command.directory / "stop").touch()
    process = command.start("build", "--target", "h200", *line(*lengths))
    try:
        wait_for(lambda: (command.directory / "stopped").exists(), process)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
        (command.directory / "stop").unlink()
        (command.directory / "stopped").unlink(missing_ok=True)
    deadline = time.monotonic() + 60
    while command.processes_left():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def project(base: Path) -> Flexwarm:
    (base / "project").mkdir(parents=True)
    command = Flexwarm(base / "project", base / "store")
    command.module(TRAIN, "train")
    return command


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Flexwarm:
    """The first build of a bucket, killed."""
    command = project(tmp_path_factory.mktemp("killed"))
    kill_in_the_middle(command, 64, 96)
    return command


@pytest.fixture
def killed(first: Flexwarm, tmp_path: Path) -> Flexwarm:
    command = project(tmp_path)
    shutil.copytree(first.store, command.store, symlinks=True)
    return command


@pytest.fixture
def of_this_machine(killed: Flexwarm) -> Flexwarm:
    """The same, in the bucket that a launch on this machine uses: as the machine with the GPU would see it."""
    digest = json.loads(killed("fingerprint", "--format", "json").out)["bucket"]
    bucket = killed.bucket
    bucket.path.rename(bucket.path.with_name(digest))
    return killed


def stored(bucket: Bucket) -> set[str]:
    """Entries of the caches, which a launch would take."""
    trees = ("inductor/fxgraph", "inductor/aotautograd", "triton")
    paths = [path for tree in trees for path in (bucket.path / tree).rglob("*")]
    return {str(path.relative_to(bucket.path)) for path in paths if path.is_file() and path.suffix != ".lock"}


def run_something(command: Flexwarm, *options: str) -> Done:
    return command("run", *options, "--", sys.executable, "-c", "print('the job ran')")


def test_the_marker_says_for_what_and_nobody_vouches_for_what_lies_there(killed: Flexwarm) -> None:
    assert json.loads(killed.bucket.building.read_bytes())["target"] == TITLE
    assert stored(killed.bucket)
    assert manifest.load(killed.bucket) is None


def test_a_verification_is_cold_and_names_the_build(killed: Flexwarm) -> None:
    done = killed.run_json("verify", "--target", "h200", *line(64))
    assert (done.code, done.json["verdict"], done.codes()) == (1, "cold", {"no-bucket"}), done.messages() + done.err
    assert f"one for {TITLE} without a GPU was begun" in done.messages()


def test_the_next_build_removes_it_and_is_whole(killed: Flexwarm) -> None:
    done = killed.run_json("build", "--target", "h200", *line(64))
    assert (done.code, done.json["verdict"], done.json["compiles"]) == (0, "built", 1), done.messages() + done.err
    assert "that no finished build had listed" in done.err
    assert not killed.bucket.building.exists()


def test_a_launch_removes_it_first_and_says_so(of_this_machine: Flexwarm) -> None:
    bucket = of_this_machine.bucket
    done = run_something(of_this_machine)
    assert (done.code, done.out) == (0, "the job ran\n"), done.err
    assert f"files that a build for {TITLE} without a GPU left when it was killed" in done.err
    assert stored(bucket) == set()
    assert not bucket.building.exists()
    again = run_something(of_this_machine)
    assert (again.code, "without a GPU" in again.err) == (0, False), again.err


def test_so_does_env_before_it_names_the_bucket(of_this_machine: Flexwarm) -> None:
    bucket = of_this_machine.bucket
    done = of_this_machine("env")
    assert done.code == 0, done.err
    assert str(bucket.inductor) in done.out
    assert f"files that a build for {TITLE} without a GPU left when it was killed" in done.err
    assert stored(bucket) == set()


def test_a_recording_is_a_launch(of_this_machine: Flexwarm) -> None:
    done = of_this_machine("record", "-o", "-", "--", sys.executable, "-c", "print('the job ran')")
    assert "without a GPU left when it was killed" in done.err
    assert stored(of_this_machine.bucket) == set()


def test_neither_begins_while_somebody_builds(of_this_machine: Flexwarm) -> None:
    bucket = of_this_machine.bucket
    before = stored(bucket)
    with locks.hold(bucket.lock, holder=bucket.holder, command="build", wait_seconds=0, notify=print):
        run, env = run_something(of_this_machine, "--lock-wait", "1.5"), of_this_machine("env")
    for done in (run, env):
        assert (done.code, done.out) == (4, "")
        assert "flexwarm build (pid " in done.err
        assert "next: " in done.err
    assert "waiting up to 1.5 s for flexwarm build" in run.err
    assert stored(bucket) == before


def test_clean_takes_such_a_bucket_as_any_other(killed: Flexwarm) -> None:
    done = killed.run_json("clean", "--all", "--yes")
    assert (done.code, [found["action"] for found in done.json["buckets"]]) == (0, ["delete"])
    assert list(Store(root=killed.store).buckets()) == []


def test_beside_a_good_build_it_is_told_from_it(flexwarm: Flexwarm) -> None:
    flexwarm.module(TRAIN, "train")
    assert flexwarm.run_json("build", "--target", "h200", *line(64)).code == 0
    bucket = flexwarm.bucket
    good, vouched = stored(bucket), bucket.manifest.read_bytes()
    kill_in_the_middle(flexwarm, 96, 128)
    assert stored(bucket) > good
    assert bucket.manifest.read_bytes() == vouched
    done = flexwarm.run_json("verify", "--target", "h200", *line(64))
    assert (done.code, done.json["verdict"], done.codes()) == (1, "unknown", {"disk-changed"}), done.messages()
    assert f"a build for {TITLE} without a GPU did not finish" in done.messages()
    said: list[str] = []
    settle(bucket, command="run", wait_seconds=0, notify=said.append)
    assert len(said) == 1
    assert stored(bucket) == good
    done = flexwarm.run_json("verify", "--target", "h200", *line(64))
    assert (done.code, done.json["verdict"]) == (0, "warm"), done.messages() + done.err


def test_who_built_it_is_kept_by_a_build_that_finds_everything(flexwarm: Flexwarm) -> None:
    flexwarm.module(TRAIN, "train")
    done = flexwarm.run_json("build", "--target", "h200", *line(64))
    (origin,) = done.json["built_for"]
    assert (origin["gpu"], origin["profile"], origin["measured"]) == ("NVIDIA H200", "h200", True)
    # As if another one had built it elsewhere.
    known = flexwarm.manifest()
    for job in known.jobs.values():
        job.detail["built_on"].update(host="ci-7", user="uid 1001")
    manifest.save(flexwarm.bucket, known)
    before = flexwarm.bucket.manifest.read_bytes()
    done = flexwarm.run_json("build", "--target", "h200", *line(64))
    assert (done.json["verdict"], done.json["published"]) == ("warm", False), done.messages() + done.err
    assert flexwarm.bucket.manifest.read_bytes() == before
    assert {origin["host"] for origin in done.json["built_for"]} == {"ci-7"}


def test_cxx_for_this_processor_is_not_published_for_a_machine_with_another(flexwarm: Flexwarm) -> None:
    flexwarm.module(TRAIN, "train")
    flexwarm.module(ON_BOTH, "both")
    here = host_components(toolchain.fingerprint(flexwarm.environ(), store=None).select)
    data = {**read_profile("h200").to_json(), "host": {**here, "cpu.capability": "AVX1024"}}
    (flexwarm.directory / "other.json").write_text(json.dumps(data))
    done = flexwarm.run_json("build", "--target", "./other.json", "--", sys.executable, "both.py")
    assert (done.code, done.json["published"], done.codes()) == (3, False, {"refused"}), done.messages() + done.err
    assert "C++ was compiled for the processor here" in done.messages()
    assert stored(flexwarm.bucket) == set()
    # Triton's own host modules are C, and for any processor.
    done = flexwarm.run_json("build", "--target", "./other.json", *line(64))
    assert (done.code, done.json["verdict"]) == (0, "built"), done.messages() + done.err


def test_an_older_c_library_is_refused_before_anything_starts(flexwarm: Flexwarm) -> None:
    flexwarm.module(TRAIN, "train")
    data = {**read_profile("h200").to_json(), "host": {"platform.libc": "glibc 2.2"}}
    (flexwarm.directory / "old.json").write_text(json.dumps(data))
    done = flexwarm("build", "--target", "./old.json", *line(64))
    assert (done.code, "host code from here may not load there" in done.err) == (3, True), done.err
    assert "build in a container that has glibc 2.2" in done.err
    assert list(Store(root=flexwarm.store).buckets()) == []
