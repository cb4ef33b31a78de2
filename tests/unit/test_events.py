"""Events and requests cross the process boundary as text and come back as they were."""

from __future__ import annotations

import dataclasses
import typing
from typing import Any

import pytest

from flexwarm import events, spec
from flexwarm.canonical import StrEnum
from flexwarm.events import Answer, Dense, Layer, Phase
from flexwarm.request import JobRequest, Purpose, WorkerRequest


def sample(kind: Any) -> Any:
    """An event of the kind with a value in each field that is not a default one."""
    hints = typing.get_type_hints(kind)
    values: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        hint = str(hints[field.name])
        if "Mapping" in hint:
            values[field.name] = {"a": 1 if "int" in hint else "b"}
        elif "tuple[int" in hint:
            values[field.name] = (1, 2)
        elif "tuple[str" in hint:
            values[field.name] = ("f.py:1 in g",)
        elif hint == str(Phase):
            values[field.name] = Phase.COMPILE
        elif hint == str(Layer):
            values[field.name] = Layer.FX
        elif hint == str(Answer):
            values[field.name] = Answer.BYPASS
        elif "bool" in hint:
            values[field.name] = True
        elif "float" in hint:
            values[field.name] = 0.5
        elif "int" in hint:
            values[field.name] = 7
        else:
            values[field.name] = 'text with "quotes", \u00fcmlaut and\nnewline'
    return kind(**values)


KINDS = typing.get_args(events.Event)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.KIND)
def test_an_event_comes_back_from_its_one_line_as_it_was(kind: Any) -> None:
    event = sample(kind)
    line = events.to_line(event)
    assert line.endswith("\n")
    assert line.count("\n") == 1
    assert events.from_line(line) == event


def test_no_two_kinds_of_event_share_a_name() -> None:
    names = [kind.KIND for kind in KINDS]
    assert len(set(names)) == len(names) == len(events._KINDS)


@pytest.mark.parametrize("line", ["", "{", "[]", "{}", '{"event":"party"}', '{"event":"bye"}', '{"event":"bye","t":1,"x":2}'])
def test_what_is_no_event_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        events.from_line(line)


def test_a_number_that_json_does_not_have_is_refused_and_not_written() -> None:
    with pytest.raises(ValueError, match="JSON"):
        events.to_line(dataclasses.replace(sample(Dense), t=float("nan")))


def test_a_request_comes_back_as_it_was_and_one_of_another_schema_is_refused() -> None:
    text = 'schema = 1\n[[workload]]\nname = "w"\nq_heads = 4\nhead_dim = 64\nq_len = [128, 256]\nmask_mod = "a.b:c"\n'
    (workload,) = spec.parse(text, "s").workloads
    job = JobRequest(id="w/r:0", device="cuda:1", workload=workload, gate="/gate")
    request = WorkerRequest(run="r", purpose=Purpose.VERIFY, rank=1, parent=2, events="/e", jobs=(job,))
    assert WorkerRequest.from_json(request.to_json()) == request
    with pytest.raises(ValueError, match="schema 9"):
        WorkerRequest.from_json({**request.to_json(), "schema": 9})


def test_enums_print_as_their_values() -> None:
    for enum in (Phase, Layer, Answer, Purpose):
        assert issubclass(enum, StrEnum)
        assert [str(member) for member in enum] == [member.value for member in enum]
