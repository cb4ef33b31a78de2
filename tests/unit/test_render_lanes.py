"""What people and programs see of lanes, hazards and the drill: who brought a hazard about, and what the proof rests on."""

from __future__ import annotations

import dataclasses
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from flexwarm.events import Dense, Event, Hazard
from flexwarm.hazards import REMEDIES, HazardCode
from flexwarm.ops.drill import DrillResult, DrillState, drill_plan
from flexwarm.ops.run import RunResult
from flexwarm.reasons import Kind
from flexwarm.record import End, Exit, Record
from flexwarm.render.progress import RunProgress
from flexwarm.render.run import print_run, run_json
from flexwarm.verdict import judge_verify, with_drill
from tests.unit.test_events import KINDS, sample
from tests.unit.test_render import on_terminal, screen_of
from tests.unit.test_verdict import CLEAN_EXIT, COMPONENTS, hang, hazard
from tests.unit.test_verdict_lanes import FIRST, ONE_DEVICE, SECOND, SHARED, drill_events, one_device, plus, recorded

ROOT = Path(__file__).resolve().parents[2]
STACK = ("train.py:10 in main", "loader.py:20 in load", "loader.py:30 in collate", "loader.py:40 in trace")


def race(job: str | None = SECOND, **changes: Any) -> Hazard:
    values = {"message": "a compiled call was made while lane 0 traced: torch raises", "owner": "lane 0", "owner_lane": 0}
    return hazard(HazardCode.FX_RACE, **{**values, "fate": "raise", "stack": STACK, "job": job, **changes})


def result(
    *more: Event,
    drill: tuple[Event, ...] | None = None,
    state: DrillState = DrillState.RAN,
    exit: Exit = CLEAN_EXIT,
    drill_exit: Exit = CLEAN_EXIT,
    **changes: Any,
) -> RunResult:
    """A verification of two lanes with ``more`` events, and with a drill that had ``drill`` as additional events."""
    record = recorded(ONE_DEVICE, plus(*more)(one_device()), exit)
    verdict = judge_verify(record, SHARED, {}, (), COMPONENTS)
    drilled: Record | None = None
    if drill is not None:
        drilled = recorded(drill_plan(ONE_DEVICE, "/s"), [*drill_events(), *drill], drill_exit)
        verdict = with_drill(verdict, drilled)
    values: dict[str, Any] = {
        "verdict": verdict,
        "bucket": "ab" * 10,
        "bucket_path": "/b",
        "plan": ONE_DEVICE,
        "record": record,
        "cold_seconds": {},
        "seconds": 61.0,
        "bucket_bytes": 353_000_000,
        "bucket_files": 120,
        "drill": DrillResult(state=state if drilled is None else DrillState.RAN, record=drilled),
    }
    return RunResult(**{**values, **changes})


def hazards(found: RunResult) -> list[dict[str, Any]]:
    data: list[dict[str, Any]] = run_json(found)["hazards"]
    return data


# ---- as JSON -------------------------------------------------------------------------------------------------------------


def test_a_run_without_hazards_has_an_empty_list_of_them() -> None:
    assert hazards(result(drill=())) == []


def test_what_is_wrong_and_no_hazard_is_not_among_the_hazards() -> None:
    found = result(exit=Exit(end=End.DIED, status=1, log="/log"))
    assert run_json(found)["reasons"]
    assert hazards(found) == []


def test_a_hazard_has_its_owner_with_stack_and_what_became_of_the_call() -> None:
    assert hazards(result(race())) == [
        {
            "code": "fx-race",
            "message": "a compiled call was made while lane 0 traced: torch raises",
            "hint": REMEDIES[HazardCode.FX_RACE],
            "lane": 1,
            "job": SECOND,
            "fate": "raise",
            "owner": "lane 0",
            "owner_lane": 0,
            "stack": list(STACK),
            "stacks": {},
        }
    ]


def test_a_hazard_that_nobody_brought_about_has_no_owner() -> None:
    (found,) = hazards(result(hazard(HazardCode.FX_LEAK, job=FIRST, owner="", stack=())))
    assert (found["owner"], found["owner_lane"], found["fate"], found["stack"]) == (None, None, None, [])
    assert (found["lane"], found["job"]) == (0, FIRST)


