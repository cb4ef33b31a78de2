"""The C++ compiler that torch would start, and what is said where something is missing (C19)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from flexwarm.errors import ExitCode, UnsupportedError
from flexwarm.toolchain.cxx import cxx_compiler, python_headers, require_cxx


def program(directory: Path, name: str, script: str) -> Path:
    directory.mkdir(exist_ok=True)
    path = directory / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def complete(tmp_path: Path) -> Path:
    """A directory with a compiler and openssl in it, and nothing else."""
    directory = tmp_path / "bin"
    program(directory, "g++", "echo 'g++ (Test) 12.2.0'; echo more")
    program(directory, "openssl", "exit 0")
    return directory


def headers(tmp_path: Path) -> Path:
    path = tmp_path / "Python.h"
    path.touch()
    return path


def test_the_compiler_is_found_in_the_given_path_with_its_first_line(complete: Path) -> None:
    compiler = cxx_compiler({"PATH": str(complete)})
    assert compiler is not None
    assert (compiler.path, compiler.version) == (complete / "g++", "g++ (Test) 12.2.0")


def test_clang_is_not_taken_unless_it_is_named_because_torch_does_not(tmp_path: Path) -> None:
    clang = program(tmp_path / "bin", "clang++", "echo clang version 19")
    assert cxx_compiler({"PATH": str(tmp_path / "bin")}) is None
    compiler = cxx_compiler({"PATH": str(tmp_path / "bin"), "CXX": "clang++"})
    assert compiler is not None
    assert compiler.path == clang


@pytest.mark.parametrize("cxx", ["ccache g++", "", "no-such-compiler"])
def test_a_cxx_that_is_no_program_is_no_compiler(complete: Path, tmp_path: Path, cxx: str) -> None:
    environ = {"PATH": str(complete), "CXX": cxx}
    assert cxx_compiler(environ) is None
    with pytest.raises(UnsupportedError, match=re.escape(f"CXX={cxx} is not")):
        require_cxx(environ, building=True, headers=headers(tmp_path))


def test_a_compiler_that_fails_is_no_compiler(tmp_path: Path) -> None:
    program(tmp_path / "bin", "g++", "exit 1")
    assert cxx_compiler({"PATH": str(tmp_path / "bin")}) is None


def test_a_compiler_that_cannot_be_started_is_named(tmp_path: Path) -> None:
    path = program(tmp_path / "bin", "g++", "")
    path.write_bytes(b"\x7fELF of another machine")
    with pytest.raises(UnsupportedError, match=str(path)):
        cxx_compiler({"PATH": str(tmp_path / "bin")})


@pytest.mark.parametrize("building", [True, False])
def test_without_a_compiler_nothing_is_served_warm_or_cold(tmp_path: Path, building: bool) -> None:
    with pytest.raises(UnsupportedError, match=r"no g\+\+ in PATH; on a CPU no layer") as caught:
        require_cxx({"PATH": str(tmp_path)}, building=building, headers=headers(tmp_path))
    assert caught.value.exit_code is ExitCode.UNSUPPORTED
    assert "apt install g++" in caught.value.hint


def test_with_everything_there_the_compiler_comes_back(complete: Path, tmp_path: Path) -> None:
    assert require_cxx({"PATH": str(complete)}, building=True, headers=headers(tmp_path)).version == "g++ (Test) 12.2.0"


@pytest.mark.parametrize("building", [True, False])
def test_without_python_headers_not_even_a_warm_bucket_is_served(complete: Path, building: bool) -> None:
    with pytest.raises(UnsupportedError, match=r"no Python\.h in .*; no layer of a cache would be served either"):
        require_cxx({"PATH": str(complete)}, building=building, headers=None)


def test_without_openssl_it_is_named(complete: Path, tmp_path: Path) -> None:
    (complete / "openssl").unlink()
    with pytest.raises(UnsupportedError, match="no openssl in PATH") as caught:
        require_cxx({"PATH": str(complete)}, building=False, headers=headers(tmp_path))
    assert caught.value.hint == "apt install openssl"


def test_all_that_is_missing_is_named_at_once(complete: Path) -> None:
    (complete / "openssl").unlink()
    with pytest.raises(UnsupportedError, match=r"no Python\.h in .* and no openssl in PATH"):
        require_cxx({"PATH": str(complete)}, building=True, headers=None)


def test_with_preprocessing_off_a_warm_bucket_needs_neither_but_a_build_needs_headers(complete: Path) -> None:
    (complete / "openssl").unlink()
    environ = {"PATH": str(complete), "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0"}
    assert require_cxx(environ, building=False, headers=None).version == "g++ (Test) 12.2.0"
    with pytest.raises(UnsupportedError, match="a warm bucket would still be served"):
        require_cxx(environ, building=True, headers=None)


def test_the_headers_of_this_python_are_where_they_are_said_to_be() -> None:
    found = python_headers()
    assert found is None or "PY_VERSION" in (found.parent / "patchlevel.h").read_text()
