"""Two cache keys are compared part by part: the cause is named in a user's words, and what follows from it is not.

The texts are torch's own, of 2.11 to 2.14, cut down.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flexwarm.key_differences import UNSET, Cause, CauseKind, causes, nearest
from flexwarm.key_parts import GENERATED, GRAPH, Group, Key, Part

OPTIONS = "{'BACKEND': 'AUTO', 'PRESCALE_QK': False, 'WRITE_DQ': True, 'OUTPUT_LOGSUMEXP': False}"

ROOT = """
def forward(self, arg0_1, arg1_1, arg2_1, arg3_1, arg4_1):
    mul = torch.ops.aten.mul.Tensor(arg0_1, 0.5);  arg0_1 = None
    sdpa_score0 = self.sdpa_score0
    sdpa_mask0 = self.sdpa_mask0
    flex_attention = torch.ops.higher_order.flex_attention(mul, arg1_1, arg2_1, sdpa_score0, \
(128, 128, arg4_1, arg3_1, None, None, 128, 128, sdpa_mask0), 0.17677669529663687, OPTIONS, (), ());  mul = arg1_1 = None
    getitem = flex_attention[0];  flex_attention = None
    iota = torch.ops.prims.iota.default(8192, dtype = torch.int64, device = device(type='cuda', index=0))
    return (getitem, iota)
""".replace("OPTIONS", OPTIONS)

MASK = """
def forward(self, arg0_1, arg1_1, arg2_1, arg3_1):
    ge = torch.ops.aten.ge.Tensor(arg2_1, arg3_1)
    sub = torch.ops.aten.sub.Tensor(arg2_1, arg3_1);  arg2_1 = arg3_1 = None
    lt = torch.ops.aten.lt.Scalar(sub, 5);  sub = None
    bitwise_and = torch.ops.aten.bitwise_and.Tensor(ge, lt);  ge = lt = None
    return bitwise_and
"""

SCORE = """
def forward(self, arg0_1, arg1_1, arg2_1, arg3_1, arg4_1):
    mul = torch.ops.aten.mul.Tensor(arg0_1, 2.0);  arg0_1 = None
    return mul
"""

SOURCES = ", ".join(f"LocalSource(local_name='{name}', is_input=True, dynamism=None)" for name in ("query", "key", "value"))
AOT_CONFIG = (
    f"(0, True, False, False, False, [{SOURCES}, AttrSource(base=LocalSource(local_name='block_mask', is_input=True), "
    "member='kv_indices')], [], True, False, None)"
)
TRITON_SOURCES = "58b25352786ff1d04468ce113f1986063da0b78640428046a28c8ede4c9126ac"

Parts = dict[str, str]


def tensor(
    *shape: int | str,
    dtype: str = "float32",
    device: str = "type='cuda', index=0",
    stride: tuple[int | str, ...] | None = None,
    gradient: bool = False,
    offset: int = 0,
) -> str:
    if stride is None:
        numbers = [size for size in shape if isinstance(size, int)]
        stride = tuple(math.prod(numbers[at + 1 :]) for at in range(len(numbers)))
    sizes, steps = ", ".join(map(str, shape)), ", ".join(map(str, stride)) + ("," if len(stride) == 1 else "")
    return (
        f"TensorMetadata(dtype=torch.{dtype}, shape=torch.Size([{sizes}]), stride=({steps}), device=device({device}), "
        f"layout=torch.strided, memory_format=torch.contiguous_format, storage_offset={offset}, storage_bytes=None, "
        f"requires_grad={gradient}, is_quantized=False, is_conj=False, is_neg=False, is_inference=False, is_sparse=False, "
        "is_coalesced=None, dense_dim=None, sparse_dim=None)"
    )


def built(**changes: str | None) -> Parts:
    """The parts of a key as it was built; ``changes`` by the name that the tests give to a part."""
    parts: Parts = {
        "example_inputs[0]": tensor(1, 2, 128, 32),
        "example_inputs[1]": tensor(1, 2, 128, 32),
        "example_inputs[2]": tensor(1, 2, 128, 32),
        "example_inputs[3]": tensor(1, 1, 1, 1, dtype="int32"),
        "example_inputs[4]": tensor(1, 1, 1, dtype="int32"),
        "aot_config": AOT_CONFIG,
        "grad_enabled": "False",
        "disable_amp": "False",
        "deterministic_algorithms": "False",
        "cache_key_tag": "",
        "fx_kwargs[boxed_forward_device_index]": "BoxedDeviceIndex(value=None)",
        "fx_kwargs[cudagraphs]": "BoxedBool(value=False)",
        "fx_kwargs[get_decomp_fn]": "<function select_decomp_table at 0x7f77930f07c0>",
        "fx_kwargs[is_backward]": "False",
        "fx_kwargs[is_inference]": "True",
        "fx_kwargs[static_input_idxs]": "[]",
        "deterministic_algorithms_settings": "(False, False, True)",
        "cpp_runtime_thread_count": "2",
        "default_dtype": "torch.float32",
        "cuda_matmul_settings": "('none', True, True)",
        "torch_version": "\ufffdM\ufffd\ufffd+\ufffd,",
        "system_info[device]": "{'name': 'NVIDIA H200'}",
        "system_info[version]": f"{{'triton': '3.8.0{TRITON_SOURCES}-{TRITON_SOURCES}', 'cuda': '13.0'}}",
        "system_info[hash]": "9d2d1bed2573c283046f1cc431e6ad7a",
        "inductor_config[max_autotune]": "False",
        "inductor_config[deterministic]": "False",
        "inductor_config[triton.cudagraphs]": "False",
        "inductor_config[cpp.cxx]": "(None, 'g++')",
        "autograd_config[donated_buffer]": "True",
        "custom_backend_passes": "(None, None)",
        "graph": ROOT,
        "graph.sdpa_mask0": MASK,
        "graph.sdpa_score0": SCORE,
    }
    return changed(parts, {LONG.get(name, name): text for name, text in changes.items()})


#: The tests' names of parts.
LONG = {
    "query": "example_inputs[0]",
    "mask": "graph.sdpa_mask0",
    "score": "graph.sdpa_score0",
    "graph": "graph",
}


def changed(parts: Parts, changes: Mapping[str, str | None]) -> Parts:
    """``None`` takes a part away."""
    return {name: text for name, text in {**parts, **changes}.items() if text is not None}


def replaced(old: str, new: str, *names: str) -> Parts:
    """The parts as built, with a text in the place of another; in all of them, or in those with the names."""
    parts = built()
    return {name: text.replace(old, new) if not names or name in names else text for name, text in parts.items()}


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def key(parts: Parts, name: str = "k", layer: str = "fx", digests: Mapping[str, str] | None = None) -> Key:
    """As the observer makes it. A part's digest is that of its text, but for those in ``digests``."""
    code = "".join(text for part, text in parts.items() if is_code(part))
    groups: dict[str, dict[str, Part]] = {}
    for part, text in {**parts, **({"gm": ""} if code else {})}.items():
        group = GRAPH if is_code(part) else part.partition("[")[0] if "[" in part else ""
        own = digest(code) if part == "gm" else digest(text)
        groups.setdefault(group, {})[part] = Part(name=part, digest=(digests or {}).get(part, own), text=text)
    return Key(
        layer=layer,
        key=name,
        groups={
            group: Group(digest=digest(repr([(part.name, part.digest) for part in members.values()])), parts=members)
            for group, members in groups.items()
        },
    )