def test_hazards_of_two_owners_have_each_its_own_stack() -> None:
    other = race(owner="thread 'loader'", owner_lane=None, message="a compiled call was made while thread 'loader' traced")
    found = hazards(result(race(), dataclasses.replace(other, stack=("other.py:1 in f",))))
    assert [(x["owner"], x["owner_lane"], x["stack"]) for x in found] == [
        ("lane 0", 0, list(STACK)),
        ("thread 'loader'", None, ["other.py:1 in f"]),
    ]


def test_a_hazard_that_was_seen_often_has_the_stack_of_the_first_time() -> None:
    (found,) = hazards(result(race(), race(stack=("later.py:1 in f",))))
    assert found["stack"] == list(STACK)
    assert found["message"].endswith(" (2 times)")


def test_the_same_hazard_on_two_lanes_is_there_for_each() -> None:
    found = hazards(result(race(FIRST, stack=("one.py:1 in f",)), race(SECOND)))
    assert [(x["job"], x["stack"]) for x in found] == [(FIRST, ["one.py:1 in f"]), (SECOND, list(STACK))]


def test_dense_attention_is_a_hazard_with_the_stack_of_the_call() -> None:
    (found,) = hazards(result(Dense(t=0, job=SECOND, shape=(1, 4, 256, 64), stack=("a.py:1 in f", "b.py:2 in g"))))
    assert (found["code"], found["lane"], found["stack"]) == ("dense-fallback", 1, ["a.py:1 in f", "b.py:2 in g"])


def test_a_hazard_of_no_job_has_its_owner_and_stack_too() -> None:
    (found,) = hazards(result(race(None)))
    assert (found["lane"], found["job"]) == (None, None)
    assert (found["owner"], found["owner_lane"], found["fate"], found["stack"]) == ("lane 0", 0, "raise", list(STACK))


def test_a_hazard_in_the_drill_has_its_owner_and_stack() -> None:
    (found,) = hazards(result(drill=(race(),)))
    assert found["message"].startswith("in the drill: ")
    assert (found["owner"], found["stack"], found["lane"]) == ("lane 0", list(STACK), 1)


def test_a_hazard_that_was_seen_before_the_drill_too_has_the_stack_of_each() -> None:
    found = hazards(result(race(stack=("before.py:1 in f",)), drill=(race(),)))
    assert [(x["message"].startswith("in the drill"), x["stack"]) for x in found] == [
        (False, ["before.py:1 in f"]),
        (True, list(STACK)),
    ]


def test_dense_attention_in_the_drill_has_the_stack_of_its_call() -> None:
    (found,) = hazards(result(drill=(Dense(t=0, job=FIRST, shape=(1, 4, 256, 64), stack=("a.py:1 in f",)),)))
    assert (found["code"], found["stack"]) == ("dense-fallback", ["a.py:1 in f"])


HUNG = Exit(end=End.HUNG, status=-9, log="/log", limit_seconds=60)


def test_a_deadlock_has_the_stacks_of_all_threads() -> None:
    stacks = {"lane 0": ("a.py:1 in f", "a.py:2 in g"), "lane 1": ("b.py:1 in f",)}
    record = recorded(ONE_DEVICE, [*one_device()[:3], dataclasses.replace(hang(FIRST, SECOND), stacks=stacks)], HUNG)
    verdict = judge_verify(record, SHARED, {}, (), COMPONENTS)
    (found,) = hazards(result(verdict=verdict, record=record))
    assert (found["code"], found["lane"], found["job"]) == ("compile-deadlock", None, None)
    assert found["stacks"] == {name: list(lines) for name, lines in stacks.items()}
    (worker,) = run_json(result(verdict=verdict, record=record))["workers"]
    assert worker["end"] == "hung"


def test_a_deadlock_in_the_drill_has_the_stacks_of_all_threads() -> None:
    found = hazards(result(drill=(hang(FIRST, SECOND),), drill_exit=HUNG))
    assert [(x["code"], x["stacks"]) for x in found] == [("compile-deadlock", {"lane 0": ["a.py:1 in f"]})]


def test_a_job_has_its_lane_and_each_shape_how_often_torch_asked() -> None:
    jobs = run_json(result())["jobs"]
    assert [(job["id"], job["rank"], job["lane"], job["leader"]) for job in jobs] == [
        (FIRST, 0, 0, None),
        (SECOND, 0, 1, FIRST),
    ]
    assert [(shape["calls"], shape["checks"]) for job in jobs for shape in job["shapes"]] == [(2, 2), (2, 2)]


