"""The null GPU, asked as torch and Triton ask a driver: compiled by this machine's compiler, in processes of its own."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from flexwarm.errors import StoreError, UnsupportedError
from flexwarm.store import Store
from flexwarm.target import Target
from flexwarm.toolchain import nullgpu
from flexwarm.toolchain.profiles import attribute_names, read_profile
from tests.conftest import ROOT

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="the null GPU is compiled with gcc, which is not here")

TARGET = Target(asked="rtx-pro-6000", profile=read_profile("rtx-pro-6000"), count=3)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store.open(tmp_path_factory.mktemp("null") / "store", create=True)


def ask(store: Store, program: str, **env: str) -> Any:
    """What a program prints, as JSON, that has the target's GPUs."""
    environ = {**os.environ, **nullgpu.environment(TARGET, store, os.environ), "PYTHONPATH": str(ROOT), **env}
    source = "import ctypes, json\ncuda = ctypes.CDLL('libcuda.so.1')\n" + textwrap.dedent(program)
    done = subprocess.run([sys.executable, "-c", source], env=environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


COUNT = """
count = ctypes.c_int(-1)
status = cuda.cuInit(0)
cuda.cuDeviceGetCount(ctypes.byref(count))
"""


def test_it_is_compiled_once_for_a_compiler(store: Store) -> None:
    first = nullgpu.ensure_library(store, os.environ)
    stamp = (first / nullgpu.LIBRARY).stat().st_mtime_ns
    assert nullgpu.ensure_library(store, os.environ) == first
    assert (first / nullgpu.LIBRARY).stat().st_mtime_ns == stamp
    assert list(store.staging.iterdir()) == []


def test_it_compiles_without_a_warning(store: Store, tmp_path: Path) -> None:
    sources = sorted(map(str, (nullgpu.NULLGPU / "src").glob("*.c")))
    flags = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fPIC", "-shared", "-Wl,-z,defs"]
    done = subprocess.run(["gcc", *flags, *sources, "-o", str(tmp_path / "x.so"), "-ldl"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"CC": "no-such-compiler", "PATH": "/usr/bin"}, "there is no C compiler (no-such-compiler)"),
        ({"PATH": "/nowhere"}, "there is no C compiler (gcc, cc, clang)"),
        ({"CC": "false", "PATH": os.environ["PATH"]}, "cannot compile the null GPU: status 1"),
    ],
)
def test_a_compiler_that_is_not_there_or_fails_is_named(environ: Mapping[str, str], words: str, tmp_path: Path) -> None:
    empty = Store.open(tmp_path / "store", create=True)
    with pytest.raises(UnsupportedError) as caught:
        nullgpu.ensure_library(empty, environ)
    assert words in caught.value.message
    assert caught.value.hint
    assert list(empty.staging.iterdir()) == []


def test_a_store_whose_path_the_loader_would_cut_is_refused(tmp_path: Path) -> None:
    spaced = Store.open(tmp_path / "a store", create=True)
    with pytest.raises(StoreError, match="a space or a colon"):
        nullgpu.environment(TARGET, spaced, os.environ)


def test_what_others_preload_stays(store: Store) -> None:
    found = nullgpu.environment(TARGET, store, {**os.environ, "LD_PRELOAD": "/own.so", "LD_LIBRARY_PATH": "/own"})
    assert found["LD_PRELOAD"].endswith(f"{nullgpu.LIBRARY}:/own.so")
    assert found["LD_LIBRARY_PATH"].endswith(":/own")


def test_the_driver_is_said_to_lie_where_the_targets_machine_has_it_and_is_linked_from_here(store: Store) -> None:
    bare = {name: value for name, value in os.environ.items() if name not in ("TRITON_LIBCUDA_PATH", "LIBRARY_PATH")}
    found = nullgpu.environment(TARGET, store, {**bare, "LIBRARY_PATH": "/own"})
    assert found["TRITON_LIBCUDA_PATH"].startswith("/lib/")
    assert found["LIBRARY_PATH"] == f"{Path(found['LD_PRELOAD'].split(':')[0]).parent}:/own"
    profile = dataclasses.replace(TARGET.profile, driver_path="/usr/local/nvidia/lib64:/lib")
    there = dataclasses.replace(TARGET, profile=profile)
    assert nullgpu.environment(there, store, bare)["TRITON_LIBCUDA_PATH"] == "/usr/local/nvidia/lib64:/lib"
    # What the user says of both machines is so.
    assert nullgpu.environment(there, store, {**bare, "TRITON_LIBCUDA_PATH": "/d"})["TRITON_LIBCUDA_PATH"] == "/d"


