"""Two GPUs that are not there: what was built for one of them is not there for the other, and the explanation says so alone."""

from __future__ import annotations

import sys

import pytest

from flexwarm import toolchain
from flexwarm.inventory import changed, snapshot
from tests.harness import Flexwarm

_INSTALL = toolchain.find_torch()
pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(_INSTALL is None or not _INSTALL.cuda, reason="this torch is a build without CUDA"),
]

#: The device, and a number that the mask function captures.
CALL = """
import sys
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

device, window = f"cuda:{sys.argv[1]}", int(sys.argv[2])
torch.cuda.set_device(device)
q, k, v = (torch.randn(1, 4, 256, 64, device=device, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
mask = create_block_mask(lambda b, h, q, kv: (q >= kv) & (q - kv < window), None, None, 256, 256, device=device)
torch.compile(flex_attention)(q, k, v, block_mask=mask).float().square().mean().backward()
"""


@pytest.mark.parametrize(
    ("arguments", "cause"), [(("1", "24"), ("device", "cuda:0", "cuda:1")), (("0", "40"), ("constant", "24", "40"))]
)
def test_the_device_and_the_mask_are_named_and_nothing_else(
    flexwarm: Flexwarm, arguments: tuple[str, ...], cause: tuple[str, str, str]
) -> None:
    flexwarm.module(CALL, "call")
    built = flexwarm.run_json("build", "--target", "h200:2", "--", sys.executable, "call.py", "0", "24")
    assert (built.code, built.json["verdict"]) == (0, "built"), built.messages() + built.err
    done = flexwarm.run_json("explain", "--target", "h200:2", "--", sys.executable, "call.py", *arguments)
    assert (done.code, done.json["verdict"]) == (1, "cold"), done.messages()
    found = {(x["kind"], x["old"], x["new"]) for job in done.json["jobs"] for miss in job["misses"] for x in miss["causes"]}
    assert found == {cause}


SPEC = """
schema = 1
[[role]]
name = "trainer"
processes = 2
devices = "cuda:0-1"
[[workload]]
name = "one"
mask_mod = "causal"
q_heads = 2
head_dim = 64
q_len = 256
dtype = "bfloat16"
"""


def test_a_rank_on_a_device_that_was_not_built_for_is_named_with_the_index_and_what_to_do(flexwarm: Flexwarm) -> None:
    flexwarm.spec(SPEC.replace("processes = 2", "processes = 1").replace("cuda:0-1", "cuda:0"))
    built = flexwarm.run_json("build", "--target", "h200:2")
    assert (built.code, built.json["verdict"]) == (0, "built"), built.messages() + built.err
    flexwarm.spec(SPEC)
    done = flexwarm.run_json("explain", "--target", "h200:2")
    assert (done.code, done.json["verdict"]) == (1, "cold"), done.messages()
    outcomes = {(job["rank"], job["device"]): job["outcome"] for job in done.json["jobs"]}
    assert outcomes == {(0, "cuda:0"): "hit", (1, "cuda:1"): "not_run"}
    (reason,) = [reason for job in done.json["jobs"] for reason in job["reasons"]]
    assert reason["code"] == "not-built"
    assert "has device cuda:0 where this has cuda:1" in reason["message"]
    assert "isolate = true" in reason["hint"]
    flexwarm.spec(SPEC.replace('devices = "cuda:0-1"', 'devices = "cuda:0-1"\nisolate = true'))
    done = flexwarm.run_json("verify", "--target", "h200:2")
    assert (done.code, done.json["verdict"]) == (0, "warm"), done.messages()  # as advised, with no other build


#: A Triton kernel of the user's own, beside what Inductor compiles.
KERNEL = """
import sys
import torch
import triton
import triton.language as tl

SCALE = tl.constexpr(3)

@triton.jit
def scaled(x):
    return x * SCALE

@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    both = scaled(tl.load(x + at, mask=at < n)) + tl.load(y + at, mask=at < n)
    tl.store(out + at, both + SCALE, mask=at < n)

n, block, warps, dtype = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), getattr(torch, sys.argv[4])
x = torch.zeros(n, device="cuda", dtype=dtype)
out = torch.empty_like(x)
add[(triton.cdiv(n, block),)](x, x, out, n, BLOCK=block, num_warps=warps)
"""


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Flexwarm:
    base = tmp_path_factory.mktemp("kernels")
    (base / "project").mkdir()
    flexwarm = Flexwarm(base / "project", base / "store")
    flexwarm.module(KERNEL, "kernels")
    built = flexwarm.run_json("build", "--target", "h200", *kernel_line())
    assert (built.code, built.json["verdict"]) == (0, "built"), built.messages() + built.err
    return flexwarm


def kernel_line(n: int = 1024, block: int = 64, warps: int = 4, dtype: str = "float32") -> list[str]:
    return ["--", sys.executable, "kernels.py", str(n), str(block), str(warps), dtype]


