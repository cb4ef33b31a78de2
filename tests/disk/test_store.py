from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from flexwarm.errors import ExitCode, StoreError, UsageError
from flexwarm.files import store_error, write_atomic
from flexwarm.store import TAG_TEXT, Bucket, Store, default_root

#: Imports first: another user may not be able to read the interpreter's own library.
AS_NOBODY = """
import os, sys
from pathlib import Path
import flexwarm.store, flexwarm.manifest, platformdirs, platformdirs.unix, pwd, encodings.idna
from flexwarm.errors import FlexwarmError
from flexwarm.store import Store, default_root
if os.geteuid() == 0:
    os.setgroups([]), os.setgid(54321), os.setuid(54321)
try:
    {body}
except FlexwarmError as error:
    print(int(error.exit_code), error.message, "|", error.hint)
"""


def run_as_nobody(body: str, *args: str, env: dict[str, str] | None = None) -> str:
    """Run ``body`` as a user without a name and without root's rights; its output or the error that it ended with."""
    script = AS_NOBODY.format(body=body)
    done = subprocess.run([sys.executable, "-c", script, *args], capture_output=True, text=True, env=env, check=False)
    assert done.stderr == ""
    return done.stdout.strip()


def test_a_missing_store_that_is_only_read_is_empty_and_stays_missing(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "none", create=False)
    assert list(store.buckets()) == []
    assert store.staged() == store.quarantined() == ()
    assert not (tmp_path / "none").exists()


