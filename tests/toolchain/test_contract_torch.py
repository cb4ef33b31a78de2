"""What our facts claim about torch and Triton, held against the installed ones."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from flexwarm.environment import EFFECTS, SWITCHES, Effect, disabling, effect
from flexwarm.toolchain import fingerprint, python_headers, require_cxx, require_supported

pytestmark = pytest.mark.torch

needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="this torch came without Triton")

FACTS = """
import json, torch, torch.version
from torch._inductor import cpp_builder, cpu_vec_isa
print(json.dumps({
    "torch.version": torch.__version__, "torch.git": torch.version.git_version, "torch.cuda": torch.version.cuda or "none",
    "torch.hip": torch.version.hip or "none", "cpu.capability": torch.backends.cpu.get_cpu_capability(),
    "cpu.vector_isa": str(cpu_vec_isa.pick_vec_isa()), "compiler": cpp_builder.get_cpp_compiler(),
}))
"""

CONFIG = """
import json, torch._dynamo, torch._inductor.config, torch._functorch.config, torch.compiler.config
print(json.dumps({
    "TORCHINDUCTOR_FORCE_DISABLE_CACHES": bool(torch.compiler.config.force_disable_caches),
    "TORCHINDUCTOR_FX_GRAPH_CACHE": not torch._inductor.config.fx_graph_cache,
    "TORCHINDUCTOR_AUTOGRAD_CACHE": not torch._functorch.config.enable_autograd_cache,
    "TORCHINDUCTOR_FREEZING": bool(torch._inductor.config.freezing),
    "TORCH_COMPILE_DISABLE": bool(torch._dynamo.config.disable),
}))
"""

COMPILE = """
import json, sys, torch
from torch._dynamo.utils import counters
torch.compile(lambda x: torch.sin(x) * 2 + x.exp())(torch.ones(64, 64))
print(json.dumps({
    "fx": {k[14:]: v for k, v in counters["inductor"].items() if k.startswith("fxgraph_cache_")},
    "aot": {k[15:]: v for k, v in counters["aot_autograd"].items() if k.startswith("autograd_cache_")},
}))
"""

HIT = {"fx": {"hit": 1}, "aot": {"hit": 1}}

#: A value that is allowed, where "1" is not.
VALUES = {
    "TORCH_LOGS": "recompiles",
    "TORCH_LOGS_FORMAT": "%(message)s",
    "TORCH_LOGS_OUT": os.devnull,
    "TORCH_CPP_LOG_LEVEL": "WARNING",
    "TORCH_DISTRIBUTED_DEBUG": "INFO",
    "TORCHINDUCTOR_WORKER_START": "spawn",
    "PYTORCH_ALLOC_CONF": "max_split_size_mb:64",
    "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64",
    "OMP_STACKSIZE": "8M",
    "GOMP_STACKSIZE": "8192",
    "OMP_WAIT_POLICY": "passive",
    "OMP_DISPLAY_ENV": "false",
}


def clean(**environ: str) -> dict[str, str]:
    """This process's environment without what would be the test's subject, plus what is."""
    kept = {name: value for name, value in os.environ.items() if effect(name) is Effect.NEUTRAL and name not in VALUES}
    return {**kept, "OMP_NUM_THREADS": "1", **environ}


def child(script: str, environ: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", script], env=dict(environ), capture_output=True, text=True, timeout=300)


def answer(script: str, environ: Mapping[str, str]) -> Any:
    done = child(script, environ)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def shadow(directory: Path, path: str, *hidden: str) -> Path:
    """A PATH with everything of ``path`` but ``hidden``."""
    directory.mkdir()
    for folder in reversed(path.split(os.pathsep)):
        for name in os.listdir(folder) if os.path.isdir(folder) else []:
            if name not in hidden:
                (directory / name).unlink(missing_ok=True)
                (directory / name).symlink_to(Path(folder, name))
    return directory


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A PATH whose g++ is the real one, and with BROKEN_CXX says its version and can do nothing else.

    It must be the same program warm and cold: what ``g++ -v`` says is in the key of Inductor's check of the CPU.
    """
    directory = shadow(tmp_path_factory.mktemp("programs") / "bin", os.environ["PATH"], "g++")
    wrapper = directory / "g++"
    wrapper.write_text(
        f'#!/bin/sh\ncase "$*" in --version|-v) ;; *) [ -z "$BROKEN_CXX" ] || exit 1;; esac\nexec {shutil.which("g++")} "$@"\n'
    )
    wrapper.chmod(0o755)
    return directory


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory, programs: Path) -> Path:
    """An Inductor cache in which the one compiled function of this file is warm."""
    cache = tmp_path_factory.mktemp("inductor")
    environ = clean(TORCHINDUCTOR_CACHE_DIR=str(cache), PATH=str(programs))
    assert answer(COMPILE, environ)["fx"] == {"miss": 1}
    assert answer(COMPILE, environ) == HIT
    return cache