def test_the_drill_is_told_with_what_it_did() -> None:
    assert run_json(result(drill=()))["drill"] == {"state": "ran", "ranks": [0], "holds": 6, "calls": 6}
    left_out = run_json(result(state=DrillState.LEFT_OUT))["drill"]
    assert left_out == {"state": "left out", "ranks": [], "holds": 0, "calls": 0}
    a_build = dataclasses.replace(result(), drill=None)
    assert run_json(a_build)["drill"] is None


@pytest.mark.parametrize("remedy", ["report", "fix", "fix+caller"])
def test_the_remedy_is_told_in_one_word(remedy: str) -> None:
    assert run_json(result(remedy=remedy))["guard"] == remedy


# ---- for people ----------------------------------------------------------------------------------------------------------


def printed(capsys: pytest.CaptureFixture[str], found: RunResult, *, verbosity: int = 0) -> str:
    capsys.readouterr()
    print_run(found, verbosity=verbosity)
    return capsys.readouterr().out


def summary(capsys: pytest.CaptureFixture[str], found: RunResult) -> str:
    return next(line for line in printed(capsys, found).splitlines() if line.startswith("verdict: "))


def test_the_summary_says_what_the_drill_did(capsys: pytest.CaptureFixture[str]) -> None:
    assert summary(capsys, result(drill=())) == (
        "verdict: warm (2 of 2 jobs, 1 m 1 s, bucket abababab holds 353.0 MB in 120 files, drill: 6 calls in 6 holds)"
    )


def test_the_summary_says_that_the_drill_was_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    found = result(state=DrillState.LEFT_OUT)
    assert found.verdict.kind is Kind.WARM
    assert summary(capsys, found).endswith("in 120 files, the drill was left out)")


@pytest.mark.parametrize("state", [DrillState.NOT_NEEDED, DrillState.NOT_RUN])
def test_the_summary_says_nothing_of_a_drill_that_nobody_left_out(
    capsys: pytest.CaptureFixture[str], state: DrillState
) -> None:
    assert "drill" not in summary(capsys, result(state=state))
    assert "drill" not in summary(capsys, result(state=DrillState.NOT_RUN, fast=True))


def test_the_summary_of_a_build_says_nothing_of_a_drill(capsys: pytest.CaptureFixture[str]) -> None:
    assert "drill" not in summary(capsys, dataclasses.replace(result(), drill=None))


@pytest.mark.parametrize("remedy", ["fix", "fix+caller"])
def test_the_summary_says_that_the_remedy_was_installed(capsys: pytest.CaptureFixture[str], remedy: str) -> None:
    assert f", guard {remedy}, drill: 6 calls in 6 holds)" in summary(capsys, result(drill=(), remedy=remedy))
    assert f", guard {remedy}, the drill was left out)" in summary(capsys, result(state=DrillState.LEFT_OUT, remedy=remedy))
    assert summary(capsys, result(state=DrillState.NOT_NEEDED, remedy=remedy)).endswith(f", guard {remedy})")
    assert "guard" not in summary(capsys, result(remedy="report"))


def test_a_hazard_is_printed_with_the_innermost_lines_of_its_owners_stack(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, result(race())).splitlines()
    at = next(n for n, line in enumerate(lines) if line.startswith(f"{SECOND}: fx-race: "))
    assert lines[at + 1 : at + 4] == [f"    {place}" for place in STACK[1:]]
    assert not any(STACK[0] in line for line in lines)
    assert any(line.startswith("verdict: unsafe (1 of 2 jobs") for line in lines)
    assert f"  next: {REMEDIES[HazardCode.FX_RACE]}" in lines


def test_all_of_the_stack_is_printed_for_who_wants_more(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, result(race()), verbosity=1).splitlines()
    at = next(n for n, line in enumerate(lines) if line.startswith(f"{SECOND}: fx-race: "))
    assert lines[at + 1 : at + 5] == [f"    {place}" for place in STACK]


def test_a_hazard_in_the_drill_is_printed_with_its_stack_too(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, result(drill=(race(),)))
    assert f"{SECOND}: fx-race: in the drill: a compiled call was made while lane 0 traced: torch raises\n    " in text
    assert STACK[-1] in text


def test_quiet_is_the_verdict_alone(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, result(race()), verbosity=-1)
    assert text.startswith("verdict: unsafe")
    assert text.count("\n") == 1


def test_the_table_in_a_pipe_names_rank_and_lane(capsys: pytest.CaptureFixture[str]) -> None:
    header, first, second, *_ = printed(capsys, result(race())).splitlines()
    assert header.split()[:4] == ["workload", "role", "rank.lane", "device"]
    assert first.split()[:5] == ["w", "r", "0.0", "cpu", "hit"]
    assert second.split()[:5] == ["w", "r", "0.1", "cpu", "unsafe"]


