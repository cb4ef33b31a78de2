"""Exactly one thing is not as it was built: the explanation names that thing, and nothing else."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from flexwarm import key_store, toolchain
from flexwarm.inventory import changed, snapshot
from tests.harness import SMALL, Done, Flexwarm

pytestmark = [pytest.mark.torch, pytest.mark.xdist_group("explain")]

threads_in_key = pytest.mark.skipif(
    toolchain.require_supported().minor < (2, 13), reason="up to torch 2.12 the number of CPU threads is in no key"
)

CALL = """
import argparse
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

parser = argparse.ArgumentParser()
parser.add_argument("--length", type=int, default=128)
parser.add_argument("--window", type=int, default=16)
parser.add_argument("--dtype", default="float32")
parser.add_argument("--mask", default="window")
parser.add_argument("--strided", action="store_true")
parser.add_argument("--dynamic", action="store_true")
parser.add_argument("--setting", default="")
parser.add_argument("--precision", default="")
parser.add_argument("--option", action="store_true")
given = parser.parse_args()
torch.manual_seed(0)
if given.setting:
    setattr(torch._inductor.config, given.setting, True)
if given.precision:
    torch.set_float32_matmul_precision(given.precision)
documents = torch.zeros(given.length, dtype=torch.long)
masks = {
    "documents": lambda b, h, q, kv: (q >= kv) & (documents[q] == documents[kv]),
    "window": lambda b, h, q, kv: (q >= kv) & (q - kv < given.window),
    "causal": lambda b, h, q, kv: q >= kv,
}
shape = (1, given.length, 2, 32) if given.strided else (1, 2, given.length, 32)
tensors = [torch.randn(shape, dtype=getattr(torch, given.dtype)) for _ in range(3)]
q, k, v = (x.transpose(1, 2) if given.strided else x for x in tensors)
mask = create_block_mask(masks[given.mask], None, None, given.length, given.length, device="cpu")
options = {"epilogue_fusion": False} if given.option else None
flex = torch.compile(flex_attention, dynamic=True if given.dynamic else None, options=options)
with torch.no_grad():
    flex(q, k, v, block_mask=mask)
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Flexwarm:
    base = tmp_path_factory.mktemp("explain")
    (base / "project").mkdir()
    flexwarm = Flexwarm(base / "project", base / "store")
    flexwarm.module(CALL, "call")
    done = flexwarm.run_json("build", *line(), env={"OMP_NUM_THREADS": "2"})
    assert (done.code, done.json["verdict"]) == (0, "built"), done.messages() + done.err
    return flexwarm


def line(*arguments: str) -> list[str]:
    return ["--", sys.executable, "call.py", *arguments]


def explained(flexwarm: Flexwarm, *arguments: str, **env: str) -> Done:
    """``explain``, which changes nothing."""
    before, beside = snapshot(flexwarm.bucket), files_beside(flexwarm)
    done = flexwarm.run_json("explain", *line(*arguments), env={"OMP_NUM_THREADS": "2", **env})
    assert not changed(before, snapshot(flexwarm.bucket))
    assert files_beside(flexwarm) == beside
    return done


def files_beside(flexwarm: Flexwarm) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in flexwarm.bucket.path.iterdir() if path.is_file()}


