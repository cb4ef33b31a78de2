"""Settings that a thread does not see as another one does are told with both values; equal ones are not a word."""

from __future__ import annotations

from pathlib import Path

import pytest

from flexwarm import spec
from flexwarm.events import Event, Hazard, from_line
from flexwarm.hazards import HazardCode
from flexwarm.observer import limits
from flexwarm.observer.recorder import Recorder
from flexwarm.request import Purpose

MAIN = {"torch._dynamo.config.recompile_limit": "64", "torch._inductor.config.max_autotune": "True"}


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    return Recorder(tmp_path / "events", Purpose.VERIFY)


def said(tmp_path: Path) -> list[Event]:
    return [from_line(line) for line in (tmp_path / "events").read_text().splitlines()]


def drift(recorder: Recorder, tmp_path: Path, here: dict[str, str]) -> list[str]:
    with recorder.seat("w/r:0.1", "cpu", 1):
        limits.report_drift(recorder, MAIN, "the main thread", here, "lane 1")
    events = said(tmp_path)
    assert all(isinstance(x, Hazard) and (x.code, x.job) == (HazardCode.LANE_CONFIG_DRIFT, "w/r:0.1") for x in events)
    return [event.message for event in events if isinstance(event, Hazard)]


def test_a_lane_that_sees_what_the_main_thread_sees_is_not_a_word(recorder: Recorder, tmp_path: Path) -> None:
    assert drift(recorder, tmp_path, dict(MAIN)) == []


def test_a_setting_that_a_lane_sees_otherwise_is_told_with_both_values(recorder: Recorder, tmp_path: Path) -> None:
    here = {**MAIN, "torch._dynamo.config.recompile_limit": "8"}
    assert drift(recorder, tmp_path, here) == ["torch._dynamo.config.recompile_limit is 64 in the main thread and 8 in lane 1"]


def test_a_setting_that_only_one_of_them_has_is_unset_in_the_other(recorder: Recorder, tmp_path: Path) -> None:
    here = {"torch._dynamo.config.recompile_limit": "64", "torch._inductor.config.new": "1"}
    assert drift(recorder, tmp_path, here) == [
        "torch._inductor.config.max_autotune is True in the main thread and unset in lane 1; "
        "torch._inductor.config.new is unset in the main thread and 1 in lane 1"
    ]


def test_of_many_settings_three_are_told_and_the_others_counted(recorder: Recorder, tmp_path: Path) -> None:
    here = {**MAIN, **{f"torch._dynamo.config.a{number}": "1" for number in range(5)}}
    (message,) = drift(recorder, tmp_path, here)
    assert message.count(" is unset in the main thread and 1 in lane 1") == 3
    assert message.endswith("; and 2 more")


def test_where_nothing_is_recomputed_a_backward_pass_needs_the_settings_of_inductor_alone() -> None:
    text = 'schema = 1\n[[role]]\nname = "r"\ndevices = "cuda:0"\n[[workload]]\nname = "w"\nq_heads = 4\nhead_dim = 64\n'
    text += "q_len = 128\ngrad = true\n"
    settings = {"torch._dynamo.config.a": "1", "torch._inductor.config.b": "2"}
    (plain,) = spec.parse(text, "s").workloads
    assert limits.read_for_backward(settings, plain) == {"torch._inductor.config.b": "2"}
    for site in ("checkpoint", "selective_checkpoint"):
        (recomputing,) = spec.parse(text + f'call_site = "{site}"\n', "s").workloads
        assert limits.read_for_backward(settings, recomputing) == settings
