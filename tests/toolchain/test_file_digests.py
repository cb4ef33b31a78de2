"""The remembered digest of a large file: right, remembered, and never in the way."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from flexwarm.errors import UnsupportedError
from flexwarm.store import Store
from flexwarm.toolchain.digests import sha256


@pytest.fixture
def library(tmp_path: Path) -> Path:
    path = tmp_path / "libtriton.so"
    path.write_bytes(b"one" * 1000)
    return path


def made(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store", create=True)


def expected(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_without_a_store_it_is_computed(library: Path) -> None:
    assert sha256(library, None) == expected(library)


def test_it_is_remembered_for_the_same_file_and_not_read_again(library: Path, tmp_path: Path) -> None:
    store = made(tmp_path)
    sha256(library, store)
    memory = store.root / "digests-v1.json"
    memory.write_text(memory.read_text().replace(expected(library), "f" * 64))  # shows that it comes from there
    assert sha256(library, store) == "f" * 64


def test_a_file_of_the_same_size_and_another_time_is_read_again(library: Path, tmp_path: Path) -> None:
    store = made(tmp_path)
    before = sha256(library, store)
    library.write_bytes(b"two" * 1000)
    os.utime(library, ns=(0, 1))
    assert sha256(library, store) == expected(library) != before


def test_a_file_put_in_its_place_with_the_same_size_and_time_is_read_again(library: Path, tmp_path: Path) -> None:
    store = made(tmp_path)
    sha256(library, store)
    status = library.stat()
    other = tmp_path / "other"
    other.write_bytes(b"two" * 1000)
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    other.replace(library)
    assert sha256(library, store) == expected(library)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"schema": 9, "files": {}}', '{"schema": 1, "files": 3}'])
def test_a_memory_that_is_cut_off_or_strange_is_written_anew(library: Path, tmp_path: Path, content: str) -> None:
    store = made(tmp_path)
    memory = store.root / "digests-v1.json"
    memory.write_text(content)
    assert sha256(library, store) == expected(library)
    assert str(library) in json.loads(memory.read_text())["files"]


def test_a_store_that_does_not_exist_is_not_made(library: Path, tmp_path: Path) -> None:
    store = Store.open(tmp_path / "store", create=False)
    assert sha256(library, store) == expected(library)
    assert not store.root.exists()


def test_an_empty_directory_that_may_become_a_store_is_left_empty(library: Path, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    sha256(library, Store.open(tmp_path / "store", create=False))
    Store.open(tmp_path / "store", create=True)  # would be refused with a file of ours in it


def test_a_memory_that_can_be_neither_read_nor_written_is_no_obstacle(library: Path, tmp_path: Path) -> None:
    store = made(tmp_path)
    (store.root / "digests-v1.json" / "in the way").mkdir(parents=True)  # a mode would not stop root
    assert sha256(library, store) == expected(library)


def test_files_that_are_gone_are_forgotten(library: Path, tmp_path: Path) -> None:
    store = made(tmp_path)
    sha256(library, store)
    library.rename(tmp_path / "moved.so")
    sha256(tmp_path / "moved.so", store)
    assert list(json.loads((store.root / "digests-v1.json").read_text())["files"]) == [str(tmp_path / "moved.so")]


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=str(tmp_path / "missing.so")):
        sha256(tmp_path / "missing.so", None)
