"""What several suites need: the repository, the command, and one bucket that was built once and is copied."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock

from tests.harness import SMALL, Flexwarm

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout."""
    return ROOT


@pytest.fixture
def flexwarm(tmp_path: Path) -> Flexwarm:
    """The command with an empty store."""
    directory = tmp_path / "project"
    directory.mkdir()
    return Flexwarm(directory, tmp_path / "store")


@pytest.fixture(scope="session")
def built_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store in which ``SMALL`` was built by the command; made once, also when tests run in several processes."""
    shared = tmp_path_factory.getbasetemp()
    if os.environ.get("PYTEST_XDIST_WORKER"):
        shared = shared.parent
    root = shared / "built"
    with FileLock(shared / "built.lock"):
        if not (root / "done").exists():
            (root / "project").mkdir(parents=True, exist_ok=True)
            command = Flexwarm(root / "project", root / "store")
            command.spec(SMALL)
            done = command.run_json("build")
            assert done.code == 0, done.err
            assert done.json["verdict"] == "built"
            (root / "done").write_text(done.out)
    return root / "store"


@pytest.fixture
def warm(flexwarm: Flexwarm, built_store: Path) -> Flexwarm:
    """The command with ``SMALL`` as its spec and a store, at a path of its own, in which that is built."""
    shutil.copytree(built_store, flexwarm.store, symlinks=True)
    flexwarm.spec(SMALL)
    return flexwarm


@pytest.fixture
def no_process_left(flexwarm: Flexwarm) -> Callable[[], None]:
    """Fails if a process of any run of the store is alive."""

    def check() -> None:
        assert flexwarm.processes_left() == []

    return check
