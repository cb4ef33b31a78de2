"""One cache layer alone is broken: what is said is of that layer, and no other is blamed."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tests.harness import Done, Flexwarm

pytestmark = [pytest.mark.torch, pytest.mark.xdist_group("layers apart")]

#: Each argument sets something in a module of torch's before the call.
CALL = """
import importlib
import sys
import torch

for argument in sys.argv[1:]:
    where, value = argument.split("=")
    module, _, name = where.rpartition(".")
    setattr(importlib.import_module(module), name, value == "True")
weight = torch.nn.Parameter(torch.ones(8, 8))

def step(x):
    return torch.nn.functional.linear(x, weight).sin()

torch.compile(step)(torch.ones(4, 8)).sum().backward()
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Flexwarm:
    base = tmp_path_factory.mktemp("layers")
    (base / "project").mkdir()
    flexwarm = Flexwarm(base / "project", base / "store")
    flexwarm.module(CALL, "call")
    done = flexwarm.run_json("build", "--", sys.executable, "call.py")
    assert (done.code, done.json["verdict"]) == (0, "built"), done.messages()
    return flexwarm


def explained(flexwarm: Flexwarm, *arguments: str, **env: str) -> Done:
    return flexwarm.run_json("explain", "--", sys.executable, "call.py", *arguments, env=env)


def layers(done: Done) -> set[str]:
    """Layers of the keys that were missed, of those that are explained, and those that a sentence names."""
    (job,) = done.json["jobs"]
    missed = {key["layer"] for call in job["calls"] for key in call["keys"] if key["answer"] == "miss"}
    said = done.messages()
    named = {layer for layer, name in (("aot", "AOTAutograd"), ("fx", "FX graph"), ("triton", "Triton")) if name in said}
    return missed | {miss["layer"] for miss in job["misses"]} | named


def test_a_setting_that_only_aotautograd_has_in_its_key_blames_its_key_alone(built: Flexwarm) -> None:
    done = explained(built, "torch._functorch.config.treat_parameters_as_free_to_save=False")
    assert (done.code, done.codes(), layers(done)) == (1, {"aot-miss", "key-changed"}, {"aot"}), done.messages()
    (reason,) = [reason for reason in done.json["jobs"][0]["reasons"] if reason["code"] == "key-changed"]
    assert reason["message"] == (
        "treat_parameters_as_free_to_save is False, and True when this was built (in the AOTAutograd key)"
    )


def test_a_setting_of_inductor_is_in_both_keys_and_said_once(built: Flexwarm) -> None:
    done = explained(built, "torch._inductor.config.epilogue_fusion=False")
    assert (done.code, done.codes()) == (1, {"aot-miss", "fx-miss", "key-changed"}), done.messages()
    (reason,) = [reason for reason in done.json["jobs"][0]["reasons"] if reason["code"] == "key-changed"]
    assert reason["message"] == "epilogue_fusion is False, and True when this was built (in the AOTAutograd and FX graph key)"


def test_an_aotautograd_that_keeps_no_cache_is_not_asked_and_no_key_is_blamed(built: Flexwarm) -> None:
    done = explained(built, "torch._functorch.config.enable_autograd_cache=False")
    assert (done.code, done.codes(), layers(done)) == (1, {"no-evidence"}, {"aot"}), done.messages()
    assert "the AOTAutograd cache was never asked" in done.messages()


def test_a_graph_cache_of_inductors_that_is_off_is_the_reason_of_the_bypass_and_no_key_is_blamed(built: Flexwarm) -> None:
    done = explained(built, "torch._inductor.config.fx_graph_cache=False")
    assert (done.code, done.codes()) == (1, {"aot-bypass"}), done.messages()
    (reason,) = done.json["jobs"][0]["reasons"]
    assert "FX graph cache is not enabled" in reason["message"]
    assert reason["hint"] == "leave torch._inductor.config.fx_graph_cache on"
    assert not done.json["jobs"][0]["misses"]


@pytest.mark.parametrize("variable", ["TORCHINDUCTOR_AUTOGRAD_CACHE", "TORCHINDUCTOR_FX_GRAPH_CACHE", "TORCH_COMPILE_DISABLE"])
def test_a_variable_that_turns_one_layer_off_is_named_and_nothing_is_asked(built: Flexwarm, variable: str) -> None:
    value = "1" if variable == "TORCH_COMPILE_DISABLE" else "0"
    done = explained(built, **{variable: value})
    assert (done.code, done.codes(), done.json["jobs"]) == (1, {"cache-disabled"}, []), done.messages()
    assert f"{variable}={value}" in done.messages()


@pytest.mark.parametrize("pattern", ["inductor/aotautograd/*/*", "inductor/fxgraph/*/*/*", "inductor/*/*.so"])
def test_an_entry_of_one_layer_that_is_gone_is_named_as_a_file_and_no_key_is_blamed(
    built: Flexwarm, tmp_path: Path, pattern: str
) -> None:
    other = Flexwarm(built.directory, tmp_path / "store")
    shutil.copytree(built.store, other.store)
    files = [path for path in other.bucket.path.glob(pattern) if path.is_file()]
    assert files
    files[0].unlink()
    done = explained(other)
    assert (done.code, done.codes()) == (7, {"corrupt-file"}), done.messages()
    assert str(files[0].relative_to(other.bucket.path)) in done.messages()
    assert not [miss for job in done.json["jobs"] for miss in job["misses"]]
