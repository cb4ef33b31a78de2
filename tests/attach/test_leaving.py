"""A program says with which status it ends; one that it asked for and then caught is not how it ended."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

#: A program that tells ``Leaving`` what an observed one does, and prints at its end what came of it.
BEGIN = """\
import atexit, sys, threading
from flexwarm.attach.leaving import Leaving
left, leave = Leaving(), sys.exit
atexit.register(lambda: print(left.at_exit()))
def ask(*status):
    left.ask(status[0] if status else None, sys._getframe(1))
    leave(*status)
sys.exit = ask
def main():
"""


def run(base: Path, main: str, *, module: bool = False, last: str = "main()") -> tuple[int, str]:
    (base / "job.py").write_text(f"{BEGIN}{''.join(f'    {line}{chr(10)}' for line in main.splitlines())}{last}\n")
    done = subprocess.run(
        [sys.executable, "-m", "job"] if module else [sys.executable, "job.py"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=base,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.returncode, done.stdout.strip()


@pytest.mark.parametrize("module", [False, True])
@pytest.mark.parametrize(
    ("main", "status", "why"),
    [
        ("pass", 0, ""),
        ("sys.exit()", 0, ""),
        ("sys.exit(0)", 0, ""),
        ("sys.exit(3)", 3, "job.py:10 in main"),
        ("sys.exit(259)", 3, "job.py:10 in main"),
        ("sys.exit(True)", 1, "job.py:10 in main"),
        ("sys.exit('there is no data')", 1, "there is no data"),
        ("try:\n    int('x')\nexcept ValueError:\n    sys.exit(4)", 4, "invalid literal for int()"),
        ("try:\n    sys.exit(1)\nexcept SystemExit:\n    pass", 0, ""),
        ("try:\n    sys.exit(1)\nexcept SystemExit:\n    sys.exit(0)", 0, ""),
        ("try:\n    sys.exit('first')\nexcept SystemExit as error:\n    sys.exit(1)", 1, "first"),
        ("thread = threading.Thread(target=sys.exit, args=(3,))\nthread.start()\nthread.join()", 0, ""),
        ("atexit.register(lambda: sys.exit(3))", 0, ""),
    ],
)
def test_the_status_is_what_the_system_gets_and_why_is_said(
    tmp_path: Path, main: str, status: int, why: str, module: bool
) -> None:
    code, said = run(tmp_path, main, module=module)
    assert code == status
    assert said.startswith(f"({status}, ")
    assert why in said
    assert bool(why) == (said != f"({status}, '')")


def test_an_error_that_is_handled_is_named_with_its_line(tmp_path: Path) -> None:
    _, said = run(tmp_path, "try:\n    int('x')\nexcept ValueError:\n    sys.exit(4)")
    assert said.startswith('(4, "ValueError at ')
    assert "job.py:11 in main: invalid literal" in said


#: What was asked for first was caught, so it says nothing of how the program ends.
CAUGHT = "try:\n    sys.exit(2)\nexcept SystemExit:\n    pass\nraise SystemExit(main())"


@pytest.mark.parametrize("last", ["raise SystemExit(main())", "main()\nraise SystemExit(3)", CAUGHT])
def test_a_status_that_nobody_was_asked_for_is_not_known(tmp_path: Path, last: str) -> None:
    """Python lets go of a SystemExit before it tells anybody of the end."""
    code, said = run(tmp_path, "return 3", last=last)
    assert (code, said) == (3, "(None, '')")


def test_what_cannot_say_what_it_is_leaves_all_the_same(tmp_path: Path) -> None:
    text = "class Odd:\n    def __str__(self):\n        raise LookupError\nsys.exit(Odd())"
    code, said = run(tmp_path, text)
    assert (code, said.partition(",")[0]) == (1, "(1")
