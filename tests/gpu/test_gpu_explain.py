"""On a real GPU: one thing is not as it was built, and the explanation names it and nothing else; nothing is compiled."""

from __future__ import annotations

import sys

import pytest

from flexwarm import toolchain
from flexwarm.inventory import changed, snapshot
from tests.absent.test_explained import CALL, KERNEL, kernel_line
from tests.harness import Done, Flexwarm

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.torch,
    pytest.mark.skipif(not toolchain.gpus(), reason="no NVIDIA GPU on this machine"),
]
two_gpus = pytest.mark.skipif(len(toolchain.gpus()) < 2, reason="one NVIDIA GPU on this machine: there is no other index")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Flexwarm:
    base = tmp_path_factory.mktemp("explain")
    (base / "project").mkdir()
    flexwarm = Flexwarm(base / "project", base / "store")
    flexwarm.module(KERNEL, "kernels")
    flexwarm.module(CALL, "call")
    for line in (kernel_line(), ["--", sys.executable, "call.py", "0", "24"]):
        done = flexwarm.run_json("build", *line)
        assert (done.code, done.json["verdict"]) == (0, "built"), done.messages() + done.err
    return flexwarm


def explained(flexwarm: Flexwarm, *line: str) -> Done:
    before = snapshot(flexwarm.bucket)
    done = flexwarm.run_json("explain", *line)
    assert not changed(before, snapshot(flexwarm.bucket))
    return done


@pytest.mark.parametrize(
    ("old", "new", "arguments", "told"),
    [
        ("", "", {"block": 128}, "argument BLOCK of Triton kernel add has the number 128, and 64 when this was built"),
        ("", "", {"n": 1000}, "argument n of Triton kernel add is any number, and a multiple of 16 when this was built"),
        ("both = scaled", "both = 1 + scaled", {}, "Triton kernel add has `both = 1 + scaled(tl.load(x + at, mask=at < n))"),
        ("import sys", "import sys\n", {}, "the line of Triton kernel add in its file is 14, and 13 when this was built"),
    ],
)
def test_what_is_not_as_it_was_of_a_triton_kernel_is_named(
    built: Flexwarm, old: str, new: str, arguments: dict[str, int], told: str
) -> None:
    built.module(KERNEL.replace(old, new) if old else KERNEL, "kernels")
    done = explained(built, *kernel_line(**arguments))  # type: ignore[arg-type]
    assert (done.code, done.json["verdict"]) == (1, "cold"), done.messages()
    (miss,) = [miss for job in done.json["jobs"] for miss in job["misses"]]
    (cause,) = miss["causes"]
    assert (miss["layer"], cause["text"].startswith(told)) == ("triton", True), cause["text"]


def test_a_triton_kernel_that_is_in_the_bucket_is_warm(built: Flexwarm) -> None:
    built.module(KERNEL, "kernels")
    done = explained(built, *kernel_line())
    assert (done.code, done.json["verdict"]) == (0, "warm"), done.messages()


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        (("0", "40"), ("constant", "24", "40")),
        pytest.param(("1", "24"), ("device", "cuda:0", "cuda:1"), marks=two_gpus),
    ],
)
def test_the_mask_and_the_device_of_attention_are_named(
    built: Flexwarm, arguments: tuple[str, ...], cause: tuple[str, str, str]
) -> None:
    done = explained(built, "--", sys.executable, "call.py", *arguments)
    assert (done.code, done.json["verdict"]) == (1, "cold"), done.messages()
    found = {(x["kind"], x["old"], x["new"]) for job in done.json["jobs"] for miss in job["misses"] for x in miss["causes"]}
    assert found == {cause}
