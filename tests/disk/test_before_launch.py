"""What a build without the GPU left when it was killed: a launch uses none of it, and takes nothing else away."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from flexwarm import inventory, leases, manifest, reaper
from flexwarm.errors import BusyError, CorruptError, ExitCode, StoreError, UnsupportedError
from flexwarm.manifest import JobEntry, Manifest
from flexwarm.ops import publish
from flexwarm.ops.before_launch import admit, no_build_finished, refuse_other_shapes, settle, unfinished, unfinished_reasons
from flexwarm.reasons import Code
from flexwarm.store import Bucket
from flexwarm.target import DeviceProfile, Target
from flexwarm.toolchain import profiles

#: The fixture: another process that holds a lock for the length of a ``with`` block.
Holding = Callable[[Path, Path], AbstractContextManager["subprocess.Popen[str]"]]

PROFILE = DeviceProfile(name="NVIDIA Test", total_memory_bytes=1, attributes={"multiprocessor_count": 2}, measured=False)
TARGET = Target(asked="./test.json", profile=PROFILE, count=2)
TITLE = "2 x NVIDIA Test"
LISTED = "inductor/fxgraph/ab/key/entry"
LEFT = ("inductor/fxgraph/cd/other/entry", "triton/XYZ/kernel.cubin")


def put(bucket: Bucket, *paths: str) -> None:
    for path in paths:
        (bucket.path / path).parent.mkdir(parents=True, exist_ok=True)
        (bucket.path / path).write_text(path)


def vouch(bucket: Bucket, *jobs: JobEntry) -> Manifest:
    """A manifest of what lies in the bucket now."""
    known = Manifest(
        fingerprint=bucket.digest,
        created_at="2026-01-01T00:00:00+00:00",
        flexwarm_version="0",
        files=inventory.scan(bucket),
        jobs={job.share: job for job in jobs},
    )
    manifest.save(bucket, known)
    return known


def job() -> JobEntry:
    return JobEntry(
        share="s",
        workload="w",
        detail=publish.built_for(TARGET),
        keys=(),
        env={},
        config_digest="",
        cold_seconds=None,
        built_at="",
    )


@pytest.fixture
def killed(bucket: Bucket) -> Bucket:
    """A bucket with one good build, and what another one for a target left."""
    put(bucket, LISTED)
    vouch(bucket)
    publish.mark_building(bucket, "run-1", target=TARGET)
    put(bucket, *LEFT, "inductor/locks/a.lock", "triton/tmp.pid_1_x/half")
    return bucket


def files(bucket: Bucket) -> set[str]:
    return {str(path.relative_to(bucket.path)) for path in bucket.path.rglob("*") if path.is_file()}


def settled(bucket: Bucket, *, wait_seconds: float = 0) -> list[str]:
    said: list[str] = []
    settle(bucket, command="run", wait_seconds=wait_seconds, notify=said.append)
    return said


def test_the_marker_names_the_target_and_that_of_another_build_names_none(bucket: Bucket) -> None:
    publish.mark_building(bucket, "run-1", target=TARGET)
    assert json.loads(bucket.building.read_bytes())["target"] == TITLE
    assert unfinished(bucket) == TITLE
    publish.mark_building(bucket, "run-1", joinable=True)
    assert "target" not in json.loads(bucket.building.read_bytes())
    assert unfinished(bucket) is None


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", "null", '{"target"', '"target"'])
def test_a_marker_that_says_nothing_is_of_no_target(bucket: Bucket, text: str) -> None:
    bucket.building.write_text(text)
    assert unfinished(bucket) is None


def test_what_was_left_goes_and_what_is_vouched_for_stays(killed: Bucket) -> None:
    assert settled(killed) == [f"removed 2 files that a build for {TITLE} without a GPU left when it was killed"]
    assert files(killed) == {LISTED, "manifest.json"}
    assert settled(killed) == []


def test_without_a_manifest_all_goes(bucket: Bucket) -> None:
    publish.mark_building(bucket, "run-1", target=TARGET)
    put(bucket, LISTED, *LEFT)
    assert "removed 3 files" in settled(bucket)[0]
    assert files(bucket) == set()


def test_what_another_build_or_a_launch_left_is_none_of_its_business(killed: Bucket) -> None:
    """A launch that compiles keeps what it compiles: it is of this GPU."""
    publish.mark_building(killed, "run-1")
    before = files(killed)
    assert settled(killed) == []
    killed.building.unlink()
    assert settled(killed) == []
    assert files(killed) == before - {"building.json"}
    assert not killed.lock.exists()


def test_a_bucket_that_is_not_there_is_left_so(bucket: Bucket) -> None:
    missing = Bucket(root=bucket.root, digest="cd" * 10)
    assert settled(missing) == []
    assert not missing.path.exists()


def test_where_nothing_was_left_nothing_is_said(bucket: Bucket) -> None:
    put(bucket, LISTED)
    vouch(bucket)
    publish.mark_building(bucket, "run-1", target=TARGET)
    assert settled(bucket) == []
    assert unfinished(bucket) is None


def test_a_build_at_work_is_named_and_nothing_of_it_is_touched(killed: Bucket, held_elsewhere: Holding) -> None:
    before = files(killed)
    with held_elsewhere(killed.lock, killed.holder) as builder, pytest.raises(BusyError) as caught:
        settled(killed)
    assert f"flexwarm build (pid {builder.pid} on " in caught.value.message
    assert caught.value.exit_code is ExitCode.BUSY
    assert caught.value.hint
    assert files(killed) == before


def test_a_build_that_ends_well_meanwhile_is_waited_for_and_keeps_all(killed: Bucket, held_elsewhere: Holding) -> None:
    with held_elsewhere(killed.lock, killed.holder) as builder:

        def publishes() -> None:
            vouch(killed)
            killed.building.unlink()
            assert builder.stdin is not None
            builder.stdin.close()

        ends = threading.Timer(1.5, publishes)
        ends.start()
        said = settled(killed, wait_seconds=30)
        ends.join()
    assert [line.partition(" for ")[0] for line in said] == ["waiting up to 30 s"]
    assert set(LEFT) <= files(killed)


def test_what_still_runs_of_the_build_is_ended_first(killed: Bucket) -> None:
    publish.mark_building(killed, "run-alive", target=TARGET)
    environ = {**os.environ, reaper.MARKER: "run-alive"}
    words = [sys.executable, "-c", "import time; print(flush=True); time.sleep(300)"]
    with subprocess.Popen(words, env=environ, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        settled(killed)
        assert child.wait(timeout=30) < 0


def test_a_manifest_that_cannot_be_read_says_of_nothing_that_it_may_go(killed: Bucket) -> None:
    killed.manifest.write_text("{")
    before = files(killed)
    with pytest.raises(CorruptError, match=r"manifest\.json is corrupt"):
        settled(killed)
    assert files(killed) == before


@contextmanager
def read_only(root: Path) -> Iterator[None]:
    """A store that cannot be written: for root only another mount is one."""
    if os.geteuid() == 0:
        if subprocess.run(["mount", "--bind", root, root], capture_output=True).returncode:
            pytest.skip("a mount that cannot be written can only be made by root on its own machine")
        try:
            subprocess.run(["mount", "-o", "remount,bind,ro", root], check=True)
            yield
        finally:
            subprocess.run(["umount", root], check=True)
        return
    directories = [path for path in [root, *root.rglob("*")] if path.is_dir()]
    for path in directories:
        path.chmod(0o555)
    try:
        yield
    finally:
        for path in directories:
            path.chmod(0o755)


def test_in_a_store_that_cannot_be_written_it_is_refused_with_the_cause(killed: Bucket) -> None:
    with read_only(killed.root), pytest.raises(StoreError) as caught:
        settled(killed)
    assert f"a build for {TITLE} without a GPU was killed, and what it left cannot be removed: " in caught.value.message
    assert "flexwarm build" in caught.value.hint


def test_in_a_store_that_cannot_be_written_nothing_that_was_left_is_no_reason(killed: Bucket) -> None:
    for path in LEFT:
        (killed.path / path).unlink()
    with read_only(killed.root):
        assert settled(killed) == []


def test_a_build_that_works_where_only_it_can_write_is_busy(killed: Bucket, held_elsewhere: Holding) -> None:
    with held_elsewhere(killed.lock, killed.holder) as builder, read_only(killed.root), pytest.raises(BusyError) as caught:
        settled(killed)
    words = f"bucket {killed.digest} is being built for {TITLE} without a GPU, by flexwarm build (pid {builder.pid} "
    assert caught.value.message.startswith(words)


def test_a_verification_has_a_reason_as_long_as_something_is_left(killed: Bucket) -> None:
    known = manifest.load(killed)
    assert known is not None
    (reason,) = unfinished_reasons(killed, known)
    assert (reason.code, TITLE in reason.message, reason.hint) == (Code.DISK_CHANGED, True, "flexwarm build removes it")
    settled(killed)
    assert unfinished_reasons(killed, known) == []


def test_a_bucket_without_a_build_says_which_one_was_begun(killed: Bucket) -> None:
    reason = no_build_finished(killed, "flexwarm build")
    assert (reason.code, reason.hint) == (Code.NO_BUCKET, "flexwarm build")
    assert reason.message.endswith(f"; one for {TITLE} without a GPU was begun")
    killed.building.unlink()
    assert no_build_finished(killed, "flexwarm build").message == f"no build has finished in bucket {killed.digest}"


@pytest.mark.parametrize("target", [TARGET, None])
def test_a_build_that_fails_takes_back_what_it_made_for_a_target(killed: Bucket, target: Target | None) -> None:
    known = manifest.load(killed)
    before = files(killed)
    publish.mark_building(killed, "run-2", target=target)
    with pytest.raises(RuntimeError), publish.swept_unless_published(killed, known, target):
        raise RuntimeError
    assert files(killed) == ({LISTED, "manifest.json"} if target is not None else before)


def test_a_build_for_a_target_does_not_begin_beside_a_launch(bucket: Bucket) -> None:
    with leases.hold(bucket, command="train.py", wait_seconds=1, notify=lambda _: None):
        with pytest.raises(BusyError, match=f"used by .*train.py.*, and a build for {TITLE}"):
            publish.begin(bucket, "run-3", joinable=False, target=TARGET)
        assert not bucket.building.exists()
        publish.begin(bucket, "run-3", joinable=False, target=None)
        bucket.building.unlink()
    publish.begin(bucket, "run-3", joinable=False, target=TARGET)
    assert unfinished(bucket) == TITLE


def test_what_was_built_for_another_size_is_refused_with_both(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    known = vouch(bucket, job())
    monkeypatch.setattr(profiles, "ask_driver", lambda: [{"multiprocessor_count": 2}])
    refuse_other_shapes(bucket, known)
    refuse_other_shapes(bucket, None)
    monkeypatch.setattr(profiles, "ask_driver", lambda: [{"multiprocessor_count": 3}])
    with pytest.raises(UnsupportedError, match="was built for NVIDIA Test with multiprocessor_count 2, and the GPU here has 3"):
        refuse_other_shapes(bucket, known)


def test_a_launch_is_let_in_after_what_was_left_is_gone_unless_the_rest_is_for_another_size(
    killed: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    admit(killed, command="run", wait_seconds=0, notify=said.append)
    assert (len(said), files(killed)) == (1, {LISTED, "manifest.json"})
    vouch(killed, job())
    monkeypatch.setattr(profiles, "ask_driver", lambda: [{"multiprocessor_count": 3}])
    with pytest.raises(UnsupportedError):
        admit(killed, command="run", wait_seconds=0, notify=said.append)
    killed.manifest.write_text("{")
    admit(killed, command="run", wait_seconds=0, notify=said.append)  # build and verify say so
    assert len(said) == 1
