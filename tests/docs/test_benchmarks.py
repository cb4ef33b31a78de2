"""Every benchmark is a script with a result page that says how it was run, and the pages link only to what is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "benchmarks").glob("*.md"))


def test_each_script_has_a_page_and_each_page_a_script() -> None:
    scripts = {path.stem.replace("_", "-") for path in (ROOT / "benchmarks").glob("*.py")}
    assert scripts == {page.stem for page in PAGES}
    assert scripts


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_gives_question_command_hardware_versions_and_table(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for heading in ("**Question.**", "**Command**", "**Hardware and versions.**", "**Reading.**"):
        assert heading in text
    assert f"benchmarks/{page.stem.replace('-', '_')}.py" in text
    assert re.search(r"torch \d+\.\d+\.\d+", text)
    assert "|---|" in text
    for target in re.findall(r"\]\(([^)#]+)", text):
        assert (page.parent / target).exists(), target


def test_each_page_is_linked_from_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    for page in PAGES:
        assert f"../benchmarks/{page.name}" in index
