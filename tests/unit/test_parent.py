"""The parent process never imports torch or triton, in any command; proven at run time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from flexwarm.cli.main import COMMANDS

#: Runs a command line with an import hook that ends the process when the parent asks for torch or triton.
BLOCKED = """
import sys

from importlib.machinery import PathFinder

def refuse(module):
    sys.stderr.write("IMPORTED " + module.__name__)
    sys.stderr.flush()
    import os
    os._exit(99)

class Blocker:
    # Looking a module up is allowed, running it is not.
    def find_spec(self, name, path=None, target=None):
        if name not in ("torch", "triton"):
            return None
        spec = PathFinder.find_spec(name, path)
        if spec is not None:
            spec.loader.exec_module = refuse
        return spec

sys.meta_path.insert(0, Blocker())
from flexwarm.cli.main import main
main(sys.argv[1:])
"""

SPEC = 'schema = 1\n[[workload]]\nname = "w"\nq_heads = 2\nhead_dim = 32\nq_len = 128\nmask_mod = "mine:mask"\n'

COMMAND_LINES = [
    ["--help"],
    ["fingerprint"],
    ["fingerprint", "--format", "json"],
    ["build", "--dry-run"],
    ["verify"],
    ["verify", "--fast"],
    ["build", "--", "true"],
    ["explain"],
    ["doctor"],
    ["doctor", "flexwarm.toml"],
    ["verify", "--", "true"],
    ["explain", "--", "true"],
    ["run", "--", "true"],
    ["record", "--force", "--", "true"],
    ["env"],
    ["clean", "--all", "--dry-run"],
    ["clean", "--stale", "--dry-run"],
]


def run_blocked(directory: Path, arguments: list[str]) -> subprocess.CompletedProcess[str]:
    own = ["--store", "store"] if arguments != ["--help"] else []
    return subprocess.run(
        [sys.executable, "-c", BLOCKED, *arguments[:1], *own, *arguments[1:]],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("arguments", COMMAND_LINES, ids=" ".join)
def test_no_command_imports_torch_or_triton(tmp_path: Path, arguments: list[str]) -> None:
    (tmp_path / "flexwarm.toml").write_text(SPEC)
    # A user's module that imports torch is looked at and not run.
    (tmp_path / "mine.py").write_text("import torch\n\ndef mask(b, h, q, kv):\n    return q >= kv\n")
    done = run_blocked(tmp_path, arguments)
    assert "IMPORTED" not in done.stderr
    assert done.returncode in (0, 1), done.stderr


@pytest.mark.torch
def test_a_build_and_a_verification_that_start_workers_do_not_either(tmp_path: Path) -> None:
    (tmp_path / "flexwarm.toml").write_text(SPEC.replace("mine:mask", "mine:broken"))
    (tmp_path / "mine.py").write_text("import torch\nraise RuntimeError('stop here')\ndef broken(b, h, q, kv): ...\n")
    done = run_blocked(tmp_path, ["build"])
    assert "IMPORTED" not in done.stderr
    assert done.returncode == 5, done.stderr  # the worker did import torch, and the module


def test_every_command_is_among_those_tested() -> None:
    assert set(COMMANDS) == {line[0] for line in COMMAND_LINES if line[0] != "--help"}


def test_the_blocker_would_notice(tmp_path: Path) -> None:
    program = BLOCKED.replace("from flexwarm.cli.main import main\nmain(sys.argv[1:])", "import torch")
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 99
    assert "IMPORTED torch" in done.stderr