def is_code(part: str) -> bool:
    return part.partition(".")[0] == GRAPH


def found(new: Parts, old: Parts | None = None) -> list[tuple[str, str, str, str]]:
    seen = causes(key(built() if old is None else old), key(new))
    return [(cause.kind.value, cause.subject, cause.old, cause.new) for cause in seen]


def said(new: Parts, old: Parts | None = None) -> list[str]:
    return [str(cause) for cause in causes(key(built() if old is None else old), key(new))]


def all_inputs(**changes: object) -> Parts:
    """The queries, keys and values with something else in their metadata."""
    return {f"example_inputs[{at}]": tensor(1, 2, 128, 32, **changes) for at in range(3)}  # type: ignore[arg-type]


def longer(parts: Parts) -> Parts:
    """The same call for twice the length."""
    code = parts["graph"].replace("(128, 128,", "(256, 256,").replace("8192", "16384")
    return {
        **parts,
        **{f"example_inputs[{at}]": tensor(1, 2, 256, 32) for at in range(3)},
        "example_inputs[3]": tensor(1, 1, 2, 2, dtype="int32"),
        "example_inputs[4]": tensor(1, 1, 2, dtype="int32"),
        "graph": code,
    }


def test_the_same_key_has_no_cause() -> None:
    assert found(built()) == []
    assert causes(key(built(), "a"), key(built(), "b")) == []


def test_texts_with_one_digest_are_the_same() -> None:
    """Addresses are in texts, and in no digest."""
    name = "fx_kwargs[get_decomp_fn]"
    same = {name: "one"}
    old, new = built(), {**built(), name: "<function select_decomp_table at 0x7fb5f95f87c0>"}
    assert causes(key(old, digests=same), key(new, digests=same)) == []
    # The group differs by another part of it.
    new["fx_kwargs[layout_opt]"] = "True"
    assert [cause.subject for cause in causes(key(old, digests=same), key(new, digests=same))] == ["layout optimization"]


