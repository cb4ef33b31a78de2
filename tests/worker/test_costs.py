"""Each moment of a first call is in one part, and together the parts are the call."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from flexwarm.costs import Part
from flexwarm.events import Costs, from_line
from flexwarm.observer.costs import Meter
from flexwarm.observer.recorder import Recorder
from flexwarm.observer.torch_api import timing
from flexwarm.request import Purpose

pytestmark = pytest.mark.torch


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    return Recorder(tmp_path / "events", Purpose.VERIFY)


def said(tmp_path: Path) -> list[Costs]:
    events = [from_line(line) for line in (tmp_path / "events").read_text().splitlines()]
    return [event for event in events if isinstance(event, Costs)]


def meter(recorder: Recorder, monkeypatch: pytest.MonkeyPatch, *, alone: bool = False, follows: bool = True) -> Meter:
    """Of a torch whose events a test makes by hand, by ``begin`` and ``end``."""
    import torch._dynamo.utils as utils

    logger = utils.ChromiumEventLogger
    for name in ("log_event_start", "log_event_end"):
        monkeypatch.setattr(logger, name, getattr(logger, name))
    made = Meter(recorder, alone=alone)
    if follows:
        made.follow_torch()
    return made


def spend() -> float:
    """A moment that a clock can see."""
    began = now = time.perf_counter()
    while now - began < 1e-4:
        now = time.perf_counter()
    return now - began


def begin(one: Meter, name: str) -> None:
    one.begin(name, timing.EVENTS.get(name))


def test_the_parts_of_a_call_are_disjoint_and_are_the_whole_of_it(
    recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = meter(recorder, monkeypatch)
    with recorder.seat("a", "cpu", None):
        before = time.perf_counter()
        with one.first_call():
            inside = time.perf_counter()
            run = spend()
            begin(one, "dynamo")
            dynamo = spend()
            begin(one, "build_guards")
            guards = spend()
            one.end("build_guards")
            begin(one, "compile_attempt_0")  # an event that is no part of its own
            dynamo += spend()
            one.end("compile_attempt_0")
            one.end("dynamo")
            run += spend()
            within = time.perf_counter() - inside
        around = time.perf_counter() - before
    (event,) = said(tmp_path)
    assert event.job == "a"
    assert event.whole_seconds == pytest.approx(sum(event.parts.values()), abs=1e-9)
    assert within - 1e-5 <= event.whole_seconds <= around
    assert all(seconds >= 0 for seconds in event.parts.values())
    assert event.parts["dynamo"] >= dynamo - 1e-6
    assert event.parts["guards"] >= guards - 1e-6
    assert event.parts["run"] >= run - 1e-6
    assert event.parts["load"] == event.parts["keys"] == event.parts["compile"] == event.parts["import"] == 0


def test_a_module_and_a_compile_take_what_is_inside_of_them(
    recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = meter(recorder, monkeypatch)
    for outer in ("inductor_import", "fx_codegen_and_compile"):
        with one.first_call():
            begin(one, outer)
            begin(one, "PyCodeCache.load_by_key_path")
            spend()
            one.end("PyCodeCache.load_by_key_path")
            one.end(outer)
    imported, compiled = said(tmp_path)
    assert imported.parts["load"] == compiled.parts["load"] == 0
    assert imported.parts["import"] >= 1e-4 <= compiled.parts["compile"]


def test_an_end_without_a_beginning_and_a_beginning_without_an_end_take_nothing_from_the_sum(
    recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = meter(recorder, monkeypatch)
    with one.first_call():
        one.end("dynamo")
        begin(one, "dynamo")
        begin(one, "build_guards")
        spend()
        one.end("dynamo")  # and of what is inside of it
        ran = spend()
    begin(one, "dynamo")  # outside of a call nothing is counted
    spend()
    with one.first_call():
        spend()
    first, second = said(tmp_path)
    assert first.parts["run"] >= ran - 1e-6
    assert first.parts["guards"] >= 1e-4 - 1e-6
    assert (second.parts["dynamo"], second.parts["guards"]) == (0, 0)


def test_a_call_that_raises_is_not_said_and_the_next_one_begins_anew(
    recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = meter(recorder, monkeypatch)

    def call() -> None:
        with one.first_call():
            begin(one, "dynamo")
            raise KeyError

    with pytest.raises(KeyError):
        call()
    assert said(tmp_path) == []
    with one.first_call():
        spend()
    (event,) = said(tmp_path)
    assert event.parts["run"] == event.whole_seconds


def test_a_part_that_torch_does_not_tell_is_missing_and_not_nothing(
    recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for follows in (False, True):
        one = meter(recorder, monkeypatch, follows=follows)
        with one.first_call():
            one.begin("a lookup", Part.LOAD)
            spend()
            one.end("a lookup")
            spend()
    for event in said(tmp_path):
        # In the second the events have other names: then the rest of the call may be Dynamo's as well.
        assert not {"dynamo", "guards", "aot", "run", "probe"} & set(event.parts)
        assert event.parts["other"] >= 1e-4
        assert event.parts["load"] >= 1e-4
    assert "import" not in said(tmp_path)[0].parts


def test_another_thread_spends_no_time_of_the_call(recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = meter(recorder, monkeypatch)

    def other() -> None:
        begin(one, "dynamo")
        spend()
        one.end("dynamo")

    with one.first_call():
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    (event,) = said(tmp_path)
    assert event.parts["dynamo"] == 0
    assert event.parts["run"] == event.whole_seconds


def test_a_program_counts_its_compiles_in_each_thread_and_not_what_it_does_between(
    recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = meter(recorder, monkeypatch, alone=True)
    one.tell()
    assert said(tmp_path) == []

    def compile_one() -> None:
        begin(one, "build_guards")  # outside of a compile
        begin(one, "dynamo")
        spend()
        begin(one, "build_guards")
        one.end("build_guards")
        one.end("dynamo")
        spend()

    thread = threading.Thread(target=compile_one)
    thread.start()
    thread.join()
    compile_one()
    one.imported(2.0)
    one.tell()
    one.tell()
    first, second = said(tmp_path)
    assert first.parts == second.parts  # all until now, each time
    assert first.job is None
    assert first.parts["dynamo"] >= 2e-4 - 1e-6
    assert first.parts["import"] == 2.0
    assert "run" not in first.parts
    one.forget()
    one.tell()
    assert len(said(tmp_path)) == 2


def test_an_error_of_the_function_that_is_timed_is_its_own(
    recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Kind:
        def check_build(self, code: str) -> Any:
            raise LookupError(code)

    monkeypatch.setattr(timing, "instructions", lambda: Kind)
    one = meter(recorder, monkeypatch)
    one.follow_probes()
    with one.first_call():
        with pytest.raises(LookupError, match="code"):
            Kind().check_build("code")
        spend()
    (event,) = said(tmp_path)
    assert event.parts["run"] >= 1e-4 - 1e-6
    assert event.parts["probe"] >= 0
