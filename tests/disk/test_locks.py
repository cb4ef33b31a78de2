from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from flexwarm import locks
from flexwarm.errors import BusyError, ExitCode, StoreError, UnsupportedError
from flexwarm.store import Store

#: The fixture: another process that holds a lock for the length of a ``with`` block.
Holding = Callable[[Path, Path], AbstractContextManager["subprocess.Popen[str]"]]


def take(store: Store, *, wait_seconds: float, said: list[str]) -> None:
    with locks.hold(store.lock, holder=store.holder, command="clean", wait_seconds=wait_seconds, notify=said.append):
        pass


def test_a_free_lock_is_taken_without_a_word(store: Store) -> None:
    said: list[str] = []
    take(store, wait_seconds=5, said=said)
    assert said == []


def test_the_holder_is_written_down_while_the_lock_is_held_and_only_then(store: Store) -> None:
    with locks.hold(store.lock, holder=store.holder, command="clean", wait_seconds=0, notify=print):
        assert f"flexwarm clean (pid {os.getpid()} on " in locks.read_holder(store.holder)
    assert not store.holder.exists()


def test_a_lock_file_outlives_its_holder_with_the_same_inode(store: Store) -> None:
    take(store, wait_seconds=0, said=[])
    inode = store.lock.stat().st_ino
    take(store, wait_seconds=0, said=[])
    assert store.lock.stat().st_ino == inode


def test_without_a_wait_a_held_lock_is_busy_at_once_and_names_its_holder(store: Store, held_elsewhere: Holding) -> None:
    said: list[str] = []
    with held_elsewhere(store.lock, store.holder) as child, pytest.raises(BusyError) as caught:
        take(store, wait_seconds=0, said=said)
    assert f"flexwarm build (pid {child.pid} on " in caught.value.message
    assert "--lock-wait SECONDS" in caught.value.hint
    assert caught.value.exit_code is ExitCode.BUSY
    assert said == []


def test_a_wait_says_once_what_it_is_for_and_then_gives_up(store: Store, held_elsewhere: Holding) -> None:
    said: list[str] = []
    with held_elsewhere(store.lock, store.holder) as child, pytest.raises(BusyError, match=r"after 1\.2 s"):
        take(store, wait_seconds=1.2, said=said)
    assert len(said) == 1
    assert said[0].startswith(f"waiting up to 1.2 s for flexwarm build (pid {child.pid} on ")


def test_a_waiter_gets_the_lock_as_soon_as_the_holder_lets_go(store: Store, held_elsewhere: Holding) -> None:
    """The holder is let go by the waiter's own notice, so the order is fixed and nothing sleeps."""
    with held_elsewhere(store.lock, store.holder) as child:
        assert child.stdin is not None
        letting_go = child.stdin.close
        with locks.hold(store.lock, holder=store.holder, command="clean", wait_seconds=60, notify=lambda message: letting_go()):
            assert child.wait(timeout=30) == 0


def test_a_killed_holder_frees_the_lock_and_its_note_does_not_stay_true(store: Store, held_elsewhere: Holding) -> None:
    with held_elsewhere(store.lock, store.holder) as child:
        child.send_signal(signal.SIGKILL)
        child.wait(timeout=30)
        assert store.holder.exists()
        assert locks.held_by(store.lock, holder=store.holder) is None
        with locks.hold(store.lock, holder=store.holder, command="clean", wait_seconds=0, notify=print):
            assert f"pid {os.getpid()} " in locks.read_holder(store.holder)


def test_an_error_while_holding_lets_go(store: Store) -> None:
    with (
        pytest.raises(ZeroDivisionError),
        locks.hold(store.lock, holder=store.holder, command="clean", wait_seconds=0, notify=print),
    ):
        raise ZeroDivisionError
    take(store, wait_seconds=0, said=[])


@pytest.mark.parametrize(
    "note", [b"", b"{", b"[]", b'{"pid": 1}', b"\xff", b'{"host":"h","pid":1,"command":"c","since_unix":1e99}']
)
def test_a_note_that_cannot_be_read_is_an_unknown_holder(tmp_path: Path, note: bytes) -> None:
    (tmp_path / "note").write_bytes(note)
    assert locks.read_holder(tmp_path / "note") == "an unknown holder"


def test_trying_tells_who_holds_it_and_takes_nothing(store: Store, held_elsewhere: Holding) -> None:
    with held_elsewhere(store.lock, store.holder) as child:
        with locks.try_hold(store.lock, holder=store.holder, command="clean") as holder:
            assert holder is not None
            assert f"pid {child.pid} " in holder
        assert store.holder.exists(), "the note of the real holder was removed"
        assert locks.held_by(store.lock, holder=store.holder) == holder