class TestInputs:
    def test_another_device(self) -> None:
        """The device's index is in each input and in the code, and only it is named."""
        new = replaced("index=0", "index=1")
        new["fx_kwargs[boxed_forward_device_index]"] = "BoxedDeviceIndex(value=1)"
        new["default_cuda_device_index"] = "1"
        new["inductor_config[nested]"] = "{'device': device(type='cuda', index=1), 'name': 'cuda:1'}"
        old = {**built(), "default_cuda_device_index": "0"}
        old["inductor_config[nested]"] = "{'device': device(type='cuda', index=0), 'name': 'cuda:0'}"
        assert found(new, old) == [("device", "input 0 and 4 more", "cuda:0", "cuda:1")]
        assert said(new, old) == ["input 0 and 4 more are on cuda:1, and on cuda:0 when this was built"]

    def test_another_kind_of_device(self) -> None:
        new = replaced("device(type='cuda', index=0)", "device(type='cpu')")
        old = changed(built(), {"cpp_runtime_thread_count": None})
        assert found(new, old) == [("device", "input 0 and 4 more", "cuda:0", "cpu")]

    def test_another_device_in_the_code_alone(self) -> None:
        assert found(replaced("index=0", "index=1", "graph")) == [("device", "the graph", "cuda:0", "cuda:1")]

    def test_another_current_device(self) -> None:
        old, new = ({**built(), "default_cuda_device_index": index} for index in "01")
        assert found(new, old) == [("device", "the graph", "cuda:0", "cuda:1")]

    def test_another_dtype(self) -> None:
        new = changed(built(), all_inputs(dtype="bfloat16"))
        assert found(new) == [("dtype", "inputs 0, 1 and 2", "float32", "bfloat16")]
        assert said(new) == ["inputs 0, 1 and 2 have the dtype bfloat16, and float32 when this was built"]

    def test_another_dtype_in_the_code_as_well(self) -> None:
        old = replaced("torch.int64", "torch.float32", "graph")
        new = changed(replaced("torch.int64", "torch.bfloat16", "graph"), all_inputs(dtype="bfloat16"))
        assert found(new, old) == [("dtype", "inputs 0, 1 and 2", "float32", "bfloat16")]

    def test_casts_follow_from_a_dtype(self) -> None:
        cast = (
            "    convert_element_type = torch.ops.prims.convert_element_type.default(arg0_1, torch.float32);  arg0_1 = None\n"
        )
        code = ROOT.replace(
            "    mul = torch.ops.aten.mul.Tensor(arg0_1", f"{cast}    mul_1 = torch.ops.aten.mul.Tensor(convert_element_type"
        )
        new = changed(built(graph=code.replace("mul,", "mul_1,")), all_inputs(dtype="bfloat16"))
        assert found(new) == [("dtype", "inputs 0, 1 and 2", "float32", "bfloat16")]

    def test_another_length(self) -> None:
        """Strides, tables of the block mask and numbers in the code follow from it."""
        new = longer(built())
        assert found(new) == [("shape", "inputs 0, 1 and 2", "1x2x128x32", "1x2x256x32")]
        assert said(new) == ["inputs 0, 1 and 2 have the shape 1x2x256x32, and 1x2x128x32 when this was built"]

    def test_another_width_scales_attention_otherwise(self) -> None:
        shapes = {f"example_inputs[{at}]": tensor(1, 2, 128, 64) for at in range(3)}
        code = ROOT.replace("0.17677669529663687", "0.125").replace("8192", "16384")
        assert found({**built(graph=code), **shapes}) == [("shape", "inputs 0, 1 and 2", "1x2x128x32", "1x2x128x64")]

    def test_one_input_of_another_shape(self) -> None:
        assert said(built(query=tensor(1, 2, 256, 32))) == [
            "input 0 has the shape 1x2x256x32, and 1x2x128x32 when this was built"
        ]

    def test_two_changes_of_shape(self) -> None:
        parts = {"example_inputs[1]": tensor(1, 4, 128, 32)}
        assert found(changed(built(query=tensor(1, 2, 256, 32)), parts)) == [
            ("shape", "input 0", "1x2x128x32", "1x2x256x32"),
            ("shape", "input 1", "1x2x128x32", "1x4x128x32"),
        ]

    def test_the_same_size_in_tensors_of_other_shapes_is_one_cause(self) -> None:
        old, new = ({**built(), "example_inputs[5]": tensor(1, 2, n), "example_inputs[6]": tensor(n)} for n in (128, 256))
        assert found({**longer(new)}, old) == [("shape", "inputs 0, 1 and 2", "1x2x128x32", "1x2x256x32")]

    def test_tables_of_a_block_mask_alone(self) -> None:
        parts = {"example_inputs[3]": tensor(1, 1, 2, 2, dtype="int32"), "example_inputs[4]": tensor(1, 1, 2, dtype="int32")}
        assert found(changed(built(), parts)) == [("shape", "the block mask", "1x1x1x1", "1x1x2x2")]

    def test_other_strides(self) -> None:
        new = changed(built(), all_inputs(stride=(8192, 32, 64, 1)))
        assert found(new) == [("stride", "inputs 0, 1 and 2", "8192,4096,32,1", "8192,32,64,1")]
        assert said(new) == ["inputs 0, 1 and 2 have the strides 8192,32,64,1, and 8192,4096,32,1 when this was built"]

    def test_strides_that_follow_from_a_shape_of_packed_tensors(self) -> None:
        old = built(query=tensor(1, 2, 128, 32, stride=(24576, 32, 192, 1)))
        new = built(query=tensor(1, 2, 256, 32, stride=(49152, 32, 192, 1)))
        assert found(new, old) == [("shape", "input 0", "1x2x128x32", "1x2x256x32")]

    def test_strides_that_do_not_follow_from_a_shape(self) -> None:
        new = built(query=tensor(1, 2, 256, 32, stride=(16384, 32, 64, 1)))
        assert [cause[0] for cause in found(new)] == ["shape", "stride"]

    def test_gradients_of_an_input(self) -> None:
        new = built(query=tensor(1, 2, 128, 32, gradient=True))
        assert found(new) == [("gradient", "input 0", "without a gradient", "with a gradient")]

    def test_another_offset(self) -> None:
        assert found(built(query=tensor(1, 2, 128, 32, offset=64))) == [("other", "storage_offset of input 0", "0", "64")]

    def test_another_number_of_inputs(self) -> None:
        """Where the inputs come from, and how the code names them, follow from it."""
        code = ROOT.replace("arg4_1):", "arg4_1, arg5_1):")
        new = {
            **built(graph=code, aot_config=AOT_CONFIG.replace("kv_indices", "kv_num_blocks")),
            "example_inputs[5]": tensor(128),
        }
        new["fx_kwargs[static_input_idxs]"] = "[0, 1, 2, 3, 4, 5]"
        assert found(new) == [("inputs", "the number of inputs", "5", "6")]

    def test_another_number_of_inputs_on_another_device(self) -> None:
        new = {**replaced("index=0", "index=1"), "example_inputs[5]": tensor(128, device="type='cuda', index=1")}
        assert [cause[:1] for cause in found(new)] == [("device",), ("inputs",)]

    @pytest.mark.parametrize("text", ["TensorMetadata(what is this", "FakeScriptObject(7)", "", "TensorMetadata()"])
    def test_an_input_that_cannot_be_read(self, text: str) -> None:
        (cause,) = found(built(query=text))
        assert cause[:2] == ("other", "input 0")

    def test_values_of_a_constant(self) -> None:
        texts = [f"TensorMetadataAndValues(tensor_metadata={tensor(2)}, values=[1, {value}])" for value in (2, 3)]
        (cause,) = found(built(query=texts[1]), built(query=texts[0]))
        assert cause[0] == "other"
        assert cause[2].endswith("values=[1, 2])")
        assert cause[3].endswith("values=[1, 3])")


class TestDynamic:
    """Of 2.14: sizes with a name are inputs, before the tensors that have them."""

    @staticmethod
    def dynamic(hint: int = 128) -> Parts:
        shaped = tensor(1, 2, "s37", 32, stride=("64*s37", "32*s37", 32, 1))
        code = ROOT.replace("(self, arg0_1,", "(self, arg5_1, arg0_1,").replace("(128, 128,", "(arg5_1, arg5_1,")
        parts = {
            **built(graph=code.replace("0.17677669529663687", "truediv")),
            "example_inputs[0]": f"('s_3', {hint})",
            "example_inputs[1]": shaped,
            "example_inputs[2]": shaped,
            "example_inputs[3]": shaped,
            "example_inputs[4]": tensor(1, 1, 1, 1, dtype="int32"),
            "example_inputs[5]": tensor(1, 1, 1, dtype="int32"),
            "example_inputs[6]": "('s_4', 5)",
            "aot_config": AOT_CONFIG.replace("[", "[TensorPropertySource(base=LocalSource(local_name='query')), "),
            "fx_kwargs[static_input_idxs]": "[0, 1]",
        }
        mask = MASK.replace("arg3_1):", "arg3_1, arg4_1):").replace("(sub, 5);  sub", "(sub, arg4_1);  sub = arg4_1")
        return {**parts, "graph.sdpa_mask0": mask}

    def test_was_static(self) -> None:
        """That the mask function's constant became an input follows from it."""
        assert found(self.dynamic()) == [
            ("dynamic", "inputs 0, 1 and 2", "static (1x2x128x32)", "dynamic (1x2xs37x32)"),
        ]
        assert said(self.dynamic()) == [
            "inputs 0, 1 and 2 are dynamic (1x2xs37x32), and static (1x2x128x32) when this was built"
        ]

    def test_a_size_beside_a_dynamic_one_is_a_shape_and_nothing_that_follows_from_it(self) -> None:
        def heads(size: int) -> Parts:
            parts = dict(self.dynamic())
            for at, name in enumerate(("s37", "s0", "s43"), 1):
                stride = (f"{2 * size}*{name}", f"{size}*{name}", size, 1)
                parts[f"example_inputs[{at}]"] = tensor(1, 2, name, size, stride=stride)
            return parts

        assert found(heads(64), heads(32)) == [("shape", "inputs 0, 1 and 2", "1x2x*x32", "1x2x*x64")]

    def test_is_static(self) -> None:
        assert [cause[:1] for cause in found(built(), self.dynamic())] == [("dynamic",)]

    def test_another_mask_function_beside_it(self) -> None:
        new = self.dynamic()
        new["graph.sdpa_mask0"] = new["graph.sdpa_mask0"].replace("ge.Tensor", "gt.Tensor")
        assert [cause[0] for cause in found(new)] == ["dynamic", "mask"]

    def test_another_name_of_a_size_is_nothing(self) -> None:
        new = {name: text.replace("s37", "s50") for name, text in self.dynamic().items()}
        new["inductor_config[max_autotune]"] = "True"
        assert [cause[1] for cause in found(new, self.dynamic())] == ["max_autotune"]
        # But it is all there is, so it must be said.
        del new["inductor_config[max_autotune]"]
        old = changed(self.dynamic(), {"inductor_config[max_autotune]": None})
        assert found(new, old)

    def test_what_a_size_was_compiled_for(self) -> None:
        assert found(self.dynamic(256), self.dynamic()) == [("dynamic", "the size s_3", "128", "256")]

    def test_a_number_that_is_passed(self) -> None:
        """Of an int argument that became dynamic."""
        new = {**built(), "example_inputs[5]": "('s0',)"}
        assert found(new) == [("dynamic", "a number that is passed", "static", "dynamic")]


