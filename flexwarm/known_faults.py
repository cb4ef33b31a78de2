"""Releases that are known to do something unexpected to caches or to flex_attention, and which of them matter here. Pure.

The faults are data, in ``known_faults.toml`` beside this module; nothing is decided by them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from flexwarm.canonical import StrEnum
from flexwarm.plan import Plan
from flexwarm.workload import CallSite

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
    OWN_CODE = "own-code"  # more is compiled than attention: a model, or kernels of the user's own


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


def applying(
    faults: Iterable[KnownFault], installed: Mapping[str, str], facts: Mapping[Condition, bool]
) -> tuple[Applying, ...]:
    """The faults of the installed versions that matter, or may, those that are certain first.

    Args:
        installed: package -> version; one that is not installed has no faults.
        facts: what is known to be so, or not to be so; of the rest nothing is known.
    """
    found = []
    for fault in faults:
        version = installed.get(fault.package, "")
        states = [facts.get(condition) for condition in fault.when]
        if _is_of(version, fault.versions) and False not in states:
            found.append(Applying(fault=fault, installed=version, certain=all(states)))
    return tuple(sorted(found, key=lambda one: not one.certain))


def _is_of(version: str, versions: str) -> bool:
    try:
        return SpecifierSet(versions).contains(Version(version), prereleases=True)
    except InvalidVersion:
        return False


def facts_of_plan(plan: Plan, environ: Mapping[str, str]) -> dict[Condition, bool]:
    """What a plan says of its launch, under ``environ``."""
    workers, jobs = plan.workers, plan.jobs
    devices = {job.device for job in jobs}
    sites = {job.workload.call_site for job in jobs}
    steps = any(job.workload.step is not None for job in jobs)
    lanes = [{(job.lane, job.device) for job in worker.jobs} for worker in workers]
    facts = {
        Condition.CPU: "cpu" in devices,
        Condition.CUDA: devices != {"cpu"},
        Condition.SEVERAL_LANES: any(len({lane for lane, _ in seats}) > 1 for seats in lanes),
        Condition.SHARED_DEVICE: any(len(seats) > len({device for _, device in seats}) for seats in lanes),
        Condition.SEVERAL_DEVICES: len(devices - {"cpu"}) > 1,
        Condition.SEVERAL_RANKS: len(workers) > 1,
        Condition.GRADIENTS: any(job.workload.grad for job in jobs),
        Condition.CHECKPOINT: bool(sites & {CallSite.CHECKPOINT, CallSite.SELECTIVE_CHECKPOINT}),
        Condition.SELECTIVE_CHECKPOINT: CallSite.SELECTIVE_CHECKPOINT in sites,
        Condition.OWN_CODE: steps,
        Condition.THREADS_UNSET: any("OMP_NUM_THREADS" not in {**environ, **worker.env} for worker in workers),
    }
    # What a step function does inside is not in the plan.
    inside = (Condition.GRADIENTS, Condition.CHECKPOINT, Condition.SELECTIVE_CHECKPOINT)
    return {name: value for name, value in facts.items() if value or not (steps and name in inside)}
