"""A GPU that is not there: what is known of its kind, and how many of them a build is for. Values and their check."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from flexwarm import canonical
from flexwarm.canonical import plain
from flexwarm.errors import UsageError

SCHEMA: Final = 1
#: The component by which a process says which GPUs it has that are not really there; and what it says where there are none.
STANDS_IN: Final = "gpu.stands_in"
NOTHING: Final = "nothing"
#: Before a component's name: what the machine that built has, where the target's has another value.
BUILT_ON: Final = "built_on."
#: Attributes that Inductor and Triton size kernels by.
SHAPING: Final = (
    *("multiprocessor_count", "warp_size", "max_threads_per_block", "max_threads_per_multiprocessor"),
    *("max_registers_per_multiprocessor", "max_shared_memory_per_block_optin", "l2_cache_size"),
)
#: What the driver gives a name, with its end.
_NAME_BYTES: Final = 256
#: More devices than any host has; the null GPU's own limit.
MOST_DEVICES: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProfile:
    """All of one kind of GPU that enters a key or the shape of a kernel.

    Attributes:
        name: as torch reports it, such as ``NVIDIA H200``: it is in every key.
        total_memory_bytes: of one device.
        attributes: the driver's device attributes, by its own names in lower case; the compute capability among them.
        measured: read on such a GPU, and not put together from what is published.
        sources: attribute, or ``*`` for all others -> where its value is from.
        host: those components of a fingerprint that the machine with the GPU has; empty for a profile that knows no machine.
        driver_path: where the driver's library lies on that machine: directories with a colon between them, as Triton finds
            and newer ones key them; empty where that is not known.
    """

    name: str
    total_memory_bytes: int
    attributes: Mapping[str, int]
    measured: bool
    sources: Mapping[str, str] = field(default_factory=dict)
    host: Mapping[str, str] = field(default_factory=dict)
    driver_path: str = ""

    @property
    def capability(self) -> str:
        """Compute capability, such as ``9.0``."""
        return f"{self.attributes['compute_capability_major']}.{self.attributes['compute_capability_minor']}"

    @property
    def shape(self) -> dict[str, int]:
        """The attributes that shape kernels and are in no key."""
        return {name: self.attributes[name] for name in SHAPING if name in self.attributes}

    def to_json(self) -> dict[str, Any]:
        data: dict[str, Any] = plain(self)
        return {"schema": SCHEMA, **data}


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """GPUs to build for.

    Attributes:
        asked: the profile as the user named it.
        count: how many devices a process sees.
    """

    asked: str
    profile: DeviceProfile
    count: int

    @property
    def title(self) -> str:
        """For people, such as ``2 x NVIDIA H200``."""
        return f"{self.count} x {self.profile.name}"

    @property
    def identity(self) -> str:
        """What a process that has these GPUs says of them."""
        return f"{self.title} {canonical.digest(profile_text(self.profile))}"


def profile_text(profile: DeviceProfile) -> str:
    """A profile as the null GPU reads it: one ``key = value`` a line."""
    values = {"name": profile.name, "total_memory": profile.total_memory_bytes, **dict(sorted(profile.attributes.items()))}
    return "".join(f"{name} = {value}\n" for name, value in values.items())


def split_target(text: str) -> tuple[str, int]:
    """``PROFILE[:COUNT]`` as profile and count; one device where none is given.

    Raises:
        UsageError: the count is none.
    """
    name, colon, count = text.rpartition(":")
    if not colon:
        return text, 1
    if not (count.isascii() and count.isdigit() and 1 <= int(count) <= MOST_DEVICES):
        raise UsageError(
            f"--target {text}: {count!r} is not a number of devices", f"a number from 1 to {MOST_DEVICES}: {name}:8"
        )
    return name, int(count)


def profile_from_json(data: Any, origin: str) -> DeviceProfile:
    """Inverse of :meth:`DeviceProfile.to_json`.

    Args:
        origin: the file, for the message.

    Raises:
        UsageError: it is no profile, or lacks what every profile has.
    """
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise _wrong(origin, f"it is not a device profile of schema {SCHEMA}")
    data = {"driver_path": "", **data}
    for name, kind, what in _FIELDS:
        if not isinstance(data.get(name), kind) or isinstance(data.get(name), bool) is not (kind is bool):
            raise _wrong(origin, f"{name} must be {what}")
    strange = sorted(data.keys() - {"schema", *(name for name, _, _ in _FIELDS)})
    if strange:
        raise _wrong(origin, f"{strange[0]} is no field of a device profile")
    for name, value in data["attributes"].items():
        if not isinstance(value, int) or isinstance(value, bool) or not -(2**31) <= value < 2**31:
            raise _wrong(origin, f"attributes.{name} must be a whole number of 32 bits")
    for table in ("sources", "host"):
        for name, value in data[table].items():
            if not isinstance(value, str):
                raise _wrong(origin, f"{table}.{name} must be text")
    for name in ("compute_capability_major", "compute_capability_minor"):
        if name not in data["attributes"]:
            raise _wrong(origin, f"attributes.{name} is missing")
    name = data["name"]
    if not name.isprintable() or name != name.strip() or not 0 < len(name.encode()) < _NAME_BYTES:
        raise _wrong(origin, "name must be text on one line, as the driver says it")
    if data["total_memory_bytes"] <= 0:
        raise _wrong(origin, "total_memory_bytes must be more than nothing")
    return DeviceProfile(**{name: data[name] for name, _, _ in _FIELDS})


_FIELDS: Final = (
    ("name", str, "text"),
    ("total_memory_bytes", int, "a whole number"),
    ("attributes", dict, "a table"),
    ("measured", bool, "true or false"),
    ("sources", dict, "a table"),
    ("host", dict, "a table"),
    ("driver_path", str, "text"),
)


def _wrong(origin: str, what: str) -> UsageError:
    return UsageError(f"{origin}: {what}", "flexwarm fingerprint --profile -o FILE writes one on a machine with the GPU")
