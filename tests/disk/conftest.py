"""Real stores, and real processes that hold their locks."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from flexwarm.store import Bucket, Store

#: Holds a lock from when it prints "held" until its standard input ends.
HOLD = """
import sys
from pathlib import Path
from flexwarm import locks
with locks.hold(Path(sys.argv[1]), holder=Path(sys.argv[2]), command="build", wait_seconds=0, notify=print):
    print("held", flush=True)
    sys.stdin.read()
"""

Holding = Callable[[Path, Path], AbstractContextManager["subprocess.Popen[str]"]]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store", create=True)


@pytest.fixture
def bucket(store: Store) -> Bucket:
    made = store.bucket("ab" * 10)
    made.create()
    return made


@pytest.fixture
def held_elsewhere() -> Holding:
    """Another process that holds a lock for the length of a ``with`` block."""

    @contextmanager
    def hold(lock: Path, holder: Path) -> Iterator[subprocess.Popen[str]]:
        child = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(lock), str(holder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            assert child.stdout.readline() == "held\n"
            yield child
        finally:
            child.stdin.close()
            child.wait(timeout=30)
            child.stdout.close()

    return hold
