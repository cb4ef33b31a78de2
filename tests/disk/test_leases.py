"""Leases of real processes: many at once, ended with their process, and never missed by a clean."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from flexwarm import leases, locks
from flexwarm.errors import BusyError, UnsupportedError
from flexwarm.files import unique_suffix
from flexwarm.store import Bucket, Store

#: The fixture: another process that holds a lock for the length of a ``with`` block.
Holding = Callable[[Path, Path], AbstractContextManager["subprocess.Popen[str]"]]

#: Holds a lease from when it prints "held" until its standard input ends.
LEASE = """
import sys
from pathlib import Path
from flexwarm import leases
from flexwarm.store import Bucket
bucket = Bucket(root=Path(sys.argv[1]), digest=sys.argv[2])
with leases.hold(bucket, command=sys.argv[3], wait_seconds=30, notify=lambda text: print(text, file=sys.stderr)):
    print("held", bucket.exists(), flush=True)
    sys.stdin.read()
"""


@contextmanager
def leased(bucket: Bucket, command: str = "torchrun train.py") -> Iterator[subprocess.Popen[str]]:
    """Another process that holds a lease of ``bucket`` for the length of the block."""
    words = [sys.executable, "-c", LEASE, str(bucket.root), bucket.digest, command]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            assert child.stdout.readline() == "held True\n"
            yield child
        finally:
            child.stdin.close()
            child.wait(timeout=30)


def lease(bucket: Bucket, said: list[str] | None = None, *, wait_seconds: float = 0) -> AbstractContextManager[None]:
    notify = print if said is None else said.append
    return leases.hold(bucket, command="python train.py", wait_seconds=wait_seconds, notify=notify)


def files(bucket: Bucket) -> set[str]:
    """What lies beside the gate."""
    return {path.name for path in bucket.leases.iterdir()} - {bucket.gate.name}


def test_a_lease_names_its_holder_and_leaves_nothing_when_it_ends(bucket: Bucket) -> None:
    said: list[str] = []
    with lease(bucket, said):
        (holder,) = leases.holders(bucket)
        assert holder.startswith(f"flexwarm run -- python train.py (pid {os.getpid()} on ")
        assert len(files(bucket)) == 2
    assert leases.holders(bucket) == ()
    assert files(bucket) == set()
    assert said == []


def test_several_processes_hold_leases_of_one_bucket_at_once_and_one_may_hold_two(bucket: Bucket) -> None:
    with leased(bucket, "torchrun a.py") as first, leased(bucket, "torchrun b.py") as second, lease(bucket), lease(bucket):
        held = leases.holders(bucket)
    assert len(held) == 4
    for pid, title in ((first.pid, "torchrun a.py"), (second.pid, "torchrun b.py"), (os.getpid(), "python train.py")):
        assert any(f"flexwarm run -- {title} (pid {pid} on " in text for text in held)
    assert leases.holders(bucket) == ()


def test_a_lease_is_of_one_bucket(store: Store, bucket: Bucket) -> None:
    with lease(bucket):
        assert leases.holders(store.bucket("cd" * 10)) == ()


def test_a_killed_run_holds_no_lease_and_the_next_one_removes_what_it_left(bucket: Bucket) -> None:
    with leased(bucket) as child:
        child.send_signal(signal.SIGKILL)
        child.wait(timeout=30)
        assert len(files(bucket)) == 2
        assert leases.holders(bucket) == ()
    with lease(bucket):
        assert len(files(bucket)) == 2
        assert all(f".{os.getpid()}." in name for name in files(bucket))


def test_looking_for_holders_makes_and_removes_nothing(bucket: Bucket) -> None:
    assert leases.holders(bucket) == ()
    assert not bucket.leases.exists()
    with leased(bucket) as child:
        child.kill()
        child.wait(timeout=30)
    before = files(bucket)
    assert leases.holders(bucket) == ()
    assert files(bucket) == before


def test_a_lease_of_another_host_is_known_by_its_lock_and_not_by_its_name(bucket: Bucket, held_elsewhere: Holding) -> None:
    bucket.leases.mkdir()
    lock, note = bucket.leases / "elsewhere.999999.00ff.lock", bucket.leases / "elsewhere.999999.00ff.json"
    with held_elsewhere(lock, note):
        record = {"host": "elsewhere", "pid": 999999, "command": "run -- x", "since_unix": 0.0}
        note.write_text(json.dumps(record))
        assert leases.holders(bucket) == ("flexwarm run -- x (pid 999999 on elsewhere, since 1970-01-01 00:00:00 UTC)",)
        with lease(bucket):
            assert len(leases.holders(bucket)) == 2
        assert lock.exists()
    assert leases.holders(bucket) == ()


@pytest.mark.parametrize("note", [None, b"", b"{", b'{"pid": 1}'])
def test_a_lease_without_a_readable_note_counts_all_the_same(
    bucket: Bucket, held_elsewhere: Holding, note: bytes | None
) -> None:
    bucket.leases.mkdir()
    lock, path = bucket.leases / "h.1.00ff.lock", bucket.leases / "h.1.00ff.json"
    with held_elsewhere(lock, path):
        path.unlink() if note is None else path.write_bytes(note)
        assert leases.holders(bucket) == ("an unknown holder",)


def test_a_note_whose_lock_is_gone_is_removed(bucket: Bucket) -> None:
    bucket.leases.mkdir()
    (bucket.leases / "h.1.00ff.json").write_text("{}")
    with leases.closed(bucket) as held:
        assert held == ()
    assert not (bucket.leases / "h.1.00ff.json").exists()


def test_an_error_in_the_run_ends_its_lease_and_passes(bucket: Bucket) -> None:
    with pytest.raises(ZeroDivisionError), lease(bucket):
        raise ZeroDivisionError
    assert files(bucket) == set()


def test_a_build_does_not_keep_a_run_from_its_lease(bucket: Bucket, held_elsewhere: Holding) -> None:
    with held_elsewhere(bucket.lock, bucket.holder), lease(bucket):
        assert len(leases.holders(bucket)) == 1


def test_a_lease_of_a_bucket_that_is_not_there_is_held_and_found_without_it(store: Store) -> None:
    bucket = store.bucket("cd" * 10)
    with lease(bucket):
        assert not bucket.exists()
        assert len(leases.holders(bucket)) == 1


# Where no lease can be kept


def test_where_the_store_cannot_be_written_no_lease_is_kept_and_that_is_told(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel's answer is injected: root may write everywhere, and a read-only filesystem cannot be mounted here."""

    def makedirs(*args: object, **options: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "makedirs", makedirs)
    said: list[str] = []
    with lease(bucket, said):
        assert leases.holders(bucket) == ()
    assert len(said) == 1
    assert said[0].startswith(f"no lease is kept, so clean may delete bucket {bucket.digest} during this run: ")
    assert "read-only" in said[0]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_sees_leases_but_keeps_none_where_it_may_not_write(bucket: Bucket, tmp_path: Path) -> None:
    script = """
import os, sys
from pathlib import Path
from flexwarm import leases
from flexwarm.store import Bucket
os.setgid(65534)
os.setuid(65534)
bucket = Bucket(root=Path(sys.argv[1]), digest=sys.argv[2])
with leases.hold(bucket, command="x", wait_seconds=0, notify=print):
    print(len(leases.holders(bucket)))
"""
    for parent in (bucket.root, tmp_path, *tmp_path.parents):
        if parent == Path(tempfile.gettempdir()):
            break
        parent.chmod(0o755)
    with leased(bucket), lease(bucket):
        args = [sys.executable, "-c", script, str(bucket.root), bucket.digest]
        done = subprocess.run(args, capture_output=True, text=True, check=True)
    told, number = done.stdout.splitlines()
    assert told.startswith("no lease is kept")
    assert "permission denied" in told
    assert number == "2"


