"""What a CUDA build of torch does with several GPUs, in tests that need none: each runs in a process with null GPUs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from flexwarm import guard, toolchain
from flexwarm.target import Target
from tests.guard import LIMIT, Other, open_trace
from tests.harness import Done, Flexwarm

_INSTALL = toolchain.find_torch()
pytestmark = [
    pytest.mark.torch,
    pytest.mark.xdist_group("absent bench"),
    pytest.mark.skipif(_INSTALL is None or not _INSTALL.cuda, reason="this torch is a build without CUDA"),
]

GIB = 1 << 30


def on_threads(functions: list[Callable[[], Any]]) -> list[Any]:
    """What each function returns, from a thread of its own; all of them have begun before any goes on."""
    begun = threading.Barrier(len(functions))

    def after_all_have_begun(function: Callable[[], Any]) -> Any:
        begun.wait(LIMIT)
        return function()

    others = [Other(lambda function=function: after_all_have_begun(function)) for function in functions]  # type: ignore[misc]
    for other in others:
        other.done()
        if other.raised is not None:
            raise other.raised
    return [other.result for other in others]


# ---- devices and their indices -------------------------------------------------------------------------------------------


@pytest.mark.null_gpus(8)
def test_eight_devices_have_the_profiles_name_and_size_and_there_is_no_ninth(null_gpus: Target) -> None:
    import torch

    assert torch.cuda.device_count() == null_gpus.count == 8
    profile = null_gpus.profile
    for index in range(8):
        properties = torch.cuda.get_device_properties(index)
        assert (properties.name, properties.total_memory) == (profile.name, profile.total_memory_bytes)
        assert f"{properties.major}.{properties.minor}" == profile.capability
        assert torch.ones(2, device=f"cuda:{index}").device.index == index
    assert len({str(torch.cuda.get_device_properties(index).uuid) for index in range(8)}) == 8
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.ones(2, device="cuda:8")


@pytest.mark.null_gpus(2, profile="rtx-4090")
def test_a_device_is_of_the_profile_that_was_asked_for() -> None:
    import torch

    assert torch.cuda.get_device_name(1) == "NVIDIA GeForce RTX 4090"
    assert torch.cuda.get_device_capability(1) == (8, 9)


@pytest.mark.null_gpus(4)
def test_each_thread_has_its_own_current_device_and_begins_with_the_first() -> None:
    import torch

    torch.cuda.set_device(3)

    def choose(index: int) -> tuple[int, int, int, int, int]:
        first = torch.cuda.current_device()
        torch.cuda.set_device(index)
        made = torch.empty(4, device="cuda")
        with torch.cuda.device((index + 1) % 4):
            inside = torch.cuda.current_device()
        return first, inside, torch.cuda.current_device(), made.device.index, torch.cuda.current_stream().device.index

    found = on_threads([lambda index=index: choose(index) for index in range(4)])  # type: ignore[misc]
    assert found == [(0, (index + 1) % 4, index, index, index) for index in range(4)]
    assert torch.cuda.current_device() == 3


@pytest.mark.null_gpus(3)
def test_what_is_allocated_is_on_its_device_and_on_no_other() -> None:
    import torch

    kept = torch.empty(256 << 20, dtype=torch.uint8, device="cuda:1")
    assert [torch.cuda.memory_allocated(index) for index in range(3)] == [0, 256 << 20, 0]
    copied = kept.to("cuda:2")
    beside = torch.empty_like(kept)
    assert (copied.device.index, beside.device.index, kept.view(-1, 2).device.index) == (2, 1, 1)
    assert [torch.cuda.memory_allocated(index) for index in range(3)] == [0, 512 << 20, 256 << 20]
    with pytest.raises(RuntimeError, match="same device"):
        torch.add(kept, copied)


def uuids(count: int) -> list[str]:
    """Of all devices, as NVML has them, whatever is visible."""
    import pynvml

    pynvml.nvmlInit()
    found = [pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(index)) for index in range(count)]
    return [str(uuid).removeprefix("GPU-") for uuid in found]


@pytest.mark.null_gpus(4)
@pytest.mark.parametrize(("visible", "physical"), [("2", [2]), ("3,1", [3, 1]), ("", []), ("9", [])])
def test_visible_devices_are_counted_from_zero_again(
    monkeypatch: pytest.MonkeyPatch, visible: str, physical: list[int]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    import torch

    assert torch.cuda.is_available() is bool(physical)
    assert torch.cuda.device_count() == len(physical)
    all_of_them = uuids(4)
    for index, real in enumerate(physical):
        assert str(torch.cuda.get_device_properties(index).uuid) == all_of_them[real]
        assert torch.empty(1, device=f"cuda:{index}").device.index == index


# ---- memory --------------------------------------------------------------------------------------------------------------


@pytest.mark.null_gpus(2)
def test_memory_ends_where_the_devices_does_and_the_other_device_has_all_of_its_own(null_gpus: Target) -> None:
    import torch

    total = null_gpus.profile.total_memory_bytes
    assert torch.cuda.mem_get_info(1) == (total, total)
    with pytest.raises(torch.cuda.OutOfMemoryError, match=r"GPU 1 has a total capacity of 139\.80 GiB"):
        torch.empty(total + 1, dtype=torch.uint8, device="cuda:1")
    most = torch.empty(100 * GIB, dtype=torch.uint8, device="cuda:1")
    with pytest.raises(torch.cuda.OutOfMemoryError, match=r"GPU 1 .* of which 39\.80 GiB is free"):
        torch.empty(100 * GIB, dtype=torch.uint8, device="cuda:1")
    assert torch.cuda.mem_get_info(0) == (total, total)
    assert torch.empty(100 * GIB, dtype=torch.uint8, device="cuda:0").device.index == 0
    del most
    assert torch.empty(100 * GIB, dtype=torch.uint8, device="cuda:1").device.index == 1


# ---- what is not answered ------------------------------------------------------------------------------------------------


@pytest.mark.null_gpus
def test_a_call_that_is_not_answered_fails_and_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    import torch

    with pytest.raises(RuntimeError, match="CUFFT_NOT_SUPPORTED"):
        torch.fft.fft(torch.ones(8, device="cuda"))
    assert "unanswered: cufft cufftCreate" in capfd.readouterr().err


# ---- threads of autograd -------------------------------------------------------------------------------------------------


def backward_threads(devices: list[str]) -> list[tuple[int, int, int | None]]:
    """Of a backward pass on each device, all at once: the thread that asks, the one in which it runs, its current device."""
    import torch

    class Where(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, found: list[Any]) -> Any:
            ctx.found = found
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> tuple[Any, None]:
            ctx.found += [threading.get_ident(), torch.cuda.current_device()]
            return gradient * 2, None

    def run(device: str) -> tuple[int, int, int]:
        found: list[int] = []
        Where.apply(torch.ones(3, device=device, requires_grad=True), found).sum().backward()  # type: ignore[no-untyped-call]
        return threading.get_ident(), found[0], found[1]

    return on_threads([lambda device=device: run(device) for device in devices])  # type: ignore[misc]


@pytest.mark.null_gpus(2)
def test_each_device_has_one_thread_for_backward_passes_whoever_asks() -> None:
    found = backward_threads(["cuda:0", "cuda:1", "cuda:1", "cpu"])
    (_, first, _), (_, second, _), (_, again, _), (caller, on_cpu, _) = found
    callers = {asked for asked, _, _ in found}
    assert len({first, second}) == 2
    assert again == second
    assert callers.isdisjoint({first, second})
    assert on_cpu == caller  # autograd's own threads are for devices alone
    assert [device for _, _, device in found] == [0, 1, 1, 0]


@pytest.mark.null_gpus(2)
def test_under_the_guard_each_thread_may_run_its_own_backward_pass() -> None:
    with guard.installed(backward="caller"):
        found = backward_threads(["cuda:0", "cuda:1", "cuda:1"])
    assert all(asked == ran for asked, ran, _ in found)
    assert len({ran for _, ran, _ in found}) == 3


# ---- the guard -----------------------------------------------------------------------------------------------------------

GUARD = pytest.mark.parametrize("guarded", [False, True], ids=["without the guard", "guarded"])


@contextmanager
def remedy(guarded: bool) -> Iterator[None]:
    if guarded:
        guard.install()
    yield
    if guarded:
        guard.uninstall()


@pytest.mark.null_gpus(2)
@GUARD
def test_a_warm_call_on_one_device_beside_a_trace_of_the_thread_of_another(guarded: bool) -> None:
    """Refused while torch has one flag for the process, which it has up to 2.13."""
    import torch

    x = torch.ones(64, device="cuda:1")
    call = torch.compile(lambda x: x.sin() + 1)
    assert call(x).device.index == 1
    with remedy(guarded), open_trace("make_fx"):
        if guarded or guard.status().where == "thread":
            assert call(x).device.index == 1
        else:
            with pytest.raises(RuntimeError, match="using FX to symbolically trace"):
                call(x)
    assert call(x).device.index == 1


@pytest.mark.null_gpus(2)
@GUARD
def test_a_module_on_one_device_beside_a_trace_of_the_thread_of_another(guarded: bool) -> None:
    """A trace patches modules for all threads, on every torch."""
    import torch

    module: Any = torch.nn.Linear(16, 16, device="cuda:1")
    compiled = torch.compile(module, backend="aot_eager")
    x = torch.ones(4, 16, device="cuda:1")
    assert compiled(x).device.index == 1
    with remedy(guarded), open_trace("symbolic_trace"):
        if guarded:
            assert (module(x).device.index, compiled(x).device.index) == (1, 1)
        else:
            with pytest.raises(NameError, match="module is not installed as a submodule"):
                module(x)
            # Up to 2.13 the flag is in the way before the module is.
            with pytest.raises((NameError, RuntimeError), match=r"module is not installed|using FX to symbolically trace"):
                compiled(x)
    assert compiled(x).device.index == 1


# ---- lanes ---------------------------------------------------------------------------------------------------------------

LANES = """schema = 1

