"""What flexwarm believes of the way of a graph from Dynamo to Inductor, and that each is told as the program made it."""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from flexwarm import canonical
from flexwarm.calls import AttentionCall, CompileArguments, CompiledCall, TensorSpec
from flexwarm.errors import ExitCode, UnsupportedError
from flexwarm.observer.torch_api import graphs
from tests.contract.test_torch_api import in_new_process
from tests.guard import Other

pytestmark = pytest.mark.torch

ROOT = str(Path(__file__).resolve().parents[2])
#: Read by masks and scores below.
WINDOW = 32
LEAST = float("-inf")


class Enough(BaseException):
    """Raised by a report: nothing needs to be compiled for what a test asks. No ``Exception``, which torch would catch."""


@pytest.fixture(autouse=True)
def clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    import torch

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    torch._dynamo.reset()
    yield
    graphs.observe_graphs(None)
    torch._dynamo.reset()


@contextmanager
def told(*, compiles: bool = False) -> Iterator[list[CompiledCall]]:
    """What is told in a block, which ends at the first graph unless it compiles."""
    calls: list[CompiledCall] = []

    def report(call: CompiledCall) -> None:
        # Whatever is told must survive being written to an event file.
        assert CompiledCall.from_json(canonical.plain(call)) == call
        assert not call.unread
        calls.append(call)
        if not compiles:
            raise Enough

    graphs.observe_graphs(report)
    try:
        yield calls
    except Enough:
        pass
    finally:
        graphs.observe_graphs(None)


def next_line() -> str:
    """The line after the one that calls this."""
    frame = sys._getframe(1)
    return f"{frame.f_code.co_filename}:{frame.f_lineno + 1} in {frame.f_code.co_name}"


def line_of(function: Callable[..., Any], text: str) -> str:
    """The line of a function that has a text."""
    lines, first = inspect.getsourcelines(function)
    found = [first + number for number, line in enumerate(lines) if text in line]
    assert len(found) == 1
    return f"{__file__}:{found[0]} in {function.__name__}"


def qkv(length: int = 128, kv_heads: int = 4) -> tuple[Any, Any, Any]:
    import torch

    return torch.randn(1, 4, length, 32), torch.randn(1, kv_heads, length, 32), torch.randn(1, kv_heads, length, 32)


def make_mask(window: int, documents: Any) -> Callable[..., Any]:
    def mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return (q_idx - kv_idx < window) & (documents[q_idx] == documents[kv_idx])

    return mask


