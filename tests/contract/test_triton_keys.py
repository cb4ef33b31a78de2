"""What flexwarm believes of Triton's keys. A kernel is compiled for a GPU that is not there, so any machine can hold it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flexwarm.manifest import FileEntry, Manifest

pytestmark = pytest.mark.torch
pytest.importorskip("triton", reason="there is no Triton here")

#: A kernel with a function that it calls and a constant of its module, and where its parts are printed.
KERNEL = """
import json, sys
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from flexwarm.observer.torch_api import triton_keys

SCALE = tl.constexpr(3)

@triton.jit
def scaled(x):
    return x * SCALE

@triton.jit
def kernel(x, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(x + at, scaled(tl.load(x + at, mask=at < n)) + SCALE, mask=at < n)

missed = []
def on_miss(asked):
    missed.append([asked.hash, asked.name, {part.name: [part.digest, part.text] for part in asked.parts()}])
    if "stop" in sys.argv:
        raise KeyboardInterrupt

assert triton_keys.watch(on_miss)
source = ASTSource(kernel, {"x": "*fp32", "n": "i32", "BLOCK": "constexpr"}, {"BLOCK": 64}, {(0,): [["tt.divisibility", 16]]})
try:
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 8})
    print(json.dumps([missed, compiled.hash]))
except KeyboardInterrupt:
    print(json.dumps([missed, None]))
"""


def compiled(directory: Path, text: str = KERNEL, *arguments: str, **env: str) -> Any:
    (directory / "kernel.py").write_text(text)
    environ = {**os.environ, "TRITON_CACHE_DIR": str(directory / "triton"), **env}
    argv = [sys.executable, "kernel.py", *arguments]
    done = subprocess.run(argv, cwd=directory, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_what_goes_into_a_key_is_known_where_the_cache_has_no_kernel_and_nothing_is_said_where_it_has(tmp_path: Path) -> None:
    ((key, name, parts),), hash = compiled(tmp_path)
    assert (key, name) == (hash, "kernel")
    assert {name: parts[name][1] for name in parts if name.startswith(("signature", "constants", "attributes", "global"))} == {
        "signature[x]": "*fp32",
        "signature[n]": "i32",
        "signature[BLOCK]": "constexpr",
        "constants[BLOCK]": "64",
        "attributes[x]": "[['tt.divisibility', 16]]",
        "global[SCALE]": "constexpr[3]",
    }
    assert parts["options[num_warps]"][1] == "8"
    assert parts["line"][1] == str(1 + KERNEL.splitlines().index("@triton.jit", KERNEL.splitlines().index("@triton.jit") + 1))
    assert "def kernel(x, n, BLOCK: tl.constexpr):" in parts["source"][1]
    assert parts["kernel"][1] == "kernel"
    assert parts["triton"][1].count(".") == 2
    assert "arch=90" in parts["target"][1]
    assert compiled(tmp_path) == [[], hash]


def test_nothing_is_compiled_or_written_before_a_miss_is_told(tmp_path: Path) -> None:
    missed, hash = compiled(tmp_path, KERNEL, "stop")
    assert (len(missed), hash) == (1, None)
    assert not [path for path in (tmp_path / "triton").rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    ("old", "new", "changed"),
    [
        ("x * SCALE", "x + SCALE", {"source", "calls[scaled]"}),
        ("tl.constexpr(3)", "tl.constexpr(4)", {"source", "global[SCALE]"}),
        ("import json, sys", "import json, sys\n", {"source", "line"}),
        ('{"BLOCK": 64}', '{"BLOCK": 32}', {"constants[BLOCK]"}),
        ('"n": "i32"', '"n": "i64"', {"signature[n]"}),
        ("{(0,): [['tt.divisibility', 16]]}", "{}", {"attributes[x]"}),
        ('"num_warps": 8', '"num_warps": 4', {"options[num_warps]"}),
        ('GPUTarget("cuda", 90, 32)', 'GPUTarget("cuda", 80, 32)', {"target", "backend"}),
    ],
)
def test_a_key_changes_exactly_where_one_of_its_parts_does(tmp_path: Path, old: str, new: str, changed: set[str]) -> None:
    text = KERNEL.replace('[["tt.divisibility", 16]]', "[['tt.divisibility', 16]]")
    assert old in text
    keys = []
    for number, program in enumerate((text, text.replace(old, new))):
        directory = tmp_path / str(number)
        directory.mkdir()
        ((key, _, parts),), _ = compiled(directory, program)
        keys.append((key, parts))
    (first, before), (second, after) = keys
    assert first != second
    differing = {name for name in before.keys() | after.keys() if before.get(name, [""])[0] != after.get(name, [""])[0]}
    # Options that depend on the architecture differ with it.
    assert {name for name in differing if not (new.startswith("GPUTarget") and name.startswith("options"))} == changed


def test_a_variable_of_tritons_is_a_part_by_its_name(tmp_path: Path) -> None:
    directories = [tmp_path / name for name in "ab"]
    for directory in directories:
        directory.mkdir()
    ((_, _, plain),), _ = compiled(directories[0])
    ((_, _, other),), _ = compiled(directories[1], DISABLE_LLVM_OPT="1")
    assert {name for name in plain.keys() | other.keys() if plain.get(name) != other.get(name)} == {
        "environment[DISABLE_LLVM_OPT]"
    }


def test_tritons_directory_of_a_key_has_the_name_by_which_a_manifest_knows_the_key(tmp_path: Path) -> None:
    _, hash = compiled(tmp_path)
    files = sorted(path for path in (tmp_path / "triton").rglob("*") if path.is_file())
    entries = tuple(FileEntry(path=str(p.relative_to(tmp_path)), size_bytes=1, mtime_ns=1, sha256="0" * 64) for p in files)
    manifest = Manifest(fingerprint="f", created_at="", flexwarm_version="", files=entries, jobs={})
    assert ("triton", hash) in manifest.keys
    assert {layer for layer, _ in manifest.keys} == {"triton"}
