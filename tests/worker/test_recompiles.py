"""A function that Dynamo compiles again: what is remembered of it, and told with the miss of its graph."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flexwarm.events import Event, Hazard, Recompiled, from_line
from flexwarm.hazards import HazardCode
from flexwarm.observer import recompiles
from flexwarm.observer.recorder import Recorder
from flexwarm.request import Purpose


def step() -> None:
    """The function that is compiled."""


FRAME = SimpleNamespace(f_code=step.__code__)
ANSWERS = {"keeps": (False, None), "gives up": (True, "recompile_limit")}


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    return Recorder(tmp_path / "events", Purpose.VERIFY)


@pytest.fixture
def dynamo(recorder: Recorder) -> Any:
    """The two functions of Dynamo's, as it calls them before a compile: the first only for one that is a recompile."""
    frames = SimpleNamespace(
        exceeds_recompile_limit=lambda what: ANSWERS[what],
        get_and_maybe_log_recompilation_reasons=lambda entries, frame, backend, skip_logging=False: [
            f"0/{n}: guard\n  {n}" for n in entries
        ],
    )
    api: Any = SimpleNamespace(convert_frame=frames, dynamo_config=SimpleNamespace(recompile_limit=8))
    recompiles.watch(api, recorder)
    return frames


def said(tmp_path: Path) -> list[Event]:
    return [from_line(line) for line in (tmp_path / "events").read_text().splitlines()]


def test_a_function_that_dynamo_gives_up_is_told_with_the_limit_and_torchs_answer_is_untouched(
    recorder: Recorder, dynamo: Any, tmp_path: Path
) -> None:
    with recorder.seat("w/r:0.1", "cpu", 1):
        assert dynamo.exceeds_recompile_limit("keeps") == (False, None)
        assert said(tmp_path) == []
        assert dynamo.exceeds_recompile_limit("gives up") == (True, "recompile_limit")
    (event,) = said(tmp_path)
    assert isinstance(event, Hazard)
    assert (event.code, event.job) == (HazardCode.RECOMPILE_LIMIT, "w/r:0.1")
    assert event.message.endswith("at most 8 times (recompile_limit) and now runs it as it is written")


def test_a_function_that_dynamo_gives_up_is_named_with_the_guard_that_failed_last(
    recorder: Recorder, dynamo: Any, tmp_path: Path
) -> None:
    assert dynamo.get_and_maybe_log_recompilation_reasons([7, 6], FRAME, None) == ["0/7: guard\n  7", "0/6: guard\n  6"]
    dynamo.exceeds_recompile_limit("gives up")
    (event,) = said(tmp_path)
    assert isinstance(event, Hazard)
    where = f"step ({__file__}:{step.__code__.co_firstlineno})"
    assert event.message.endswith(f"{where}, where this guard failed last: 0/7: guard 7")


def test_a_miss_of_a_recompile_is_told_once_with_the_guards_and_that_of_a_first_compile_is_none(
    recorder: Recorder, dynamo: Any, tmp_path: Path
) -> None:
    recompiles.tell(recorder)  # a graph that Dynamo made no function of
    dynamo.exceeds_recompile_limit("keeps")
    recompiles.tell(recorder)
    dynamo.get_and_maybe_log_recompilation_reasons(range(9), FRAME, None)
    dynamo.exceeds_recompile_limit("keeps")
    recompiles.tell(recorder)
    recompiles.tell(recorder)  # the next layer of the same graph
    dynamo.exceeds_recompile_limit("keeps")  # another function, for the first time
    recompiles.tell(recorder)
    (event,) = said(tmp_path)
    assert isinstance(event, Recompiled)
    assert (event.function, event.file, event.line) == ("step", __file__, step.__code__.co_firstlineno)
    assert event.guards == ("0/0: guard 0", "0/1: guard 1", "0/2: guard 2", "0/3: guard 3")


def test_reasons_that_are_asked_for_something_else_are_none(recorder: Recorder, dynamo: Any, tmp_path: Path) -> None:
    dynamo.get_and_maybe_log_recompilation_reasons([0], FRAME, None, skip_logging=True)
    dynamo.exceeds_recompile_limit("keeps")
    recompiles.tell(recorder)
    assert said(tmp_path) == []
