"""A user's function is found in the source without running it."""

from __future__ import annotations

from pathlib import Path

import pytest

from flexwarm.errors import SpecError
from flexwarm.modules import find
from flexwarm.workload import Function


def test_a_function_in_a_package_is_found_without_importing_the_package(tmp_path: Path) -> None:
    (tmp_path / "pkg" / "deep").mkdir(parents=True)
    (tmp_path / "pkg" / "__init__.py").write_text("raise SystemExit('imported')\n")
    (tmp_path / "pkg" / "deep" / "masks.py").write_text("raise SystemExit('imported')\ndef mask(b, h, q, kv): ...\n")
    source = find(Function(name="pkg.deep.masks:mask"), [str(tmp_path)], "w")  # pkg.deep is a namespace package
    assert source.path.endswith("masks.py")
    assert source.sha256 is not None


@pytest.mark.parametrize(
    "text",
    [
        "def mask(): ...",
        "mask = make()",
        "from other import mask",
        "from other import thing as mask",
        "if True:\n    mask = 1\nelse:\n    mask = 2",
        "try:\n    from fast import mask\nexcept ImportError:\n    def mask(): ...",
        "a, (mask, b) = stuff",
        "mask: object = 1",
        "from other import *",
        "def __getattr__(name): ...",
        "globals().update(mask=1)",
        "class mask: ...",
    ],
)
def test_any_way_in_which_a_module_can_define_the_name_is_accepted(tmp_path: Path, text: str) -> None:
    (tmp_path / "m.py").write_text(text + "\n")
    assert find(Function(name="m:mask"), [str(tmp_path)], "w").module == "m"


def test_a_name_that_is_not_defined_is_refused_with_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text("def masks(): ...\n")
    with pytest.raises(SpecError, match="has no 'mask'") as caught:
        find(Function(name="m:mask"), [str(tmp_path)], "w")
    assert "'masks'" in caught.value.hint


def test_a_compiled_module_is_left_to_the_worker(tmp_path: Path) -> None:
    source = find(Function(name="_struct:mask"), [*__import__("sys").path], "w")
    assert source.sha256 is None
