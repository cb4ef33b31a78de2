"""What the parent asks of one worker: a JSON file, so that no closure and no pickle crosses the process boundary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flexwarm.canonical import StrEnum, plain
from flexwarm.topology import LaneContext
from flexwarm.workload import Workload, workload_from_json

SCHEMA = 4

#: How long a drill holds a lane inside one trace at most.
HOLD_SECONDS = 10.0


class Purpose(StrEnum):
    """What the worker does."""

    BUILD = "build"  # compile at a miss; the lanes of a rank take turns
    VERIFY = "verify"  # stop a job at its first miss; lanes run beside each other
    DRILL = "drill"  # in an empty cache, hold a lane inside its trace and let the others call


class Guard(StrEnum):
    """What a worker or an observed program does about FX tracing that other threads can see."""

    OFF = "off"  # not even look; for observed programs alone
    REPORT = "report"
    FIX = "fix"  # flexwarm.guard.install()


class Backward(StrEnum):
    """Which threads run backward passes where the remedy is installed."""

    ENGINE = "engine"  # autograd's own thread of each device, as torch does
    CALLER = "caller"  # the thread that calls backward


class Tuning(StrEnum):
    """What a worker or an observed program does where a GPU is to choose between a kernel's variants, all of them compiled."""

    MISS = "miss"  # as at a compile
    TRY = "try"  # time them, and keep nothing: so will the launch
    KEEP = "keep"  # time them, and keep what was the fastest


@dataclass(frozen=True, slots=True, kw_only=True)
class Conduct:
    """What is asked of every worker of a run.

    Attributes:
        hang_seconds: how long the holder of torch's compile lock and one that waits for it may stand still.
        computes: results are held against dense attention; a GPU that is not there computes nothing.
    """

    purpose: Purpose
    guard: Guard = Guard.REPORT
    backward: Backward = Backward.ENGINE
    hang_seconds: float = 60.0
    computes: bool = True
    tuning: Tuning = Tuning.MISS

    @property
    def remedy(self) -> str:
        """In one word for tables and proofs: ``report``, ``fix`` or ``fix+caller``."""
        fixed_for_backward = self.guard is Guard.FIX and self.backward is Backward.CALLER
        return f"{self.guard.value}{'+caller' if fixed_for_backward else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """One job. ``gate``: a file that must appear first, holding ``go`` or why not; None for no wait."""

    id: str
    lane: int
    device: str
    workload: Workload
    gate: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRequest:
    """Everything one worker is told. Paths are absolute."""

    run: str
    conduct: Conduct
    rank: int
    parent: int
    events: str
    lanes: int
    stagger_seconds: float
    context: LaneContext
    jobs: tuple[JobRequest, ...]

    def to_json(self) -> dict[str, Any]:
        data: dict[str, Any] = plain(self)
        return {"schema": SCHEMA, **data}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> WorkerRequest:
        """Inverse of :meth:`to_json`.

        Raises:
            ValueError: a request of another schema: parent and worker are of two installations.
        """
        if data.get("schema") != SCHEMA:
            raise ValueError(f"a request of schema {data.get('schema')!r}; this worker knows {SCHEMA}")
        fields = {key: value for key, value in data.items() if key != "schema"}
        conduct = data["conduct"]
        fields["conduct"] = Conduct(
            purpose=Purpose(conduct["purpose"]),
            guard=Guard(conduct["guard"]),
            backward=Backward(conduct["backward"]),
            hang_seconds=conduct["hang_seconds"],
            computes=conduct["computes"],
            tuning=Tuning(conduct["tuning"]),
        )
        fields["context"] = LaneContext(data["context"])
        fields["jobs"] = tuple(JobRequest(**{**job, "workload": workload_from_json(job["workload"])}) for job in data["jobs"])
        return cls(**fields)
