"""A compiler that the job starts is seen, however it is started."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from flexwarm.events import Compiled, from_line


@pytest.mark.parametrize(
    "start",
    [
        "subprocess.run(['g++', 'x.cpp'])",
        "subprocess.run('g++ x.cpp', shell=True)",
        "subprocess.Popen(['/usr/bin/env', 'true']).wait(); subprocess.run(['gcc', 'x.c'])",
        "os.system('g++ x.cpp')",
        "os.posix_spawnp('g++', ['g++', 'x.cpp'], os.environ)",
        "pathlib.Path('a b').mkdir(); subprocess.run(['g++', pathlib.Path('a b') / 'x.cpp'])",
        "threading.Thread(target=lambda: subprocess.run(['g++', 'x.cpp'])).start()",
    ],
)
@pytest.mark.parametrize("purpose", ["build", "verify"])
def test_a_compiler_is_seen_however_it_is_started_and_kept_from_running_while_verifying(
    tmp_path: Path, start: str, purpose: str
) -> None:
    (tmp_path / "x.cpp").write_text("int main() { return 0; }\n")
    (tmp_path / "x.c").write_text("int main(void) { return 0; }\n")
    program = f"""
        import os, pathlib, subprocess, sys, threading
        from flexwarm.observer.compilers import watch_processes
        from flexwarm.observer.recorder import Recorder, StopAtMiss
        from flexwarm.request import Purpose
        recorder = Recorder(pathlib.Path("events"), Purpose("{purpose}"))
        watch_processes(recorder)
        threading.excepthook = lambda args: None
        try:
            {start}
        except StopAtMiss:
            pass
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], cwd=tmp_path, check=True, capture_output=True)
    said = [from_line(line) for line in (tmp_path / "events").read_text().splitlines()]
    assert [event.what for event in said if isinstance(event, Compiled)] == ["cxx"]
    ran = (tmp_path / "a.out").exists()
    assert ran == (purpose == "build" and "'a b'" not in start)
