"""What people see: the outcome is never cut, names are shown as they are, and numbers are readable."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pyte
import pytest

from flexwarm.render.text import duration, size

SPEC = 'schema = 1\n[[role]]\nname = "trainer"\nprocesses = 2\n' + "".join(
    f'[[workload]]\nname = "{name}"\nq_heads = 2\nhead_dim = 32\nq_len = 128\n' for name in ("causal", "window-alibi")
)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (0.0004, "0 ms"),
        (0.042, "42 ms"),
        (0.9949, "995 ms"),
        (0.996, "1.0 s"),
        (59.94, "59.9 s"),
        (93.5, "1 m 34 s"),
    ],
)
def test_seconds_as_people_read_them(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(("amount", "text"), [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (353_000_000, "353.0 MB")])
def test_bytes_as_people_read_them(amount: int, text: str) -> None:
    assert size(amount) == text


def on_terminal(directory: Path, arguments: list[str], *, columns: int, term: str = "xterm") -> list[str]:
    """The screen after a command has run in a terminal of so many columns."""
    return screen_of([sys.executable, "-m", "flexwarm", *arguments], directory, columns=columns, term=term)


def screen_of(argv: list[str], directory: Path, *, columns: int, term: str = "xterm") -> list[str]:
    """The screen after any program has run in a terminal of so many columns."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 60, columns, 0, 0))
    env = {k: v for k, v in os.environ.items() if not k.startswith(("FLEXWARM_", "COLUMNS", "LINES"))}
    process = subprocess.Popen(
        argv,
        cwd=directory,
        env={**env, "FLEXWARM_STORE": "store", "TERM": term},
        stdin=slave,
        stdout=slave,
        stderr=slave,
    )
    os.close(slave)
    screen = pyte.Screen(columns, 60)
    stream = pyte.ByteStream(screen)
    while True:
        try:
            data = os.read(master, 65536)
        except OSError:  # the other end is closed: the command has ended
            break
        if not data:
            break
        stream.feed(data)
    os.close(master)
    process.wait(timeout=60)
    return [line.rstrip() for line in screen.display if line.strip()]


@pytest.mark.parametrize("columns", [40, 60, 100])
def test_the_table_keeps_outcome_and_names_whole_at_any_width(tmp_path: Path, columns: int) -> None:
    (tmp_path / "flexwarm.toml").write_text(SPEC)
    lines = on_terminal(tmp_path, ["verify", "--fast"], columns=columns)
    rows = [line for line in lines if "not_run" in line]
    assert len(rows) == 4
    assert max(map(len, lines)) <= columns
    text = "".join(line.split(" ")[0] for line in lines)
    assert "window-alibi" in text
    assert any(line.startswith("verdict: cold") for line in lines)
    assert any("next: flexwarm build" in line for line in lines)


def test_the_plan_is_printed_with_every_shape_on_a_narrow_terminal(tmp_path: Path) -> None:
    (tmp_path / "flexwarm.toml").write_text(SPEC)
    lines = on_terminal(tmp_path, ["build", "--dry-run"], columns=40)
    assert sum("1x2x128x32 bfloat16" in line for line in lines) == 4
