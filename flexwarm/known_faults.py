"""Releases that are known to do something unexpected to caches or to flex_attention, and which of them matter here. Pure.

The faults are data, in ``known_faults.toml`` beside this module; nothing is decided by them.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from flexwarm.canonical import StrEnum
from flexwarm.plan import Job, Plan, Worker
from flexwarm.workload import CallSite, Shape, Workload

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


class Condition(StrEnum):
    """What must be so for a fault to matter."""

    CPU = "cpu"  # something runs on the CPU
    CUDA = "cuda"  # something runs on a GPU
    GRADIENTS = "gradients"  # a backward pass is compiled
    CHECKPOINT = "checkpoint"  # activation checkpointing, selective or not
    SELECTIVE_CHECKPOINT = "selective-checkpoint"
    SEVERAL_LANES = "several-lanes"  # threads of one process make compiled calls
    SHARED_DEVICE = "shared-device"  # of which two use one device
    SEVERAL_DEVICES = "several-devices"  # processes see devices of different indices
    SEVERAL_RANKS = "several-ranks"
    THREADS_UNSET = "threads-unset"  # OMP_NUM_THREADS is not set, so that a launcher or the machine decides
    MOVED_CACHE = "moved-cache"  # it was copied or moved to another path
    DAMAGED_CACHE = "damaged-cache"  # a file of it was cut off, as by a full disk or a crash of the machine
    SHORT_GROUPED_QUERIES = "short-grouped-queries"  # under 128 of them, and with their group more than a block of the mask
    AUTOGRAD_FUNCTION = "autograd-function"  # a torch.autograd.Function of the user's own is compiled
    AUTOCAST_INSIDE = "autocast-inside"  # an autocast region is inside of what is compiled
    OPAQUE_CALLABLE = "opaque-callable"  # what is compiled calls code that Dynamo does not look into
    BUCKETED_GATHERS = "bucketed-gathers"  # Inductor was told to fuse all-gathers
    OWN_KERNELS = "own-kernels"  # Triton kernels of the user's own are launched


#: What one thing that is compiled, one job or one program, is known to be or not to be.
Facts = Mapping[Condition, bool]


class Seen(StrEnum):
    """How it is known."""

    MEASURED = "measured"
    READ = "read"
    REPORTED = "reported"


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownFault:
    """One row of the table.

    Attributes:
        package: ``torch`` or ``triton``.
        versions: of it, as PEP 440 has them.
        when: all of these must be so.
        hurts_warm: it matters also for a launch in which everything hits.
        source: a public page that says more.
    """

    id: str
    title: str
    package: str
    versions: str
    when: tuple[Condition, ...]
    hurts_warm: bool
    consequence: str
    remedy: str
    source: str
    seen: Seen


@dataclass(frozen=True, slots=True, kw_only=True)
class Applying:
    """A fault of the installed versions.

    Attributes:
        installed: the version.
        certain: all that it takes is known to be so; else it is not known whether some of it is.
    """

    fault: KnownFault
    installed: str
    certain: bool

    def to_json(self) -> dict[str, Any]:
        fault = self.fault
        return {
            "id": fault.id,
            "title": fault.title,
            "package": fault.package,
            "versions": fault.versions,
            "installed": self.installed,
            "certain": self.certain,
            "when": [condition.value for condition in fault.when],
            "hurts_warm": fault.hurts_warm,
            "consequence": fault.consequence,
            "remedy": fault.remedy,
            "source": fault.source,
            "seen": fault.seen.value,
        }


_PACKAGES = ("torch", "triton")
_TEXTS = ("id", "title", "package", "versions", "consequence", "remedy", "source")


def parse(text: str) -> tuple[KnownFault, ...]:
    """The table, from TOML.

    Raises:
        ValueError: it is not TOML; or names the fault and what is wrong with it.
    """
    data = tomllib.loads(text)
    rows = data.get("fault")
    if data.keys() != {"fault"} or not isinstance(rows, list):
        raise ValueError("a table of known faults is a list of [[fault]] and nothing else")
    faults = tuple(_fault(row) for row in rows)
    names = [fault.id for fault in faults]
    if len(set(names)) < len(names):
        raise ValueError(f"two faults are called {next(name for name in names if names.count(name) > 1)}")
    return faults


def _fault(row: Mapping[str, Any]) -> KnownFault:
    name = row.get("id", "a fault without id")
    if row.keys() != {*_TEXTS, "when", "hurts_warm", "seen"}:
        raise ValueError(
            f"{name}: it has {', '.join(sorted(row))}; it must have {', '.join(_TEXTS)}, when, hurts_warm and seen"
        )
    if not all(isinstance(row[text], str) and row[text] for text in _TEXTS):
        raise ValueError(f"{name}: a text is missing")
    if not isinstance(row["hurts_warm"], bool):
        raise ValueError(f"{name}: hurts_warm is true or false")
    if row["package"] not in _PACKAGES:
        raise ValueError(f"{name}: package is {row['package']!r}; it is one of {', '.join(_PACKAGES)}")
    if not row["source"].startswith("https://"):
        raise ValueError(f"{name}: source is {row['source']!r}, which is no https address")
    try:
        SpecifierSet(row["versions"])
        when, seen = tuple(Condition(one) for one in row["when"]), Seen(row["seen"])
    except (InvalidSpecifier, ValueError, TypeError) as error:
        raise ValueError(f"{name}: {error}") from error
    return KnownFault(**{text: row[text] for text in _TEXTS}, when=when, hurts_warm=row["hurts_warm"], seen=seen)


def applying(faults: Iterable[KnownFault], installed: Mapping[str, str], cases: Iterable[Facts]) -> tuple[Applying, ...]:
    """The faults of the installed versions that matter, or may, those that are certain first.

    Args:
        installed: package -> version; one that is not installed has no faults.
        cases: each thing that is compiled. A fault matters where one of them fulfils all its conditions: what is so of one
            job and what is so of another make none.
    """
    known = tuple(cases)
    found = []
    for fault in faults:
        version = installed.get(fault.package, "")
        if not _is_of(version, fault.versions):
            continue
        states = [[facts.get(condition) for condition in fault.when] for facts in known]
        possible = [state for state in states if False not in state]
        if possible:
            found.append(Applying(fault=fault, installed=version, certain=any(all(state) for state in possible)))
    return tuple(sorted(found, key=lambda one: not one.certain))


def _is_of(version: str, versions: str) -> bool:
    try:
        return SpecifierSet(versions).contains(Version(version), prereleases=True)
    except InvalidVersion:
        return False


def facts_of_plan(plan: Plan, environ: Mapping[str, str]) -> tuple[Facts, ...]:
    """What a plan says of each of its jobs, under ``environ``; of jobs that are alike once."""
    indices: dict[str, set[str]] = {}
    for job in plan.jobs:
        indices.setdefault(job.workload.name, set()).update({job.device} - {"cpu"})
    several = {name for name, devices in indices.items() if len(devices) > 1}
    cases = [_facts_of_job(plan, worker, job, several, environ) for worker in plan.workers for job in worker.jobs]
    return tuple({frozenset(facts.items()): facts for facts in cases}.values())


def _facts_of_job(plan: Plan, worker: Worker, job: Job, several_devices: Collection[str], environ: Mapping[str, str]) -> Facts:
    workload = job.workload
    on_gpu = job.device != "cpu"
    facts = {
        Condition.CPU: not on_gpu,
        Condition.CUDA: on_gpu,
        Condition.SEVERAL_LANES: len(worker.lanes) > 1,
        Condition.SHARED_DEVICE: sum(lane.device == job.device for lane in worker.lanes) > 1,
        Condition.SEVERAL_DEVICES: on_gpu and workload.name in several_devices,
        Condition.SEVERAL_RANKS: len(plan.workers) > 1,
        Condition.THREADS_UNSET: "OMP_NUM_THREADS" not in {**environ, **worker.env},
    }
    if workload.step is not None:
        return facts  # what a step function does inside is not in the plan
    inside = dict.fromkeys(_ONLY_OF_MORE_THAN_ATTENTION, False)
    short = None if _chooses_blocks(workload) else any(_is_short_and_grouped(shape) for shape in workload.shapes)
    return {
        **facts,
        **inside,
        Condition.GRADIENTS: workload.grad,
        Condition.CHECKPOINT: workload.call_site in (CallSite.CHECKPOINT, CallSite.SELECTIVE_CHECKPOINT),
        Condition.SELECTIVE_CHECKPOINT: workload.call_site is CallSite.SELECTIVE_CHECKPOINT,
        # Without a mask the block has no end.
        **({} if short is None else {Condition.SHORT_GROUPED_QUERIES: short and workload.mask is not None}),
    }


#: An attention call of a spec has none of these.
_ONLY_OF_MORE_THAN_ATTENTION = (
    Condition.AUTOGRAD_FUNCTION,
    Condition.AUTOCAST_INSIDE,
    Condition.OPAQUE_CALLABLE,
    Condition.BUCKETED_GATHERS,
    Condition.OWN_KERNELS,
)

#: Queries in a block of a mask, and how many fewer there must be for flex_attention to take its kernel for decoding.
_MASK_BLOCK = 128


def _chooses_blocks(workload: Workload) -> bool:
    """It tells flex_attention which kernel or which blocks to take."""
    chosen = ("FORCE_USE_FLEX_ATTENTION", "BACKEND")
    return any(name.endswith("BLOCK_M") or name in chosen for name in workload.kernel_options or ())


def _is_short_and_grouped(shape: Shape) -> bool:
    """The kernel for decoding takes the queries of all heads of a group as one block, rounded up to a power of two."""
    group = shape.q_heads // shape.kv_heads
    return shape.q_len < _MASK_BLOCK and group & (group - 1) == 0 and shape.q_len * group > _MASK_BLOCK
