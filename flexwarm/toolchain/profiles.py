"""Device profiles: those of the package, a file of the user's, and one that is read on a real GPU."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from flexwarm.errors import UnsupportedError, UsageError
from flexwarm.fingerprint import Fingerprint
from flexwarm.target import DeviceProfile, Target, profile_from_json, split_target

#: The null GPU: its C sources and the profiles that come with it.
NULLGPU: Final = Path(__file__).resolve().parents[1] / "nullgpu"
_PROBE: Final = Path(__file__).with_name("device_probe.py")
_PROBE_LIMIT_S: Final = 60.0
#: Of a fingerprint, what is of the machine with the GPU and not of the GPU.
_HOST: Final = ("torch.", "triton.", "python.", "platform.", "cpu.")


def builtin_profiles() -> dict[str, Path]:
    """Name -> file of each profile in the package."""
    return {path.stem: path for path in sorted((NULLGPU / "profiles").glob("*.json"))}


def read_target(text: str) -> Target:
    """What ``--target`` names.

    Args:
        text: ``PROFILE[:COUNT]``; a profile of the package, or a file, which has a dot or a slash in its name.

    Raises:
        UsageError: there is no such profile, or it is wrong.
    """
    asked, count = split_target(text)
    return Target(asked=asked, profile=read_profile(asked), count=count)


def read_profile(asked: str) -> DeviceProfile:
    """A profile by its name in the package, or from a file.

    Raises:
        UsageError: there is none, or it is wrong.
    """
    known = builtin_profiles()
    if "/" not in asked and "." not in asked:
        if asked not in known:
            raise UsageError(
                f"there is no device profile {asked!r}; there are {', '.join(known)}",
                "or name a file: flexwarm fingerprint --profile -o FILE writes one on a machine with the GPU",
            )
        path = known[asked]
    else:
        path = Path(asked)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"the device profile {path} cannot be read: {error.strerror}", "name another file") from error
    except ValueError as error:
        raise UsageError(f"the device profile {path} is not JSON: {error}", "name another file") from error
    profile = profile_from_json(data, str(path))
    known_attributes = set(attribute_names().values())
    strange = sorted(profile.attributes.keys() - known_attributes)
    if strange:
        raise UsageError(f"{path}: attributes.{strange[0]} is no attribute that a driver has", "remove it")
    missing = sorted(_required_attributes() - profile.attributes.keys())
    if missing:
        hint = "flexwarm fingerprint --profile -o FILE writes all of them on a machine with the GPU"
        raise UsageError(f"{path}: attributes.{missing[0]} is missing", hint)
    for name, value in profile.shape.items():
        if value < 1:
            raise UsageError(
                f"{path}: attributes.{name} is {value}, and no GPU has so few", "look at the profile that it is from"
            )
    return profile


def attribute_names() -> dict[int, str]:
    """Number -> name of each device attribute, from the null GPU's own table."""
    return {number: name for _, number, name in _attributes()}


def _required_attributes() -> set[str]:
    """Those that differ between kinds of GPU, so that nobody can say them but the profile."""
    return {name for kind, _, name in _attributes() if kind == "REQUIRED"}


def _attributes() -> list[tuple[str, int, str]]:
    text = (NULLGPU / "src" / "attributes.def").read_text()
    found = re.findall(r"^(REQUIRED|COMMON|REFUSED)\((\d+), (\w+)", text, re.MULTILINE)
    return [(kind, int(number), name) for kind, number, name in found]


def measured_profile(index: int, fingerprint: Fingerprint) -> DeviceProfile:
    """The profile of a GPU of this machine, as its driver answers.

    Args:
        index: the device, in CUDA's order.
        fingerprint: of this machine.

    Raises:
        UnsupportedError: there is no such GPU, or the driver does not answer.
    """
    told = _ask_driver()
    devices = told["devices"]
    if not 0 <= index < len(devices):
        raise UnsupportedError(f"there is no device cuda:{index}: {len(devices)} are there", "")
    device = devices[index]
    return DeviceProfile(
        name=device["name"],
        total_memory_bytes=device["total_memory_bytes"],
        attributes=_named(device["attributes"]),
        measured=True,
        sources={"*": f"cuDeviceGetAttribute of driver {fingerprint.explain.get('gpu.driver', '?')}"},
        host=host_components(fingerprint.select),
        driver_path=told["driver_path"],
    )


def ask_driver() -> list[dict[str, int]]:
    """The attributes of each GPU of this machine, by their names.

    Raises:
        UnsupportedError: there is no driver, or it does not answer.
    """
    return [_named(device["attributes"]) for device in _ask_driver()["devices"]]


def _named(attributes: Mapping[str, int]) -> dict[str, int]:
    # A number without a name is of a driver that is newer than our table, and in no key that we know.
    names = attribute_names()
    return {names[int(number)]: value for number, value in attributes.items() if int(number) in names}


def host_components(select: Mapping[str, str]) -> dict[str, str]:
    """Those of a fingerprint's components that are of the machine, and not of its GPUs."""
    return {name: value for name, value in select.items() if name.startswith(_HOST)}


def _ask_driver() -> dict[str, Any]:
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", str(_PROBE)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_PROBE_LIMIT_S,
        )
    except subprocess.TimeoutExpired as error:
        raise UnsupportedError(f"the NVIDIA driver did not answer in {_PROBE_LIMIT_S:.0f} s", "look at nvidia-smi") from error
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        why = lines[-1] if lines else f"status {done.returncode}"
        raise UnsupportedError(f"no NVIDIA GPU can be read here: {why}", "a profile is read on a machine with the GPU")
    told: dict[str, Any] = json.loads(done.stdout)
    return told