class TestCode:
    def test_a_constant_of_the_mask_function(self) -> None:
        new = built(mask=MASK.replace("5)", "7)"))
        assert found(new) == [("constant", "the mask function", "5", "7")]
        assert said(new) == ["the mask function has the number 7, and 5 when this was built"]

    @pytest.mark.parametrize("name", ["mask_fn_0", "mask_graph0", "body_0.mask_fn_1"])
    def test_names_of_mask_functions(self, name: str) -> None:
        old, new = ({**built(), f"graph.{name}": MASK.replace("5)", f"{width})")} for width in (5, 7))
        assert found(new, old) == [("constant", "the mask function", "5", "7")]

    @pytest.mark.parametrize("name", ["score_mod_0", "fw_graph0", "joint_graph0"])
    def test_names_of_score_functions(self, name: str) -> None:
        old, new = ({**built(), f"graph.{name}": SCORE.replace("2.0", factor)} for factor in ("2.0", "3.0"))
        assert found(new, old) == [("constant", "the score function", "2.0", "3.0")]

    def test_the_same_change_in_two_graphs_is_one_cause(self) -> None:
        old, new = (
            {**built(), "graph.fw_graph0": code, "graph.joint_graph0": code} for code in (SCORE, SCORE.replace("2.0", "3.0"))
        )
        assert found(new, old) == [("constant", "the score function", "2.0", "3.0")]

    def test_a_constant_of_the_graph(self) -> None:
        assert found(built(graph=ROOT.replace("0.5)", "0.25)"))) == [("constant", "the graph", "0.5", "0.25")]

    def test_many_constants_are_not_all_named(self) -> None:
        codes = [
            "".join(f"    add_{at} = torch.ops.aten.add.Tensor(arg0_1, {at + by})\n" for at in range(9)) for by in (10, 50)
        ]
        assert len(found(built(graph=ROOT + codes[1]), built(graph=ROOT + codes[0]))) == 3

    def test_another_mask_function(self) -> None:
        new = built(mask=MASK.replace("ge.Tensor(arg2_1, arg3_1)", "le.Tensor(arg2_1, arg3_1)"))
        assert found(new) == [
            (
                "mask",
                "the mask function",
                "ge = torch.ops.aten.ge.Tensor(arg2_1, arg3_1)",
                "ge = torch.ops.aten.le.Tensor(arg2_1, arg3_1)",
            )
        ]
        assert said(new)[0].startswith("the mask function has `ge = torch.ops.aten.le.")

    def test_another_score_function(self) -> None:
        new = built(score=SCORE.replace("mul.Tensor(arg0_1, 2.0)", "tanh.default(arg0_1)"))
        assert [cause[:2] for cause in found(new)] == [("score", "the score function")]

    def test_another_graph(self) -> None:
        new = built(graph=ROOT.replace("    return", "    neg = torch.ops.aten.neg.default(getitem)\n    return"))
        assert found(new) == [("graph", "the graph", "return (getitem, iota)", "neg = torch.ops.aten.neg.default(getitem)")]

    def test_a_long_line_is_shown_where_it_differs(self) -> None:
        ((_, _, old, new),) = found(built(graph=ROOT.replace("None, None,", "None, arg2_1,")))
        assert "None, None," in old
        assert "None, arg2_1," in new
        assert max(len(old), len(new)) <= 100

    def test_names_alone_are_no_cause_beside_another(self) -> None:
        renamed = {name: text.replace("arg", "primals_") for name, text in built().items()}
        assert [cause[0] for cause in found({**renamed, "cpp_runtime_thread_count": "1"})] == ["threads"]
        assert found(renamed)  # but they are one if there is nothing else

    def test_names_that_torch_takes_as_the_same_are_no_cause(self) -> None:
        """Code is told with Dynamo's names, and the digest of the graph is made without them."""
        renamed = {name: text.replace("arg", "primals_") for name, text in built().items()}
        same = {"gm": "one"}
        new = {**renamed, "cpp_runtime_thread_count": "1", "graph.sdpa_mask0": MASK.replace("5)", "7)")}
        seen = causes(key(built(), digests=same), key(new, digests=same))
        assert [cause.kind for cause in seen] == [CauseKind.THREADS]

    def test_the_graph_in_what_its_code_does_not_show(self) -> None:
        seen = causes(key(built(), digests={"gm": "a"}), key(built(), digests={"gm": "b"}))
        assert seen == [Cause(kind=CauseKind.GRAPH, subject="the graph", old="content a", new="content b")]
        assert str(seen[0]) == "the graph has content b, and content a when this was built"

    def test_without_code(self) -> None:
        parts = {name: text for name, text in built().items() if not is_code(name)}
        old, new = (key({**parts, "gm": ""}, digests={"gm": one}) for one in "ab")
        assert [cause.kind for cause in causes(old, new)] == [CauseKind.GRAPH]

    def test_a_kernel_option(self) -> None:
        new = built(
            graph=ROOT.replace(OPTIONS, "{'PRESCALE_QK': True, 'BACKEND': 'AUTO', 'WRITE_DQ': True, 'OUTPUT_LOGSUMEXP': False}")
        )
        assert found(new) == [("setting", "the kernel option PRESCALE_QK", "False", "True")]

    def test_code_that_was_cut(self) -> None:
        """A statement that one code has at its cut and the other has not is no cause."""
        lines = "".join(f"    add_{at} = torch.ops.aten.add.Tensor(arg0_1, arg1_1)\n" for at in range(400))
        old, new = ((code + lines)[:20_000] for code in (ROOT, longer(built())["graph"]))
        assert found({**longer(built()), "graph": new}, built(graph=old)) == [
            ("shape", "inputs 0, 1 and 2", "1x2x128x32", "1x2x256x32")
        ]

    def test_a_graph_inside_that_only_one_has(self) -> None:
        new = {**built(), "graph.sdpa_mask1": MASK}
        assert [cause[:3] for cause in found(new)] == [("mask", "the mask function", UNSET)]


