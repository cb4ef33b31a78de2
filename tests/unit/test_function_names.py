"""A mask or score function gets the name by which a worker finds the same one, decided by its source alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flexwarm.calls import FunctionRef
from flexwarm.ops.function_names import module_name, name_function, script_modules
from flexwarm.recorded_calls import Named, Unnamed
from tests.launches import bye, program, record, summary

SOURCE = """
LIMIT = 64
TABLE = len("x")


def causal(b, h, q, kv):
    return q >= kv


def limited(b, h, q, kv):
    return q - kv < LIMIT


def make_window(window, strict=False):
    def window_mask(b, h, q, kv):
        return (q - kv < window) & strict

    return window_mask


def with_context(context, *, window):
    limit = window * 2

    def window_mask(b, h, q, kv):
        return q - kv < limit + window

    return window_mask


def changed(window):
    window = window * 2

    def window_mask(b, h, q, kv):
        return q - kv < window

    return window_mask


def wrapped(window):
    def window_mask(b, h, q, kv):
        return q - kv < window

    return later(window_mask)


def later(function):
    return function


@later
def decorated(b, h, q, kv):
    return q >= kv


def twice(b, h, q, kv):
    return q >= kv


twice = later(twice)


def several(*windows):
    def window_mask(b, h, q, kv):
        return q - kv < windows

    return window_mask


class Masks:
    def causal(self, b, h, q, kv):
        return q >= kv
"""
GUARD = """
if __name__ == "__main__":
    causal(0, 0, 0, 0)
