"""Each example about the guard runs as it stands, in a new process, and finds with this torch what it asserts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = DOCS / "explanation" / "the-per-call-guard.md"
HOW_TO = DOCS / "how-to" / "threads-in-a-rank.md"
#: Title of the section that shows the module which the examples import.
HELPER = "hold.py"


def examples(page: Path) -> list[tuple[str, str]]:
    """The heading above each Python block, numbered where it has several, and the block."""
    found: list[tuple[str, str]] = []
    for part in re.split(r"^## ", page.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        title, _, text = part.partition("\n")
        blocks = re.findall(r"^```python\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
        found += [(f"{title} {number}" if number else title, block) for number, block in enumerate(blocks)]
    return found


EXAMPLES = examples(PAGE)
OTHERS = examples(HOW_TO)


def test_the_page_has_an_example_for_each_idea_and_each_ends_in_what_it_found() -> None:
    titles = [title for title, _ in EXAMPLES]
    assert titles[0] == HELPER
    assert len([title for title in titles if title.startswith('"')]) >= 6
    assert {"The cause", "The remedy"} <= set(titles)
    for title, block in EXAMPLES[1:]:
        assert re.search(r"^ *assert .*\Z", block.rstrip(), flags=re.MULTILINE), title


@pytest.mark.parametrize("block", [pytest.param(block, id=title.strip('"')) for title, block in EXAMPLES + OTHERS])
def test_an_example_finds_what_it_asserts(block: str, tmp_path: Path, repository: Path) -> None:
    (tmp_path / HELPER).write_text(dict(EXAMPLES)[HELPER], encoding="utf-8")
    (tmp_path / "example.py").write_text(block, encoding="utf-8")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("TORCH", "FLEXWARM_"))}
    environ["PYTHONPATH"] = os.pathsep.join([str(repository), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "example.py"], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
