"""Events and requests cross the process boundary as text and come back as they were."""

from __future__ import annotations

import dataclasses
import json
import typing
from typing import Any

import pytest

from flexwarm import events, spec
from flexwarm.canonical import StrEnum, plain
from flexwarm.events import Answer, Dense, DrillDone, Hang, Hazard, Layer, Open, Phase
from flexwarm.hazards import HazardCode
from flexwarm.program_events import Called
from flexwarm.request import Backward, Conduct, Guard, JobRequest, Purpose, WorkerRequest
from flexwarm.topology import LaneContext
from tests import launches


def sample(kind: Any) -> Any:
    """An event of the kind with a value in each field that is not a default one."""
    hints = typing.get_type_hints(kind)
    values: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        hint = str(hints[field.name])
        if "Mapping" in hint and "tuple" in hint:
            values[field.name] = {"lane 0": ("f.py:1 in g", "f.py:2 in h"), "thread 'loader'": ()}
        elif "Mapping" in hint:
            values[field.name] = {"a": 1 if "int" in hint else 0.5 if "float" in hint else "b"}
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
        elif hint == str(HazardCode):
            values[field.name] = HazardCode.FX_LEAK
        elif hint == str(Open):
            values[field.name] = Open.GRAPH
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


def test_a_hazard_of_nobody_and_of_no_single_call_comes_back_with_empty_fields() -> None:
    seen = Hazard(t=1, job=None, code=HazardCode.FX_LEAK, message="m")
    assert (seen.fate, seen.owner, seen.owner_lane, seen.stack) == ("", "", None, ())
    assert events.from_line(events.to_line(seen)) == seen


def test_each_code_of_a_hazard_comes_back_as_the_code_and_not_as_text() -> None:
    for code in HazardCode:
        back = events.from_line(events.to_line(Hazard(t=1, job="j", code=code, message="m", owner="lane 1", owner_lane=1)))
        assert isinstance(back, Hazard)
        assert back.code is code


def test_hazards_hangs_and_drills_are_among_what_a_worker_may_say() -> None:
    assert {Hazard, Hang, DrillDone} <= set(KINDS)


def test_no_two_kinds_of_event_share_a_name() -> None:
    names = [kind.KIND for kind in KINDS]
    assert len(set(names)) == len(names) == len(events._KINDS)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"event":"party"}',
        '{"event":"bye"}',
        '{"event":"bye","t":1,"x":2}',
        '{"event":"hazard","t":1,"job":"j","code":"fx-party","message":"m","stack":[]}',
        '{"event":"hazard","t":1,"job":"j","message":"m","stack":[]}',
        '{"event":"hang","t":1,"jobs":[],"message":"m","seconds":1,"stacks":[]}',
        '{"event":"hang","t":1,"jobs":[],"message":"m","seconds":1}',
        '{"event":"drill_done","t":1,"job":"j","holds":1,"calls":1,"waited":0}',
        '{"event":"shape_done","t":1,"job":"j","shape":0,"calls":2,"first_seconds":1,"repeat_seconds":1,"error":0,"tolerance":1,'
        '"agrees":true}',
    ],
)
def test_what_is_no_event_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        events.from_line(line)


def test_a_number_that_json_does_not_have_is_refused_and_not_written() -> None:
    with pytest.raises(ValueError, match="JSON"):
        events.to_line(dataclasses.replace(sample(Dense), t=float("nan")))


def request() -> WorkerRequest:
    text = (
        'schema = 1\n[[workload]]\nname = "w"\nq_heads = 4\nhead_dim = 64\nq_len = [128, 256]\nmask_mod = "a.b:c"\nsteps = 3\n'
    )
    (workload,) = spec.parse(text, "s").workloads
    conduct = Conduct(purpose=Purpose.DRILL, guard=Guard.FIX, backward=Backward.CALLER, hang_seconds=7.5)
    jobs = (
        JobRequest(id="w/r:0.0", lane=0, device="cuda:1", workload=workload, gate="/gate"),
        JobRequest(id="w/r:0.1", lane=1, device="cuda:2", workload=workload, gate=None),
    )
    return WorkerRequest(
        run="r",
        conduct=conduct,
        rank=1,
        parent=2,
        events="/e",
        lanes=2,
        stagger_seconds=0.25,
        context=LaneContext.COPY,
        jobs=jobs,
    )


