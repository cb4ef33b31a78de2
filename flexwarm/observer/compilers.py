"""Second witness: every compiler that runs, seen where the process is started and where Triton and autotuning report."""

from __future__ import annotations

import functools
import os
import re
import shlex
import sys
import time
from collections.abc import Sequence
from typing import Any

from flexwarm.events import Answer, Layer
from flexwarm.observer.caches import say
from flexwarm.observer.recorder import Recorder
from flexwarm.observer.torch_api import TorchApi

_COMPILER = re.compile(r"(?:[\w.]+-)*(?:g\+\+|gcc|c\+\+|cc|clang\+\+|clang|icpx|icx|icpc|nvcc|cicc|ptxas|hipcc)(?:-[\d.]+)?")
_SOURCES = (".c", ".C", ".cc", ".cpp", ".cxx", ".cu", ".h", ".hpp", ".ptx", ".s", ".o")
_SHELLS = ("sh", "bash", "dash", "zsh")
_LAUNCHERS = ("env", "ccache", "sccache", "distcc", "nice", "ionice", "timeout", "exec", "command", "time")
_EVENTS = ("subprocess.Popen", "os.posix_spawn", "os.exec", "os.system")


def classify(argv: Sequence[str]) -> str | None:
    """What a command line compiles: ``cxx``, ``header`` or ``triton``; None if it compiles nothing.

    Asking a compiler for its version and preprocessing with ``-E`` leave nothing behind; torch does both when warm.
    Looks into ``sh -c`` and behind launchers such as ``ccache``; a build tool's own children are not seen.
    """
    words = list(argv)
    while words and os.path.basename(words[0]) in _LAUNCHERS:
        # Its own options and their values come first; what it starts is the first word that we know.
        words = words[next((n for n, word in enumerate(words) if n and _is_known(word)), len(words)) :]
    while words and "=" in words[0] and not words[0].startswith("-"):
        words = words[1:]  # an assignment before a command
    if not words:
        return None
    name = os.path.basename(words[0])
    if name in _SHELLS:
        option = next((n for n, word in enumerate(words) if re.fullmatch(r"-\w*c", word)), None)
        script = words[option + 1 : option + 2] if option is not None else []
        found = (classify(_split(command)) for text in script for command in re.split(r"[;&|\n]+", text))
        return next((what for what in found if what), None)
    if not _COMPILER.fullmatch(name):
        return None
    if "-E" in words or not any(word.endswith(_SOURCES) or word.startswith(("-x", "@")) for word in words[1:]):
        return None
    if name.startswith("ptxas"):
        return "triton"
    return "header" if any("c++-header" in word or word.endswith((".gch", ".pch")) for word in words) else "cxx"


def _is_known(word: str) -> bool:
    name = os.path.basename(word)
    return name in _SHELLS or name in _LAUNCHERS or _COMPILER.fullmatch(name) is not None


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # an unbalanced quote: a shell would refuse it as well
        return text.split()


def watch_processes(recorder: Recorder) -> None:
    """Report each compiler process that this one starts, by Python's audit events: no private name is involved."""

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event not in _EVENTS:
            return
        argv = _argv(event, args)
        what = classify(argv)
        if what:
            recorder.compiled(what, " ".join(argv)[:400])

    sys.addaudithook(hook)


def _argv(event: str, args: tuple[Any, ...]) -> list[str]:
    if event == "os.system":
        return ["sh", "-c", os.fsdecode(args[0])]
    raw = args[1]
    if isinstance(raw, (str, bytes, os.PathLike)):
        return _split(os.fsdecode(raw))
    return [os.fsdecode(item) for item in raw]


def watch_inductor(api: TorchApi, recorder: Recorder) -> None:
    """Report each graph that Inductor compiles, also one for which no cache was asked."""
    compile_graph = api.compile_module.fx_codegen_and_compile

    @functools.wraps(compile_graph)
    def reporting_compile(*args: Any, **kwargs: Any) -> Any:
        recorder.compiled("inductor", "a graph")
        began = time.perf_counter()
        try:
            return compile_graph(*args, **kwargs)
        finally:
            recorder.spent(time.perf_counter() - began)

    api.compile_module.fx_codegen_and_compile = reporting_compile


def watch_triton(recorder: Recorder) -> None:
    """Report Triton's own compiles and cache hits; a listener of the user's keeps its place."""
    from triton import knobs

    previous = knobs.compilation.listener

    def listener(**report: Any) -> None:
        if previous is not None:
            previous(**report)
        metadata = report.get("metadata") or {}
        name, key = str(metadata.get("name", "kernel")), str(metadata.get("hash", ""))
        if report.get("cache_hit"):
            say(recorder, Layer.TRITON, Answer.HIT, key, name)
        else:
            say(recorder, Layer.TRITON, Answer.MISS, key, name)
            recorder.compiled("triton", name)

    knobs.compilation.listener = listener


def watch_autotune(api: TorchApi, recorder: Recorder) -> None:
    """Report each benchmark of kernel candidates: its winner depends on the moment, so a warm launch has none."""
    autotuner = api.autotuner()
    benchmark = autotuner.benchmark_all_configs

    def reporting_benchmark(self: Any, *args: Any, **kwargs: Any) -> Any:
        recorder.compiled("autotune", str(getattr(self, "inductor_meta", {}).get("kernel_name", "kernel")))
        return benchmark(self, *args, **kwargs)

    autotuner.benchmark_all_configs = reporting_benchmark
