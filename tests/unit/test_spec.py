"""A spec that cannot be right is refused with the table, the key and what would be right, before anything starts."""

from __future__ import annotations

import pytest

from flexwarm import spec
from flexwarm.canonical import plain
from flexwarm.errors import ExitCode, SpecError
from flexwarm.topology import LaneContext, Role
from flexwarm.workload import CallSite, Dtype, workload_from_json

WORKLOAD = """
[[workload]]
name = "w"
q_heads = 4
head_dim = 64
q_len = 256
"""


def parse(text: str, *, schema: str = "schema = 1\n") -> spec.Spec:
    return spec.parse(schema + text, "spec.toml")


def refused(text: str, *, schema: str = "schema = 1\n") -> SpecError:
    with pytest.raises(SpecError) as caught:
        parse(text, schema=schema)
    assert caught.value.exit_code is ExitCode.USAGE
    assert "\n" not in caught.value.message
    return caught.value


def test_a_spec_without_roles_has_one_cpu_rank() -> None:
    (role,) = parse(WORKLOAD).roles
    assert (role.name, role.processes, role.devices) == ("default", 1, ("cpu",))


def test_a_list_is_a_grid_and_its_points_come_in_the_order_written() -> None:
    text = WORKLOAD.replace("q_len = 256", 'q_len = [512, 256]\ndtype = ["float32", "bfloat16"]')
    (workload,) = parse(text).workloads
    assert [(s.dtype, s.q_len, s.kv_len) for s in workload.shapes] == [
        (Dtype.FLOAT32, 512, 512),
        (Dtype.FLOAT32, 256, 256),
        (Dtype.BFLOAT16, 512, 512),
        (Dtype.BFLOAT16, 256, 256),
    ]


def test_a_workload_survives_its_way_to_the_worker() -> None:
    text = WORKLOAD + 'mask_mod = "document"\nmask_args = { documents = 3 }\ncompile = { dynamic = true }\nlayout = "bshd"\n'
    (workload,) = parse(text).workloads
    assert workload_from_json(plain(workload)) == workload


@pytest.mark.parametrize(
    ("added", "words"),
    [
        ('colour = "red"', ["'w'", "colour", "unknown key"]),
        ("batc = 2", ["'w'", "batc", "unknown key"]),
        ('batch = "two"', ["'w'", "batch", "whole number", "text"]),
        ("batch = 0", ["batch", "at least 1", "0"]),
        ("batch = true", ["batch", "whole number"]),
        ("calls = 1.5", ["calls", "whole number"]),
        ("steps = 0", ["steps", "at least 1", "0"]),
        ("steps = 2.0", ["steps", "whole number"]),
        ("kv_heads = 3", ["kv_heads", "q_heads = 4", "kv_heads = 3"]),
        ('dtype = "float8"', ["dtype", "float8", "bfloat16"]),
        ('call_site = "checkpoint"', ["call_site", "grad = true"]),
        ('call_site = "anywhere"', ["call_site", "anywhere", "compiled"]),
        ('mask_mod = "casual"', ["mask_mod", "casual"]),
        ('mask_mod = "sliding_window"', ["mask_args", "window", "missing"]),
        ('mask_mod = "causal"\nmask_args = { window = 3 }', ["mask_args", "unknown argument", "window"]),
        ('mask_args = { window = 3 }', ["mask_args", "no mask_mod"]),
        ('mask_mod = "prefix_lm"\nmask_args = { prefix = 300 }', ["prefix = 300", "kv_len = 256"]),
        ('mask_mod = "document"\nmask_args = { lengths = [100, 100] }', ["200", "256"]),
        ('mask_mod = "not a module:attribute"', ["module:attribute"]),
        ('score_mod = "soft_cap"', ["score_args", "cap", "missing"]),
        ("compile = { dynamik = true }", ["compile", "dynamik", "unknown key"]),
        ('compile = { mode = "max-autotune", options = { a = 1 } }', ["mode or options"]),
        ('compile = { mode = "max-autotun" }', ["mode", "max-autotun", "reduce-overhead"]),
        ('dtype = ["float32", "float32"]', ["dtype", "twice"]),
        ('step = "m:f"', ["q_heads", "describes an attention call", "'m:f'"]),
        ("step_args = { layers = 2 }", ["step_args", "no step"]),
        ('roles = ["nobody"]', ["roles", "nobody"]),
    ],
)  # fmt: skip
def test_what_cannot_be_right_is_named(added: str, words: list[str]) -> None:
    error = refused(WORKLOAD + added + "\n")
    for word in words:
        assert word in error.message, error.message


