"""Exactly one thing is not as it was built: the explanation names that thing, and nothing else."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from flexwarm import key_store
from flexwarm.inventory import changed, snapshot
from tests.harness import SMALL, Done, Flexwarm

pytestmark = [pytest.mark.torch, pytest.mark.xdist_group("explain")]

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
given = parser.parse_args()
torch.manual_seed(0)
if given.setting:
    setattr(torch._inductor.config, given.setting, True)
if given.precision:
    torch.set_float32_matmul_precision(given.precision)
masks = {
    "window": lambda b, h, q, kv: (q >= kv) & (q - kv < given.window),
    "causal": lambda b, h, q, kv: q >= kv,
}
shape = (1, given.length, 2, 32) if given.strided else (1, 2, given.length, 32)
tensors = [torch.randn(shape, dtype=getattr(torch, given.dtype)) for _ in range(3)]
q, k, v = (x.transpose(1, 2) if given.strided else x for x in tensors)
mask = create_block_mask(masks[given.mask], None, None, given.length, given.length, device="cpu")
flex = torch.compile(flex_attention, dynamic=True if given.dynamic else None)
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
    before = snapshot(flexwarm.bucket)
    done = flexwarm.run_json("explain", *line(*arguments), env={"OMP_NUM_THREADS": "2", **env})
    assert not changed(before, snapshot(flexwarm.bucket))
    return done


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
    ("arguments", "kind"), [(["--mask", "causal"], "mask"), (["--strided"], "stride"), (["--dynamic"], "dynamic")]
)
def test_what_kind_of_thing_is_not_as_it_was_is_named_and_no_other(built: Flexwarm, arguments: list[str], kind: str) -> None:
    done = explained(built, *arguments)
    assert (done.code, done.json["verdict"]) == (1, "cold"), done.messages()
    assert {found for found, _, _ in causes(done)} == {kind}, done.messages()


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
    verbose = built("explain", "-v", *line("--window", "24"), env={"OMP_NUM_THREADS": "2"})
    assert "graph." in verbose.out


def test_a_bucket_that_kept_nothing_of_its_keys_explains_nothing_with_the_same_verdict(built: Flexwarm, tmp_path: Path) -> None:
    other = Flexwarm(built.directory, tmp_path / "store")
    shutil.copytree(built.store, other.store)
    for spoil in (lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]), Path.unlink):
        spoil(other.bucket.keys)
        done = explained(other, "--length", "256")
        assert (done.code, done.json["verdict"]) == (1, "cold"), done.messages()
        assert done.codes() <= {"aot-miss", "fx-miss", "key-changed"}
    assert not causes(done)


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
    ],
)
def test_a_workload_that_was_never_built_is_held_against_the_nearest_that_was(
    warm: Flexwarm, change: Callable[[str], str], said: str
) -> None:
    warm.spec(change(SMALL))
    done = warm.run_json("explain")
    assert (done.code, done.codes()) == (1, {"not-built"})
    assert f"the nearest that was, small, has {said}" in done.messages()