def test_a_created_store_has_its_tag_and_no_directory_that_others_can_write(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        store = Store.open(tmp_path / "a" / "store", create=True)
        store.bucket("12" * 10).create()
    finally:
        os.umask(old)
    assert (store.root / "CACHEDIR.TAG").read_bytes() == TAG_TEXT
    assert TAG_TEXT.startswith(b"Signature: 8a477f597d28d172789f06886806bc55\n")
    made = [store.root, *(path for path in store.root.rglob("*"))]
    assert len(made) > 8
    assert [path for path in made if path.stat().st_mode & 0o022] == []


def test_creating_twice_changes_nothing(store: Store) -> None:
    before = {path: path.stat().st_mtime_ns for path in store.root.rglob("*")}
    Store.open(store.root, create=True)
    assert {path: path.stat().st_mtime_ns for path in store.root.rglob("*")} == before


def test_a_directory_with_other_content_is_never_made_a_store(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(StoreError, match="not a flexwarm store") as caught:
        Store.open(tmp_path, create=True)
    assert str(tmp_path / "flexwarm") in caught.value.hint
    assert os.listdir(tmp_path) == ["thesis.tex"]


def test_many_processes_may_create_one_store_at_once(tmp_path: Path) -> None:
    script = """
import sys
from pathlib import Path
from flexwarm.store import Store
print("ready", flush=True)
sys.stdin.read()
Store.open(Path(sys.argv[1]), create=True)
"""
    root = tmp_path / "store"
    children = [
        subprocess.Popen([sys.executable, "-c", script, str(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(8)
    ]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
    for child in children:
        assert child.stdin is not None
        child.stdin.close()
    codes = [child.wait(timeout=60) for child in children]
    for child in children:
        assert child.stdout is not None
        child.stdout.close()
    assert codes == [0] * 8
    assert sorted(os.listdir(root)) == ["CACHEDIR.TAG", "buckets-v1", "locks-v1", "quarantine-v1", "staging-v1"]


@pytest.mark.parametrize("mode", [0o775, 0o757])
@pytest.mark.parametrize("part", ["", "buckets-v1", "staging-v1"])
def test_a_store_that_others_can_write_is_refused_unless_trusted(store: Store, part: str, mode: int) -> None:
    (store.root / part).chmod(mode)
    with pytest.raises(StoreError, match="other users can write") as caught:
        Store.open(store.root, create=False)
    assert caught.value.exit_code is ExitCode.UNSUPPORTED
    assert f"chmod go-w {store.root / part}" in caught.value.hint
    assert "--trust-shared" in caught.value.hint
    assert Store.open(store.root, create=False, trust_shared=True).root == store.root


@pytest.mark.skipif(os.geteuid() != 0, reason="giving a directory to another user needs root")
def test_a_store_of_another_user_is_refused_unless_trusted(store: Store) -> None:
    os.chown(store.buckets_path, 54321, -1)
    with pytest.raises(StoreError, match="belongs to uid 54321"):
        Store.open(store.root, create=False)
    Store.open(store.root, create=False, trust_shared=True)


@pytest.mark.parametrize("create", [True, False])
def test_a_root_that_is_a_file_or_lies_below_one_is_one_clear_sentence(tmp_path: Path, create: bool) -> None:
    file = tmp_path / "file"
    file.write_text("")
    for root in (file, file / "below"):
        with pytest.raises(StoreError, match=r"directory|in the way") as caught:
            Store.open(root, create=create)
        assert "--store DIR" in caught.value.hint


def test_a_directory_that_the_user_may_not_write_names_itself_and_the_user(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        for parent in (tmp_path, *tmp_path.parents[:3]):
            parent.chmod(0o755)
    (tmp_path / "closed").mkdir(mode=0o555)
    said = run_as_nobody("Store.open(Path(sys.argv[1]), create=True)", str(tmp_path / "closed" / "store"))
    assert said.startswith(f"3 cannot make the directory {tmp_path}/closed/store: permission denied for ")
    assert "uid " in said


def test_a_user_without_a_home_is_told_to_name_a_store() -> None:
    if os.geteuid() != 0:
        pytest.skip("becoming a user without a passwd entry needs root")
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(Path(__file__).parents[2])}
    assert run_as_nobody("print(default_root({}))", env=env).startswith("3 no home directory is known")
    assert run_as_nobody("print(default_root({'FLEXWARM_STORE': '/x'}))", env=env) == "/x"


def test_a_tilde_in_the_stores_name_is_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert Store.open(Path("~/cache"), create=True).root == tmp_path / "cache"
    assert not (tmp_path / "~").exists()


def test_the_default_root_is_below_the_users_cache_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_root({}) == tmp_path / "flexwarm"


def test_only_directories_named_by_a_digest_are_buckets(store: Store) -> None:
    for name in ("b" * 20, "a" * 20, "a" * 19, "A" * 20, "g" * 20, ".aaaa.tmp"):
        (store.buckets_path / name).mkdir()
    (store.buckets_path / ("c" * 20)).write_text("a file")
    assert [bucket.digest for bucket in store.buckets()] == ["a" * 20, "b" * 20]


@pytest.mark.parametrize("name", ["", "a" * 19, "../" + "a" * 17, "a" * 20 + "\n", "A" * 20])
def test_a_name_that_is_no_digest_is_a_usage_error(store: Store, name: str) -> None:
    with pytest.raises(UsageError, match="not the name of a bucket"):
        store.bucket(name)


def test_a_buckets_lock_is_outside_of_the_bucket(bucket: Bucket) -> None:
    assert not bucket.lock.is_relative_to(bucket.path)
    assert not bucket.holder.is_relative_to(bucket.path)


def test_a_write_replaces_the_whole_file_and_leaves_no_temporary_name(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old and longer")
    write_atomic(path, b"new")
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["file"]


def test_a_failed_write_keeps_the_old_file_and_leaves_no_temporary_name(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))  # the kernel itself refuses the write; Python ignores SIGXFSZ
    try:
        with pytest.raises(StoreError, match=f"cannot write {path}: File too large"):
            write_atomic(path, b"n" * 1000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_a_write_below_a_missing_directory_is_a_store_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot write"):
        write_atomic(tmp_path / "none" / "file", b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_told_with_the_command_that_makes_room() -> None:
    with pytest.raises(OSError, match="No space") as caught, open("/dev/full", "wb", buffering=0) as full:
        full.write(b"x")
    error = store_error(caught.value, "write /store/x")
    assert error.message == "cannot write /store/x: no space (or no inode) is left"
    assert "flexwarm clean" in error.hint


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.EDQUOT, errno.ENOTDIR, errno.ESTALE, errno.EMFILE])
def test_every_error_number_has_a_sentence_and_a_next_step(number: int) -> None:
    error = store_error(OSError(number, os.strerror(number)), "read X")
    assert error.message.startswith("cannot read X: ")
    assert len(error.message) > len("cannot read X: ") + 5
    assert error.hint
    assert error.exit_code is ExitCode.UNSUPPORTED