def test_a_misspelt_key_is_answered_with_the_right_one() -> None:
    assert "'batch'" in refused(WORKLOAD + "batc = 2\n").hint
    assert "'causal'" in refused(WORKLOAD + 'mask_mod = "casual"\n').hint


@pytest.mark.parametrize("name", ["", "a/b", "a:b", "[red]", "two words", "\\u001b[31m", "line\\nline", "x" * 65, "-x"])
def test_a_name_that_could_not_stand_in_a_table_or_a_file_name_is_refused(name: str) -> None:
    assert "name" in refused(WORKLOAD.replace('"w"', f'"{name}"')).message
    assert "name" in refused(f'[[role]]\nname = "{name}"\n' + WORKLOAD).message


@pytest.mark.parametrize("key", ["q_heads", "head_dim", "q_len", "name"])
def test_a_key_that_must_be_there_is_missed_by_name(key: str) -> None:
    text = "\n".join(line for line in WORKLOAD.splitlines() if not line.startswith(key))
    assert key in refused(text).message


@pytest.mark.parametrize("schema", ["", "schema = 2\n", 'schema = "1"\n'])
def test_a_spec_of_another_schema_is_refused(schema: str) -> None:
    assert "schema" in refused(WORKLOAD, schema=schema).message


def test_text_that_is_not_toml_is_refused_with_its_file() -> None:
    assert "spec.toml is not TOML" in refused("[[workload").message


def test_gradients_on_the_cpu_are_refused_because_flex_has_no_backward_there() -> None:
    error = refused(WORKLOAD + "grad = true\n")
    assert "no backward on the cpu" in error.message
    assert "'default'" in error.message


def test_gradients_on_cuda_are_accepted() -> None:
    (workload,) = parse('[[role]]\nname = "r"\ndevices = "cuda:0"\n' + WORKLOAD + "grad = true\n").workloads
    assert workload.grad


def test_a_mask_built_for_another_length_is_refused_with_both_numbers() -> None:
    error = refused(WORKLOAD.replace("256", "1200") + 'mask_mod = "causal"\nmask_q_len = 1280\n')
    assert "1280" in error.message
    assert "1200" in error.message


def test_more_static_variants_than_dynamo_keeps_are_refused_before_anything_compiles() -> None:
    lengths = [128 * n for n in range(1, 10)]
    text = WORKLOAD.replace("256", str(lengths)) + "compile = { dynamic = false }\n"
    error = refused(text)
    assert "9 variants" in error.message
    assert "8 times" in error.message
    assert len(parse(text + "recompile_limit = 16\n").workloads[0].shapes) == 9
    assert len(parse(text.replace("false", "true")).workloads[0].shapes) == 9


def test_two_workloads_of_one_name_are_refused() -> None:
    assert "named 'w'" in refused(WORKLOAD + WORKLOAD).message


def test_a_role_that_no_workload_names_is_refused() -> None:
    text = '[[role]]\nname = "a"\n[[role]]\nname = "idle"\n' + WORKLOAD + 'roles = "a"\n'
    assert "'idle'" in refused(text).message


