"""What a recording came to, as lines for people and as JSON."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

from flexwarm.ops.record import RecordResult


def record_lines(result: RecordResult) -> Iterator[tuple[int, str]]:
    """Level (-1 is said in any case) and line."""
    spec = result.spec
    if spec is None:
        yield -1, f"flexwarm: nothing to record: {_programs(result.observed)} imported torch, and no compiled call was seen"
        return
    workloads = len(spec.workloads) - len(spec.steps)
    counts = f"{_count(len(spec.roles), 'role')}, {_count(workloads, 'workload')}, {_count(len(spec.steps), 'step')}"
    where = f"wrote {result.path}" if result.path is not None else "recorded"
    yield -1, f"flexwarm: {where}: {counts}"
    for step in spec.steps:
        for why in step.why:
            yield 0, f"step {step.name}: {why}"
    for note in spec.notes:
        yield 0, f"note: {note}"
    target = str(result.path) if result.path is not None else "SPEC"
    for step in spec.steps:
        yield 0, f"  next: write the function that step {step.name} names, {step.keys['step']}; the spec says what it is for"
    yield 0, f"  next: flexwarm build {target} && flexwarm verify -- {shlex.join(spec.line)}"


def record_json(result: RecordResult) -> dict[str, Any]:
    """What docs/reference/json.md says."""
    spec = result.spec
    workloads = spec.workloads if spec is not None else ()
    return {
        "verdict": None,
        "exit_code": result.exit_code,
        "command_exit_code": result.command_exit_code,
        "path": str(result.path) if result.path is not None else None,
        "spec": result.text or None,
        "roles": [role.role.name for role in spec.roles] if spec is not None else [],
        "workloads": [
            {"name": x.name, "roles": list(x.roles), "step": x.keys.get("step"), "why": list(x.why)} for x in workloads
        ],
        "notes": list(spec.notes) if spec is not None else [],
        "seconds": round(result.seconds, 3),
    }


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _programs(number: int) -> str:
    return "no program" if number == 0 else _count(number, "program")
