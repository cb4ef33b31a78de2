"""What the parent asks of one worker: a JSON file, so that no closure and no pickle crosses the process boundary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flexwarm.canonical import StrEnum, plain
from flexwarm.workload import Workload, workload_from_json

SCHEMA = 1


class Purpose(StrEnum):
    """What the worker does at a miss: compile, or stop."""

    BUILD = "build"
    VERIFY = "verify"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """One job. ``gate``: a file that must appear first, holding ``go`` or why not; None for no wait."""

    id: str
    device: str
    workload: Workload
    gate: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRequest:
    """Everything one worker is told. Paths are absolute."""

    run: str
    purpose: Purpose
    rank: int
    parent: int
    events: str
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
        fields["purpose"] = Purpose(data["purpose"])
        fields["jobs"] = tuple(
            JobRequest(id=job["id"], device=job["device"], workload=workload_from_json(job["workload"]), gate=job["gate"])
            for job in data["jobs"]
        )
        return cls(**fields)