class TestSettings:
    @pytest.mark.parametrize(
        ("part", "text", "cause"),
        [
            ("inductor_config[max_autotune]", "True", ("setting", "max_autotune", "False", "True")),
            ("inductor_config[cpp.cxx]", "(None, 'clang++')", ("setting", "cpp.cxx", "(None, 'g++')", "(None, 'clang++')")),
            ("inductor_config[max_autotune]", None, ("setting", "max_autotune", "False", UNSET)),
            ("inductor_config[new_one]", "1", ("setting", "new_one", UNSET, "1")),
            ("autograd_config[donated_buffer]", "False", ("setting", "donated_buffer", "True", "False")),
            ("inductor_config_comms[env_str]", "x", ("setting", "env_str", UNSET, "x")),
            ("fx_kwargs[cudagraphs]", "BoxedBool(value=True)", ("setting", "use of CUDA graphs", "off", "on")),
            ("fx_kwargs[cpp_wrapper]", "True", ("setting", "use of the C++ wrapper", UNSET, "on")),
            ("fx_kwargs[is_inference]", "False", ("gradient", "the graph", "for inference", "for training")),
            ("fx_kwargs[is_backward]", "True", ("gradient", "the graph", "a forward one", "a backward one")),
            ("fx_kwargs[static_input_idxs]", "[0, 1]", ("inputs", "the list of inputs that stay in place", "[]", "[0, 1]")),
            ("cache_key_tag", "mine", ("setting", "cache_key_tag", "empty", "mine")),
            ("custom_backend_passes", "(None, 1)", ("setting", "custom_backend_passes", "(None, None)", "(None, 1)")),
            ("cpp_runtime_thread_count", "1", ("threads", "the number of CPU threads", "2", "1")),
            ("cuda_matmul_settings", "('tf32', True, True)", ("precision", "float32 matmul precision", "none", "tf32")),
            ("cuda_matmul_settings", "('none', True, False)", ("precision", "bfloat16 reduction in matmul", "on", "off")),
            ("float32_matmul_precision", "high", ("precision", "float32_matmul_precision", UNSET, "high")),
            ("deterministic_algorithms", "True", ("determinism", "deterministic algorithms", "off", "on")),
            (
                "deterministic_algorithms_settings",
                "(False, True, True)",
                ("determinism", "only warning of no deterministic algorithms", "off", "on"),
            ),
            ("inductor_config[deterministic]", "True", ("determinism", "deterministic algorithms", "off", "on")),
            ("default_dtype", "torch.float64", ("dtype", "a new tensor", "float32", "float64")),
            ("disable_amp", "True", ("autocast", "autocast", "allowed", "switched off")),
            ("autocast_state[cpu]", "torch.bfloat16", ("autocast", "autocast on cpu", "off", "bfloat16")),
            ("grad_enabled", "True", ("gradient", "gradient mode", "off", "on")),
            ("system_info[device]", "{'name': 'NVIDIA A100'}", ("gpu", "the GPU", "NVIDIA H200", "NVIDIA A100")),
            ("system_info[version]", "{'triton': '3.7.0', 'cuda': '13.0'}", ("triton", "Triton", "3.8.0", "3.7.0")),
            (
                "user_defined_triton_source[0]",
                "('def k', 1)",
                ("kernel", "a Triton kernel that the graph calls", UNSET, "('def k', 1)"),
            ),
            ("something_new", "7", ("other", "something_new", UNSET, "7")),
            ("something[new]", "7", ("other", "something[new]", UNSET, "7")),
        ],
    )
    def test_one_part(self, part: str, text: str | None, cause: tuple[str, str, str, str]) -> None:
        assert found(changed(built(), {part: text})) == [cause]

    def test_how_a_setting_is_said(self) -> None:
        new = changed(built(), {"inductor_config[max_autotune]": "True"})
        assert said(new) == ["max_autotune is True, and False when this was built"]

    def test_torch(self) -> None:
        """Its text is bytes. What another torch has in settings is no cause of its own."""
        new = changed(built(), {"torch_version": "\ufffdn\ufffd", "inductor_config[new_one]": "1"})
        ((kind, subject, old, now),) = found(new)
        assert (kind, subject) == ("torch", "torch")
        assert old != now
        assert old.isprintable()

    def test_sources_of_triton(self) -> None:
        version = built()["system_info[version]"].replace(f"-{TRITON_SOURCES}", "-ff" + TRITON_SOURCES[2:])
        new = changed(built(), {"system_info[version]": version, "system_info[hash]": "another"})
        assert found(new) == [("triton", "Triton", "3.8.0 (58b25352)", "3.8.0 (ffb25352)")]

    def test_cuda(self) -> None:
        new = replaced("'cuda': '13.0'", "'cuda': '12.8'", "system_info[version]")
        assert found(new) == [("cuda", "CUDA", "13.0", "12.8")]

    def test_a_gpu_where_there_was_none(self) -> None:
        old = changed(built(), {"system_info[device]": None, "system_info[version]": None, "system_info[hash]": "none"})
        assert found(built(), old) == [("gpu", "the GPU", UNSET, "NVIDIA H200")]

    def test_deterministic_algorithms_are_one_cause(self) -> None:
        parts = {
            "deterministic_algorithms": "True",
            "deterministic_algorithms_settings": "(True, False, True)",
            "inductor_config[deterministic]": "True",
        }
        assert found(changed(built(), parts)) == [("determinism", "deterministic algorithms", "off", "on")]

    def test_cuda_graphs_are_one_cause(self) -> None:
        parts = {"fx_kwargs[cudagraphs]": "BoxedBool(value=True)", "inductor_config[triton.cudagraphs]": "True"}
        assert found(changed(built(), parts)) == [("setting", "triton.cudagraphs", "False", "True")]

    def test_gradients_and_what_follows(self) -> None:
        new = {
            **changed(built(), all_inputs(gradient=True)),
            "grad_enabled": "True",
            "graph": ROOT.replace("'OUTPUT_LOGSUMEXP': False", "'OUTPUT_LOGSUMEXP': True"),
        }
        assert found(new) == [("gradient", "gradient mode", "off", "on")]

    def test_a_graph_for_training_saves_other_things(self) -> None:
        code = ROOT.replace("arg", "primals_").replace("(getitem, iota)", "(getitem, iota, primals_1_1)")
        new = {**built(graph=code), "fx_kwargs[is_inference]": "False"}
        assert found(new) == [("gradient", "the graph", "for inference", "for training")]

    def test_where_an_input_comes_from(self) -> None:
        new = built(aot_config=AOT_CONFIG.replace("kv_indices", "kv_num_blocks"))
        assert found(new) == [
            ("inputs", "the source of input 3", "block_mask.kv_indices", "block_mask.kv_num_blocks"),
        ]

    def test_a_configuration_that_was_cut(self) -> None:
        new = built(aot_config=AOT_CONFIG.replace("'key'", "'keys'")[:180])
        assert found(new) == [("inputs", "the source of input 1", "key", "keys")]

    def test_bytes_are_told_by_their_digest(self) -> None:
        old, new = ({**built(), "autograd_config": f"\ufffd}}q (X   TYPE{n}"} for n in "12")
        ((kind, subject, before, after),) = found(new, old)
        assert (kind, subject) == ("setting", "the configuration of AOTAutograd")
        assert before.startswith("content ")
        assert before != after

    def test_settings_that_an_earlier_flexwarm_kept_as_a_whole_which_is_the_same(self) -> None:
        parts = {**built(), "autograd_config": "all of them"}
        old = changed(parts, {"autograd_config[donated_buffer]": None})
        assert [cause[0] for cause in found(longer(parts), old)] == ["shape"]

    def test_a_group_that_only_one_has(self) -> None:
        old = {name: text for name, text in built().items() if not name.startswith("inductor_config")}
        assert found(built(), old) == [("other", "inductor_config", UNSET, "4 settings")]

    def test_a_setting_of_aotautograd_by_its_name(self) -> None:
        """The pickle of all of them differs as well, and says nothing."""
        old, new = ({**built(), "autograd_config": text, "autograd_config[donated_buffer]": text} for text in ("True", "False"))
        assert found(new, old) == [("setting", "donated_buffer", "True", "False")]


