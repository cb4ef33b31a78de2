"""What a variable does: the table and the questions asked of it."""

from __future__ import annotations

import pytest

from flexwarm import observation, pytest_plugin, reaper
from flexwarm.environment import EFFECTS, SWITCHES, Effect, comparable, disabling, effect, key_variables, relevant


def test_a_variable_nobody_knows_counts_as_part_of_the_key() -> None:
    assert effect("TORCHINDUCTOR_INVENTED_TOMORROW") is Effect.KEY
    assert effect("NCCL_INVENTED_TOMORROW") is Effect.KEY


def test_a_variable_of_no_interest_is_neutral_and_not_relevant() -> None:
    assert effect("EDITOR") is Effect.NEUTRAL
    assert relevant({"EDITOR": "vi", "HOME": "/root"}) == {}


def test_relevant_variables_come_with_their_values_in_order_of_name() -> None:
    assert list(relevant({"TRITON_X": "2", "PATH": "/bin", "OMP_NUM_THREADS": ""}).items()) == [
        ("OMP_NUM_THREADS", ""),
        ("TRITON_X", "2"),
    ]


def test_the_most_specific_row_wins() -> None:
    assert effect("NCCL_DEBUG_SUBSYS") is Effect.NEUTRAL
    assert effect("OMP_NUM_THREADS") is Effect.KEY
    assert effect("OMPI_COMM_WORLD_RANK") is Effect.NEUTRAL
    assert effect("TORCH_COMPILE_DEBUG") is Effect.KEY
    assert effect("TRITON_CACHE_DIR") is Effect.MOVES
    assert effect("CI") is Effect.KEY
    assert effect("TORCHDYNAMO_DISABLE") is Effect.DISABLES
    assert effect("CPATH") is Effect.CODE
    assert effect("TORCHDYNAMO_CAPTURE_SCALAR_OUTPUTS") is Effect.CODE
    assert effect("FLEXWARM_STORE") is Effect.NEUTRAL


def test_what_changes_code_without_entering_a_key_tells_jobs_apart_like_what_enters_one() -> None:
    environ = {"CPATH": "/headers", "OMP_NUM_THREADS": "2", "TORCH_LOGS": "dynamo", "FLEXWARM_STORE": "/s"}
    assert key_variables(environ) == {"CPATH": "/headers", "OMP_NUM_THREADS": "2"}


def test_what_is_other_in_each_process_by_design_is_not_comparable() -> None:
    own = {reaper.MARKER: "run", observation.VARIABLE: "/o", pytest_plugin.REQUEST: "/r"}
    launcher = {"TORCHELASTIC_RUN_ID": "x", "OMPI_COMM_WORLD_RANK": "1"}
    assert comparable({**own, **launcher, "FLEXWARM_STORE": "/s", "NCCL_DEBUG": ""}) == {
        "FLEXWARM_STORE": "/s",
        "NCCL_DEBUG": "",
    }


def test_every_row_is_about_a_variable_that_is_relevant() -> None:
    names = [pattern.rstrip("*") for pattern in EFFECTS] + [name for switch in SWITCHES for name in switch.names]
    assert [name for name in names if name not in relevant({name: ""})] == []


@pytest.mark.parametrize(
    ("environ", "names"),
    [
        ({}, ()),
        ({"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "0"}, ()),
        ({"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}, ("TORCHINDUCTOR_FORCE_DISABLE_CACHES",)),
        ({"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "false"}, ("TORCHINDUCTOR_FORCE_DISABLE_CACHES",)),
        ({"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "0", "TORCH_COMPILE_FORCE_DISABLE_CACHES": "1"}, ()),
        ({"TORCHINDUCTOR_FX_GRAPH_CACHE": "1"}, ()),
        ({"TORCHINDUCTOR_FX_GRAPH_CACHE": ""}, ("TORCHINDUCTOR_FX_GRAPH_CACHE",)),
        ({"TORCHINDUCTOR_FX_GRAPH_CACHE_DEFAULT": "0", "TORCHINDUCTOR_FX_GRAPH_CACHE": "1"}, ()),
        ({"TORCHINDUCTOR_AUTOGRAD_CACHE": "0"}, ("TORCHINDUCTOR_AUTOGRAD_CACHE",)),
        ({"TORCH_COMPILE_DISABLE": "true"}, ()),
        ({"TORCH_COMPILE_DISABLE": "1", "TORCHDYNAMO_DISABLE": "1"}, ("TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE")),
        ({"TRITON_ALWAYS_COMPILE": "On"}, ("TRITON_ALWAYS_COMPILE",)),
        ({"TRITON_ALWAYS_COMPILE": "0"}, ()),
    ],
)
def test_a_switch_is_judged_by_its_value_as_torch_reads_it(environ: dict[str, str], names: tuple[str, ...]) -> None:
    assert disabling(environ) == names