def test_a_filesystem_without_locks_is_refused(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    def flock(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    bucket.leases.mkdir()
    (bucket.leases / "h.1.00ff.lock").touch()
    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(UnsupportedError, match="without working file locks"), lease(bucket):
        pass
    with pytest.raises(UnsupportedError, match="without working file locks"):
        leases.holders(bucket)


# A run and a clean


def test_a_run_that_comes_while_a_bucket_is_taken_waits_and_then_sees_that_it_is_gone(bucket: Bucket) -> None:
    with leases.closed(bucket) as held:
        assert held == ()
        words = [sys.executable, "-c", LEASE, str(bucket.root), bucket.digest, "x"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        child = subprocess.Popen(words, text=True, **pipes)
        assert child.stderr is not None
        # It has asked for the gate and was told who has it: from here on the order is fixed, and nothing sleeps.
        assert f"flexwarm clean (pid {os.getpid()} on " in child.stderr.readline()
        assert leases.holders(bucket) == ()
        bucket.path.rename(bucket.root / "staging-v1" / "deleted")
    assert child.communicate(timeout=30)[0] == "held False\n"


def test_a_run_does_not_wait_for_ever_for_a_clean_that_stands_still(bucket: Bucket) -> None:
    with leases.closed(bucket), pytest.raises(BusyError, match="flexwarm clean"), lease(bucket):
        pass


def test_whoever_closes_the_gate_sees_the_leases_and_removes_those_of_the_dead(bucket: Bucket) -> None:
    with leased(bucket, "dead") as child:
        child.kill()
        child.wait(timeout=30)
    with leased(bucket, "alive") as child, leases.closed(bucket) as held:
        (holder,) = held
        assert f"flexwarm run -- alive (pid {child.pid} on " in holder
        assert len(files(bucket) - {bucket.gate_holder.name}) == 2


def test_a_run_that_stands_still_while_it_takes_its_lease_counts_as_a_holder(
    bucket: Bucket, held_elsewhere: Holding, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "GATE_SECONDS", 0.1)
    bucket.leases.mkdir()
    with held_elsewhere(bucket.gate, bucket.gate_holder) as child, leases.closed(bucket) as held:
        assert len(held) == 1
        assert f"pid {child.pid} " in held[0]


#: Takes leases until its standard input ends. A bucket that is there at the start of a lease must be there at its end.
RUNS = """
import select, sys
from pathlib import Path
from flexwarm import leases
from flexwarm.store import Bucket
bucket = Bucket(root=Path(sys.argv[1]), digest=sys.argv[2])
there = lost = 0
print("ready", flush=True)
while not select.select([sys.stdin], [], [], 0)[0]:
    with leases.hold(bucket, command="x", wait_seconds=30, notify=print):
        if bucket.exists():
            there += 1
            select.select([sys.stdin], [], [], 0.005)
            lost += not bucket.exists()
print(there, lost)
"""


def test_no_bucket_is_taken_from_a_run_that_saw_it(bucket: Bucket) -> None:
    """Runs and cleans as fast as they can. What is held is the order, so one loss in any number of tries is a failure."""
    words = [sys.executable, "-c", RUNS, str(bucket.root), bucket.digest]
    children = [subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert all(child.stdout is not None and child.stdout.readline() == "ready\n" for child in children)
    away = bucket.root / "staging-v1"
    taken = kept = 0
    while taken < 50 or kept < 5:
        with leases.closed(bucket) as held:
            if held:
                kept += 1
            elif bucket.exists():
                time.sleep(0.002)  # long enough for a run that is not kept out
                bucket.path.rename(away / unique_suffix())
                taken += 1
        bucket.create()
        assert taken + kept < 100_000
    results = [child.communicate(timeout=30)[0].split() for child in children]
    assert all(int(there) > 0 and int(lost) == 0 for there, lost in results), results


def test_asking_whether_a_lock_is_held_takes_it_from_nobody(bucket: Bucket) -> None:
    with lease(bucket):
        (lock,) = (path for path in bucket.leases.glob("*.lock") if path != bucket.gate)
        assert locks.is_held(lock)
        assert locks.is_held(lock)
    assert not locks.is_held(lock)
    assert not lock.exists()
