from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flexwarm import canonical, inventory, manifest
from flexwarm.errors import CorruptError, ExitCode, StoreError
from flexwarm.inventory import Fault, FaultKind
from flexwarm.manifest import FileEntry, JobEntry, KeyEntry, Manifest
from flexwarm.store import Bucket, Store

FX = "inductor/fxgraph/xl/fxkey"
AOT = "inductor/aotautograd/akey"


@pytest.fixture
def built(bucket: Bucket) -> Bucket:
    """A bucket laid out as torch and Triton do it, with its manifest saved."""
    for path in (
        f"{FX}/entry",
        f"{AOT}/entry",
        "inductor/5u/c5u.so",
        "triton/KERNEL/k.cubin",
        "triton/KERNEL/__grp__k.json",
        "fingerprint.json",
        # what a manifest does not list:
        "inductor/locks/c5u.lock",
        "inductor/5u/c5u.lock",
        "inductor/5u/.123.456.tmp",
        "triton/KERNEL/tmp.pid_12_0a-0b/k.cubin",
        "runs/run-1/events.jsonl",
        "ledger.jsonl",
        "building.json",
    ):
        file = bucket.path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(path)
    manifest.save(bucket, of(bucket))
    return bucket


def of(bucket: Bucket) -> Manifest:
    job = JobEntry(
        share="5ha4e",
        workload='block "digest":"x",',
        detail={"q_len": 128, "nested": {"digest": "y", "list": [1, 2.5, None, True]}},
        keys=(KeyEntry(layer="fx", key="fxkey"), KeyEntry(layer="aot", key="akey")),
        env={"OMP_NUM_THREADS": "1"},
        config_digest="c0",
        cold_seconds=12.5,
        built_at="2026-09-28T10:00:00Z",
    )
    return Manifest(
        fingerprint=bucket.digest,
        created_at="2026-09-28T10:00:01Z",
        flexwarm_version="0.1.0",
        files=inventory.scan(bucket),
        jobs={job.share: job},
    )


def check(bucket: Bucket, *, deep: bool = False) -> tuple[Fault, ...]:
    loaded = manifest.load(bucket)
    assert loaded is not None
    return inventory.check(bucket, loaded, deep=deep)


def faults(*pairs: tuple[str, FaultKind]) -> tuple[Fault, ...]:
    return tuple(Fault(path=path, kind=kind) for path, kind in pairs)


def test_a_saved_manifest_loads_as_the_same_value(built: Bucket) -> None:
    assert manifest.load(built) == of(built)


def test_the_file_is_canonical_json_with_the_digest_of_the_rest(built: Bucket) -> None:
    text = built.manifest.read_text()
    data = json.loads(text)
    assert text == canonical.text(data) + "\n"
    digest = data.pop("digest")
    assert digest == canonical.digest(data, 64)


def test_a_manifest_without_files_or_jobs_loads(bucket: Bucket) -> None:
    empty = Manifest(fingerprint=bucket.digest, created_at="now", flexwarm_version="0", files=(), jobs={})
    manifest.save(bucket, empty)
    assert manifest.load(bucket) == empty


def test_a_manifest_keeps_what_a_job_was_built_under(built: Bucket) -> None:
    plain = of(built)
    (job,) = plain.jobs.values()
    told = replace(job, variables_digest="v", modes_digest="m")
    kept = replace(plain, jobs={job.share: told}, variables={"v": {"CI": ""}}, modes={"m": {"torch.get_num_threads()": "2"}})
    manifest.save(built, kept)
    assert manifest.load(built) == kept


def test_a_manifest_of_before_such_things_were_kept_loads_without_them(built: Bucket) -> None:
    data = json.loads(built.manifest.read_text())
    del data["digest"], data["variables"], data["modes"]
    for job in data["jobs"].values():
        del job["variables_digest"], job["modes_digest"]
    built.manifest.write_text(canonical.text({**data, "digest": canonical.digest(data, 64)}) + "\n")
    assert manifest.load(built) == of(built)


def test_only_a_bucket_without_the_file_has_no_manifest(bucket: Bucket, store: Store) -> None:
    assert manifest.load(bucket) is None
    assert manifest.load(store.bucket("cd" * 10)) is None


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=300)
@given(data=st.data())
def test_any_byte_that_differs_is_corruption(built: Bucket, data: st.DataObject) -> None:
    text = manifest.dump(of(built))
    where = data.draw(st.integers(0, len(text) - 1))
    value = data.draw(st.integers(0, 255).filter(lambda byte: byte != text[where]))
    built.manifest.write_bytes(text[:where] + bytes([value]) + text[where + 1 :])
    with pytest.raises(CorruptError, match=str(built.manifest)):
        manifest.load(built)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=200)
@given(data=st.data())
def test_any_cut_or_added_whitespace_is_corruption(built: Bucket, data: st.DataObject) -> None:
    text = manifest.dump(of(built))
    where = data.draw(st.integers(0, len(text)))
    changed = data.draw(
        st.sampled_from([text[:where], text[:where] + b" " + text[where:], text[:where] + b"\n" + text[where:]])
    )
    built.manifest.write_bytes(changed)
    if changed == text:
        assert manifest.load(built) == of(built)
    else:
        with pytest.raises(CorruptError):
            manifest.load(built)