@pytest.mark.parametrize(
    ("role", "words"),
    [
        ('devices = "tpu:0"', ["devices", "tpu:0"]),
        ('devices = "cuda:4-2"', ["counts down"]),
        ('devices = ["cpu", "cuda:0"]\nprocesses = 2', ["not both"]),
        ('devices = "cuda:0-3"\nprocesses = 2', ["4 devices", "2 lanes"]),
        ("processes = 0", ["processes", "at least 1"]),
        ("isolate = true", ["isolate", "cpu"]),
        ("env = { A = 1 }", ["env.A", "text"]),
        ('env = { "A=B" = "c" }', ["A=B"]),
        ('process_group = "mpi"', ["process_group", "mpi"]),
        ('process_group = "gloo"', ["gloo", "not supported"]),
        ("lanes = 0", ["lanes", "at least 1", "0"]),
        ("lanes = 1.5", ["lanes", "whole number"]),
        ("lanes = true", ["lanes", "whole number"]),
        ('devices = "cuda:0-4"\nprocesses = 2\nlanes = 2', ["5 devices", "4 lanes"]),
        ("lanes = 2\nisolate = true", ["isolate", "cpu"]),
        ("lanes = 2\nstagger = -0.1", ["stagger", "0 to 600 seconds", "-0.1"]),
        ("lanes = 2\nstagger = 600.5", ["stagger", "0 to 600 seconds", "600.5"]),
        ("lanes = 2\nstagger = nan", ["stagger", "0 to 600 seconds"]),
        ("lanes = 2\nstagger = inf", ["stagger", "0 to 600 seconds"]),
        ('lanes = 2\nstagger = "1 s"', ["stagger", "number", "text"]),
        ("lanes = 2\nstagger = true", ["stagger", "number", "true or false"]),
        ('lanes = 2\ncontext = "shared"', ["context", "shared", "new, copy"]),
        ("lanes = 2\ncontext = 1", ["context", "text"]),
        ("stagger = 1.0", ["stagger", "one lane"]),
        ("lanes = 1\nstagger = 0", ["stagger", "one lane"]),
        ('context = "copy"', ["context", "one lane"]),
        ("rank = 3", ["rank", "unknown key"]),
    ],
)
def test_a_role_that_cannot_be_right_is_named(role: str, words: list[str]) -> None:
    error = refused(f'[[role]]\nname = "r"\n{role}\n' + WORKLOAD)
    assert "'r'" in error.message
    for word in words:
        assert word in error.message, error.message


def test_devices_are_dealt_to_processes_in_order_and_round_after_round() -> None:
    (role,) = parse('[[role]]\nname = "r"\nprocesses = 4\ndevices = ["cuda:5", "cuda:7"]\n' + WORKLOAD).roles
    assert [role.device(n) for n in range(4)] == ["cuda:5", "cuda:7", "cuda:5", "cuda:7"]


def test_a_range_of_devices_is_each_of_them() -> None:
    (role,) = parse('[[role]]\nname = "r"\nprocesses = 4\ndevices = "cuda:0-2,cuda:6"\n' + WORKLOAD).roles
    assert role.devices == ("cuda:0", "cuda:1", "cuda:2", "cuda:6")


def role(text: str) -> Role:
    (role,) = parse('[[role]]\nname = "r"\n' + text + WORKLOAD).roles
    return role


def test_a_role_has_one_lane_unless_it_says_so_and_lanes_start_together_as_threads_do() -> None:
    one, several = role(""), role("lanes = 3\n")
    assert (one.lanes, one.stagger_seconds, one.context) == (1, 0.0, LaneContext.NEW)
    assert (several.lanes, several.stagger_seconds, several.context) == (3, 0.0, LaneContext.NEW)


@pytest.mark.parametrize("stagger", [0, 0.5, 600])
def test_a_stagger_of_up_to_ten_minutes_and_a_copied_context_are_kept(stagger: float) -> None:
    found = role(f'lanes = 2\nstagger = {stagger}\ncontext = "copy"\n')
    assert found.stagger_seconds == stagger
    assert found.context is LaneContext.COPY


@pytest.mark.parametrize("line", ["stagger = 0.5", 'context = "new"'])
def test_what_only_lanes_can_have_is_refused_with_one_lane_and_the_way_out_is_said(line: str) -> None:
    assert refused(f'[[role]]\nname = "r"\n{line}\n' + WORKLOAD).hint == "leave it out, or say lanes = 2"