def test_a_request_comes_back_as_it_was_and_one_of_another_schema_is_refused() -> None:
    asked = request()
    sent = json.loads(json.dumps(asked.to_json()))
    back = WorkerRequest.from_json(sent)
    assert back == asked
    # As values and not as the text that they are equal to: the worker compares them with "is".
    assert back.conduct.purpose is Purpose.DRILL
    assert back.conduct.guard is Guard.FIX
    assert back.conduct.backward is Backward.CALLER
    assert back.context is LaneContext.COPY
    for other in (1, 9, None):
        with pytest.raises(ValueError, match=f"schema {other}"):
            WorkerRequest.from_json({**sent, "schema": other})


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [("conduct", "purpose", "party"), ("conduct", "guard", "on"), ("conduct", "backward", "both"), ("", "context", "mine")],
)
def test_a_request_with_a_value_that_nobody_knows_is_refused(section: str, key: str, value: str) -> None:
    data = request().to_json()
    (data[section] if section else data)[key] = value
    with pytest.raises(ValueError, match=value):
        WorkerRequest.from_json(data)


@pytest.mark.parametrize(
    ("guard", "backward", "word"),
    [
        (Guard.REPORT, Backward.ENGINE, "report"),
        (Guard.FIX, Backward.ENGINE, "fix"),
        (Guard.FIX, Backward.CALLER, "fix+caller"),
        # Without the remedy there is no part of it.
        (Guard.REPORT, Backward.CALLER, "report"),
    ],
)
def test_the_remedy_is_one_word_for_tables_and_proofs(guard: Guard, backward: Backward, word: str) -> None:
    assert Conduct(purpose=Purpose.VERIFY, guard=guard, backward=backward).remedy == word


def test_enums_print_as_their_values() -> None:
    for enum in (Phase, Layer, Answer, Open, Purpose, Guard, Backward, LaneContext, HazardCode):
        assert issubclass(enum, StrEnum)
        assert [str(member) for member in enum] == [member.value for member in enum]


@pytest.mark.parametrize(
    ("event", "changes"),
    [
        (launches.program(), {"place": {"rank": "first"}}),
        (launches.program(), {"argv": "python train.py"}),
        (launches.program(), {"pid": None}),
        (launches.program(), {"image": True}),
        (launches.summary(), {"counters": ["hits"]}),
        (launches.summary(), {"t": "now"}),
        (launches.summary(), {"status": "3"}),
        (launches.lookup(Layer.FX), {"key": None}),
        (launches.called(), {"call": {}}),
        (launches.called(), {"call": {"graph": "0/0", "inputs": 3}}),
        (launches.called(), {"call": {**plain(launches.call()), "graph": ["0/0"]}}),
        (launches.called(), {"call": {**plain(launches.call()), "color": "blue"}}),
        (launches.called(), {"call": {**plain(launches.call()), "attention": [{"query": {}}]}}),
        (launches.called(), {"call": [1]}),
    ],
)
def test_what_would_break_whoever_reads_it_is_no_event_of_a_program(event: Any, changes: dict[str, Any]) -> None:
    line = events.to_line(event)
    assert events.foreign_from_line(line) == event
    with pytest.raises(ValueError, match=r"not an? "):
        events.foreign_from_line(json.dumps({**json.loads(line), **changes}))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.KIND)
def test_every_event_of_its_types_is_one_of_a_program(kind: Any) -> None:
    if kind is not Called:  # whose call is one of its own
        event = sample(kind)
        assert events.foreign_from_line(events.to_line(event)) == event