def resealed(bucket: Bucket, **fields: object) -> bytes:
    """The bucket's manifest with other fields and a digest that fits them: well formed, and wrong."""
    data = {**of(bucket).to_json(), **fields}
    return canonical.text({**data, "digest": canonical.digest(data, 64)}).encode() + b"\n"


FILE = {"path": "inductor/a", "size_bytes": 1, "mtime_ns": 1, "sha256": "0" * 64}


@pytest.mark.parametrize(
    "fields",
    [
        {"schema": 2},
        {"fingerprint": "cd" * 10},
        {"files": [FILE, FILE]},
        {"files": [{**FILE, "path": "inductor/b"}, FILE]},
        {"files": [{"path": "inductor/a"}]},
        {"files": [{**FILE, "path": 7}]},
        {"files": [{**FILE, "extra": 1}]},
        {"files": None},
        {"jobs": {"share": {}}},
        {"jobs": [1]},
    ],
)
def test_a_manifest_with_a_fitting_digest_and_wrong_fields_is_corrupt(built: Bucket, fields: dict[str, object]) -> None:
    built.manifest.write_bytes(resealed(built, **fields))
    with pytest.raises(CorruptError) as caught:
        manifest.load(built)
    assert caught.value.exit_code is ExitCode.CORRUPT
    assert str(built.manifest) in caught.value.message


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/etc/passwd",
        "../x",
        "inductor",
        "inductor/",
        "inductor/..",
        "inductor//x",
        "inductor/./x",
        "inductor/../../x",
        "inductor/a\0b",
        "manifest.json",
        "runs/x",
    ],
)
def test_a_path_that_a_bucket_cannot_hold_is_corruption(built: Bucket, path: str) -> None:
    built.manifest.write_bytes(resealed(built, files=[{**FILE, "path": path}]))
    with pytest.raises(CorruptError, match="not the path of a file that a bucket holds"):
        manifest.load(built)


@pytest.mark.parametrize("path", ["inductor/..x", "inductor/a\nb", "triton/\udcff", "inductor/x.y/..."])
def test_an_odd_file_name_is_allowed(built: Bucket, path: str) -> None:
    built.manifest.write_bytes(resealed(built, files=[{**FILE, "path": path}]))
    loaded = manifest.load(built)
    assert loaded is not None
    assert loaded.files[0].path == path


@pytest.mark.parametrize(
    "content", [b"", b"\n", b"null", b"[]", b"{}", b"\xff", b"[" * 100_000, b'{"digest":1}', b'{"digest":"\\u00e9"}']
)
def test_a_file_that_is_no_manifest_is_corrupt(bucket: Bucket, content: bytes) -> None:
    bucket.manifest.write_bytes(content)
    with pytest.raises(CorruptError, match=str(bucket.manifest)):
        manifest.load(bucket)


def test_a_directory_or_a_broken_link_in_place_of_the_manifest_is_corrupt(bucket: Bucket) -> None:
    bucket.manifest.mkdir()
    with pytest.raises(CorruptError, match="directory"):
        manifest.load(bucket)
    bucket.manifest.rmdir()
    bucket.manifest.symlink_to("nowhere")
    with pytest.raises(CorruptError, match="symbolic link"):
        manifest.load(bucket)


def test_a_scan_lists_what_torch_and_triton_serve_and_nothing_that_changes_on_its_own(built: Bucket) -> None:
    assert [entry.path for entry in inventory.scan(built)] == [
        "fingerprint.json",
        "inductor/5u/c5u.so",
        "inductor/aotautograd/akey/entry",
        "inductor/fxgraph/xl/fxkey/entry",
        "triton/KERNEL/__grp__k.json",
        "triton/KERNEL/k.cubin",
    ]


def test_a_scan_refuses_a_link(built: Bucket) -> None:
    (built.inductor / "link").symlink_to("/etc/passwd")
    with pytest.raises(CorruptError, match="not a regular file"):
        inventory.scan(built)


def test_a_fresh_bucket_has_no_fault(built: Bucket) -> None:
    assert check(built) == check(built, deep=True) == ()


@pytest.mark.parametrize("deep", [False, True])
def test_a_missing_file_is_named(built: Bucket, deep: bool) -> None:
    (built.triton / "KERNEL/k.cubin").unlink()
    assert check(built, deep=deep) == faults(("triton/KERNEL/k.cubin", FaultKind.MISSING))


@pytest.mark.parametrize("deep", [False, True])
def test_a_file_that_was_cut_is_named(built: Bucket, deep: bool) -> None:
    (built.path / FX / "entry").write_text("cut")
    assert check(built, deep=deep) == faults((f"{FX}/entry", FaultKind.SIZE))


def test_content_of_the_same_size_and_time_is_found_by_reading_it(built: Bucket) -> None:
    file = built.triton / "KERNEL/k.cubin"
    status = file.stat()
    file.write_text("X" * status.st_size)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert check(built) == ()
    assert check(built, deep=True) == faults(("triton/KERNEL/k.cubin", FaultKind.CONTENT))


