"""Device profiles: those of the package are whole and say where they are from; a wrong one is refused."""

from __future__ import annotations

import json
import platform
import re
from pathlib import Path

import pytest

from flexwarm import toolchain
from flexwarm.errors import ExitCode, FlexwarmError, UnsupportedError, UsageError
from flexwarm.fingerprint import Fingerprint
from flexwarm.target import Target, profile_text
from flexwarm.toolchain import profiles
from flexwarm.toolchain.profiles import NULLGPU, attribute_names, builtin_profiles, read_profile, read_target
from flexwarm.toolchain.torch_install import TorchInstall

REQUIRED = re.findall(r"^REQUIRED\(\d+, (\w+)\)", (NULLGPU / "src" / "attributes.def").read_text(), re.MULTILINE)


@pytest.mark.parametrize("name", sorted(builtin_profiles()))
def test_a_profile_of_the_package_has_every_required_attribute_with_its_source(name: str) -> None:
    profile = read_profile(name)
    assert set(REQUIRED) <= set(profile.attributes)
    assert profile.host == {}
    assert profile.sources.keys() - {"*", "total_memory_bytes"} <= profile.attributes.keys()
    assert all(profile.sources.values())
    # Without a word for all, each value must have its own.
    assert "*" in profile.sources or set(profile.attributes) <= set(profile.sources)


def test_what_was_read_on_a_gpu_says_so_and_nothing_else_does() -> None:
    measured = {name for name in builtin_profiles() if read_profile(name).measured}
    assert measured == {"h200"}
    assert len(read_profile("h200").attributes) == len(attribute_names())


def test_a_target_may_be_a_file(tmp_path: Path) -> None:
    path = tmp_path / "own.json"
    path.write_text(json.dumps(read_profile("h200").to_json()))
    target = read_target(f"{path}:3")
    assert (target.profile, target.count) == (read_profile("h200"), 3)
    assert profile_text(target.profile).startswith("name = NVIDIA H200\n")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("h300", "there is no device profile 'h300'; there are a100-80gb, b200"),
        ("./none.json", "cannot be read: No such file"),
        ("./broken.json", "is not JSON"),
        ("./strange.json", "attributes.warp_speed is no attribute that a driver has"),
        ("./none-of-it.json", "attributes.multiprocessor_count is 0, and no GPU has so few"),
    ],
)
def test_what_is_no_profile_is_refused(text: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("broken.json").write_text("{")
    data = read_profile("h200").to_json()
    Path("strange.json").write_text(json.dumps({**data, "attributes": {**data["attributes"], "warp_speed": 9}}))
    Path("none-of-it.json").write_text(json.dumps({**data, "attributes": {**data["attributes"], "multiprocessor_count": 0}}))
    with pytest.raises(UsageError, match=re.escape(words)):
        read_target(text)


def test_a_machine_without_a_driver_has_no_profile_to_read() -> None:
    if toolchain.gpus():
        pytest.skip("this machine has a GPU, whose profile can be read")
    with pytest.raises(UnsupportedError, match="no NVIDIA GPU can be read here"):
        profiles.measured_profile(0, Fingerprint(select={}, explain={}))


def fingerprint_for(host: dict[str, str], monkeypatch: pytest.MonkeyPatch, *, cuda: str | None = "13.0") -> Fingerprint:
    profile = read_profile("h200")
    target = Target(asked="own.json", profile=type(profile)(**{**vars_of(profile), "host": host}), count=2)
    install = toolchain.find_torch()
    assert install is not None
    fields = {name: getattr(install, name) for name in TorchInstall.__dataclass_fields__}
    monkeypatch.setattr(toolchain, "find_torch", lambda: TorchInstall(**{**fields, "cuda": cuda}))
    return toolchain.fingerprint({}, store=None, target=target)


def vars_of(value: object) -> dict[str, object]:
    return {name: getattr(value, name) for name in type(value).__dataclass_fields__}  # type: ignore[attr-defined]


@pytest.mark.torch
def test_the_fingerprint_is_the_targets_and_says_on_what_it_was_built(monkeypatch: pytest.MonkeyPatch) -> None:
    found = fingerprint_for({"cpu.capability": "AVX1024"}, monkeypatch)
    assert found.select["gpu.class"] == "NVIDIA H200 cc9.0"
    assert found.select["cpu.capability"] == "AVX1024"
    assert found.explain["built_on.cpu.capability"] not in ("", "AVX1024")
    assert (found.explain["gpu.count"], found.explain["gpu.driver"]) == ("2", "none")


@pytest.mark.torch
def test_another_torch_than_the_gpu_machine_has_is_refused_with_both(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        FlexwarmError, match=r"torch.version is .* here and 1.0 on the machine of the profile own.json"
    ) as caught:
        fingerprint_for({"torch.version": "1.0"}, monkeypatch)
    assert caught.value.exit_code is ExitCode.UNSUPPORTED


def has(libc: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "libc_ver", lambda: libc)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("here", "there"),
    [
        (("glibc", "2.36"), "glibc 2.36"),
        (("glibc", "2.36"), "glibc 2.39"),
        (("glibc", "2.9"), "glibc 2.36"),
        (("glibc", "2.36"), "glibc 2.36.1"),
        (("", ""), "unknown"),
    ],
)
def test_a_c_library_that_is_as_new_loads_what_is_compiled_here(
    here: tuple[str, str], there: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    has(here, monkeypatch)
    assert fingerprint_for({"platform.libc": there}, monkeypatch).select["platform.libc"] == there


@pytest.mark.torch
@pytest.mark.parametrize(
    ("here", "there"),
    [
        (("glibc", "2.36"), "glibc 2.35"),
        (("glibc", "2.36"), "glibc 2.4"),
        (("glibc", "2.36"), "unknown"),
        (("", ""), "glibc 2.36"),
        (("glibc", "2.36"), "musl 2.40"),
        (("glibc", "2.36"), "glibc new"),
    ],
)
def test_a_c_library_that_is_older_or_another_is_refused_with_both(
    here: tuple[str, str], there: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    has(here, monkeypatch)
    with pytest.raises(UnsupportedError) as caught:
        fingerprint_for({"platform.libc": there}, monkeypatch)
    assert f"that of the profile own.json {there}: host code from here may not load there" in caught.value.message
    assert (" ".join(here).strip() or "unknown") in caught.value.message
    assert caught.value.hint.startswith(f"build in a container that has {there}")


@pytest.mark.torch
def test_another_architecture_is_refused_before_what_follows_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    host = {"python.abi": "cpython-311-riscv64-linux-gnu", "platform.machine": "riscv64", "platform.libc": "glibc 2.0"}
    with pytest.raises(UnsupportedError, match=r"and that of the profile own\.json riscv64: host code from here") as caught:
        fingerprint_for(host, monkeypatch)
    assert caught.value.hint == "build on a machine that is riscv64"


@pytest.mark.torch
def test_a_torch_without_cuda_builds_for_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnsupportedError, match="a build without CUDA"):
        fingerprint_for({}, monkeypatch, cuda=None)
