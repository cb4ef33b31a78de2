"""Compiled calls: there and back through JSON, and what makes two of them the same."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from flexwarm import canonical
from flexwarm.calls import AttentionCall, CompileArguments, CompiledCall, FunctionRef, TensorSpec

QUERY = TensorSpec(dtype="bfloat16", shape=(2, 8, 96, 64), stride=(49152, 6144, 64, 1), dynamic=(2,), device="cuda:0")
KEY = replace(QUERY, shape=(2, 2, 96, 64), requires_grad=True)
WEIGHT = TensorSpec(dtype="float32", shape=(), stride=(), device="cpu")
MASK = FunctionRef(
    module="train",
    name="make_window.<locals>.mask",
    file="/job/train.py",
    line=12,
    captured={"window": 1024, "documents": "<tensor 4096 int32>", "strict": True, "scale": 0.5},
)
DIRECT = AttentionCall(
    query=QUERY,
    key=KEY,
    value=KEY,
    line="/job/train.py:40 in step",
    direct=True,
    mask=MASK,
    mask_lengths=(96, 96),
    mask_heads=1,
    mask_batch=1,
    mask_block=(128, 128),
    scale=0.125,
    enable_gqa=True,
    return_lse=True,
    kernel_options={"BLOCK_M": 64},
)
PART = AttentionCall(query=QUERY, key=QUERY, value=QUERY)


def call(*attention: AttentionCall) -> CompiledCall:
    return CompiledCall(
        graph="0/1",
        function="flex_attention",
        file="/torch/nn/attention/flex_attention.py",
        line=1468,
        caller="/job/train.py:40 in step",
        compile=CompileArguments(dynamic=True, fullgraph=True, options={"max_autotune": True}),
        grad=True,
        autocast="bfloat16",
        nesting=("tag_activation_checkpoint",),
        inputs=(QUERY, KEY, WEIGHT),
        attention=attention,
        made_on=("cuda:0", "'cuda'"),
    )


@pytest.mark.parametrize(
    "value", [call(), call(DIRECT), call(PART, DIRECT), replace(call(), unread=("caller: KeyError: 'code'",))], ids=str
)
def test_a_call_goes_through_json_and_back(value: CompiledCall) -> None:
    assert CompiledCall.from_json(json.loads(canonical.text(value))) == value


def test_what_is_no_call_is_refused() -> None:
    data = canonical.plain(call(DIRECT))
    with pytest.raises(KeyError):
        CompiledCall.from_json({name: value for name, value in data.items() if name != "inputs"})
    with pytest.raises(TypeError):
        CompiledCall.from_json({**data, "unknown": 1})


def test_tensors_are_shown_by_their_sizes() -> None:
    assert (str(QUERY), str(WEIGHT)) == ("2x8x96*x64 bfloat16", "scalar float32")


def test_a_title_says_what_was_called_in_a_few_words() -> None:
    assert call(DIRECT).title == "flex_attention 2x8x96*x64 bfloat16, key 2x2x96*x64 bfloat16"
    module = replace(call(PART, DIRECT), function="forward")
    assert module.title == "forward with attention 2x8x96*x64 bfloat16 and 1 more"
    assert call().title == "flex_attention of 2x8x96*x64 bfloat16, 2x2x96*x64 bfloat16, scalar float32"


def on(device: str) -> CompiledCall:
    query = replace(QUERY, device=device)
    return replace(call(replace(DIRECT, query=query)), inputs=(query, KEY, WEIGHT))


def test_the_index_of_a_device_does_not_make_another_call() -> None:
    assert on("cuda:0").signature() == on("cuda:7").signature()
    assert on("cuda:0").signature() != on("cpu").signature()


@pytest.mark.parametrize(
    "other",
    [
        {"function": "forward"},
        {"line": 1469},
        {"grad": False},
        {"autocast": ""},
        {"compile": CompileArguments()},
        {"inputs": (QUERY, KEY)},
        {"inputs": (replace(QUERY, dynamic=()), KEY, WEIGHT)},
        {"inputs": (replace(QUERY, requires_grad=True), KEY, WEIGHT)},
        {"attention": (replace(DIRECT, mask=replace(MASK, captured={"window": 512})),)},
        {"attention": (replace(DIRECT, scale=1.0),)},
    ],
    ids=str,
)
def test_what_is_compiled_otherwise_is_another_call(other: dict[str, object]) -> None:
    assert replace(call(DIRECT), **other).signature() != call(DIRECT).signature()  # type: ignore[arg-type]


def test_who_calls_and_which_number_it_has_do_not_make_another_call() -> None:
    assert replace(call(DIRECT), caller="/job/eval.py:3 in run", graph="7/0").signature() == call(DIRECT).signature()