def test_devices_have_the_name_memory_and_attributes_of_the_profile(store: Store) -> None:
    program = (
        COUNT
        + """
answers = []
for index in range(count.value):
    device, memory, name = ctypes.c_int(), ctypes.c_size_t(), ctypes.create_string_buffer(256)
    cuda.cuDeviceGet(ctypes.byref(device), index)
    cuda.cuDeviceGetName(name, 256, device)
    cuda.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
    values = {}
    for number in range(1, 148):
        value = ctypes.c_int()
        if cuda.cuDeviceGetAttribute(ctypes.byref(value), number, device) == 0:
            values[number] = value.value
    answers.append([name.value.decode(), memory.value, values])
print(json.dumps(answers))
"""
    )
    answers = ask(store, program)
    assert len(answers) == 3
    names = attribute_names()
    for name, memory, values in answers:
        assert (name, memory) == (TARGET.profile.name, TARGET.profile.total_memory_bytes)
        told = {names[int(number)]: value for number, value in values.items()}
        assert {key: told[key] for key in TARGET.profile.attributes} == dict(TARGET.profile.attributes)


@pytest.mark.parametrize(("visible", "count"), [("1", 1), ("0,2", 2), ("", 0), ("7", 0)])
def test_visible_devices_are_chosen_as_a_driver_does(store: Store, visible: str, count: int) -> None:
    assert ask(store, COUNT + "print(count.value if status == 0 else 0)", CUDA_VISIBLE_DEVICES=visible) == count


def test_memory_is_reserved_and_ends_where_the_devices_does(store: Store) -> None:
    program = (
        COUNT
        + """
context, pointer = ctypes.c_void_p(), ctypes.c_void_p()
cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
cuda.cuCtxSetCurrent(context)
half = 48 << 30
statuses = [cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(half)) for _ in range(3)]
resident = int(open("/proc/self/statm").read().split()[1]) * 4096
print(json.dumps([statuses, resident]))
"""
    )
    statuses, resident = ask(store, program)
    assert statuses == [0, 0, 2]  # CUDA_ERROR_OUT_OF_MEMORY
    assert resident < 1 << 30


def test_a_profile_that_is_wrong_is_an_error_and_no_device(store: Store, tmp_path: Path) -> None:
    for text in ("name = X\n", "no key\n", "speed = 3\n"):
        (tmp_path / "profile").write_text(text)
        assert ask(store, COUNT + "print(status)", NULLGPU_PROFILE=str(tmp_path / "profile")) != 0


def test_a_process_says_which_gpus_stand_in(store: Store) -> None:
    program = (
        "from flexwarm.observer import stand_in\nprint(json.dumps([stand_in.present(), stand_in.identity(), stand_in.reads()]))"
    )
    assert ask(store, program) == [True, TARGET.identity, 0]


def test_a_process_says_which_call_was_not_answered_last_and_what_does_the_same(store: Store) -> None:
    program = """
    from flexwarm.observer import stand_in
    told = [stand_in.unanswered()]
    for call in (cuda.cufftCreate, cuda.cufftCreate, cuda.ncclGetUniqueId, cuda.cudaStreamBeginCapture, cuda.cudaGraphUpload):
        call(None)
        told.append(stand_in.unanswered())
    print(json.dumps(told))
    """
    none, *told = ask(store, program)
    assert none == ""
    assert told == [
        *["cufft cufftCreate; compute that on the CPU, or leave it to the GPU"] * 2,
        "nccl ncclGetUniqueId; use the gloo backend",
        "cuda_runtime cudaStreamBeginCapture; use a mode of torch.compile without CUDA graphs",
        "cuda_runtime cudaGraphUpload",
    ]


def test_a_forked_child_has_made_no_call_that_was_not_answered(store: Store) -> None:
    program = """
    import os
    from flexwarm.observer import stand_in
    cuda.ncclGetUniqueId(None)
    reader, writer = os.pipe()
    if not os.fork():
        os.write(writer, stand_in.unanswered().encode() or b"none")
        os._exit(0)
    os.wait()
    print(json.dumps([os.read(reader, 100).decode(), bool(stand_in.unanswered())]))
    """
    assert ask(store, program) == ["none", True]


def test_a_process_without_it_says_nothing() -> None:
    program = "from flexwarm.observer import stand_in; print(stand_in.identity() + stand_in.unanswered())"
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout == "nothing\n"


def test_the_profile_of_a_real_gpu_is_not_read_from_it(store: Store) -> None:
    environ = {**os.environ, **nullgpu.environment(TARGET, store, os.environ)}
    probe = ROOT / "flexwarm" / "toolchain" / "device_probe.py"
    done = subprocess.run([sys.executable, "-I", "-S", str(probe)], env=environ, capture_output=True, text=True)
    assert done.returncode != 0
    assert "stands in for a GPU that is not there" in done.stderr