"""
INNER = "<locals>.window_mask"


def ref(path: Path, name: str, *, module: str = "masks", **captured: Any) -> FunctionRef:
    """The function as it is observed: its line is where its definition stands in the file."""
    head, _, inner = name.partition(".<locals>.")
    lines = path.read_text().splitlines()
    line = next(n for n, text in enumerate(lines) if text.strip().startswith(f"def {head.rpartition('.')[2]}("))
    if inner:
        line = next(n for n, text in enumerate(lines) if n > line and text.strip().startswith(f"def {inner}("))
    return FunctionRef(module=module, name=name, file=str(path), line=line + 1, captured=captured)


@pytest.fixture
def masks(tmp_path: Path) -> Path:
    path = tmp_path / "masks.py"
    path.write_text(SOURCE)
    return path


def named(path: Path, name: str, **captured: Any) -> Named | Unnamed:
    return name_function(ref(path, name, **captured), [str(path.parent)])


def why(path: Path, name: str, **captured: Any) -> str:
    found = named(path, name, **captured)
    assert isinstance(found, Unnamed)
    return found.why


def test_a_function_of_a_module_has_its_name(masks: Path) -> None:
    assert named(masks, "causal") == Named(name="masks:causal")


def test_a_factory_has_its_name_and_what_it_was_given(masks: Path) -> None:
    found = named(masks, f"make_window.{INNER}", window=64, strict=True)
    assert found == Named(name="masks:make_window", args={"window": 64, "strict": True})


def test_a_factory_may_take_the_context_and_make_more_of_what_it_is_given(masks: Path) -> None:
    found = named(masks, f"with_context.{INNER}", limit=128, window=64)
    assert found == Named(name="masks:with_context", args={"window": 64})


@pytest.mark.parametrize(
    ("name", "captured", "text"),
    [
        (f"make_window.{INNER}", {"window": 64}, "was given as strict is not known"),
        (f"make_window.{INNER}", {"window": "<tensor 4 int32>", "strict": True}, "was given as window is not known"),
        (f"changed.{INNER}", {"window": 64}, "changes its parameter window"),
        (f"wrapped.{INNER}", {"window": 64}, "does not return window_mask as it is"),
        (f"several.{INNER}", {"windows": "<tuple of 1>"}, "cannot give by name"),
        ("decorated", {}, "without decorators"),
        ("twice", {}, "does not bind twice once"),
        ("Masks.causal", {}, "neither a function of a module nor made by one"),
        ("causal", {"b": 0}, "functools.partial"),
    ],
)
def test_what_a_spec_cannot_name_is_refused_with_the_reason(
    masks: Path, name: str, captured: dict[str, Any], text: str
) -> None:
    assert text in why(masks, name, **captured)


def test_a_lambda_has_no_name(masks: Path) -> None:
    function = FunctionRef(module="masks", name="<lambda>", file=str(masks), line=1)
    assert name_function(function, [str(masks.parent)]) == Unnamed(
        why="a function of it is a lambda, which no module has by name"
    )


def test_a_number_of_the_module_must_be_the_one_that_the_module_has(masks: Path) -> None:
    assert isinstance(named(masks, "limited", LIMIT=64), Named)
    assert "has set to 128 and its module to 64" in why(masks, "limited", LIMIT=128)


def test_another_function_of_that_name_is_not_taken_for_it(masks: Path) -> None:
    function = FunctionRef(module="masks", name="causal", file=str(masks), line=1)
    found = name_function(function, [str(masks.parent)])
    assert isinstance(found, Unnamed)
    assert "is not the function that was called" in found.why


def test_a_module_that_a_worker_does_not_find_or_finds_elsewhere_has_no_name(masks: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    found = name_function(ref(masks, "causal"), [str(elsewhere)])
    assert isinstance(found, Unnamed)
    assert "does not find causal" in found.why
    (elsewhere / "masks.py").write_text(SOURCE)
    found = name_function(ref(masks, "causal"), [str(elsewhere)])
    assert isinstance(found, Unnamed)
    assert "another module masks" in found.why


def test_a_function_of_the_script_has_the_scripts_name_where_importing_it_runs_nothing(masks: Path) -> None:
    assert "importing it runs it" in why(masks, "causal", module="__main__")
    masks.write_text(SOURCE + GUARD)
    assert named(masks, "causal", module="__main__") == Named(name="masks:causal")
    assert named(masks, "causal", module="__mp_main__") == Named(name="masks:causal")


def test_a_script_that_has_no_name_from_here_names_nothing(masks: Path, tmp_path: Path) -> None:
    masks.write_text(SOURCE + GUARD)
    found = name_function(ref(masks, "causal", module="__main__"), [str(tmp_path / "other")])
    assert isinstance(found, Unnamed)
    assert "cannot be imported by name" in found.why


def test_a_file_is_named_through_its_packages_from_the_nearest_directory(tmp_path: Path) -> None:
    inside = tmp_path / "pkg" / "sub"
    inside.mkdir(parents=True)
    (inside / "train.py").touch()
    path = [str(tmp_path)]
    assert module_name(str(inside / "train.py"), path) is None
    for directory in (tmp_path / "pkg", inside):
        (directory / "__init__.py").touch()
    assert module_name(str(inside / "train.py"), path) == "pkg.sub.train"
    assert module_name(str(inside / "train.py"), [str(tmp_path), str(inside)]) == "train"
    assert module_name(str(inside / "train-it.py"), path) is None


@pytest.mark.parametrize(
    ("argv", "module"),
    [
        (("python", "-u", "train.py", "--steps", "2"), "train"),
        (("python", "-m", "pkg.train"), "pkg.train"),
        (("/usr/bin/python3", "scripts/train-gpt.py"), "train_gpt"),
        (("python", "-c", "import torch"), None),
    ],
)
def test_the_module_of_a_script_is_read_off_its_line(argv: tuple[str, ...], module: str | None, tmp_path: Path) -> None:
    launch = record([[program(argv=argv), summary(), bye()]])
    assert script_modules(launch, [str(tmp_path)]).get(("node0", 100)) == module


def test_a_process_that_the_script_spawned_runs_the_same_script() -> None:
    spawned = program(pid=101, parent=100, argv=("python", "-c", "from multiprocessing.spawn import spawn_main"))
    launch = record([[program(), summary(), bye()], [spawned, summary(), bye()]])
    assert script_modules(launch, [])[("node0", 101)] == "train"