@pytest.mark.parametrize(
    ("old", "new", "arguments", "told"),
    [
        ("", "", {"block": 128}, "argument BLOCK of Triton kernel add has the number 128, and 64 when this was built"),
        ("", "", {"warps": 8}, "num_warps of Triton kernel add is 8, and 4 when this was built"),
        (
            *("", "", {"dtype": "bfloat16"}),
            "arguments x, y and out of Triton kernel add have the dtype *bf16, and *fp32 when this was built",
        ),
        ("", "", {"n": 1000}, "argument n of Triton kernel add is any number, and a multiple of 16 when this was built"),
        ("", "", {"n": 1}, "argument n of Triton kernel add is always 1, and any i32 when this was built"),
        ("constexpr(3)", "constexpr(4)", {}, "SCALE of Triton kernel add has the number constexpr[4], and constexpr[3] when"),
        (
            "x * SCALE",
            "x + SCALE",
            {},
            "the function scaled that Triton kernel add calls has `return x + SCALE`, and `return x * SCALE`",
        ),
        ("both = scaled", "both = 1 + scaled", {}, "Triton kernel add has `both = 1 + scaled(tl.load(x + at, mask=at < n))"),
        ("import sys", "import sys\n", {}, "the line of Triton kernel add in its file is 14, and 13 when this was built"),
    ],
)
def test_what_is_not_as_it_was_of_a_triton_kernel_is_named_and_nothing_is_compiled(
    kernels: Flexwarm, old: str, new: str, arguments: dict[str, int | str], told: str
) -> None:
    kernels.module(KERNEL.replace(old, new) if old else KERNEL, "kernels")
    before = snapshot(kernels.bucket)
    done = kernels.run_json("explain", "--target", "h200", *kernel_line(**arguments))
    assert (done.code, done.json["verdict"]) == (1, "cold"), done.messages()
    assert not changed(before, snapshot(kernels.bucket))
    (miss,) = [miss for job in done.json["jobs"] for miss in job["misses"]]
    assert miss["layer"] == "triton"
    (cause,) = miss["causes"]
    assert cause["text"].startswith(told), cause["text"]
    assert done.codes() == {"triton-miss", "key-changed", "compiled"}, done.messages()  # no graph's key is blamed


def test_a_variable_that_only_triton_has_in_its_key_blames_no_other_layer(kernels: Flexwarm) -> None:
    kernels.module(KERNEL, "kernels")
    done = kernels.run_json("explain", "--target", "h200", *kernel_line(), env={"DISABLE_LLVM_OPT": "1"})
    (miss,) = [miss for job in done.json["jobs"] for miss in job["misses"]]
    assert (miss["layer"], [cause["subject"] for cause in miss["causes"]]) == ("triton", ["DISABLE_LLVM_OPT"])
    assert done.codes() == {"triton-miss", "key-changed", "compiled"}, done.messages()


#: A kernel that does not compile with one of two numbers, which the program sees.
FAILING = """
import torch
import triton
import triton.language as tl

@triton.jit
def filled(x, BLOCK: tl.constexpr):
    tl.static_assert(BLOCK < 64)
    tl.store(x + tl.arange(0, BLOCK), 1.0)

x = torch.zeros(64, device="cuda")
for block in (64, 16):
    try:
        filled[(1,)](x, BLOCK=block)
    except triton.CompilationError:
        print("too many", flush=True)
"""


def test_a_kernel_whose_compile_failed_in_the_build_too_is_explained_by_no_other(flexwarm: Flexwarm) -> None:
    flexwarm.module(FAILING, "failing")
    line = ("--target", "h200", "--", sys.executable, "failing.py")
    built = flexwarm.run_json("build", *line)
    assert (built.code, built.json["verdict"]) == (0, "built"), built.messages() + built.err
    for _ in range(2):  # a second build asks for it again
        done = flexwarm.run_json("explain", *line)
        assert (done.code, done.json["verdict"]) == (1, "cold"), done.messages()
        assert "is not in the bucket (filled)" in done.messages()
        assert not [miss for job in done.json["jobs"] for miss in job["misses"]]
        assert flexwarm.run_json("build", *line).code == 0


def test_a_triton_kernel_that_was_never_built_is_held_against_no_other(kernels: Flexwarm) -> None:
    kernels.module(KERNEL.replace("def add(", "def subtract(").replace("add[", "subtract["), "kernels")
    done = kernels.run_json("explain", "--target", "h200", *kernel_line())
    assert (done.code, done.json["verdict"]) == (1, "cold"), done.messages()
    assert not [miss for job in done.json["jobs"] for miss in job["misses"]]
    assert "is not in the bucket (subtract)" in done.messages()


def test_a_triton_kernel_that_is_in_the_bucket_is_warm(kernels: Flexwarm) -> None:
    kernels.module(KERNEL, "kernels")
    done = kernels.run_json("verify", "--target", "h200", *kernel_line())
    assert (done.code, done.json["verdict"]) == (0, "warm"), done.messages()
