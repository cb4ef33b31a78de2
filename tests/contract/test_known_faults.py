"""Rows of the table of known faults, held against the installed torch and Triton: also that they end where they say."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from flexwarm import toolchain
from flexwarm.known_faults import parse
from flexwarm.ops.known_faults import TABLE
from tests.contract.test_torch_api import in_new_process

pytestmark = pytest.mark.torch

FAULTS = {fault.id: fault for fault in parse(TABLE.read_text(encoding="utf-8"))}


def is_here(name: str) -> bool:
    """Whether the table says it of what is installed."""
    fault = FAULTS[name]
    found = toolchain.find_torch() if fault.package == "torch" else toolchain.find_triton()
    assert found is not None
    return SpecifierSet(fault.versions).contains(Version(found.version), prereleases=True)


COUNTED = """
import json
import torch
from torch._dynamo.utils import counters
from torch.utils.checkpoint import checkpoint

{program}
torch.compile(step)(torch.ones(8, 8, requires_grad=True)).sum().backward()
print(json.dumps({{"aot": counters["aot_autograd"], "fx": counters["inductor"]}}))
"""
AUTOCAST = """
def step(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return x @ x
"""
FUNCTION = """
class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2

def step(x):
    return Doubled.apply(x.sin()) + 1
"""
CHECKPOINT = """
def step(x):
    return checkpoint(lambda y: y.sin().cos(), x, use_reentrant=False)
"""


@pytest.mark.parametrize(
    ("name", "program"),
    [
        ("autocast-bypasses", AUTOCAST),
        ("autograd-function-bypasses", FUNCTION),
        ("checkpoint-not-cached", CHECKPOINT),
    ],
)
def test_aotautograd_bypasses_where_the_table_says_so_and_inductors_cache_serves_all_the_same(
    tmp_path: Path, name: str, program: str
) -> None:
    text = COUNTED.format(program=program)
    in_new_process(tmp_path, text)
    found: dict[str, Any] = in_new_process(tmp_path, text)
    bypassed, hit = (found["aot"].get(f"autograd_cache_{answer}", 0) for answer in ("bypass", "hit"))
    assert (bypassed, hit) == ((1, 0) if is_here(name) else (0, 1)), found
    assert found["fx"]["fxgraph_cache_hit"] == 2
    assert not found["fx"].get("fxgraph_cache_miss", 0)


CUT_GROUP = """
import json
from triton.runtime.cache import FileCacheManager

cache = FileCacheManager("key")
cache.put_group("kernel.json", {"kernel.cubin": "/nowhere"})
with open(cache._make_path("__grp__kernel.json"), "r+") as file:
    file.truncate(9)
try:
    print(json.dumps(cache.get_group("kernel.json")))
except ValueError as error:
    print(json.dumps(type(error).__name__))
"""


def test_a_cut_list_of_a_kernels_files_is_an_error_of_triton_where_the_table_says_so(tmp_path: Path) -> None:
    if toolchain.find_triton() is None:
        pytest.skip("Triton is not installed")
    found = in_new_process(tmp_path, CUT_GROUP, TRITON_CACHE_DIR=str(tmp_path))
    assert found == ("JSONDecodeError" if is_here("cut-group-file-raises") else None)


CUT_TUNING = """
import inspect
import json
from torch._inductor.runtime.autotune_cache import LocalAutotuneCache

with open("one.best_config", "w") as file:
    file.write('{"XBLO')
named = "cache_id" in inspect.signature(LocalAutotuneCache).parameters
cache = LocalAutotuneCache("any") if named else LocalAutotuneCache()
try:
    print(json.dumps(cache.get("one.best_config")))
except ValueError as error:
    print(json.dumps(type(error).__name__))
"""


def test_a_cut_tuning_result_is_an_error_of_torch_where_the_table_says_so(tmp_path: Path) -> None:
    assert in_new_process(tmp_path, CUT_TUNING) == ("JSONDecodeError" if is_here("cut-tuning-file-raises") else None)


PROBE = """
import json
import sys

asked = []
sys.addaudithook(lambda event, args: asked.append(list(args[1])) if event == "subprocess.Popen" else None)
from torch._inductor.cpu_vec_isa import VecISA, pick_vec_isa

pick_vec_isa()
imports = any(line.strip() == "import torch" for line in VecISA._avx_py_load.splitlines())
print(json.dumps({"asks": any("LoadLibrary" in part for argv in asked for part in map(str, argv)), "imports": imports}))
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the probe is of this processor's instructions")
def test_the_probe_of_vector_instructions_imports_torch_where_the_table_says_so(tmp_path: Path) -> None:
    found = in_new_process(tmp_path, PROBE)
    assert found["imports"] is is_here("vector-probe-imports-torch")
    if found["imports"]:
        assert found["asks"]
        assert in_new_process(tmp_path, PROBE)["asks"]  # again in each process


HEADER = """
import json
import torch._inductor.config as config

print(json.dumps(config.cpp_cache_precompile_headers))
"""


def test_the_header_can_be_switched_off_by_the_variable_but_where_the_table_says_so(tmp_path: Path) -> None:
    kept = in_new_process(tmp_path, HEADER, TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS="0")
    assert kept is is_here("header-outside-the-cache")
