"""A command line that compiles is told from one that only asks or preprocesses."""

from __future__ import annotations

import shlex
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from flexwarm.events import Compiled, from_line
from flexwarm.observer.compilers import classify


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("g++ a.cpp -o a.so -shared", "cxx"),
        ("/usr/bin/x86_64-linux-gnu-g++-12 a.cpp -c", "cxx"),
        ("clang++ a.cpp -o a", "cxx"),
        ("cc launcher.c -O3 -shared -o launcher.so", "cxx"),
        ("gcc a.c", "cxx"),
        ("nvcc k.cu", "cxx"),
        ("ptxas -v k.ptx -o k.cubin", "triton"),
        ("g++ -x c++-header a.h -o a.h.gch", "header"),
        ("g++ --version", None),
        ("g++ -v", None),
        ("g++ -E -P a.hpp -o a.i", None),
        ("ptxas --version", None),
        ("openssl sha512 a.i", None),
        ("python -c 'import a.cpp'", None),
        ("sh -c 'g++ a.cpp -o a'", "cxx"),
        ("/bin/bash -c 'cd /tmp && ccache g++ -c a.cpp; true'", "cxx"),
        ("sh -c 'echo g++ a.cpp'", None),
        ("sh -c 'echo \"'", None),
        ("ccache g++ -c a.cpp", "cxx"),
        ("timeout 10s g++ a.cpp", "cxx"),
        ("env -u X nice -n 3 g++ a.cpp", "cxx"),
        ("CXX=x g++ a.cpp", "cxx"),
        ("bash -lc 'g++ a.cpp'", "cxx"),
        ("sh -c 'cd /x && exec g++ a.cpp'", "cxx"),
        ("g++ @arguments.rsp", "cxx"),
        ("g++ -xc++ -", "cxx"),
        ("gcc a.C", "cxx"),
        ("timeout 10s true", None),
        ("env CC=x nice -n 5 gcc -c a.c", "cxx"),
        ("nice g++ --version", None),
        ("gccount a.cpp", None),
        ("ld a.o", None),
        ("", None),
    ],
)
def test_what_a_command_line_compiles(line: str, what: str | None) -> None:
    assert classify(shlex.split(line)) == what


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