[[role]]
name = "drafter"
lanes = 3
devices = "{devices}"

[[workload]]
name = "anchors"
mask_mod = "anchor_block"
q_heads = 4
kv_heads = 2
head_dim = 64
q_len = 512
dtype = "bfloat16"
grad = true
calls = 2
steps = 2
"""


def hazards(done: Done) -> set[str]:
    return {hazard["code"] for hazard in done.json["hazards"]}


@pytest.fixture(scope="module")
def one_store(tmp_path_factory: pytest.TempPathFactory) -> Flexwarm:
    """The command with a store for both ways in which three lanes have devices."""
    base = tmp_path_factory.mktemp("bench")
    (base / "project").mkdir()
    return Flexwarm(base / "project", base / "store")


def test_lanes_that_share_a_device_deadlock_in_the_drill_also_where_the_device_is_not_there(one_store: Flexwarm) -> None:
    one_store.spec(LANES.format(devices="cuda:0"))
    done = one_store.run_json("build", "--target", "h200:1")
    assert (done.code, done.json["verdict"]) == (0, "built"), done.messages() or done.err
    done = one_store.run_json("verify", "--target", "h200:1", "--hang-timeout", "10")
    assert (done.code, done.json["verdict"]) == (8, "unsafe"), done.messages()
    (hang,) = [hazard for hazard in done.json["hazards"] if hazard["code"] == "compile-deadlock"]
    assert "holds torch's compile lock and waits for the autograd engine" in hang["message"]
    assert "compile_fx_backward" in hang["message"]
    assert one_store.processes_left() == []


def test_lanes_on_devices_of_their_own_are_built_and_warm(one_store: Flexwarm) -> None:
    one_store.spec(LANES.format(devices="cuda:0-2"))
    done = one_store.run_json("build", "--target", "h200:3")
    assert (done.code, done.json["verdict"]) == (0, "built"), done.messages() or done.err
    # The drill, which compiles everything again for each lane, is for the deadlock above.
    done = one_store.run_json("verify", "--target", "h200:3", "--no-drill")
    assert (done.code, done.json["verdict"], hazards(done)) == (0, "warm", set()), done.messages()
    assert {(job["lane"], job["device"], job["outcome"]) for job in done.json["jobs"]} == {
        (lane, f"cuda:{lane}", "hit") for lane in range(3)
    }
    assert one_store.processes_left() == []