def test_devices_are_dealt_to_the_lanes_of_all_processes_in_order_and_round_after_round() -> None:
    found = role('processes = 2\nlanes = 3\ndevices = "cuda:4-7"\n')
    dealt = [[found.device(process, lane) for lane in range(3)] for process in range(2)]
    assert dealt == [["cuda:4", "cuda:5", "cuda:6"], ["cuda:7", "cuda:4", "cuda:5"]]


def test_the_devices_of_a_process_are_those_of_its_lanes_each_once_in_their_order() -> None:
    found = role('processes = 2\nlanes = 3\ndevices = ["cuda:5", "cuda:2"]\n')
    assert [found.process_devices(process) for process in range(2)] == [("cuda:5", "cuda:2"), ("cuda:2", "cuda:5")]
    shared = role('lanes = 3\ndevices = "cuda:1"\n')
    assert shared.process_devices(0) == ("cuda:1",)


def test_as_many_devices_as_there_are_lanes_in_all_processes_are_accepted() -> None:
    assert len(role('processes = 2\nlanes = 2\ndevices = "cuda:0-3"\n').devices) == 4


def test_several_lanes_can_be_isolated() -> None:
    assert role('processes = 2\nlanes = 2\ndevices = "cuda:0-3"\nisolate = true\n').isolate


def test_a_workload_has_one_step_unless_it_says_so_and_steps_reach_the_worker() -> None:
    assert parse(WORKLOAD).workloads[0].steps == 1
    (workload,) = parse(WORKLOAD + "steps = 3\n").workloads
    assert workload.steps == 3
    assert workload_from_json(plain(workload)).steps == 3


THREE_SHAPES = WORKLOAD.replace("256", "[128, 256, 384]") + "compile = { dynamic = false }\n"
THREE_DEVICES = '[[role]]\nname = "r"\nlanes = 3\ndevices = "cuda:0-2"\n'


def test_each_device_of_a_process_is_a_variant_of_each_shape_and_too_many_are_refused_with_the_numbers() -> None:
    error = refused(THREE_DEVICES + THREE_SHAPES)
    for words in ("'w'", "recompile_limit", "3 shapes on the 3 devices", "role 'r'", "9 variants", "8 times"):
        assert words in error.message
    assert "dynamic = true" in error.hint


@pytest.mark.parametrize(
    ("old", "new"),
    [
        # Each process has a compiled function of its own.
        ("lanes = 3", "processes = 3"),
        # Lanes of one device share its variants.
        ("cuda:0-2", "cuda:0"),
        ("cuda:0-2", "cuda:0-1"),
        ("dynamic = false", "dynamic = true"),
        ("compile = { dynamic = false }", ""),
        ("compile", "recompile_limit = 9\ncompile"),
        ("[128, 256, 384]", "[128, 256]"),
    ],
)
def test_as_many_variants_as_dynamo_keeps_are_accepted(old: str, new: str) -> None:
    text = THREE_DEVICES + THREE_SHAPES
    assert old in text
    parse(text.replace(old, new, 1))


def test_the_fullest_process_decides_how_many_variants_there_are() -> None:
    # The devices go round: the second process has two of them, the first one only one.
    devices = 'devices = ["cuda:0", "cuda:0", "cuda:0", "cuda:1"]'
    lengths = WORKLOAD.replace("256", str([128 * n for n in range(1, 6)])) + "compile = { dynamic = false }\n"
    text = f'[[role]]\nname = "r"\nprocesses = 2\nlanes = 2\n{devices}\n' + lengths
    assert "5 shapes on the 2 devices" in refused(text).message


def test_variants_are_counted_for_the_roles_that_make_the_call() -> None:
    other = '[[role]]\nname = "other"\nlanes = 1\ndevices = "cuda:0"\n' + THREE_DEVICES
    parse(other + THREE_SHAPES + 'roles = "other"\n' + WORKLOAD.replace('"w"', '"x"'))
    refused(other + THREE_SHAPES + WORKLOAD.replace('"w"', '"x"'))


def test_names_are_no_part_of_what_is_compiled() -> None:
    one = parse(WORKLOAD).workloads[0]
    other = parse(WORKLOAD.replace('"w"', '"renamed"')).workloads[0]
    assert one.subject() == other.subject()
    assert one.call_site is CallSite.COMPILED