class TestNames:
    """AOTAutograd's key says where each input comes from; then that is its name."""

    NAMED = AOT_CONFIG.replace(
        "member='kv_indices')",
        "member='kv_indices'), DictGetItemSource(base=AttrSource(base=LocalSource(local_name='self', is_input=True), "
        "member='_modules'), index='q_proj')",
    )

    def test_an_input_by_where_it_comes_from(self) -> None:
        old, new = ({**parts, "aot_config": self.NAMED} for parts in (built(), longer(built())))
        assert said(new, old) == ["inputs query, key and value have the shape 1x2x256x32, and 1x2x128x32 when this was built"]

    def test_a_part_of_a_module_without_the_steps_that_nobody_writes(self) -> None:
        other = tensor(1, 1, 1, dtype="float32")
        old, new = ({**built(), "aot_config": self.NAMED, "example_inputs[4]": x} for x in (tensor(1, 1, 1), other))
        assert found(new, old) == []
        new["example_inputs[4]"] = tensor(1, 1, 1, dtype="int64")
        assert found(new, old) == [("dtype", "input self.q_proj", "float32", "int64")]

    def test_what_was_cut_off_is_numbered(self) -> None:
        cut = self.NAMED[: self.NAMED.index("AttrSource")]
        old, new = (
            {**built(), "aot_config": cut, **{f"example_inputs[{n}]": tensor(2, 2, dtype=dtype) for n in (0, 4)}}
            for dtype in ("int32", "int64")
        )
        assert found(new, old) == [("dtype", "inputs query and 4", "int32", "int64")]

    def test_of_more_or_fewer_sources_than_inputs_it_is_not_known_which_is_which(self) -> None:
        assert found(longer(built()))[0][:2] == ("shape", "inputs 0, 1 and 2")


class TestCaptured:
    """A mask function that captures a tensor makes it an input of the graph: one thing changed."""

    CAPTURING = MASK.replace("arg3_1):", "arg3_1, arg4_1):").replace("lt.Scalar(sub, 5)", "eq.Tensor(sub, arg4_1)")

    def test_a_captured_tensor_is_said_by_the_mask_function(self) -> None:
        new = {**built(mask=self.CAPTURING), "example_inputs[5]": tensor(128, dtype="int64")}
        assert [cause[:2] for cause in found(new)] == [("mask", "the mask function")]

    def test_inputs_that_it_does_not_explain_are_counted(self) -> None:
        new = {**built(mask=self.CAPTURING), **{f"example_inputs[{at}]": tensor(128, dtype="int64") for at in (5, 6)}}
        assert [cause[:2] for cause in found(new)] == [("mask", "the mask function"), ("inputs", "the number of inputs")]


def kernel(**changes: str | None) -> Key:
    """A key of Triton's, as the observer tells it."""
    parts: Parts = {
        "triton": "3.8.0",
        "target": "GPUTarget(backend='cuda', arch=90, warp_size=32)",
        "backend": "12.8-90",
        "kernel": "add",
        "source": "def add(x, n, BLOCK):\n    at = tl.arange(0, BLOCK)\n    tl.store(x + at, 1.0)\n",
        "line": "10",
        "global[SCALE]": "3",
        "signature[x]": "*fp32",
        "signature[n]": "i32",
        "signature[BLOCK]": "constexpr",
        "constants[BLOCK]": "64",
        "attributes[x]": "[['tt.divisibility', 16]]",
        "options[num_warps]": "4",
        "environment[DISABLE_LLVM_OPT]": "",
    }
    names = {"name": "kernel"}
    return key(changed(parts, {names.get(name, name): text for name, text in changes.items()}), layer="triton")


