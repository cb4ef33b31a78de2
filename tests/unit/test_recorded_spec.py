"""A recorded launch becomes a spec that makes the same calls in the same order, or says why it cannot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flexwarm import spec
from flexwarm.calls import AttentionCall, CompileArguments, CompiledCall, FunctionRef, TensorSpec
from flexwarm.canonical import plain
from flexwarm.events import Event
from flexwarm.ops.record import RecordResult
from flexwarm.program_events import Called, Program
from flexwarm.programs import Ended
from flexwarm.recorded_calls import Named, Unnamed, grid_keys, identity, strides, write_call
from flexwarm.recorded_spec import RecordedSpec, Surroundings, from_record, functions_of, to_toml
from flexwarm.render.record import record_lines
from flexwarm.spec import Spec
from flexwarm.workload import Dtype, Layout, Shape
from tests.launches import bye, program, rank, record, summary

TORCH = "/lib/site-packages/torch/nn/attention/flex_attention.py"
CAUSAL = FunctionRef(module="masks", name="causal", file="/job/masks.py", line=1)
WINDOW = FunctionRef(
    module="masks", name="make_window.<locals>.window_mask", file="/job/masks.py", line=6, captured={"window": 64}
)
BIAS = FunctionRef(module="train", name="bias", file="/job/train.py", line=4)


def tensor(heads: int, length: int, *, layout: Layout = Layout.BHSD, **changes: Any) -> TensorSpec:
    shape = (1, heads, length, 32)
    return replace(TensorSpec(dtype="float32", shape=shape, stride=strides(shape, layout)), **changes)


def attention(
    length: int = 128, heads: int = 2, kv_heads: int | None = None, kv_len: int | None = None, **changes: Any
) -> AttentionCall:
    """A direct call; ``tensors`` among the changes go over each of its tensors."""
    tensors = {"device": "cpu", **changes.pop("tensors", {})}
    query = tensor(heads, length, **tensors)
    key = tensor(kv_heads or heads, kv_len or length, **tensors)
    mask = changes.get("mask", CAUSAL)
    made: dict[str, Any] = {"mask": mask, "scale": 1 / 32**0.5, "enable_gqa": False}
    if mask is not None:
        made |= {"mask_lengths": (length, kv_len or length), "mask_batch": 1, "mask_heads": 1, "mask_block": (128, 128)}
    return AttentionCall(query=query, key=key, value=key, direct=True, **{**made, **changes})


def flex(number: int = 0, call: AttentionCall | None = None, **changes: Any) -> CompiledCall:
    """A compiled flex_attention without gradients."""
    call = call or attention()
    blocks = [-(-length // 128) for length in (call.query.shape[2], call.key.shape[2])]
    indices = [TensorSpec(dtype="int32", shape=(1, 1, *blocks), stride=(1, 1, 1, 1))] * (4 if call.mask_lengths else 0)
    values: dict[str, Any] = {
        "graph": f"0/{number}", "function": "flex_attention", "file": TORCH, "line": 1468, "caller": "/job/train.py:9 in step",
        "compile": CompileArguments(), "grad": False, "autocast": "", "nesting": (),
        "inputs": (call.query, call.key, call.value, *indices), "attention": (call,),
    }  # fmt: skip
    return CompiledCall(**{**values, **changes})


def mask_maker(number: int = 0, **changes: Any) -> CompiledCall:
    values: dict[str, Any] = {"function": "create_block_mask", "grad": True, "attention": (), "inputs": (), "made_on": ("cpu",)}
    return replace(flex(), graph=f"1/{number}", **{**values, **changes})


MODEL = replace(flex(), graph="2/0", function="forward", file="/job/model.py", line=12, attention=())


def learnt(call: AttentionCall, *dimensions: int) -> AttentionCall:
    """The call as it is compiled where Dynamo takes these dimensions for any size."""
    query, key = replace(call.query, dynamic=dimensions), replace(call.key, dynamic=dimensions)
    return replace(call, query=query, key=key, value=key)


def said(calls: Sequence[CompiledCall | tuple[str, CompiledCall]], first: Program | None = None) -> list[Event]:
    events: list[Event] = [first or program()]
    for item in calls:
        lane, call = item if isinstance(item, tuple) else ("lane-0", item)
        events.append(Called(t=2.0, job=lane, call=plain(call)))
    return [*events, summary(), bye()]


def recorded(*programs: list[Event], environ: Mapping[str, str] | None = None, **changes: Any) -> RecordedSpec:
    launch = record(programs, **changes)
    names: dict[str, Named | Unnamed] = {}
    for function in functions_of(launch):
        top, _, inner = function.name.partition(".")
        args = dict(function.captured) if inner else None
        names[identity(function)] = Named(name=f"{function.module}:{top}", args=args)
    around = Surroundings(
        line=("python", "train.py"),
        directory="/job",
        environ=environ or {},
        names=names,
        modules={(one.program.host, one.program.pid): "train" for one in launch.programs},
    )
    found = from_record(launch, around)
    assert found is not None
    return found


def parsed(found: RecordedSpec) -> Spec:
    return spec.parse(to_toml(found, "/job"), "flexwarm.toml")


def only(found: RecordedSpec) -> Any:
    (workload,) = parsed(found).workloads
    return workload


def lengths(found: RecordedSpec) -> list[tuple[str, list[int]]]:
    return [(x.mask.name if x.mask else "", [shape.q_len for shape in x.shapes]) for x in parsed(found).workloads if not x.step]


def reasons(found: RecordedSpec) -> str:
    return "\n".join(why for step in found.steps for why in step.why)


# ---- one call --------------------------------------------------------------------------------------------------------------


def test_a_plain_call_becomes_a_workload_with_its_mask_and_its_sizes() -> None:
    workload = only(recorded(said([flex(call=attention(q := 128, 4, 2, 256, enable_gqa=True))])))
    assert workload.shapes == (Shape(batch=1, q_heads=4, kv_heads=2, head_dim=32, q_len=q, kv_len=256, dtype=Dtype.FLOAT32),)
    assert (workload.mask.name, workload.mask.args, workload.score, workload.scale) == ("masks:causal", None, None, None)
    assert (workload.grad, workload.layout, workload.compile_mask) == (False, Layout.BHSD, False)


def test_what_the_caller_gave_is_in_the_workload() -> None:
    call = attention(
        score=BIAS, mask=WINDOW, scale=0.25, kernel_options={"BLOCK_M": 64}, tensors={"layout": Layout.BSHD, "device": "cuda:0"}
    )
    call = replace(call, **{name: replace(getattr(call, name), requires_grad=True) for name in ("query", "key", "value")})
    arguments = CompileArguments(dynamic=False, fullgraph=True, options={"max_autotune": True})
    workload = only(recorded(said([flex(call=call, compile=arguments, grad=True)])))
    assert (workload.mask.name, workload.mask.args) == ("masks:make_window", {"window": 64})
    assert (workload.score.name, workload.scale, workload.kernel_options) == ("train:bias", 0.25, {"BLOCK_M": 64})
    assert (workload.grad, workload.layout) == (True, Layout.BSHD)
    assert (workload.compile.dynamic, workload.compile.fullgraph) == (False, True)
    assert workload.compile.options == {"max_autotune": True}


def test_a_mode_of_torch_compile_is_kept_and_a_mask_of_no_function_is_torchs_own() -> None:
    call = attention(mask=None, mask_lengths=(128, 128), mask_batch=1, mask_heads=1, mask_block=(128, 128))
    workload = only(recorded(said([flex(call=call, compile=CompileArguments(mode="max-autotune"))])))
    assert (workload.compile.mode, workload.mask.name) == ("max-autotune", "torch.nn.attention.flex_attention:noop_mask")
    assert only(recorded(said([flex(call=attention(mask=None))]))).mask is None


STRANGE = replace(tensor(2, 128), stride=(1, 2, 3, 4))


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (flex(autocast="bfloat16"), "autocast"),
        (flex(grad=True), "torch.no_grad()"),
        (flex(unread=("caller: KeyError: x",)), "could not be read"),
        (flex(compile=CompileArguments(options={"x": "<function f>"})), "option x"),
        (flex(call=attention(partial=True)), "functools.partial of flex_attention"),
        (flex(call=attention(return_lse=True)), "log-sum-exp"),
        (flex(call=attention(kernel_options={"x": [1]})), "kernel option x"),
        (flex(call=attention(mask_lengths=(256, 256))), "made for lengths (256, 256)"),
        (flex(call=attention(mask_heads=2)), "2 heads"),
        (flex(call=attention(mask_block=(64, 64))), "blocks of (64, 64)"),
        (flex(inputs=()), "not one that create_block_mask makes"),
        (flex(call=replace(attention(), query=STRANGE)), "do not lie in memory"),
        (flex(call=replace(attention(), query=tensor(2, 128, dtype="float64"))), "float64"),
        (flex(call=replace(attention(), query=tensor(3, 128), key=tensor(2, 128), value=tensor(2, 128))), "no multiple"),
        (flex(call=replace(attention(), key=tensor(2, 64))), "another batch or head_dim"),
        (flex(call=replace(attention(), key=tensor(2, 128, device="cuda:0"))), "not all on one device"),
        (flex(call=replace(attention(), query=tensor(2, 128, requires_grad=True))), "only a part"),
        (flex(grad=True, call=attention(tensors={"requires_grad": True})), "no backward"),
        (flex(call=replace(attention(), direct=False)), "part of a larger graph"),
        (MODEL, "no flex_attention in it"),
    ],
)
def test_what_no_workload_can_say_is_a_step_that_says_why(call: CompiledCall, why: str) -> None:
    found = recorded(said([call]))
    workload = only(found)
    assert (workload.step.name, workload.name) == ("train:warm", "train-step")
    assert why in reasons(found)
    assert why in to_toml(found, "/job").replace("\n#   ", " ")


def test_a_function_without_a_name_is_a_step_with_the_reason_that_was_given() -> None:
    why = "a function of it is a lambda, which no module has by name"
    assert write_call(flex(), {identity(CAUSAL): Unnamed(why=why)}) == why


def test_a_step_names_each_compiled_function_with_its_place_and_shapes_once() -> None:
    found = recorded(said([MODEL, replace(MODEL, graph="2/1"), flex(1, autocast="bfloat16")]))
    (step,) = found.steps
    assert len(step.why) == 2
    assert step.why[0].startswith(
        "forward (model.py:12), called at train.py:9 in step, 2 graphs: forward of 1x2x128x32 float32"
    )
    assert step.keys == {"step": "train:warm", "dtype": "float32"}


# ---- several calls through one function ------------------------------------------------------------------------------------


def test_lengths_are_written_in_the_order_of_the_calls() -> None:
    calls = [flex(0, attention(256)), flex(1, learnt(attention(128), 2))]
    assert lengths(recorded(said(calls))) == [("masks:causal", [256, 128])]


def test_a_call_that_was_compiled_for_any_length_because_of_another_one_gets_that_length_first() -> None:
    calls = [
        flex(0, attention(128, mask=WINDOW)),
        flex(1, learnt(attention(256, mask=WINDOW), 2)),
        flex(2, learnt(attention(256), 2)),
    ]
    found = recorded(said(calls))
    assert lengths(found) == [("masks:make_window", [128, 256]), ("masks:causal", [128, 256])]
    assert "comes first for Dynamo" in to_toml(found, "/job")


def test_heads_that_another_call_had_are_called_first_too() -> None:
    calls = [flex(0, attention(128, 4)), flex(1, learnt(attention(128, 2, score=BIAS), 1))]
    first, second = parsed(recorded(said(calls))).workloads
    assert [shape.q_heads for shape in first.shapes] == [4]
    assert [(shape.q_heads, shape.kv_heads) for shape in second.shapes] == [(4, 4), (2, 2)]


def test_a_number_that_a_closure_had_otherwise_before_cannot_be_written() -> None:
    other = replace(WINDOW, captured={"window": 128})
    found = recorded(said([flex(0, attention(mask=WINDOW)), flex(1, attention(mask=other))]))
    assert lengths(found) == [("masks:make_window", [128])]
    assert "what Dynamo had learnt" in reasons(found)


def test_without_dynamic_shapes_nothing_is_learnt_and_each_is_written() -> None:
    static = CompileArguments(dynamic=False)
    other = replace(WINDOW, captured={"window": 128})
    calls = [flex(n, attention(mask=mask), compile=static) for n, mask in enumerate((WINDOW, other))]
    found = recorded(said(calls))
    assert not found.steps
    assert [workload.mask.args for workload in parsed(found).workloads if workload.mask] == [{"window": 64}, {"window": 128}]


def test_more_fixed_shapes_than_the_limit_are_written_with_the_limit_that_the_job_must_have() -> None:
    static = CompileArguments(dynamic=False)
    calls = [flex(n, attention(128 * (n + 1)), compile=static) for n in range(9)]
    assert only(recorded(said(calls))).recompile_limit == 9


def test_after_a_reset_nothing_is_known_of_the_calls_before() -> None:
    calls = [flex(0, attention(128)), flex(0, attention(256)), flex(1, learnt(attention(384), 2))]
    assert lengths(recorded(said(calls))) == [("masks:causal", [128]), ("masks:causal", [256, 384])]


def test_a_reset_is_seen_where_other_functions_come_first_after_it() -> None:
    model = replace(MODEL, graph="0/0")
    calls = [model, replace(flex(), graph="1/0"), model, replace(flex(0, attention(256)), graph="1/0")]
    assert lengths(recorded(said(calls))) == [("masks:causal", [128]), ("masks:causal", [256])]
    calls = [replace(flex(), graph="3/0"), replace(flex(0, attention(256)), graph="1/0")]
    assert lengths(recorded(said(calls))) == [("masks:causal", [128]), ("masks:causal", [256])]


def test_the_parts_of_a_graph_that_ddp_split_are_no_reset() -> None:
    part = replace(MODEL, graph="1/0", inputs=MODEL.inputs[:1])
    calls = [flex(), replace(MODEL, graph="1/0"), part, flex(1, learnt(attention(256), 2))]
    assert lengths(recorded(said(calls))) == [("masks:causal", [128, 256])]


def test_a_call_that_dynamo_begins_anew_under_the_same_number_is_one_call() -> None:
    assert lengths(recorded(said([flex(), flex()]))) == [("masks:causal", [128])]


def test_a_dimension_that_was_marked_dynamic_cannot_be_written() -> None:
    found = recorded(said([flex(0, learnt(attention(128), 2))]))
    assert "dimension 2 of query is compiled for any size" in reasons(found)


def test_shapes_that_are_no_grid_become_several_workloads() -> None:
    static = CompileArguments(dynamic=False)
    pairs = [(128, 128), (128, 256), (256, 512)]
    calls = [flex(n, attention(q, kv_len=kv), compile=static) for n, (q, kv) in enumerate(pairs)]
    found = [(shape.q_len, shape.kv_len) for x in parsed(recorded(said(calls))).workloads for shape in x.shapes]
    assert found == pairs
    assert len(parsed(recorded(said(calls))).workloads) == 2


def shape(q: int, kv: int | None = None, **changes: Any) -> Shape:
    values: dict[str, Any] = {"batch": 1, "q_heads": 2, "kv_heads": 2, "head_dim": 32, "dtype": Dtype.FLOAT32}
    return Shape(q_len=q, kv_len=q if kv is None else kv, **{**values, **changes})


@pytest.mark.parametrize(
    ("shapes", "keys"),
    [
        ([shape(1), shape(2)], {"q_len": [1, 2]}),
        ([shape(1, 1), shape(1, 2)], {"q_len": 1, "kv_len": [1, 2]}),
        ([shape(1, batch=4), shape(2, batch=4)], {"batch": 4, "q_len": [1, 2]}),
        ([shape(1), shape(2, 1)], {"q_len": [1, 2], "kv_len": 1}),
        ([shape(1), shape(2), shape(1)], None),
        ([shape(1, 2), shape(2, 1)], None),
    ],
)
def test_a_grid_is_exactly_the_shapes_in_their_order(shapes: list[Shape], keys: dict[str, Any] | None) -> None:
    rest = {"q_heads": 2, "head_dim": 32, "dtype": "float32"}
    assert grid_keys(shapes) == (None if keys is None else {**rest, **keys})


# ---- masks that are compiled -----------------------------------------------------------------------------------------------


def test_a_compiled_create_block_mask_is_a_key_of_the_call_that_follows() -> None:
    assert only(recorded(said([mask_maker(), flex()]))).compile_mask


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"grad": False}, "gradients are switched off"),
        ({"made_on": ("'cpu'",)}, "given 'cpu' as device"),
        ({"compile": CompileArguments(dynamic=True)}, "gives torch.compile no arguments"),
    ],
)
def test_one_that_a_workload_would_make_otherwise_is_a_step(changes: dict[str, Any], why: str) -> None:
    found = recorded(said([mask_maker(**changes), flex()]))
    assert why in reasons(found)
    assert lengths(found) == [("masks:causal", [128])]


def test_one_that_no_call_follows_is_a_step() -> None:
    assert "no call of flex_attention with a mask followed" in reasons(recorded(said([flex(), mask_maker()])))


# ---- roles -----------------------------------------------------------------------------------------------------------------


def cuda(number: int, **changes: Any) -> CompiledCall:
    return flex(call=attention(tensors={"device": f"cuda:{number}"}), **changes)


def test_ranks_that_call_the_same_are_one_role_with_their_devices() -> None:
    found = parsed(recorded(*(said([cuda(n)], rank(n, environ={"OMP_NUM_THREADS": "1"})) for n in range(4))))
    (role,) = found.roles
    assert (role.processes, role.devices, role.name) == (4, ("cuda:0", "cuda:1", "cuda:2", "cuda:3"), "train")


def test_ranks_that_see_one_device_each_under_the_same_index_have_it_dealt_to_all() -> None:
    (role,) = parsed(recorded(*(said([cuda(0)], rank(n, environ={"OMP_NUM_THREADS": "1"})) for n in range(2)))).roles
    assert (role.processes, role.devices) == (2, ("cuda:0",))


def test_ranks_that_call_different_things_are_roles_with_their_own_workloads() -> None:
    found = parsed(recorded(said([flex()], rank(0)), said([flex(), flex(1, attention(mask=WINDOW))], rank(1))))
    assert [(role.name, role.processes) for role in found.roles] == [("train", 1), ("train-2", 1)]
    assert [(x.mask.name, x.roles) for x in found.workloads if x.mask] == [
        ("masks:causal", ()),
        ("masks:make_window", ("train-2",)),
    ]


def test_what_torchrun_would_set_anyway_is_not_in_the_role_and_what_differs_is() -> None:
    ranks = [said([flex()], rank(n, environ={"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_X": "1"})) for n in range(2)]
    (role,) = parsed(recorded(*ranks)).roles
    assert (role.processes, role.env) == (2, {"TORCHINDUCTOR_X": "1"})
    (role,) = parsed(recorded(*ranks, environ={"OMP_NUM_THREADS": "8"})).roles
    assert role.env == {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_X": "1"}


def test_ranks_without_the_variable_that_several_would_get_are_one_process_for_each_device() -> None:
    found = recorded(said([cuda(0)], rank(0)), said([cuda(1)], rank(1)))
    assert [(role.processes, role.devices, role.env) for role in parsed(found).roles] == [
        (1, ("cuda:0",), {}),
        (1, ("cuda:1",), {}),
    ]
    assert "OMP_NUM_THREADS" in to_toml(found, "/job")


def test_a_variable_that_only_flexwarm_has_is_told() -> None:
    found = recorded(said([flex()]), environ={"CI": "1"})
    assert "build with CI unset" in found.notes[0]


def test_threads_that_call_the_same_on_their_own_devices_are_lanes() -> None:
    found = parsed(recorded(said([("lane-1", cuda(0)), ("lane-2", replace(cuda(1), graph="0/1"))])))
    (role,) = found.roles
    assert (role.processes, role.lanes, role.devices) == (1, 2, ("cuda:0", "cuda:1"))
    assert len(found.workloads) == 1


def test_threads_that_call_different_things_are_roles() -> None:
    second = flex(1, attention(mask=WINDOW, tensors={"device": "cuda:1"}))
    found = parsed(recorded(said([("lane-0", cuda(0)), ("lane-1", second)])))
    assert [(role.name, role.lanes, role.devices) for role in found.roles] == [
        ("train-lane-0", 1, ("cuda:0",)),
        ("train-lane-1", 1, ("cuda:1",)),
    ]


def test_one_thread_that_compiles_is_the_process_whichever_it_is() -> None:
    (role,) = parsed(recorded(said([("lane-0", MODEL), ("lane-3", flex())]))).roles
    assert (role.name, role.lanes) == ("train", 1)


# ---- the whole -------------------------------------------------------------------------------------------------------------


def test_a_launch_that_compiled_nothing_has_no_spec() -> None:
    around = Surroundings(line=(), directory="/", environ={}, names={}, modules={})
    assert from_record(record([said([])]), around) is None


def test_what_may_be_missing_is_in_the_notes_and_in_the_file() -> None:
    found = recorded(said([flex()])[:-1], status=-15, ended=Ended.BY_ITSELF)
    assert "did not end well" in found.notes[0]
    assert "ended without a word" in found.notes[1]
    assert "# Note: the command did not end well" in to_toml(found, "/job")


def test_texts_are_written_so_that_they_read_back() -> None:
    strange = 'a"b\\c\n\t\x7fü\u2028'
    mask = replace(WINDOW, captured={"window": strange, "odd": 1e-07, "flag": True})
    workload = only(recorded(said([flex(call=attention(mask=mask))])))
    assert workload.mask.args == {"window": strange, "odd": 1e-07, "flag": True}


def test_a_line_of_a_comment_cannot_end_it() -> None:
    call = replace(MODEL, function="forward\nschema = 2", caller="/job/x\n[[workload]]")
    assert only(recorded(said([call]))).step


@pytest.mark.parametrize(
    ("command", "recorded_something", "code"), [(0, True, 0), (0, False, 1), (3, True, 3), (130, False, 130), (None, True, 1)]
)
def test_the_exit_code_is_the_commands_own_if_it_failed(command: int | None, recorded_something: bool, code: int) -> None:
    found = recorded(said([flex()])) if recorded_something else None
    result = RecordResult(spec=found, text="", path=None, command_exit_code=command, observed=1, seconds=1.0)
    assert result.exit_code == code


def test_what_was_written_is_told_with_each_step_its_reason_and_what_comes_next() -> None:
    found = recorded(said([flex(), MODEL]), status=3)
    result = RecordResult(spec=found, text="", path=Path("s.toml"), command_exit_code=3, observed=1, seconds=1.0)
    text = "\n".join(line for _, line in record_lines(result))
    assert "wrote s.toml: 1 role, 1 workload, 1 step" in text
    assert "step train-step: forward (model.py:12)" in text
    assert "note: the command did not end well" in text
    assert "next: write the function that step train-step names, train:warm" in text
    assert "flexwarm build s.toml && flexwarm verify -- python train.py" in text