def causes(done: Done) -> set[tuple[str, str, str]]:
    """(kind, old, new) of every cause, whatever key it is in."""
    found = {
        (cause["kind"], cause["old"], cause["new"])
        for job in done.json["jobs"]
        for miss in job["misses"]
        for cause in miss["causes"]
    }
    # A number as the graph has it may be of another type there.
    return {(kind, old.removesuffix(".0"), new.removesuffix(".0")) for kind, old, new in found}


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        (["--length", "256"], ("shape", "1x2x128x32", "1x2x256x32")),
        (["--window", "24"], ("constant", "16", "24")),
        (["--dtype", "bfloat16"], ("dtype", "float32", "bfloat16")),
        (["--setting", "epilogue_fusion_first"], ("setting", "False", "True")),
        (["--precision", "high"], ("precision", "none", "tf32")),
        (["--option"], ("setting", "True", "False")),
    ],
    ids=lambda value: "-".join(value).strip("-") if isinstance(value, list) else "",
)
def test_what_is_not_as_it_was_built_is_named_and_nothing_else(
    built: Flexwarm, arguments: list[str], cause: tuple[str, str, str]
) -> None:
    done = explained(built, *arguments)
    assert (done.code, done.json["verdict"]) == (1, "cold"), done.messages()
    assert causes(done) == {cause}
    said = [reason for job in done.json["jobs"] for reason in job["reasons"] if reason["code"] == "key-changed"]
    assert len(said) == 1, done.messages()
    assert done.codes() <= {"aot-miss", "fx-miss", "key-changed"}


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        (["--mask", "causal"], "mask"),
        (["--mask", "documents"], "mask"),
        (["--strided"], "stride"),
        (["--dynamic"], "dynamic"),
    ],
)
def test_what_kind_of_thing_is_not_as_it_was_is_named_and_no_other(built: Flexwarm, arguments: list[str], kind: str) -> None:
    done = explained(built, *arguments)
    assert (done.code, done.json["verdict"]) == (1, "cold"), done.messages()
    assert {found for found, _, _ in causes(done)} == {kind}, done.messages()


@threads_in_key
def test_threads_are_named_by_their_variable_and_in_the_key(built: Flexwarm) -> None:
    done = explained(built, OMP_NUM_THREADS="1")
    assert (done.code, done.json["verdict"]) == (1, "cold"), done.messages()
    assert causes(done) == {("threads", "2", "1")}
    assert done.codes() <= {"aot-miss", "fx-miss", "key-changed", "env-changed"}
    assert "OMP_NUM_THREADS was '2' when this was built and is '1' now" in done.messages()


def test_pythons_hash_seed_does_not_matter(built: Flexwarm) -> None:
    done = explained(built, PYTHONHASHSEED="7")
    assert (done.code, done.json["verdict"], done.codes()) == (0, "warm", set()), done.messages()
    told = built("explain", *line(), env={"OMP_NUM_THREADS": "2"})
    assert (told.code, "there is nothing to explain" in told.out) == (0, True)


def test_people_read_the_key_the_cause_and_with_v_each_part(built: Flexwarm) -> None:
    plain = built("explain", *line("--window", "24"), env={"OMP_NUM_THREADS": "2"})
    assert plain.code == 1
    assert "is not in the bucket; the nearest is" in plain.out
    assert "the mask function has the number 24, and 16 when this was built" in plain.out
    assert "graph." not in plain.out
    verbose = built("explain", "-v", *line("--window", "24"), env={"OMP_NUM_THREADS": "2", "COLUMNS": "60"})
    (part,) = [one for one in verbose.out.splitlines() if "graph.mask_fn_0: " in one]
    old, new = part.split(" -> ")
    assert ("16" in old, "24" in new) == (True, True)
    whole = built("explain", "-vv", *line("--window", "24"), env={"OMP_NUM_THREADS": "2"})
    assert "\n    return and_" in whole.out
    quiet = built("explain", "-q", *line("--window", "24"), env={"OMP_NUM_THREADS": "2"})
    assert quiet.out.splitlines()[0] == "verdict: cold"


@pytest.mark.parametrize(
    "content",
    [
        None,
        b"",
        b"[" * 200_000,
        b'[1, 2]\n{"group": 3, "parts": []}\n{"group": "g", "parts": [["n", "d", 4]]}\n{"layer": "fx", "key": 1, "groups": {}}',
        b'{"group": "g", "parts": 7}\n{"layer": "fx", "key": "k", "groups": {"": ["g"]}}\n{"layer": 0, "key": "k"}',
        "pipe",
    ],
    ids=["gone", "empty", "deep", "types", "more types", "pipe"],
)
def test_what_cannot_be_read_of_keys_explains_nothing_and_the_verdict_is_the_same(
    built: Flexwarm, tmp_path: Path, content: bytes | str | None
) -> None:
    other = Flexwarm(built.directory, tmp_path / "store")
    shutil.copytree(built.store, other.store)
    other.bucket.keys.unlink()
    if content == "pipe":
        os.mkfifo(other.bucket.keys)
    elif isinstance(content, bytes):
        other.bucket.keys.write_bytes(content)
    done = other.run_json("explain", *line("--length", "256"), env={"OMP_NUM_THREADS": "2"})
    assert (done.code, done.json["verdict"]) == (1, "cold"), done.messages() + done.err
    assert done.codes() <= {"aot-miss", "fx-miss"}
    assert not causes(done)
    again = other.run_json("build", *line("--length", "256"), env={"OMP_NUM_THREADS": "2"})
    assert (again.code, again.json["verdict"]) == (0, "built"), again.messages() + again.err
    assert not other.bucket.building.exists()