class TestKernels:
    @pytest.mark.parametrize(
        ("part", "text", "said"),
        [
            ("backend", "13.0-90", "Triton's assembler is 13.0-90, and 12.8-90"),
            ("target", "GPUTarget(backend='cuda', arch=100, warp_size=32)", "what Triton compiles for is GPUTarget(backend="),
            ("triton", "3.9.0", "Triton is 3.9.0, and 3.8.0"),
            ("constants[BLOCK]", "128", "argument BLOCK of Triton kernel add has the number 128, and 64"),
            ("signature[x]", "*bf16", "argument x of Triton kernel add has the dtype *bf16, and *fp32"),
            ("attributes[x]", None, "argument x of Triton kernel add is any number, and a multiple of 16"),
            ("attributes[n]", "[['tt.divisibility', 16]]", "argument n of Triton kernel add is a multiple of 16, and"),
            ("options[num_warps]", "8", "num_warps of Triton kernel add is 8, and 4"),
            ("environment[DISABLE_LLVM_OPT]", "1", "DISABLE_LLVM_OPT is 1, and empty"),
            ("new part", "1", "new part is 1, and unset"),
        ],
    )
    def test_each_part_is_one_cause(self, part: str, text: str | None, said: str) -> None:
        (cause,) = causes(kernel(), kernel(**{part: text}))
        assert str(cause).startswith(said), str(cause)
        assert str(cause).endswith("when this was built")

    def test_a_number_that_became_one_is_compiled_in(self) -> None:
        (cause,) = causes(kernel(), kernel(**{"signature[n]": "constexpr", "constants[n]": "1"}))
        assert str(cause) == "argument n of Triton kernel add is always 1, and any i32 when this was built"

    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({"source": "def add(x, n, BLOCK):\n    at = tl.arange(0, BLOCK)\n    tl.store(x + at, 2.0)\n"}, "2.0)`, and `"),
            ({"source": None, "line": "12"}, "the line of Triton kernel add in its file is 12, and 10"),
            ({"source": None, "global[SCALE]": "4"}, "SCALE of Triton kernel add has the number 4, and 3"),
            ({"source": None}, "a function that Triton kernel add calls has content"),
        ],
    )
    def test_its_source_is_told_by_what_of_it_differs(self, changes: Parts, said: str) -> None:
        """Its digest is of more than its text, which ``None`` here leaves as it is."""
        old = kernel()
        new = kernel(**{name: text for name, text in changes.items() if text is not None})
        if changes["source"] is None:
            source = old.groups[""].parts["source"]
            parts = {**new.groups[""].parts, "source": replace(source, digest="other")}
            new = replace(new, groups={**new.groups, "": Group(digest="other", parts=parts)})
        (cause,) = causes(old, new)
        assert said in str(cause)

    def test_a_function_that_it_calls_a_constant_and_its_line_are_all_told(self) -> None:
        """A helper stands above its kernel, so that its change mostly moves the kernel as well."""
        old = kernel(**{"calls[scaled]": "def scaled(x):\n    return x * 2\n"})
        new = kernel(
            **{
                "calls[scaled]": "def scaled(x):\n\n    return x * 3\n",
                "line": "11",
                "global[SCALE]": "4",
                "source": "def add(): 1",
            }
        )
        told = [str(cause) for cause in causes(old, new)]
        assert len(told) == 4
        assert any("the function scaled that Triton kernel add calls has `return x * 3`" in text for text in told)
        assert any("the line of Triton kernel add in its file is 11" in text for text in told)
        assert any("SCALE of Triton kernel add has the number 4" in text for text in told)

    def test_what_inductor_wrote_blames_no_function_of_the_users(self) -> None:
        old, new = kernel(source=GENERATED), kernel(source=GENERATED)
        parts = {**new.groups[""].parts, "source": Part(name="source", digest="other", text=GENERATED)}
        (cause,) = causes(old, replace(new, groups={**new.groups, "": Group(digest="other", parts=parts)}))
        assert str(cause).startswith("what Inductor wrote as Triton kernel add has content other, and content ")

    def test_an_item_of_a_tuple_is_told_and_not_the_tuple(self) -> None:
        old = kernel(**{"signature[args]": "('i32', 'i32')"})
        new = kernel(**{"signature[args]": "('constexpr', 'i32')", "constants[args.0]": "1"})
        (cause,) = causes(old, new)
        assert str(cause) == "argument args.0 of Triton kernel add is always 1, and any number when this was built"

    def test_a_kernel_is_held_against_those_of_its_name_alone(self) -> None:
        near, far = kernel(name="subtract"), replace(kernel(**{"constants[BLOCK]": "1", "line": "9"}), key="far")
        assert getattr(nearest(kernel(), [near, far]), "key", "") == "far"
        assert nearest(kernel(), [near]) is None


class TestTogether:
    def test_a_device_and_a_mask_function(self) -> None:
        new = replaced("index=0", "index=1")
        new["graph.sdpa_mask0"] = MASK.replace("5)", "7)")
        assert found(new) == [
            ("device", "input 0 and 4 more", "cuda:0", "cuda:1"),
            ("constant", "the mask function", "5", "7"),
        ]

    def test_a_length_and_a_setting(self) -> None:
        new = {**longer(built()), "inductor_config[max_autotune]": "True"}
        assert [cause[:2] for cause in found(new)] == [("shape", "inputs 0, 1 and 2"), ("setting", "max_autotune")]

    def test_a_length_and_other_code(self) -> None:
        new = longer(built())
        new["graph"] = new["graph"].replace("    return", "    neg = torch.ops.aten.neg.default(getitem)\n    return")
        assert [cause[0] for cause in found(new)] == ["shape", "graph"]

    def test_a_length_and_a_window(self) -> None:
        new = longer(built(mask=MASK.replace("5)", "10)")))
        assert [cause[:1] + cause[2:] for cause in found(new)] == [
            ("shape", "1x2x128x32", "1x2x256x32"),
            ("constant", "5", "10"),
        ]

    def test_a_mask_function_that_knows_the_length(self) -> None:
        new = longer(built(mask=MASK.replace("5)", "256)")))
        assert [cause[0] for cause in found(new, built(mask=MASK.replace("5)", "128)")))] == ["shape"]

    def test_a_dtype_and_a_device_and_a_shape(self) -> None:
        new = {
            name: text.replace("index=0", "index=1").replace("float32", "bfloat16") for name, text in longer(built()).items()
        }
        new["default_dtype"] = "torch.float32"
        assert [cause[0] for cause in found(new)] == ["device", "shape", "dtype"]


