"""The job on the page about launch lines runs as it stands, and what the page says of it holds."""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path

import pytest

from tests.harness import Flexwarm

pytestmark = [pytest.mark.torch, pytest.mark.xdist_group("launch lines page")]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "launch-lines.md"


def _line(text: str, command: str) -> list[str]:
    """The launch line of the first example of ``command`` with two ranks."""
    (first, *_) = re.findall(rf"^\$ flexwarm {command} -- (torchrun --nproc-per-node 2 .*)$", text, flags=re.MULTILINE)
    return shlex.split(first)


def test_the_job_of_the_page_is_built_proven_and_run_as_the_page_says(tmp_path: Path) -> None:
    text = PAGE.read_text(encoding="utf-8")
    (script,) = re.findall(r"^```python\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    (tmp_path / "train.py").write_text(script, encoding="utf-8")
    flexwarm = Flexwarm(directory=tmp_path, store=tmp_path / "store")
    env: dict[str, str | None] = {"PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}

    built = flexwarm("build", "--", *_line(text, "build"), env=env)
    assert (built.code, "verdict: built (2 ranks," in built.out) == (0, True), built.out + built.err

    proven = flexwarm("verify", "--format", "json", "--", *_line(text, "verify"), env=env)
    assert (proven.code, proven.json["verdict"]) == (0, "warm"), proven.err
    calls = [(call["hit"], call["call"]["attention"][0]["query"]["shape"][2]) for call in proven.json["jobs"][0]["calls"]]
    assert calls == [(True, 128), (True, 256)]

    run = flexwarm("run", "--", *_line(text, "run"), env=env)
    assert (run.code, run.out) == (0, "20 steps done\n")
    assert "verdict: warm" in run.err