def test_another_time_over_the_same_content_is_a_fault_only_while_the_content_is_not_read(built: Bucket) -> None:
    os.utime(built.triton / "KERNEL/k.cubin", ns=(1, 1))
    assert check(built) == faults(("triton/KERNEL/k.cubin", FaultKind.MTIME))
    assert check(built, deep=True) == ()


@pytest.mark.parametrize("directory", [FX, AOT])
def test_a_file_more_in_a_keys_directory_is_a_fault_because_torch_would_load_it(built: Bucket, directory: str) -> None:
    (built.path / directory / "planted").write_text("pickle")
    assert check(built) == faults((f"{directory}/planted", FaultKind.UNLISTED_IN_KEY))


def test_an_unfinished_write_in_a_keys_directory_is_no_fault(built: Bucket) -> None:
    (built.path / FX / ".77.88.tmp").write_text("half")
    assert check(built) == ()


def test_other_files_that_are_not_listed_are_told_and_are_no_fault(built: Bucket) -> None:
    (built.triton / "OTHER").mkdir()
    (built.triton / "OTHER/k.cubin").write_text("another job's kernel")
    loaded = manifest.load(built)
    assert loaded is not None
    assert inventory.check(built, loaded, deep=True) == ()
    assert inventory.unlisted(built, loaded) == ("triton/OTHER/k.cubin",)


def test_a_link_in_place_of_a_file_is_not_a_file(built: Bucket, tmp_path: Path) -> None:
    file = built.inductor / "5u/c5u.so"
    file.rename(tmp_path / "moved")
    file.symlink_to(tmp_path / "moved")
    assert check(built, deep=True) == faults(("inductor/5u/c5u.so", FaultKind.NOT_A_FILE))


def test_a_link_in_place_of_a_directory_escapes(built: Bucket, tmp_path: Path) -> None:
    (built.triton / "KERNEL").rename(tmp_path / "moved")
    (built.triton / "KERNEL").symlink_to(tmp_path / "moved")
    assert check(built) == faults(
        ("triton/KERNEL/__grp__k.json", FaultKind.ESCAPES), ("triton/KERNEL/k.cubin", FaultKind.ESCAPES)
    )


@pytest.mark.parametrize("path", ["../outside", "/etc/passwd", "inductor/../../x", "inductor/a\0b"])
def test_a_value_that_names_a_path_outside_escapes(built: Bucket, path: str) -> None:
    entry = FileEntry(path=path, size_bytes=0, mtime_ns=0, sha256="")
    bad = dataclasses.replace(of(built), files=(entry,))
    assert inventory.check(built, bad, deep=True) == faults((path, FaultKind.ESCAPES))


def test_the_whole_bucket_missing_is_a_fault_for_each_file(built: Bucket, store: Store) -> None:
    found = inventory.check(store.bucket("cd" * 10), of(built), deep=False)
    assert [fault.kind for fault in found] == [FaultKind.MISSING] * 6


def test_a_run_that_touches_nothing_changes_nothing(built: Bucket) -> None:
    before = inventory.snapshot(built)
    assert len(before) == 9
    assert inventory.changed(before, inventory.snapshot(built)) == ()


def test_a_snapshot_tells_added_removed_altered_and_replaced_files(built: Bucket) -> None:
    before = inventory.snapshot(built)
    (built.triton / "NEW").write_text("")
    (built.path / AOT / "entry").unlink()
    (built.path / FX / "entry").write_text("longer than it was, by far")
    so = built.inductor / "5u/c5u.so"
    status = so.stat()
    (built.inductor / "5u/copy").write_bytes(so.read_bytes())
    os.utime(built.inductor / "5u/copy", ns=(status.st_atime_ns, status.st_mtime_ns))
    (built.inductor / "5u/copy").rename(so)
    after = inventory.snapshot(built)
    assert [(change.path, str(change.kind)) for change in inventory.changed(before, after)] == [
        ("inductor/5u/c5u.so", "altered"),
        (f"{AOT}/entry", "removed"),
        (f"{FX}/entry", "altered"),
        ("triton/NEW", "added"),
    ]


def test_torchs_own_locks_may_come_and_go_and_no_other_file_may(built: Bucket) -> None:
    before = inventory.snapshot(built)
    (built.inductor / "locks/c5u.lock").unlink()
    (built.inductor / "locks/new.lock").write_text("")
    (built.inductor / "locks2").write_text("")
    changes = inventory.changed(before, inventory.snapshot(built))
    assert [change.path for change in changes] == ["inductor/locks2"]


def test_a_bucket_that_does_not_exist_has_an_empty_snapshot(store: Store) -> None:
    assert inventory.snapshot(store.bucket("cd" * 10)) == {}


def test_a_tree_that_is_a_file_is_a_store_error(store: Store) -> None:
    odd = store.bucket("cd" * 10)
    odd.path.mkdir()
    odd.inductor.write_text("")
    with pytest.raises(StoreError, match="cannot read the directory"):
        inventory.snapshot(odd)