class TestNearest:
    WANTED = key(built(), "wanted")

    def test_no_key(self) -> None:
        assert nearest(self.WANTED, []) is None
        assert nearest(self.WANTED, [key(built(), layer="aot")]) is None

    def others(self) -> dict[str, Parts]:
        """From the nearest to the farthest."""
        other = ROOT.replace("mul.Tensor(arg0_1, 0.5)", "tanh.default(arg0_1)") + SCORE * 3
        return {
            "device": replaced("index=0", "index=1"),
            "setting": changed(built(), {"inductor_config[max_autotune]": "True", "inductor_config[cpp.cxx]": "x"}),
            "length": longer(built()),
            "length and dtype": changed(
                longer(built()), {f"example_inputs[{n}]": tensor(1, 2, 256, 32, dtype="float16") for n in range(3)}
            ),
            "graph": built(graph=other),
            "graph and length": {**longer(built()), "graph": other},
            "backward": changed(built(graph=other), {"fx_kwargs[is_backward]": "True"}),
        }

    def test_the_nearest_wins(self) -> None:
        known = {name: key(parts, name) for name, parts in self.others().items()}
        while known:
            for order in (list(known.values()), list(reversed(known.values()))):
                best = nearest(self.WANTED, order)
                assert best is not None
                assert best.key == next(iter(known))
            del known[next(iter(known))]

    def test_another_graph_is_farther_than_many_settings(self) -> None:
        settings = {f"inductor_config[s{at}]": "1" for at in range(200)}
        known = [key(built(graph=ROOT.replace("mul.Tensor", "add.Tensor")), "graph"), key({**built(), **settings}, "settings")]
        best = nearest(self.WANTED, known)
        assert best is not None
        assert best.key == "settings"

    def test_preferred_keys_win_ties_only(self) -> None:
        known = [key(longer(built()), name) for name in "abc"]
        assert getattr(nearest(self.WANTED, known), "key", "") == "a"
        assert getattr(nearest(self.WANTED, known, {"b", "c"}), "key", "") == "b"
        known.append(key(built(), "same"))
        assert getattr(nearest(self.WANTED, known, {"b"}), "key", "") == "same"

    def test_a_bucket_of_two_thousand(self) -> None:
        """Keys share most of their groups, as they do in a store."""
        settings = {f"inductor_config[setting_{at}]": str(at) for at in range(600)}
        shared = key({**built(), **settings}, "wanted")
        known = []
        for number in range(2_000):
            own = key(longer(built(mask=MASK.replace("5)", f"{number + 10})"), score=SCORE + f"    x{number}")), str(number))
            known.append(
                replace(own, groups={**shared.groups, **{name: own.groups[name] for name in (GRAPH, "example_inputs")}})
            )
        known.append(
            replace(shared, key="almost", groups={**shared.groups, "": key(built(cpp_runtime_thread_count="1")).groups[""]})
        )
        assert getattr(nearest(shared, known[:-1]), "key", "") == "0"
        assert getattr(nearest(shared, known), "key", "") == "almost"


NAMES = st.sampled_from(
    [*sorted(built()), "gm", "other", "example_inputs[9]", "graph.body_0", "fx_kwargs[layout_opt]", "strange[1]"]
)
TEXTS = st.one_of(
    st.text(max_size=40),
    st.sampled_from(
        [*dict.fromkeys(built().values()), *TestDynamic.dynamic().values(), *longer(built()).values(), MASK.replace("5)", "7)")]
    ),
)


def made(parts: Mapping[str, tuple[str, str]]) -> Key:
    return key({name: text for name, (text, _) in parts.items()}, digests={name: own for name, (_, own) in parts.items()})


KEYS = st.dictionaries(NAMES, st.tuples(TEXTS, st.sampled_from("abc")), max_size=12).map(made)


@settings(deadline=None)  # a machine that does more than this is no fault
@given(KEYS)
def test_any_key_is_itself(one: Key) -> None:
    assert causes(one, one) == []
    assert causes(one, replace(one, groups={name: replace(group) for name, group in one.groups.items()})) == []


@settings(deadline=None)  # a machine that does more than this is no fault
@given(KEYS, KEYS)
def test_there_is_a_cause_if_any_part_differs(old: Key, new: Key) -> None:
    digests = [{part.name: part.digest for group in one.groups.values() for part in group.parts.values()} for one in (old, new)]
    assert bool(causes(old, new)) == (digests[0] != digests[1])
    for cause in causes(old, new):
        assert "\n" not in str(cause)
        assert cause.old != cause.new


KERNEL_PARTS = kernel().groups
KERNEL_NAMES = st.sampled_from(
    [
        *(name for group in KERNEL_PARTS.values() for name in group.parts),
        *(
            "calls[scaled]",
            "signature[pair]",
            "constants[pair.0]",
            "attributes[n]",
            "library[libdevice]",
            "strange[1]",
            "other",
        ),
    ]
)
KERNEL_TEXTS = st.one_of(
    st.text(max_size=20),
    st.sampled_from(
        ["i32", "constexpr", "1", "[]", GENERATED, "[['tt.divisibility', 16]]", "[['tt.pointer_range', 32]]", "a\nb"]
    ),
)
KERNELS = st.dictionaries(KERNEL_NAMES, st.tuples(KERNEL_TEXTS, st.sampled_from("abc")), max_size=8).map(
    lambda parts: replace(made(parts), layer="triton")
)


@settings(deadline=None)
@given(KERNELS, KERNELS)
def test_there_is_a_cause_if_any_part_of_a_kernels_key_differs(old: Key, new: Key) -> None:
    assert causes(old, old) == []
    digests = [{part.name: part.digest for group in one.groups.values() for part in group.parts.values()} for one in (old, new)]
    found = causes(old, new)
    assert bool(found) == (digests[0] != digests[1])
    for cause in found:
        assert "\n" not in str(cause)
        assert cause.old != cause.new
