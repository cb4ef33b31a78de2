"""Roles, their ranks, and the device that each rank sees: the layout of the job, without any machine in it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flexwarm.canonical import StrEnum
from flexwarm.errors import SpecError
from flexwarm.tables import Table

CPU = "cpu"

#: A lane that starts later than this would not be beside the others any more.
MAX_STAGGER_SECONDS = 600.0


class ProcessGroup(StrEnum):
    """Whether ranks join a process group before they compile."""

    NONE = "none"
    GLOO = "gloo"
    NCCL = "nccl"


class LaneContext(StrEnum):
    """In which context (``contextvars``) the threads of a rank run; torch 2.12 and later keep settings there."""

    NEW = "new"  # as threading.Thread starts them: settings of the main thread are not seen
    COPY = "copy"  # contextvars.copy_context().run


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """One kind of process in the job, as one ``torchrun`` would start it.

    Attributes:
        processes: ranks of this role.
        lanes: threads in each process that call compiled code; with one, the main thread does.
        devices: physical devices dealt to the lanes in order, round after round when there are fewer.
        stagger_seconds: how much later than the lane before it a lane starts.
        context: what the lanes see of the main thread's settings.
        isolate: each process sees the devices of its own lanes alone, as index 0 and on.
        env: variables that the job sets for this role.
    """

    name: str
    processes: int = 1
    lanes: int = 1
    devices: tuple[str, ...] = (CPU,)
    stagger_seconds: float = 0.0
    context: LaneContext = LaneContext.NEW
    isolate: bool = False
    env: Mapping[str, str]
    process_group: ProcessGroup = ProcessGroup.NONE

    def device(self, process: int, lane: int = 0) -> str:
        """The physical device of a lane."""
        return self.devices[(process * self.lanes + lane) % len(self.devices)]

    def process_devices(self, process: int) -> tuple[str, ...]:
        """The distinct physical devices of a process's lanes, in order of the lanes."""
        return tuple(dict.fromkeys(self.device(process, lane) for lane in range(self.lanes)))

    @property
    def uses_cpu(self) -> bool:
        return CPU in self.devices

    @property
    def cuda_indices(self) -> tuple[int, ...]:
        """Physical indices of the CUDA devices that this role names, sorted."""
        return tuple(sorted({int(device.partition(":")[2]) for device in self.devices if device != CPU}))


def read_role(data: Any, label: str) -> Role:
    """A role from its TOML table.

    Raises:
        SpecError: names the table, the key and what would be right.
    """
    table = Table(data, label)
    name = table.name()
    table.label = f"role {name!r}"
    processes, lanes = table.integer("processes", 1), table.integer("lanes", 1)
    raw_devices = table.texts("devices")
    devices = expand_devices(raw_devices, table) if raw_devices else (CPU,)
    if len(devices) > processes * lanes:
        table.fail("devices", f"{len(devices)} devices for {processes * lanes} lanes: some would never be used")
    stagger = table.optional_number("stagger")
    if stagger is not None and not 0 <= stagger <= MAX_STAGGER_SECONDS:
        table.fail("stagger", f"expected 0 to {MAX_STAGGER_SECONDS:g} seconds, found {stagger:g}")
    context = table.choice("context", LaneContext, LaneContext.NEW)
    for key in ("stagger", "context"):
        if table.has(key) and lanes == 1:
            table.fail(key, "there is one lane, the main thread", "leave it out, or say lanes = 2")
    isolate = table.flag("isolate", False)
    if isolate and CPU in devices:
        table.fail("isolate", "only CUDA devices can be isolated, and this role uses the cpu")
    env = table.table("env") or {}
    for key, value in env.items():
        if not isinstance(value, str):
            table.fail(f"env.{key}", f"expected text, found {value!r}", f'write {key} = "{value}"')
        if not key or "=" in key or "\0" in key + value:
            table.fail(f"env.{key}", "is not a possible environment variable")
    group = table.choice("process_group", ProcessGroup, ProcessGroup.NONE)
    if group is not ProcessGroup.NONE:
        table.fail("process_group", f"{group.value!r} is not supported by this version", 'leave it out or say "none"')
    table.finish()
    return Role(
        name=name,
        processes=processes,
        lanes=lanes,
        devices=devices,
        stagger_seconds=stagger or 0.0,
        context=context,
        isolate=isolate,
        env=dict(env),
        process_group=group,
    )


_DEVICE = re.compile(r"cuda:(\d+)(?:-(\d+))?")


def expand_devices(texts: tuple[str, ...], table: Table) -> tuple[str, ...]:
    """``("cuda:0-2", "cuda:5")`` as single devices; commas inside a text separate too."""
    devices: list[str] = []
    for piece in (part.strip() for text in texts for part in text.split(",")):
        if piece == CPU:
            devices.append(CPU)
            continue
        match = _DEVICE.fullmatch(piece)
        if match is None:
            table.fail("devices", f"{piece!r} is not a device", 'devices are "cpu", "cuda:0", "cuda:0-4" or a list of these')
        first = int(match[1])
        last = int(match[2]) if match[2] else first
        if last < first:
            table.fail("devices", f"{piece!r} counts down", f'write "cuda:{last}-{first}"')
        devices += [f"cuda:{index}" for index in range(first, last + 1)]
    if CPU in devices and len(set(devices)) > 1:
        table.fail("devices", "a role uses the cpu or CUDA devices, not both", "make two roles")
    if CPU in devices:
        return (CPU,)
    return tuple(devices)


def check_unique(names: list[str], what: str) -> None:
    """Two roles or workloads of one name could not be told apart in any table."""
    for name in names:
        if names.count(name) > 1:
            raise SpecError(f"two {what}s are named {name!r}", "give each its own name")
