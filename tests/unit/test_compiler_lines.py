"""A command line that compiles is told from one that only asks or preprocesses, and both from a shell that may do so."""

from __future__ import annotations

import shlex

import pytest

from flexwarm.compiler_lines import classify, cxx_source, is_build_tool, runs_compiler, subject


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
        ("gcc -c a.S", "cxx"),
        ("g++ -c a.c++", "cxx"),
        ("hipcc -c a.hip", "cxx"),
        ("nvc++ a.cpp", "cxx"),
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
    ("line", "compiles"),
    [
        ("/usr/bin/x86_64-linux-gnu-g++-12 a.cpp -c", True),
        ("ccache g++ -c a.cpp", True),
        ("ptxas -v k.ptx -o k.cubin", True),
        ("sh -c 'test -e a.so || g++ a.cpp; exec train'", False),
        ("bash -c 'g++ a.cpp'", False),
        ("g++ --version", False),
        ("", False),
    ],
)
def test_a_process_is_a_compiler_at_work_where_its_own_program_is_one(line: str, compiles: bool) -> None:
    assert runs_compiler(shlex.split(line)) == compiles


@pytest.mark.parametrize(
    ("line", "builds"),
    [
        ("/venv/bin/ninja -v", True),
        ("make -C data", True),
        ("cmake --build .", True),
        ("python train.py ninja", False),
        ("", False),
    ],
)
def test_build_tools_are_known_by_name(line: str, builds: bool) -> None:
    assert is_build_tool(shlex.split(line)) == builds


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("/usr/bin/c++ -MMD -MF small.o.d -DA -isystem /torch/include -c /job/small.cpp -o small.o", "c++ /job/small.cpp"),
        ("ccache g++ -c a.cpp b.cpp", "g++ a.cpp b.cpp"),
        ("c++ small.o -shared -o small.so", "c++ small.o -shared -o small.so"),
        ("ptxas -v k.ptx -o k.cubin", "ptxas k.ptx"),
        ("", ""),
    ],
)
def test_a_compile_is_named_by_its_sources(line: str, words: str) -> None:
    assert subject(shlex.split(line)) == words


@pytest.mark.parametrize(
    ("line", "source"),
    [
        ("g++ /b/inductor/xy/c1.main.cpp -D X -O3 -march=native -o /b/inductor/xy/c1.so", "/b/inductor/xy/c1.main.cpp"),
        ("sh -c 'x'; clang++ -c /b/a.cc", "/b/a.cc"),
        ("ccache g++ /b/a.cpp -o 'half of a wo", "/b/a.cpp"),  # lines are cut
        ("g++ /home/me/own.cpp -o own.so", ""),
        ("g++ /bb/a.cpp", ""),
        ("/usr/bin/gcc /v/triton/backends/nvidia/driver.c -O3 -shared -fPIC -o /tmp/t/cuda_utils.so", ""),
        ("gcc /b/triton/main.c -O3 -shared -o /b/triton/launcher.so", ""),
        ("g++ -x c++-header /b/header.hpp -o /b/header.hpp.gch", ""),
        ("g++ -o /b/a.so -L/b/lib.cpp", ""),
        ("", ""),
    ],
)
def test_cxx_that_is_compiled_into_a_bucket_is_told_by_its_source(line: str, source: str) -> None:
    assert cxx_source(line, "/b") == source
