"""What a command line compiles, by its words alone; and which programs start compilers of their own accord."""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Sequence

_COMPILER = re.compile(
    r"(?:[\w.]+-)*(?:g\+\+|gcc|c\+\+|cc|clang\+\+|clang|icpx|icx|icpc|nvcc|nvc|nvc\+\+|amdclang|amdclang\+\+|cicc|ptxas|hipcc)(?:-[\d.]+)?"
)
_SOURCES = (
    *(".c", ".C", ".cc", ".cp", ".cpp", ".CPP", ".c++", ".cxx", ".i", ".ii", ".m", ".mm", ".cu", ".hip", ".h", ".hpp"),
    *(".ptx", ".s", ".S", ".o"),
)
#: Those of C++.
_CXX_SOURCES = (".C", ".cc", ".cp", ".cpp", ".CPP", ".c++", ".cxx")
_SHELLS = ("sh", "bash", "dash", "zsh")
_BUILD_TOOLS = ("ninja", "ninja-build", "make", "gmake", "cmake", "meson", "scons", "bazel", "bazelisk")
_LAUNCHERS = ("env", "ccache", "sccache", "distcc", "nice", "ionice", "timeout", "exec", "command", "time")


def classify(argv: Sequence[str]) -> str | None:
    """What a command line compiles: ``cxx``, ``header`` or ``triton``; None if it compiles nothing.

    Asking a compiler for its version and preprocessing with ``-E`` leave nothing behind; torch does both when warm.
    Looks into ``sh -c`` and behind launchers such as ``ccache``; what a build tool starts does not show in its words.
    """
    words = list(argv)
    while words and posixpath.basename(words[0]) in _LAUNCHERS:
        # Its own options and their values come first; what it starts is the first word that we know.
        words = words[next((n for n, word in enumerate(words) if n and _is_known(word)), len(words)) :]
    while words and "=" in words[0] and not words[0].startswith("-"):
        words = words[1:]  # an assignment before a command
    if not words:
        return None
    name = posixpath.basename(words[0])
    if name in _SHELLS:
        option = next((n for n, word in enumerate(words) if re.fullmatch(r"-\w*c", word)), None)
        script = words[option + 1 : option + 2] if option is not None else []
        found = (classify(split(command)) for text in script for command in re.split(r"[;&|\n]+", text))
        return next((what for what in found if what), None)
    if not _COMPILER.fullmatch(name):
        return None
    if "-E" in words or not any(word.endswith(_SOURCES) or word.startswith(("-x", "@")) for word in words[1:]):
        return None
    if name.startswith("ptxas"):
        return "triton"
    return "header" if any("c++-header" in word or word.endswith((".gch", ".pch")) for word in words) else "cxx"


def runs_compiler(argv: Sequence[str]) -> bool:
    """Whether a process with this command line is a compiler at work.

    A shell is none: what its script might start is seen when it does.
    """
    return bool(argv) and posixpath.basename(argv[0]) not in _SHELLS and classify(argv) is not None


def is_build_tool(argv: Sequence[str]) -> bool:
    """Whether it starts compilers that do not show in its command line, such as ``ninja``."""
    return bool(argv) and posixpath.basename(argv[0]) in _BUILD_TOOLS


def subject(argv: Sequence[str]) -> str:
    """The compiler and what it compiles in a few words, such as ``c++ small.cpp``; all of the line where that is not clear."""
    compiler = next((word for word in argv if _COMPILER.fullmatch(posixpath.basename(word))), "")
    sources = [word for word in argv[1:] if word.endswith(_SOURCES) and not word.startswith("-") and not word.endswith(".o")]
    if not compiler or not sources:
        return " ".join(argv)
    return " ".join([posixpath.basename(compiler), *sources])


def cxx_source(line: str, below: str) -> str:
    """The C++ source in the directory ``below`` that a command line names; empty if it names none.

    What Inductor makes for the processor is such. Triton's host modules are C, which is compiled for any processor.
    """
    return next((word for word in split(line) if word.endswith(_CXX_SOURCES) and word.startswith(f"{below}/")), "")


def _is_known(word: str) -> bool:
    name = posixpath.basename(word)
    return name in _SHELLS or name in _LAUNCHERS or _COMPILER.fullmatch(name) is not None


def split(text: str) -> list[str]:
    """A command line as a shell would cut it into words."""
    try:
        return shlex.split(text)
    except ValueError:  # an unbalanced quote: a shell would refuse it as well
        return text.split()