@pytest.mark.parametrize("asked", [None, "default", "avx2", "avx512", "AVX2"])
def test_our_facts_are_those_of_the_installed_torch(asked: str | None, warm: Path) -> None:
    environ = clean(TORCHINDUCTOR_CACHE_DIR=str(warm), **({} if asked is None else {"ATEN_CPU_CAPABILITY": asked}))
    theirs = answer(FACTS, environ)
    ours = fingerprint(environ, store=None)
    assert Path(ours.explain["cxx.path"]).name == theirs.pop("compiler")
    assert {name: ours.select[name] for name in theirs} == theirs


@pytest.mark.parametrize("value", ["0", "1", "", "false", "true"])
def test_a_switch_is_off_for_us_exactly_when_it_is_for_torch(value: str) -> None:
    names = [switch.names[0] for switch in SWITCHES if switch.names[0].startswith("TORCH") and "DYNAMO" not in switch.names[0]]
    environ = clean(**dict.fromkeys(names, value))
    theirs = answer(CONFIG, environ)
    assert set(theirs) == set(names)
    assert set(disabling(environ)) == {name for name, off in theirs.items() if off}


def test_variables_called_neutral_leave_a_warm_run_warm(warm: Path, tmp_path: Path) -> None:
    names = [name.replace("*", "X") for name, what in EFFECTS.items() if what is Effect.NEUTRAL]
    neutral = {name: VALUES.get(name, str(tmp_path) if name.endswith(("_DIR", "_HOME", "_PATH")) else "1") for name in names}
    assert answer(COMPILE, clean(TORCHINDUCTOR_CACHE_DIR=str(warm), **neutral)) == HIT


def test_another_thread_count_is_a_miss_where_it_is_in_the_key(warm: Path) -> None:
    found = answer(COMPILE, clean(TORCHINDUCTOR_CACHE_DIR=str(warm), OMP_NUM_THREADS="2"))
    assert (found["fx"] == {"miss": 1}) == (require_supported().minor >= (2, 13))


def test_a_variable_that_ci_systems_set_is_a_miss_where_it_is_in_the_key(warm: Path) -> None:
    found = answer(COMPILE, clean(TORCHINDUCTOR_CACHE_DIR=str(warm), CI="true"))
    assert ("miss" in found["aot"]) == (require_supported().minor >= (2, 11))


def test_a_warm_cpu_run_starts_the_preprocessor_as_we_say(warm: Path, programs: Path) -> None:
    error = child(COMPILE, clean(TORCHINDUCTOR_CACHE_DIR=str(warm), PATH=str(programs), BROKEN_CXX="1")).stderr
    assert "CppCompileError" in error
    assert " -E -P " in error


def test_a_warm_cpu_run_starts_openssl_as_we_say(warm: Path, programs: Path, tmp_path: Path) -> None:
    path = shadow(tmp_path / "bin", str(programs), "openssl")
    assert "'openssl'" in child(COMPILE, clean(TORCHINDUCTOR_CACHE_DIR=str(warm), PATH=str(path))).stderr


def test_a_warm_cpu_run_asks_for_the_compilers_version_as_we_say(warm: Path, programs: Path, tmp_path: Path) -> None:
    path = shadow(tmp_path / "bin", str(programs), "g++")
    assert "InvalidCxxCompiler" in child(COMPILE, clean(TORCHINDUCTOR_CACHE_DIR=str(warm), PATH=str(path))).stderr


@pytest.mark.skipif(require_supported().minor < (2, 12), reason="this torch has no such variable")
def test_without_preprocessing_a_warm_cpu_run_needs_no_headers_as_we_say(programs: Path, tmp_path: Path) -> None:
    environ = clean(TORCHINDUCTOR_CACHE_DIR=str(tmp_path), TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS="0", PATH=str(programs))
    assert answer(COMPILE, environ)["fx"] == {"miss": 1}
    environ["BROKEN_CXX"] = "1"
    require_cxx(environ, building=False, headers=None)
    assert answer(COMPILE, environ) == HIT


def test_this_machine_has_what_a_build_needs() -> None:
    require_cxx(clean(), building=True, headers=python_headers())


@needs_triton
def test_every_variable_in_tritons_key_is_a_key_for_us() -> None:
    script = """
import json, os, re, pathlib, triton._C.libtriton as lib
for name in set(re.findall(rb"[A-Z][A-Z0-9_]{4,60}", pathlib.Path(lib.__file__).read_bytes())):
    os.environ[name.decode()] = "1"
print(json.dumps(sorted(lib.get_cache_invalidating_env_vars())))
"""
    names = answer(script, clean())
    assert len(names) > 10
    assert [name for name in names if effect(name) is not Effect.KEY] == []


@needs_triton
def test_triton_reads_a_switch_as_we_do() -> None:
    values = ["", "0", "1", "2", "true", "TRUE", "on", "On", "yes", "y", "no", "off", "false"]
    script = f"""
import json, os
from triton._C.libtriton import getenv_bool
found = {{}}
for value in {values!r}:
    os.environ["TRITON_ALWAYS_COMPILE"] = value
    found[value] = getenv_bool("TRITON_ALWAYS_COMPILE", False)
print(json.dumps(found))
"""
    assert answer(script, clean()) == {value: disabling({"TRITON_ALWAYS_COMPILE": value}) != () for value in values}