def test_trying_a_free_lock_keeps_others_out(store: Store) -> None:
    script = """
import sys
from pathlib import Path
from flexwarm import locks
print(locks.held_by(Path(sys.argv[1]), holder=Path(sys.argv[2])))
"""
    with locks.try_hold(store.lock, holder=store.holder, command="clean") as holder:
        assert holder is None
        args = [sys.executable, "-c", script, str(store.lock), str(store.holder)]
        assert f"pid {os.getpid()} " in subprocess.run(args, capture_output=True, text=True, check=True).stdout


def test_looking_at_a_lock_makes_no_file(store: Store) -> None:
    assert locks.held_by(store.lock, holder=store.holder) is None
    assert not store.lock.exists()


def test_a_lock_file_that_cannot_be_opened_is_a_store_error(store: Store) -> None:
    store.lock.mkdir()
    with pytest.raises(StoreError, match=f"cannot lock {store.lock}"):
        take(store, wait_seconds=0, said=[])


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK])
def test_a_filesystem_without_locks_is_refused_by_name_and_never_weakly_locked(
    store: Store, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel's answer is injected at `flock`: no such filesystem can be mounted here."""
    import fcntl

    def flock(descriptor: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(UnsupportedError, match="without working file locks") as caught:
        take(store, wait_seconds=0, said=[])
    assert str(store.lock) in caught.value.message
    assert f"({locks.filesystem_type(store.root)})" in caught.value.message
    assert not store.holder.exists()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_filesystem_of_a_path_is_named() -> None:
    assert locks.filesystem_type(Path("/proc/self")) == "proc"
    assert locks.filesystem_type(Path("/nowhere/at/all")) == locks.filesystem_type(Path("/"))


def shared(store: Store, *, wait_seconds: float = 0, said: list[str] | None = None) -> AbstractContextManager[None]:
    notify = said.append if said is not None else print
    return locks.share(store.lock, holder=store.holder, command="verify", wait_seconds=wait_seconds, notify=notify)


def test_a_lock_can_be_shared_by_many_and_then_nobody_has_it_alone(store: Store) -> None:
    with shared(store), shared(store), shared(store):
        with pytest.raises(BusyError):
            take(store, wait_seconds=0, said=[])
        assert not locks.is_held(store.lock)
    take(store, wait_seconds=0, said=[])


def test_a_lock_that_somebody_holds_alone_is_waited_for_by_who_would_share_it(store: Store, held_elsewhere: Holding) -> None:
    said: list[str] = []
    with held_elsewhere(store.lock, store.holder) as child:
        with pytest.raises(BusyError, match=f"pid {child.pid} on "), shared(store):
            pass
        with pytest.raises(BusyError, match=r"after 1\.2 s"), shared(store, wait_seconds=1.2, said=said):
            pass
    assert len(said) == 1
    with shared(store):
        pass


def test_who_shares_a_lock_gets_it_as_soon_as_the_holder_lets_go(store: Store, held_elsewhere: Holding) -> None:
    with held_elsewhere(store.lock, store.holder) as child:
        assert child.stdin is not None
        letting_go = child.stdin.close
        with locks.share(
            store.lock, holder=store.holder, command="verify", wait_seconds=60, notify=lambda message: letting_go()
        ):
            assert child.wait(timeout=30) == 0


def test_the_note_of_a_lock_that_is_shared_stays_while_its_writer_shares_it(store: Store) -> None:
    with shared(store):
        first = locks.read_holder(store.holder)
        store.holder.write_text(store.holder.read_text().replace('"command": "verify"', '"command": "verify --fast"'))
        other = store.holder.read_text()
    # Another one that shares the lock has written its own meanwhile, and still holds it.
    assert store.holder.read_text() == other
    assert first.startswith("flexwarm verify (pid ")


def test_a_lock_that_cannot_be_written_is_done_without_by_who_only_reads(store: Store) -> None:
    if os.geteuid() == 0:
        pytest.skip("root can write everything")
    os.chmod(store.lock.parent, 0o555)
    said: list[str] = []
    try:
        with locks.share_if_writable(store.lock, holder=store.holder, command="verify", wait_seconds=0, notify=said.append):
            assert "without its lock" in said[0]
    finally:
        os.chmod(store.lock.parent, 0o755)