def sliding_window(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return (q_idx >= kv_idx) & (q_idx - kv_idx < WINDOW)


def score(value: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    import torch

    return torch.where(q_idx >= kv_idx, value, LEAST)


class Window:
    def __init__(self, width: int) -> None:
        self.width = width
        self.unused = "unused"

    def __call__(self, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return q_idx - kv_idx < self.width

    def score(self, value: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return value * self.width


def of_width(width: int, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return q_idx - kv_idx < width


def block_mask(mask: Any, length: int = 128, heads: int | None = None) -> Any:
    from torch.nn.attention.flex_attention import create_block_mask

    return create_block_mask(mask, None, heads, length, length, device="cpu")


def attention(call: CompiledCall) -> AttentionCall:
    (found,) = call.attention
    return found


# ---- flex_attention compiled directly ----------------------------------------------------------------------------------


def test_a_direct_call_is_told_with_its_mask_its_score_and_the_callers_line() -> None:
    import torch
    from torch.nn.attention.flex_attention import flex_attention

    documents = torch.zeros(128, dtype=torch.int32)
    mask = make_mask(64, documents)
    compiled, blocks = torch.compile(flex_attention), block_mask(mask)
    with told() as calls:
        here = next_line()
        compiled(*qkv(), score_mod=score, block_mask=blocks, kernel_options={"BLOCK_M": 64}, return_lse=True)
    (call,) = calls
    assert call.caller == here
    assert call.function == "flex_attention"
    assert (call.file, call.line) == (inspect.getsourcefile(flex_attention), flex_attention.__code__.co_firstlineno)
    assert call.graph == "0/0"
    assert call.compile == CompileArguments()
    assert (call.grad, call.autocast, call.nesting) == (True, "", ())
    assert call.title == "flex_attention 1x4x128x32 float32"

    found = attention(call)
    assert found.direct
    assert found.line == here
    spec = TensorSpec(dtype="float32", shape=(1, 4, 128, 32), stride=(16384, 4096, 32, 1))
    assert (found.query, found.key, found.value) == (spec, spec, spec)
    assert call.inputs[:3] == (spec, spec, spec)
    assert TensorSpec(dtype="int32", shape=(128,), stride=(1,)) in call.inputs
    assert found.mask is not None
    assert (found.mask.module, found.mask.name) == (__name__, "make_mask.<locals>.mask")
    assert (found.mask.file, found.mask.line) == (__file__, mask.__code__.co_firstlineno)
    assert found.mask.captured == {"window": 64, "documents": "<tensor 128 int32>"}
    assert found.score is not None
    assert (found.score.name, found.score.captured) == ("score", {"LEAST": "<-inf>"})
    assert (found.mask_lengths, found.mask_heads) == ((128, 128), 1)
    assert found.scale == pytest.approx(32**-0.5)
    assert found.enable_gqa is False
    assert found.return_lse is True
    assert found.kernel_options == {"BLOCK_M": 64}


def test_what_was_not_given_is_none() -> None:
    import torch
    from torch.nn.attention.flex_attention import BlockMask, flex_attention

    with told() as calls:
        torch.compile(flex_attention)(*qkv())
    found = attention(calls[0])
    assert (found.mask, found.score, found.mask_lengths, found.mask_heads, found.kernel_options) == (None,) * 5
    assert found.return_lse is False

    ones = torch.ones(1, 1, 1, dtype=torch.int32)
    blocks = BlockMask.from_kv_blocks(ones, torch.zeros(1, 1, 1, 1, dtype=torch.int32), seq_lengths=(128, 128))
    torch._dynamo.reset()
    with told() as calls:
        torch.compile(flex_attention)(*qkv(), block_mask=blocks)
    assert attention(calls[0]).mask is None
    assert attention(calls[0]).mask_lengths == (128, 128)


def test_a_window_that_is_a_global_and_a_mask_for_each_head() -> None:
    import torch
    from torch.nn.attention.flex_attention import flex_attention

    with told() as calls:
        torch.compile(flex_attention)(*qkv(), block_mask=block_mask(sliding_window, heads=4))
    found = attention(calls[0])
    assert found.mask is not None
    assert (found.mask.name, found.mask.captured) == ("sliding_window", {"WINDOW": 32})
    assert found.mask_heads == 4


@pytest.mark.parametrize(
    ("mask", "name", "code", "captured"),
    [
        (functools.partial(of_width, 16), "of_width", of_width, {"width": 16}),
        (Window(8), "Window", Window.__call__, {"self.width": 8}),
    ],
    ids=["partial", "object"],
)
def test_masks_that_are_no_plain_functions(mask: Any, name: str, code: Any, captured: dict[str, Any]) -> None:
    import torch
    from torch.nn.attention.flex_attention import flex_attention

    with told() as calls:
        torch.compile(flex_attention)(*qkv(), block_mask=block_mask(mask))
    found = attention(calls[0]).mask
    assert found is not None
    assert (found.module, found.name, found.captured) == (__name__, name, captured)
    assert (found.file, found.line) == (__file__, code.__code__.co_firstlineno)


def test_a_score_that_is_a_method() -> None:
    import torch
    from torch.nn.attention.flex_attention import flex_attention

    with told() as calls:
        torch.compile(flex_attention)(*qkv(), score_mod=Window(8).score)
    found = attention(calls[0]).score
    assert found is not None
    assert (found.name, found.line) == ("Window.score", Window.score.__code__.co_firstlineno)
    assert found.captured == {"self.width": 8}


def test_of_a_mask_that_is_made_of_others_their_names_are_told() -> None:
    import torch
    from torch.nn.attention.flex_attention import and_masks, flex_attention

    both = and_masks(sliding_window, make_mask(64, torch.zeros(128, dtype=torch.int32)))
    with told() as calls:
        torch.compile(flex_attention)(*qkv(), block_mask=block_mask(both))
    found = attention(calls[0]).mask
    assert found is not None
    assert found.captured == {"mask_mods": "<tuple of function sliding_window, function mask>"}


def test_fewer_key_heads_and_a_transposed_layout() -> None:
    import torch
    from torch.nn.attention.flex_attention import flex_attention

    _, key, value = qkv(kv_heads=2)
    query = torch.randn(1, 128, 4, 32).transpose(1, 2)
    with told() as calls:
        torch.compile(flex_attention)(query, key, value, enable_gqa=True, scale=0.5)
    found = attention(calls[0])
    assert found.enable_gqa is True
    assert found.scale == 0.5
    assert (found.query.shape, found.query.stride) == ((1, 4, 128, 32), (16384, 32, 128, 1))
    assert (found.key.shape, found.key.stride) == ((1, 2, 128, 32), (8192, 4096, 32, 1))
    assert calls[0].title == "flex_attention 1x4x128x32 float32, key 1x2x128x32 float32"


def test_a_partial_of_flex_attention_is_a_direct_call_too() -> None:
    import torch
    from torch.nn.attention.flex_attention import flex_attention

    blocks = block_mask(sliding_window)
    with told() as calls:
        torch.compile(functools.partial(flex_attention, block_mask=blocks, enable_gqa=True))(*qkv(kv_heads=2))
    (call,) = calls
    found = attention(call)
    assert call.function == "flex_attention"
    assert found.direct
    assert found.enable_gqa is True
    assert found.mask is not None
    assert found.mask.name == "sliding_window"


def test_a_second_length_is_told_as_compiled_for_any() -> None:
    import torch
    from torch.nn.attention.flex_attention import flex_attention

    compiled = torch.compile(flex_attention)
    with torch.no_grad(), told(compiles=True) as calls:
        compiled(*qkv(128))
        compiled(*qkv(96))
        compiled(*qkv(64))
    fixed, free = calls
    assert (fixed.graph, free.graph) == ("0/0", "0/1")
    assert attention(fixed).query.dynamic == ()
    assert [x.dynamic for x in free.inputs] == [(2,)] * 3
    query = attention(free).query
    assert (query.shape, query.stride, query.dynamic) == ((1, 4, 96, 32), (12288, 3072, 32, 1), (2,))
    assert str(query) == "1x4x96*x32 float32"


def test_a_scale_under_dynamic_true_is_an_input_and_is_told_all_the_same() -> None:
    import torch
    from torch.nn.attention.flex_attention import flex_attention

    with told() as calls:
        torch.compile(flex_attention, dynamic=True)(*qkv(), scale=0.25)
    assert calls[0].compile.dynamic is True
    assert attention(calls[0]).scale == 0.25
    assert attention(calls[0]).query.dynamic == (2,)


# ---- larger graphs -----------------------------------------------------------------------------------------------------


@functools.cache
def model_class() -> Any:
    import torch
    from torch.nn.attention.flex_attention import flex_attention

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.proj = torch.nn.Linear(32, 32)

        def forward(self, q: Any, k: Any, v: Any) -> Any:
            first = flex_attention(q, k, v)
            second = flex_attention(q[:, :, :64], k, v, scale=1.0)
            return self.proj(first), second

    return Model


@pytest.mark.parametrize("way", ["torch.compile", "Module.compile", "twice"])
def test_a_module_is_told_by_its_forward_with_all_attention_in_it(way: str) -> None:
    import torch

    model = model_class()()
    forward = type(model).forward
    if way == "Module.compile":
        model.compile()
        compiled = model
    else:
        compiled = torch.compile(model)
    with told() as calls:
        here = next_line()
        compiled(*qkv()) if way != "twice" else torch.compile(compiled)(*qkv())
    (call,) = calls
    assert (call.function, call.file, call.line) == ("forward", __file__, forward.__code__.co_firstlineno)
    assert call.caller == here
    assert call.place == f"{__file__}:{forward.__code__.co_firstlineno} in forward"
    assert TensorSpec(dtype="float32", shape=(32, 32), stride=(32, 1), requires_grad=True) in call.inputs
    first, second = call.attention
    assert not first.direct
    assert first.line == line_of(forward, "first = flex")
    assert second.line == line_of(forward, "second = flex")
    assert (second.query.shape, second.key.shape, second.scale) == ((1, 4, 64, 32), (1, 4, 128, 32), 1.0)


def test_a_module_of_torch_itself_is_told_by_its_forward() -> None:
    import torch

    with told() as calls:
        torch.compile(torch.nn.Linear(4, 4))(torch.randn(2, 4))
    (call,) = calls
    assert call.function == "forward"
    assert call.file.endswith("linear.py")
    assert [str(x) for x in call.inputs] == ["4x4 float32", "4 float32", "2x4 float32"]


def test_a_builtin_function_has_a_name_and_no_file() -> None:
    import torch

    with told() as calls:
        torch.compile(torch.relu)(torch.randn(2, 4))
    assert (calls[0].function, calls[0].file, calls[0].line) == ("relu", "", 0)


def test_checkpoints_are_told_and_what_is_in_them() -> None:
    import torch
    from torch.nn.attention.flex_attention import flex_attention
    from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

    kept = functools.partial(create_selective_checkpoint_contexts, [torch.ops.aten.mm.default])
    linear = torch.nn.Linear(4, 4)

    def plain(x: Any) -> Any:
        return checkpoint(linear, x, use_reentrant=False)

    def selective(x: Any) -> Any:
        return checkpoint(linear, x, use_reentrant=False, context_fn=kept)

    def inner(q: Any, k: Any, v: Any) -> Any:
        return flex_attention(q, k, v)

    def around(q: Any, k: Any, v: Any) -> Any:
        return checkpoint(inner, q, k, v, use_reentrant=False)

    with told() as calls:
        torch.compile(plain)(torch.randn(2, 4, requires_grad=True))
    assert calls[0].nesting == ("tag_activation_checkpoint",)
    with told() as calls:
        torch.compile(selective)(torch.randn(2, 4, requires_grad=True))
    assert calls[0].nesting == ("selective_checkpoint",)
    with told() as calls:
        torch.compile(around)(*qkv())
    assert calls[0].nesting == ("tag_activation_checkpoint",)
    assert attention(calls[0]).line == line_of(inner, "return flex")
    assert attention(calls[0]).query.shape == (1, 4, 128, 32)


def test_a_graph_break_gives_calls_that_name_the_function() -> None:
    import torch

    def broken(x: Any) -> Any:
        y = x + 1
        torch._dynamo.graph_break()
        y = y * 2
        torch._dynamo.graph_break()
        return y.sin()

    compiled = torch.compile(broken)
    with told(compiles=True) as calls:
        here = next_line()
        compiled(torch.randn(4))
    first = broken.__code__.co_firstlineno
    assert [call.function for call in calls] == [
        "broken",
        f"broken (resumed at line {first + 2})",
        f"broken (resumed at line {first + 4})",
    ]
    assert {(call.file, call.line) for call in calls} == {(__file__, first)}
    assert {call.caller for call in calls} == {here}
    assert [call.graph for call in calls] == ["0/0", "1/0", "2/0"]


def test_of_a_function_that_breaks_inside_of_another_the_caller_is_that_one() -> None:
    import torch
    from torch.nn.attention.flex_attention import flex_attention

    def inner(q: Any, k: Any, v: Any) -> Any:
        torch._dynamo.graph_break()
        return flex_attention(q, k, v)

    def outer(q: Any, k: Any, v: Any) -> Any:
        return inner(q, k, v)

    with told() as calls:
        torch.compile(outer)(*qkv())
    (call,) = calls
    assert call.function.startswith("inner (resumed at line ")
    assert call.caller == line_of(outer, "return inner")
    assert attention(call).line == line_of(inner, "return flex")


# ---- how it was compiled -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, CompileArguments()),
        ({"mode": "default"}, CompileArguments()),
        ({"mode": "max-autotune-no-cudagraphs"}, CompileArguments(mode="max-autotune-no-cudagraphs")),
        ({"mode": "max-autotune"}, CompileArguments(mode="max-autotune")),
        ({"mode": "reduce-overhead", "dynamic": False}, CompileArguments(mode="reduce-overhead", dynamic=False)),
        ({"options": {"max_autotune": True}}, CompileArguments(options={"max_autotune": True})),
        (
            {"options": {"epilogue-fusion": False, "shape_padding": True}},
            CompileArguments(options={"epilogue_fusion": False, "shape_padding": True}),
        ),
        ({"fullgraph": True, "dynamic": True}, CompileArguments(fullgraph=True, dynamic=True)),
    ],
    ids=str,
)
def test_the_arguments_of_torch_compile(arguments: dict[str, Any], expected: CompileArguments) -> None:
    import torch

    with told() as calls:
        torch.compile(lambda x: x + 1, **arguments)(torch.randn(4, 3))
    assert calls[0].compile == expected
    assert calls[0].inputs[0].dynamic == ((0, 1) if expected.dynamic else ())


def test_an_option_that_json_has_no_form_for_is_told_as_text() -> None:
    import torch

    def own_pass(graph: Any) -> None: ...

    with told() as calls:
        torch.compile(lambda x: x + 1, options={"joint_custom_post_pass": own_pass})(torch.randn(4))
    assert calls[0].compile.options == {"joint_custom_post_pass": "<function own_pass>"}


def test_gradients_and_autocast_are_those_around_the_call() -> None:
    import torch

    linear = torch.nn.Linear(4, 4)
    compiled, x = torch.compile(linear), torch.randn(2, 4)
    with told() as calls, torch.autocast("cpu", dtype=torch.bfloat16):
        compiled(x)
    assert (calls[0].grad, calls[0].autocast) == (True, "bfloat16")
    with told() as calls, torch.no_grad():
        compiled(x)
    assert (calls[0].grad, calls[0].autocast) == (False, "")

    def own_region(x: Any) -> Any:
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            return linear(x)

    with told() as calls:
        torch.compile(own_region)(x)
    assert (calls[0].grad, calls[0].autocast) == (True, "")


def test_a_class_of_tensors_does_not_see_that_it_is_read() -> None:
    import torch
    from torch.nn.attention.flex_attention import flex_attention

    seen: list[bool] = []

    @torch._dynamo.assume_constant_result  # Dynamo goes into __torch_function__ too
    def note() -> None:
        seen.append(any(frame.filename == graphs.__file__ for frame in inspect.stack(0)))

    class Spy(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            note()
            return super().__torch_function__(func, types, args, kwargs or {})

    with told() as calls:
        torch.compile(flex_attention)(*(x.as_subclass(Spy) for x in qkv()))
    assert attention(calls[0]).query.shape == (1, 4, 128, 32)
    assert set(seen) == {False}


# ---- the hook itself ---------------------------------------------------------------------------------------------------


def test_a_graph_is_told_once_though_inductor_calls_itself_and_the_hook_comes_off() -> None:
    import torch

    module = importlib.import_module("torch._inductor.compile_fx")
    shipped = module.compile_fx
    with told(compiles=True) as calls:
        assert inspect.unwrap(module.compile_fx) is shipped
        assert inspect.signature(module.compile_fx) == inspect.signature(shipped)
        # With options compile_fx patches the settings and calls itself.
        torch.compile(lambda x: x + 1, options={"shape_padding": False})(torch.randn(4))
    assert len(calls) == 1
    assert module.compile_fx is shipped
    torch.compile(lambda x: x + 2)(torch.randn(4))
    assert len(calls) == 1


def test_another_report_takes_the_place_of_the_one_before() -> None:
    import torch

    module = importlib.import_module("torch._inductor.compile_fx")
    shipped = module.compile_fx
    with told() as old:
        calls: list[CompiledCall] = []
        graphs.observe_graphs(calls.append)
        torch.compile(lambda x: x + 1)(torch.randn(4))
    assert (len(old), len(calls)) == (0, 1)
    assert module.compile_fx is shipped


def test_one_that_someone_else_wrapped_stays_and_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    module = importlib.import_module("torch._inductor.compile_fx")
    with told(compiles=True) as calls:
        ours = module.compile_fx

        @functools.wraps(ours)
        def theirs(*args: Any, **kwargs: Any) -> Any:
            return ours(*args, **kwargs)

        with monkeypatch.context() as patch:
            patch.setattr(module, "compile_fx", theirs)
            torch.compile(lambda x: x + 1)(torch.randn(4))
            assert len(calls) == 1
            graphs.observe_graphs(None)
            assert module.compile_fx is theirs
            torch.compile(lambda x: x + 2)(torch.randn(4))
            assert len(calls) == 1


def test_what_reaches_inductor_otherwise_is_not_told() -> None:
    import torch
    from torch._inductor.compile_fx import compile_fx as at_import

    def backend(graph: Any, inputs: Any) -> Any:
        from torch._inductor.compile_fx import compile_fx

        assert compile_fx is not at_import
        return compile_fx(graph, inputs)

    with told(compiles=True) as calls:
        torch.compile(lambda x: x + 1, backend=backend)(torch.randn(4))
        module = importlib.import_module("torch._inductor.compile_fx")
        traced = torch.fx.symbolic_trace(lambda x: (x + 1,))
        module.compile_fx(traced, [torch.randn(4)])
    assert calls == []


def test_what_a_report_raises_the_compile_raises_and_nothing_is_compiled(tmp_path: Path) -> None:
    import torch

    with told() as calls, pytest.raises(Enough):
        torch.compile(lambda x: x + 1)(torch.randn(4))
    assert len(calls) == 1
    assert [p for p in (tmp_path / "inductor").rglob("*") if p.is_file()] == []


def test_a_detail_that_cannot_be_read_is_named_and_the_program_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    def refuse() -> Any:
        raise ValueError("not today")

    monkeypatch.setattr(importlib.import_module("torch._inductor"), "list_mode_options", refuse)
    calls: list[CompiledCall] = []
    graphs.observe_graphs(calls.append)
    assert torch.compile(lambda x: x + 1, fullgraph=True)(torch.ones(2)).tolist() == [2, 2]
    (call,) = calls
    assert call.unread == ("compile: ValueError: not today",)
    assert call.compile == CompileArguments(fullgraph=True)
    assert [str(x) for x in call.inputs] == ["2 float32"]
    assert CompiledCall.from_json(canonical.plain(call)) == call


def test_the_number_of_the_graph_is_known_while_it_is_compiled_forward_and_backward(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch

    module = importlib.import_module("torch._inductor.compile_fx")
    compile_graph = module.fx_codegen_and_compile
    seen: list[tuple[str, threading.Thread]] = []

    def noting(*args: Any, **kwargs: Any) -> Any:
        seen.append((graphs.current_graph(), threading.current_thread()))
        return compile_graph(*args, **kwargs)

    monkeypatch.setattr(module, "fx_codegen_and_compile", noting)
    assert graphs.current_graph() == ""
    numbers: list[str] = []

    def report(call: CompiledCall) -> None:
        numbers.append(graphs.current_graph())
        assert call.graph == numbers[-1]

    graphs.observe_graphs(report)
    compiled = torch.compile(lambda x: x.sin() * x)
    for size in (4, 5):
        x = torch.randn(size, requires_grad=True)
        result = compiled(x).sum()
        # A backward that is compiled late, in a thread that never compiled before, as autograd's own is.
        assert Other(result.backward).done().raised is None
        assert x.grad is not None
    assert numbers == ["0/0", "0/1"]
    # The second is dynamic, and torch compiles such a backward with its forward.
    assert [number for number, _ in seen] == ["0/0", "0/0", "0/1", "0/1"]
    assert [thread is threading.main_thread() for _, thread in seen] == [True, False, True, True]
    assert graphs.current_graph() == ""


def test_a_thread_of_its_own_is_told_with_its_own_line() -> None:
    import torch

    compiled = torch.compile(lambda x: x + 1)

    def run() -> None:
        compiled(torch.randn(3))

    with told(compiles=True) as calls:
        compiled(torch.randn(4))
        Other(run).done()
    assert [call.graph for call in calls] == ["0/0", "0/1"]
    assert calls[1].caller == line_of(run, "compiled(")


def test_keys_are_the_same_with_the_hook_and_without(tmp_path: Path) -> None:
    program = """
        import json
        import torch
        from torch._dynamo.utils import counters
        from flexwarm.observer.torch_api import graphs

        calls = []
        if {hooked}:
            graphs.observe_graphs(calls.append)
        linear = torch.nn.Linear(8, 8)
        torch.compile(linear, options={{"shape_padding": False}})(torch.randn(2, 8)).sum().backward()
        print(json.dumps([len(calls), dict(counters["inductor"]), dict(counters["aot_autograd"])]))
    """
    told_without, cold, _ = in_new_process(tmp_path, program.format(hooked=False), PYTHONPATH=ROOT)
    told_with, warm, aot = in_new_process(tmp_path, program.format(hooked=True), PYTHONPATH=ROOT)
    assert (told_without, told_with) == (0, 1)
    assert cold["fxgraph_cache_miss"] == 2
    assert "fxgraph_cache_miss" not in warm
    assert aot["autograd_cache_hit"] == 1


def test_each_part_of_a_graph_that_ddp_splits_is_told_with_the_number_of_the_whole(tmp_path: Path) -> None:
    program = """
        import json
        import torch, torch.distributed
        from flexwarm.canonical import plain
        from flexwarm.observer.torch_api import graphs

        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layers = torch.nn.ModuleList(torch.nn.Linear(256, 256) for _ in range(8))

            def forward(self, x):
                for layer in self.layers:
                    x = layer(x)
                return x

        calls = []
        graphs.observe_graphs(calls.append)
        torch.distributed.init_process_group("gloo", init_method="file://{file}", rank=0, world_size=1)
        model = torch.nn.parallel.DistributedDataParallel(Model(), bucket_cap_mb=1)
        torch.compile(model)(torch.randn(2, 256))
        torch.distributed.destroy_process_group()
        print(json.dumps([plain(call) for call in calls]))
    """
    data = in_new_process(tmp_path, program.format(file=tmp_path / "meeting"), PYTHONPATH=ROOT)
    calls = [CompiledCall.from_json(item) for item in data]
    assert len(calls) == 2
    assert len({call.graph for call in calls}) == 1
    assert {call.function for call in calls} == {"forward"}
    assert {str(call.inputs[0]) for call in calls} == {"2x256 float32"}
    # The weights and biases of eight layers, each in one part.
    assert sum(len(call.inputs) for call in calls) == 2 + 16
    assert not any(call.unread for call in calls)


# ---- probing -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("torch", "_TorchCompileInductorWrapper"),
        ("torch._inductor.compile_fx", "compile_fx"),
        ("torch._inductor", "list_mode_options"),
        ("torch._dynamo.convert_frame", "_compile"),
        ("torch._dynamo.external_utils", "wrap_inline"),
        ("torch._dynamo.resume_execution", "ContinueExecutionCache"),
        ("torch._dynamo.resume_execution", "TORCH_DYNAMO_RESUME_IN_PREFIX"),
        ("torch._dynamo.utils", "orig_code_map"),
        ("torch._guards", "CompileContext"),
        ("torch._higher_order_ops.flex_attention", "flex_attention"),
        ("torch.nn.attention.flex_attention", "flex_attention"),
        ("torch.nn.attention.flex_attention", "BlockMask"),
        ("torch.nn.attention.flex_attention", "_identity"),
        ("torch.nn.attention.flex_attention", "noop_mask"),
    ],
)
def test_a_torch_that_lacks_a_part_is_refused_by_version_and_name(
    monkeypatch: pytest.MonkeyPatch, module: str, name: str
) -> None:
    import torch

    compile_module = importlib.import_module("torch._inductor.compile_fx")
    with monkeypatch.context() as patch:
        patch.delattr(importlib.import_module(module), name)
        before = dict(vars(compile_module))
        with pytest.raises(UnsupportedError, match=name) as caught:
            graphs.observe_graphs(lambda call: None)
        assert vars(compile_module) == before
    assert torch.__version__ in caught.value.message
    assert caught.value.exit_code is ExitCode.UNSUPPORTED


def _other_arguments(*args: Any) -> None: ...


def _other_names(code: Any, values: Any) -> None: ...


@pytest.mark.parametrize(
    ("module", "name", "value", "said"),
    [
        ("torch._dynamo.convert_frame", "_compile", _other_names, "has no argument locals, one_graph"),
        ("torch._inductor.compile_fx", "compile_fx", _other_arguments, "has other arguments"),
        ("torch.nn.attention.flex_attention", "flex_attention", _other_arguments, "has other arguments"),
        ("torch._dynamo.external_utils", "wrap_inline", lambda function: _other_arguments, "has other variables"),
    ],
    ids=["_compile", "compile_fx", "flex_attention", "wrap_inline"],
)
def test_a_part_of_another_shape_is_refused_too(
    monkeypatch: pytest.MonkeyPatch, module: str, name: str, value: Any, said: str
) -> None:
    monkeypatch.setattr(importlib.import_module(module), name, value)
    with pytest.raises(UnsupportedError, match=said):
        graphs.observe_graphs(lambda call: None)
