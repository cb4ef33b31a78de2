"""A bucket of which any file is removed, cut or altered is never warm."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness import Flexwarm

pytestmark = pytest.mark.torch


def remove(file: Path) -> None:
    file.unlink()


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def alter(file: Path) -> None:
    """One bit, in the middle, and the file's size and times as they were: only its content tells."""
    status, data = file.stat(), bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


DAMAGES: list[Callable[[Path], None]] = [remove, cut, alter]


def test_every_file_of_a_bucket_removed_cut_or_altered_is_found_and_named(warm: Flexwarm, built_store: Path) -> None:
    files = [entry.path for entry in warm.manifest().files] + ["manifest.json"]
    # How many probes of vector instructions there are depends on the processor.
    assert len(files) > 10, "a small bucket has a kernel, vector probes, graph entries and a fingerprint"
    assert any(path.endswith(".so") for path in files)
    assert any("fxgraph/" in path for path in files)
    assert any("aotautograd/" in path for path in files)
    wrong = []
    for damage in DAMAGES:
        for path in files:
            file = warm.bucket.path / path
            kept = file.read_bytes(), file.stat()
            damage(file)
            done = warm.run_json("verify")
            named = path in done.messages()
            if path == "manifest.json" and damage is remove:
                named = done.codes() == {"no-bucket"}  # without a manifest no build has finished: cold, and never warm
                right = (done.code, done.json["verdict"]) == (1, "cold")
            else:
                right = (done.code, done.json["verdict"], done.codes()) == (7, "broken", {"corrupt-file"})
            if not (right and named):
                wrong.append((damage.__name__, path, done.code, done.messages()))
            file.unlink(missing_ok=True)
            file.write_bytes(kept[0])
            os.utime(file, ns=(kept[1].st_atime_ns, kept[1].st_mtime_ns))
    assert wrong == []
    assert warm.run_json("verify").json["verdict"] == "warm"  # all damage was undone, so it was the damage that was found


def test_a_file_behind_a_link_is_not_the_file_that_was_built(warm: Flexwarm, tmp_path: Path) -> None:
    library = next(warm.bucket.inductor.rglob("*.so"))
    shutil.move(library, tmp_path / "elsewhere.so")
    library.symlink_to(tmp_path / "elsewhere.so")
    done = warm.run_json("verify")
    assert (done.code, done.codes()) == (7, {"corrupt-file"})


def plant(warm: Flexwarm) -> Path:
    """An entry beside that of a key which a build made, as a launch may add one under other guards."""
    entry = next(path for path in (warm.bucket.inductor / "fxgraph").rglob("*") if path.is_file())
    planted = entry.with_name("aaaa")
    shutil.copy(entry, planted)
    return planted


def test_an_entry_too_many_in_a_keys_directory_is_found_because_torch_would_load_it(warm: Flexwarm) -> None:
    assert warm.run_json("verify").code == 0
    plant(warm)
    for arguments in (["verify"], ["verify", "--fast"]):
        done = warm.run_json(*arguments)
        assert (done.code, done.json["verdict"]) == (1, "unknown")
    done = warm.run_json("verify")
    assert done.codes() == {"disk-changed"}
    assert "aaaa" in done.messages()


@pytest.mark.parametrize("killed", [False, True])
def test_the_next_build_removes_an_entry_too_many_whoever_left_it(warm: Flexwarm, killed: bool) -> None:
    planted = plant(warm)
    if killed:
        warm.bucket.building.write_text('{"run": "gone", "host": "elsewhere"}\n')
    done = warm.run_json("build")
    assert done.code == 0, done.err
    assert not planted.exists()
    assert warm.run_json("verify").json["verdict"] == "warm"


def test_content_that_was_altered_behind_the_back_of_size_and_time_is_not_proven_for_fast(warm: Flexwarm) -> None:
    assert warm.run_json("verify").code == 0
    assert warm.run_json("verify", "--fast").code == 0
    alter(next(warm.bucket.inductor.rglob("*.main.so")))
    done = warm.run_json("verify", "--fast")
    assert (done.code, done.json["verdict"], done.codes()) == (1, "unknown", {"not-proven"})
    assert warm.run_json("verify").code == 7


def test_nothing_of_a_corrupt_bucket_is_run(warm: Flexwarm) -> None:
    alter(next(warm.bucket.inductor.rglob("*.main.so")))
    before = set(warm.run_ids())
    done = warm.run_json("verify")
    assert done.code == 7
    for run in set(warm.run_ids()) - before:
        for events in (warm.bucket.runs / run).glob("*.events.jsonl"):
            assert '"event":"lookup"' not in events.read_text()


def test_build_refuses_a_corrupt_bucket_and_rebuilds_it_when_told_keeping_the_evidence(warm: Flexwarm) -> None:
    damaged = next(warm.bucket.inductor.rglob("*.main.so"))
    cut(damaged)
    refused = warm.run_json("build")
    assert refused.code == 7
    assert damaged.name in refused.json["error"]["message"]
    assert "--rebuild" in refused.json["error"]["hint"]
    done = warm.run_json("build", "--rebuild")
    assert (done.code, done.json["verdict"]) == (0, "built")
    (kept,) = (warm.store / "quarantine-v1").iterdir()
    assert list(kept.rglob(damaged.name))
    assert warm.run_json("verify").json["verdict"] == "warm"