SPEC = '[[workload]]\nname = "window-alibi"\nq_heads = 2\nhead_dim = 32\nq_len = 128\n'


def table(directory: Path, role: str, *, columns: int) -> list[str]:
    (directory / "flexwarm.toml").write_text(f'schema = 1\n[[role]]\nname = "trainer"\n{role}\n{SPEC}')
    return on_terminal(directory, ["verify", "--fast"], columns=columns)


@pytest.mark.parametrize("columns", [40, 60, 100])
def test_the_table_names_rank_and_lane_at_any_width(tmp_path: Path, columns: int) -> None:
    lines = table(tmp_path, "processes = 2\nlanes = 2", columns=columns)
    assert sum("not_run" in line for line in lines) == 4
    rows = "\n".join(lines).partition("no-bucket")[0]
    # Folded, where it must be, but never cut.
    assert re.findall(r"\b\d\.\d\b", rows) == ["0.0", "0.1", "1.0", "1.1"]
    if columns < 76:
        # There is no room for columns of their own.
        assert rows.count("trainer:") == 4
    else:
        assert lines[0].split()[:4] == ["workload", "role", "rank.lane", "device"]
        assert [line.split()[1:4] for line in lines[1:5]] == [["trainer", rank, "cpu"] for rank in ("0.0", "0.1", "1.0", "1.1")]


@pytest.mark.parametrize("columns", [40, 60, 100])
def test_a_rank_of_one_lane_is_named_without_it(tmp_path: Path, columns: int) -> None:
    text = "\n".join(table(tmp_path, "processes = 2", columns=columns))
    assert "rank.lane" not in text
    assert not re.search(r"\b\d\.\d\b", text.partition("no-bucket")[0])


PRINT = """
import sys
sys.path.insert(0, {root!r})
from flexwarm.render.run import print_run
from tests.unit.test_render_lanes import race, result
print_run(result(race(), drill=()), verbosity=0)
"""


@pytest.mark.parametrize("columns", [40, 60, 100])
def test_an_outcome_a_hazard_and_the_drill_are_whole_at_any_width(tmp_path: Path, columns: int) -> None:
    lines = screen_of([sys.executable, "-c", PRINT.format(root=str(ROOT))], tmp_path, columns=columns)
    assert sum(bool(re.search(r"\bunsafe\b", line)) for line in lines[:4]) == 1
    assert sum(bool(re.search(r"\bhit\b", line)) for line in lines[1:4]) == 1
    text = " ".join(" ".join(lines).split())
    assert "fx-race: a compiled call was made while lane 0 traced: torch raises" in text
    assert "drill: 6 calls in 6 holds)" in text


# ---- while it goes on ----------------------------------------------------------------------------------------------------


def test_a_drill_is_followed_after_the_verification(capsys: pytest.CaptureFixture[str]) -> None:
    with RunProgress("verify", quiet=False) as progress:
        progress.on_plan(ONE_DEVICE, "")
        for event in one_device():
            progress.on_event(0, event)
        progress.notify("drill: 1 of 1 ranks, on an empty cache")
        progress.on_plan(drill_plan(ONE_DEVICE, "/s"), "drill")
        for event in drill_events():
            progress.on_event(0, event)
    said = re.sub(r"in \d+ ms", "in T", capsys.readouterr().err).splitlines()
    assert said == [
        "verify: 2 jobs on 1 ranks (1 distinct)",
        f"{FIRST} (cpu): hit in T, 2 hit, 0 missed",
        f"{SECOND} (cpu): hit in T, 0 hit, 0 missed",
        "drill: 1 of 1 ranks, on an empty cache",
        "drill: 2 jobs on 1 ranks (2 distinct)",
        f"{FIRST} (cpu): drilled in T, 0 hit, 0 missed",
        f"{SECOND} (cpu): drilled in T, 0 hit, 0 missed",
    ]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.KIND)
def test_no_kind_of_event_stops_the_display(capsys: pytest.CaptureFixture[str], kind: Any) -> None:
    event = sample(kind)
    with RunProgress("verify", quiet=True) as progress:
        progress.on_plan(ONE_DEVICE, "")
        progress.on_event(0, event)
        if hasattr(event, "job"):
            progress.on_event(0, dataclasses.replace(event, job=SECOND))
    assert capsys.readouterr().err == ""
