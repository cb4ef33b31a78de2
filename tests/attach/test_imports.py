"""Something happens when a module has been imported, whoever imports it, whenever, and however often it fails before."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from flexwarm.attach import imports


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory of modules that nothing else knows, forgotten afterwards."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    before = set(sys.modules)
    importlib.invalidate_caches()
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]
    imports._waiting.clear()


def put(directory: Path, name: str, text: str) -> None:
    (directory / name).parent.mkdir(parents=True, exist_ok=True)
    (directory / name).write_text(text)
    importlib.invalidate_caches()


def test_an_action_waits_for_the_end_of_the_import(modules: Path) -> None:
    put(modules, "awaited.py", "import sys\nseen = list(sys.modules['sys'].seen_by_test)\nvalue = 3\n")
    done: list[int] = []
    sys.seen_by_test = done  # type: ignore[attr-defined]
    try:
        imports.after("awaited", lambda: done.append(sys.modules["awaited"].value))
        assert done == []
        module = importlib.import_module("awaited")
    finally:
        del sys.seen_by_test  # type: ignore[attr-defined]
    assert (module.seen, done) == ([], [3])


def test_an_action_on_a_module_that_is_there_happens_at_once(modules: Path) -> None:
    done: list[str] = []
    imports.after("json", lambda: done.append("json"))
    assert done == ["json"]


def test_an_action_on_a_module_that_is_just_being_imported_waits_for_it(modules: Path) -> None:
    put(modules, "halfway.py", "import sys\nsys.modules['sys'].watch_here()\nvalue = 3\n")
    done: list[int] = []
    sys.watch_here = lambda: imports.after("halfway", lambda: done.append(sys.modules["halfway"].value))  # type: ignore[attr-defined]
    try:
        imports.after("halfway", lambda: None)
        importlib.import_module("halfway")
    finally:
        del sys.watch_here  # type: ignore[attr-defined]
    assert done == [3]


def test_each_of_several_actions_happens_once_and_in_their_order(modules: Path) -> None:
    put(modules, "several/__init__.py", "")
    put(modules, "several/part.py", "")
    done: list[str] = []
    for name in ("several.part", "several", "several.part"):
        imports.after(name, partial(done.append, name))
    importlib.import_module("several.part")
    importlib.import_module("several.part")
    assert done == ["several", "several.part", "several.part"]


def test_an_import_that_fails_may_be_tried_again(modules: Path) -> None:
    put(modules, "failing.py", "raise OSError('not yet')\n")
    done: list[str] = []
    imports.after("failing", lambda: done.append("failing"))
    with pytest.raises(OSError, match="not yet"):
        importlib.import_module("failing")
    assert done == []
    put(modules, "failing.py", "value = 'a text that is longer'\n")
    importlib.import_module("failing")
    assert done == ["failing"]


def test_who_only_asks_for_a_module_triggers_nothing_and_hides_nothing(modules: Path) -> None:
    put(modules, "asked.py", "")
    done: list[str] = []
    imports.after("asked", lambda: done.append("asked"))
    assert importlib.util.find_spec("asked") is not None
    assert done == []
    importlib.import_module("asked")
    assert done == ["asked"]


def test_a_module_that_does_not_exist_is_not_found_as_always(modules: Path) -> None:
    imports.after("no_such_module_anywhere", lambda: None)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("no_such_module_anywhere")


def test_a_finder_of_the_old_kind_does_no_harm(modules: Path) -> None:
    put(modules, "beside.py", "")
    done: list[str] = []
    sys.meta_path.insert(0, object())  # type: ignore[arg-type]
    imports.after("beside", lambda: done.append("beside"))
    importlib.import_module("beside")
    assert done == ["beside"]