def test_a_cut_line_takes_nothing_but_its_own_key_away(built: Flexwarm, tmp_path: Path) -> None:
    other = Flexwarm(built.directory, tmp_path / "store")
    shutil.copytree(built.store, other.store)
    lines = other.bucket.keys.read_bytes().splitlines(keepends=True)
    last = json.loads(lines[-1])
    assert last["layer"] == "fx"
    other.bucket.keys.write_bytes(b"".join(lines[:-1]) + lines[-1][:-20])
    assert {key.layer for key in key_store.load(other.bucket)} == {"aot"}
    key_store.append(other.bucket, key_store.load(built.bucket))
    assert {key.layer for key in key_store.load(other.bucket)} == {"aot", "fx"}


DYNAMIC = """
import sys, torch
torch.compile(lambda x: x.sin() + 1, dynamic=True)(torch.ones(int(sys.argv[1]), 8))
"""


def test_an_entry_that_does_not_fit_the_size_is_not_held_against_another_key(flexwarm: Flexwarm) -> None:
    """The key is in the bucket; what was assumed of the size, that it is not small, does not hold."""
    flexwarm.module(DYNAMIC, "sizes")
    flexwarm.module("import torch\ntorch.compile(lambda x: x.cos() * 3)(torch.ones(4))\n", "other")
    for argv in (["sizes.py", "640"], ["other.py"]):
        assert flexwarm.run_json("build", "--", sys.executable, *argv).code == 0
    done = flexwarm.run_json("verify", "--", sys.executable, "sizes.py", "1280")
    assert (done.code, done.json["verdict"]) == (0, "warm"), done.messages()
    for name in ("proof.json", "keys.jsonl"):
        assert (flexwarm.bucket.path / name).exists() == (name == "keys.jsonl")
    done = flexwarm.run_json("explain", "--", sys.executable, "sizes.py", "2")
    assert done.codes() <= {"aot-miss", "fx-miss"}, done.messages()
    assert not causes(done)


AGAIN = """
import sys
import torch

training = False

def scaled(x, factor):
    return x.sin() * factor if training else x.cos()

scaled = torch.compile(scaled, dynamic=False)
for argument in sys.argv[1:]:
    training = argument == "training"
    scaled(torch.ones(8 if training else int(argument)), 2)
"""


@pytest.mark.parametrize(
    ("argument", "guard"), [("16", "size mismatch at index 0. expected 8, actual 16"), ("training", "training")]
)
def test_a_function_that_is_compiled_again_is_named_with_the_guard_that_failed_and_its_line(
    flexwarm: Flexwarm, argument: str, guard: str
) -> None:
    flexwarm.module(AGAIN, "again")
    assert flexwarm.run_json("build", "--", sys.executable, "again.py", "8").code == 0
    done = flexwarm.run_json("verify", "--", sys.executable, "again.py", "8", argument)
    assert (done.code, done.json["verdict"]) == (1, "cold"), done.messages()
    (again,) = [reason for job in done.json["jobs"] for reason in job["reasons"] if reason["code"] == "recompiled"]
    number = 1 + AGAIN.splitlines().index("def scaled(x, factor):")
    function, _, failed = again["message"].partition(" again, for this call fails a guard of variant 0/0: ")
    assert function == f"Dynamo compiles scaled ({flexwarm.directory / 'again.py'}:{number})"
    assert guard in failed
    assert flexwarm.run_json("build", "--", sys.executable, "again.py", "8", argument).code == 0
    done = flexwarm.run_json("verify", "--", sys.executable, "again.py", "8", argument)
    assert (done.code, done.codes()) == (0, set()), done.messages()  # a recompile that was built is none to speak of


