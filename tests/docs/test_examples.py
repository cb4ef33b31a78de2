"""Every example is a spec that parses and plans."""

from __future__ import annotations

from pathlib import Path

import pytest

from flexwarm import spec
from flexwarm.plan import make_plan

EXAMPLES = sorted((Path(__file__).resolve().parents[2] / "examples").glob("*.toml"))


def test_there_are_examples() -> None:
    assert {path.name for path in EXAMPLES} >= {"cpu.toml", "cuda.toml", "threads.toml"}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_parses_and_plans(path: Path) -> None:
    plan = make_plan(spec.parse(path.read_text(), path.name), environ={}, bucket_path="/b", cores=2)
    assert plan.jobs
    assert f"flexwarm verify examples/{path.name}" in path.read_text()
