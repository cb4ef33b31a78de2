"""What is not as it was at the build: each variable and setting with both values and what it does."""

from __future__ import annotations

import pytest

from flexwarm.environment import Effect
from flexwarm.environment_difference import (
    Change,
    Compare,
    Compared,
    Difference,
    Subject,
    Surroundings,
    differences,
    together,
)


def one(old: dict[str, str], new: dict[str, str]) -> Difference:
    (found,) = differences(Surroundings(variables=old), Surroundings(variables=new))
    return found


def setting(name: str, old: str = "1", new: str = "2") -> Difference:
    (found,) = differences(Surroundings(settings={name: old}), Surroundings(settings={name: new}))
    return found


@pytest.mark.parametrize("value", ["", "0", "1"])
def test_unset_is_another_value_than_any(value: str) -> None:
    assert (one({}, {"CI": value}).change, one({"CI": value}, {}).change) == (Change.ADDED, Change.REMOVED)


def test_empty_and_zero_are_two_values() -> None:
    found = one({"CI": ""}, {"CI": "0"})
    assert (found.change, found.old, found.new) == (Change.CHANGED, "", "0")


def test_what_is_as_it_was_is_no_difference() -> None:
    same = Surroundings(variables={"CI": "1"}, settings={"torch.get_num_threads()": "2"})
    assert differences(same, same) == ()


@pytest.mark.parametrize(
    ("name", "effect", "does"),
    [
        ("OMP_NUM_THREADS", Effect.KEY, "enters Inductor's key (for a CPU, from torch 2.13 on;"),
        ("TORCHINDUCTOR_MAX_AUTOTUNE", Effect.KEY, "enters Inductor's key"),
        ("CI", Effect.KEY, "enters AOTAutograd's key (from torch 2.11 on)"),
        ("DISABLE_PTXAS_OPT", Effect.KEY, "enters Triton's key"),
        ("ATEN_CPU_CAPABILITY", Effect.KEY, "selects the bucket"),
        ("CPATH", Effect.CODE, "can change code without entering a key"),
        ("TRITON_CACHE_MANAGER", Effect.MOVES, "moves the cache"),
        ("NCCL_DEBUG", Effect.NEUTRAL, "is known to change nothing"),
    ],
)
def test_a_variable_comes_with_what_it_does(name: str, effect: Effect, does: str) -> None:
    found = one({}, {name: "7"})
    assert (found.effect, found.known) == (effect, True)
    assert found.does.startswith(does)


def test_a_variable_that_nobody_knows_counts_as_part_of_a_key_and_is_said_to_be_unknown() -> None:
    found = one({}, {"TORCHINDUCTOR_INVENTED_TOMORROW": "1"})
    assert (found.effect, found.known, "not known" in found.does) == (Effect.KEY, False, True)


@pytest.mark.parametrize(("value", "off"), [("0", True), ("", True), ("1", False)])
def test_only_a_value_that_turns_a_cache_off_is_said_to(value: str, off: bool) -> None:
    found = one({}, {"TORCHINDUCTOR_FX_GRAPH_CACHE": value})
    assert (found.effect, found.does == "turns a cache off") == (Effect.DISABLES, off)


@pytest.mark.parametrize(
    ("name", "effect"),
    [
        ("torch._inductor.config.epilogue_fusion", Effect.KEY),
        ("torch._functorch.config.functionalize_rng_ops", Effect.KEY),
        ("torch._dynamo.config.capture_scalar_outputs", Effect.CODE),
        ("torch.get_float32_matmul_precision()", Effect.KEY),
    ],
)
def test_a_setting_comes_with_what_it_does(name: str, effect: Effect) -> None:
    assert (setting(name).subject, setting(name).effect) == (Subject.SETTING, effect)


def test_settings_that_one_side_did_not_tell_are_no_difference() -> None:
    assert differences(Surroundings(settings={"torch.get_num_threads()": "2"}), Surroundings()) == ()


def test_what_matters_comes_first() -> None:
    new = {"TORCH_LOGS": "x", "CPATH": "/h", "CI": "1", "TORCHDYNAMO_DISABLE": "1", "TRITON_CACHE_MANAGER": "m"}
    found = differences(Surroundings(), Surroundings(variables=new))
    assert [x.effect for x in found] == [Effect.DISABLES, Effect.KEY, Effect.CODE, Effect.MOVES, Effect.NEUTRAL]


def test_those_that_differ_alike_are_told_together_whatever_changes_nothing() -> None:
    threads = one({"OMP_NUM_THREADS": "2"}, {"OMP_NUM_THREADS": "1"})
    devices = [one({}, {"CUDA_VISIBLE_DEVICES": str(number)}) for number in range(2)]
    ranks = [Compare(owners=(f"rank {n}",), compared=Compared.ALL, differences=(threads, devices[n])) for n in range(2)]
    other = Compare(owners=("rank 2",), compared=Compared.ALL)
    first, second = together([ranks[0], other, ranks[1]])
    assert (first.owners, first.differences) == (("rank 0", "rank 1"), (threads, *devices))
    assert second == other