TWICE = """
import subprocess, sys
for size in ("16", "32"):
    subprocess.run([sys.executable, "child.py"], input=size, text=True, check=True)
"""


def test_two_programs_that_cannot_be_told_apart_have_each_its_own_explanation(flexwarm: Flexwarm) -> None:
    flexwarm.module(TWICE, "twice")
    flexwarm.module("import sys, torch\ntorch.compile(lambda x: x.sin() + 1)(torch.ones(int(sys.stdin.read())))\n", "child")
    flexwarm.module("import torch\ntorch.compile(lambda x: x.sin() + 1)(torch.ones(8))\n", "eight")
    assert flexwarm.run_json("build", "--", sys.executable, "eight.py").code == 0
    done = flexwarm.run_json("run", "--", sys.executable, "twice.py")
    assert (done.code, done.json["verdict"]) == (0, "cold"), done.messages()
    told = [{cause["new"] for miss in job["misses"] for cause in miss["causes"]} for job in done.json["jobs"]]
    assert sorted(told, key=str) == [{"16"}, {"32"}]
    for job, (size,) in zip(done.json["jobs"], told, strict=True):
        (changed_key,) = [reason for reason in job["reasons"] if reason["code"] == "key-changed"]
        assert f"has the shape {size}, and 8" in changed_key["message"]
        assert changed_key["hint"] == "flexwarm build -- with this launch line"


@threads_in_key
def test_a_spec_whose_key_has_changed_is_explained_and_its_proof_stays(warm: Flexwarm) -> None:
    assert warm.run_json("verify").code == 0
    beside = files_beside(warm)
    done = warm.run_json("explain", env={"OMP_NUM_THREADS": "1" if len(os.sched_getaffinity(0)) > 1 else "2"})
    assert (done.code, done.json["command"]) == (1, "explain"), done.messages()
    assert {kind for kind, _, _ in causes(done)} == {"threads"}
    assert warm.run_json("explain").code == 0
    assert files_beside(warm) == beside
    assert warm.run_json("verify", "--fast").code == 0


def test_keys_that_are_not_in_the_bucket_any_more_are_forgotten(built: Flexwarm, tmp_path: Path) -> None:
    other = Flexwarm(built.directory, tmp_path / "store")
    shutil.copytree(built.store, other.store)
    known = key_store.load(other.bucket)
    assert {(key.layer, key.key) for key in known} == {(key.layer, key.key) for job in jobs(other) for key in job.keys}
    key_store.keep_only(other.bucket, {("fx", key.key) for key in known if key.layer == "fx"})
    assert {key.layer for key in key_store.load(other.bucket)} == {"fx"}
    key_store.append(other.bucket, known)
    assert sorted(key.key for key in key_store.load(other.bucket)) == sorted(key.key for key in known)
    lines = other.bucket.keys.read_bytes().splitlines()
    key_store.append(other.bucket, known)
    assert other.bucket.keys.read_bytes().splitlines() == lines
    assert all(json.loads(one) for one in lines)


def jobs(flexwarm: Flexwarm) -> list[object]:
    return list(flexwarm.manifest().jobs.values())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda text: text.replace("q_len = 128", "q_len = [128, 256]"), "q_len 128 where this has [128, 256]"),
        (lambda text: text.replace('"float32"', '"bfloat16"'), "dtype float32 where this has bfloat16"),
        (lambda text: text.replace('"causal"', '"sliding_window"\nmask_args = { window = 9 }'), "mask_mod causal where"),
        (lambda text: text + "\nkernel_options = { BLOCK_M = 32 }\n", "kernel_options.BLOCK_M none where this has 32"),
        (lambda text: text + "\ncompile = { dynamic = true }\n", "compile.dynamic none where this has True"),
        (lambda text: text + '\ncompile = { mode = "max-autotune-no-cudagraphs" }\n', "compile.mode none where this has max-"),
    ],
)
def test_a_workload_that_was_never_built_is_held_against_the_nearest_that_was(
    warm: Flexwarm, change: Callable[[str], str], said: str
) -> None:
    warm.spec(change(SMALL))
    done = warm.run_json("explain")
    assert (done.code, done.codes()) == (1, {"not-built"})
    assert f"the nearest that was, small, has {said}" in done.messages()
