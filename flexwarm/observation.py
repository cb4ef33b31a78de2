"""What an observed program of a launch line is told: a JSON file that a variable names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flexwarm.canonical import StrEnum, plain
from flexwarm.nodes import NodeFacts
from flexwarm.request import Backward, Guard, Tuning

SCHEMA = 2

#: Names the file; every process of the launch inherits it.
VARIABLE = "FLEXWARM_OBSERVE"


class OnMiss(StrEnum):
    """What a program does at something that the bucket does not have."""

    ALLOW = "allow"  # compile
    WARN = "warn"  # say so on standard error, and compile
    FAIL = "fail"  # stand still, before anything is compiled or written; the parent ends the launch


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """Everything an observed program is told. Paths are absolute.

    Attributes:
        run: names the run.
        directory: where each program makes its own event file.
        site: the directory that is first on ``PYTHONPATH``.
        home: where flexwarm itself is installed.
        variables: those of the bucket, as the launch was given them.
        node: what this node has, for the other nodes of the launch.
        hang_seconds: how long the holder of torch's compile lock and one that waits for it may stand still.
    """

    run: str
    directory: str
    site: str
    home: str
    on_miss: OnMiss
    guard: Guard
    backward: Backward
    hang_seconds: float
    variables: Mapping[str, str]
    node: NodeFacts | None = None
    tuning: Tuning = Tuning.MISS

    def to_json(self) -> dict[str, Any]:
        data: dict[str, Any] = plain(self)
        return {"schema": SCHEMA, **data}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Observation:
        """Inverse of :meth:`to_json`.

        Raises:
            ValueError: of another schema: the program has another flexwarm.
        """
        if data.get("schema") != SCHEMA:
            raise ValueError(f"an observation of schema {data.get('schema')!r}; this flexwarm knows {SCHEMA}")
        fields = {key: value for key, value in data.items() if key != "schema"}
        fields["on_miss"], fields["guard"] = OnMiss(data["on_miss"]), Guard(data["guard"])
        fields["backward"], fields["tuning"] = Backward(data["backward"]), Tuning(data["tuning"])
        fields["node"] = NodeFacts.from_json(data["node"]) if data.get("node") is not None else None
        return cls(**fields)
