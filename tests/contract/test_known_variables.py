"""Each variable that torch and Triton read for their settings goes where we say. When this fails, torch has moved."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from flexwarm import environment, known_variables
from flexwarm.environment import Effect
from tests.contract.test_torch_api import in_new_process

pytestmark = pytest.mark.torch

#: Reads each config anew with one variable set, and says whose settings are not as they were.
ANEW = """
import importlib.util, json, os, re, sys
import torch._dynamo, torch._functorch.config, torch._inductor.config
names = {"inductor": "torch._inductor.config", "functorch": "torch._functorch.config", "dynamo": "torch._dynamo.config"}
paths = {which: sys.modules[name].__file__ for which, name in names.items()}

def read(which):
    shipped = sys.modules[names[which]]
    spec = importlib.util.spec_from_file_location(names[which], paths[which])
    module = sys.modules[names[which]] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        values = module.get_config_copy() if which == "dynamo" else module.save_config_portable()
        return {name: repr(value) for name, value in values.items() if not isinstance(value, set)}
    finally:
        sys.modules[names[which]] = shipped

quoted = re.compile(r'["\\']([A-Z][A-Z0-9_]*[A-Z0-9])["\\']')
found = {which: set(quoted.findall(open(path).read())) for which, path in paths.items()}
before = {which: read(which) for which in names}
moved = {}
for name in sorted(set().union(*found.values()) - os.environ.keys()):
    for value in ("0", "1", "2", "x", ""):
        os.environ[name] = value
        for which in (which for which in names if name in found[which]):
            try:
                if read(which) != before[which]:
                    moved.setdefault(name, set()).add(which)
            except (ValueError, AssertionError, RuntimeError, TypeError):
                pass  # it does not take this value
    os.environ.pop(name)
print(json.dumps({name: sorted(whose) for name, whose in moved.items()}))
"""

#: In whose settings they are, and yet not where that would put them.
ELSEWHERE = {
    # They make other settings what they say, so it is those that enter a key; what comes of them is not read yet.
    *("TORCH_COMPILE_OVERRIDE_INDUCTOR_CONFIGS", "TORCH_CACHING_PRECOMPILE", "TORCH_STRICT_PRECOMPILE"),
}


def test_a_variable_of_torchs_settings_is_known_by_whose_key_it_enters(tmp_path: Path) -> None:
    moved = {name: set(whose) for name, whose in in_new_process(tmp_path, ANEW).items()}
    judged = {name: whose for name, whose in moved.items() if name in environment.relevant({name: ""})}
    judged = {name: whose for name, whose in judged.items() if environment.effect(name) in (Effect.KEY, Effect.CODE)}
    assert len(judged) > 150
    wrong = {}
    for name, whose in judged.items():
        wanted = known_variables.INDUCTOR if "inductor" in whose else known_variables.AOTAUTOGRAD
        wanted = known_variables.NO_KEY if whose == {"dynamo"} else wanted
        if name not in wanted and name not in ELSEWHERE:
            wrong[name] = whose
    assert wrong == {}


def test_threads_and_precision_are_what_the_variables_say(tmp_path: Path) -> None:
    ask = "import json, torch; print(json.dumps([torch.get_num_threads(), torch.get_float32_matmul_precision()]))"
    told = {
        name: in_new_process(tmp_path, f"import os\nos.environ.pop('OMP_NUM_THREADS', 0)\nos.environ[{name!r}] = '1'\n{ask}")
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE")
    }
    assert told["OMP_NUM_THREADS"][0] == told["MKL_NUM_THREADS"][0] == 1
    assert told["TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"][1] == "high"


@pytest.mark.skipif(find_spec("triton") is None, reason="this torch came without Triton")
def test_every_variable_in_tritons_key_is_known_as_such(tmp_path: Path) -> None:
    script = """
import json, os, re, pathlib, triton._C.libtriton as lib
for name in set(re.findall(rb"[A-Z][A-Z0-9_]{4,60}", pathlib.Path(lib.__file__).read_bytes())):
    os.environ[name.decode()] = "1"
print(json.dumps(sorted(lib.get_cache_invalidating_env_vars())))
"""
    names = set(in_new_process(tmp_path, script))
    assert len(names) > 10
    assert names <= known_variables.TRITON
    assert not known_variables.NO_KEY & names


def test_each_name_is_known_for_one_thing_and_is_relevant() -> None:
    tables = [known_variables.INDUCTOR, known_variables.AOTAUTOGRAD, known_variables.TRITON, known_variables.NO_KEY]
    every = [name for table in tables for name in table]
    assert len(every) == len(set(every))
    assert [name for name in every if name not in environment.relevant({name: ""})] == []
    assert {environment.effect(name) for table in tables[:3] for name in table} == {Effect.KEY}
    assert {environment.effect(name) for name in known_variables.NO_KEY} == {Effect.CODE}


MODES = """
import json, sys
import torch, torch._dynamo.config, torch._functorch.config
from flexwarm.observer.torch_api import resolve
from flexwarm.observer.torch_api.modes import read_modes
api = resolve()
before = read_modes(api)
changes = {
    "torch._dynamo.config.capture_scalar_outputs": lambda: setattr(torch._dynamo.config, "capture_scalar_outputs", True),
    "torch._functorch.config.functionalize_rng_ops": lambda: setattr(torch._functorch.config, "functionalize_rng_ops", True),
    "torch.get_float32_matmul_precision()": lambda: torch.set_float32_matmul_precision("medium"),
    "torch.are_deterministic_algorithms_enabled()": lambda: torch.use_deterministic_algorithms(True),
    "torch.get_default_dtype()": lambda: torch.set_default_dtype(torch.float64),
    "torch.get_num_threads()": lambda: torch.set_num_threads(torch.get_num_threads() + 1),
}
found = {}
for name, change in changes.items():
    change()
    now = read_modes(api)
    found[name] = [other for other in now if now[other] != before[other]]
    before = now
print(json.dumps({"found": found, "values": before}))
"""


def test_each_setting_that_is_told_is_told_as_it_is_and_alike_in_each_process(tmp_path: Path) -> None:
    first, second = (in_new_process(tmp_path, f"{MODES}\n# {number}") for number in range(2))
    for name, changed in first["found"].items():
        assert changed == [name]
    assert first["values"] == second["values"]
    assert " at 0x" not in str(first["values"])


def test_a_precision_that_torch_does_not_tell_is_no_failure(tmp_path: Path) -> None:
    script = """
import json, torch
from flexwarm.observer.torch_api import resolve
from flexwarm.observer.torch_api.modes import read_modes
torch.backends.cuda.matmul.fp32_precision = "tf32"
print(json.dumps(read_modes(resolve())["torch.get_float32_matmul_precision()"]))
"""
    assert in_new_process(tmp_path, script).startswith("not told: ")
