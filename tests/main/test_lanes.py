"""Threads in a rank: each lane has its jobs and evidence, a build takes turns, a verification runs them side by side."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from flexwarm import toolchain
from tests.harness import SECOND, SMALL, Flexwarm

pytestmark = pytest.mark.torch

#: Up to 2.12 nothing hides the trace of a compile from the calls of other threads.
RACES = toolchain.require_supported().minor < (2, 13)
REMEDY = ("--guard", "fix") if RACES else ()

TWO = SMALL.replace(
    "[[workload]]",
    '[[role]]\nname = "r"\nlanes = 2\nstagger = 0.2\n\n[[workload]]\nsteps = 3\ncalls = 2',
)


def test_lanes_are_built_in_turns_and_proven_side_by_side(warm: Flexwarm, no_process_left: Callable[[], None]) -> None:
    warm.spec(TWO)
    built = warm.run_json("build")
    assert built.code == 0, built.messages()
    assert [(job["id"], job["lane"]) for job in built.json["jobs"]] == [("small/r:0.0", 0), ("small/r:0.1", 1)]

    # Up to 2.12 a compile of one lane makes the warm calls of the others fail, which the drill finds and the remedy closes.
    if RACES:
        found = warm.run_json("verify")
        assert (found.code, found.json["verdict"], found.codes()) == (8, "unsafe", {"fx-race"}), found.messages()
        assert {(hazard["lane"], hazard["owner_lane"]) for hazard in found.json["hazards"]} == {(0, 1), (1, 0)}
    done = warm.run_json("verify", *REMEDY)
    assert (done.code, done.json["verdict"]) == (0, "warm"), done.messages()
    assert done.json["hazards"] == []
    for job in done.json["jobs"]:
        assert job["outcome"] == "hit"
        (shape,) = job["shapes"]
        assert shape["calls"] == 6  # three steps of two calls
        assert shape["checks"] >= shape["calls"]
    # Each lane is held in traces of its own, and the other one called inside each of them.
    drill = done.json["drill"]
    assert drill["state"] == "ran"
    assert drill["ranks"] == [0]
    assert 2 <= drill["holds"] <= drill["calls"]
    assert "drill" in done.err
    no_process_left()
    # The drill's cache is gone, and the proof it left is enough for --fast, also where a drill is not asked for.
    assert not list(warm.bucket.runs.glob("*/cache"))
    assert warm.run_json("verify", "--fast", *REMEDY).code == 0
    assert warm.run_json("verify", "--fast", "--no-drill", *REMEDY).code == 0


def test_a_drill_that_was_left_out_is_said_and_proves_less(warm: Flexwarm) -> None:
    warm.spec(TWO)
    assert warm.run_json("build").code == 0
    done = warm.run_json("verify", "--no-drill")
    assert (done.code, done.json["drill"]["state"]) == (0, "left out")
    said = warm("verify", "--no-drill")
    assert "the drill was left out" in said.out
    fast = warm.run_json("verify", "--fast")
    assert (fast.code, fast.codes()) == (1, {"not-proven"})
    assert warm.run_json("verify", "--fast", "--no-drill").code == 0
    # What was proven without the remedy is not proven with it, nor the other way round.
    other = warm.run_json("verify", "--fast", "--no-drill", "--guard", "fix")
    assert (other.code, other.codes()) == (1, {"not-proven"})


def test_a_lane_that_fails_is_named_and_the_others_come_to_their_end(warm: Flexwarm) -> None:
    warm.module(
        "import threading\n"
        "def mask(context):\n"
        "    if threading.current_thread().name == 'lane-1':\n"
        "        raise ValueError('this lane has no data')\n"
        "    return lambda b, h, q, kv: q >= kv\n"
    )
    warm.spec(TWO.replace('"causal"', '"mymasks:mask"').replace("steps = 3", "mask_args = {}\nsteps = 3"))
    done = warm.run_json("build")
    assert (done.code, done.json["verdict"]) == (5, "broken")
    first, second = done.json["jobs"]
    assert (first["outcome"], second["outcome"]) == ("hit", "failed")
    assert "this lane has no data" in second["reasons"][0]["message"]


def test_lanes_of_one_workload_may_end_before_those_of_the_next_begin(warm: Flexwarm) -> None:
    """A CUDA build of torch 2.11 without a GPU dies where the first thread that used fake tensors has ended."""
    second = SECOND.replace("[[workload]]", "[[workload]]\ncalls = 2")
    warm.spec(TWO + second)
    built = warm.run_json("build")
    assert built.code == 0, built.messages()
    assert [job["outcome"] for job in built.json["jobs"] if job["lane"] == 1] == ["hit", "hit"]
    done = warm.run_json("verify", "--no-drill")
    assert (done.code, done.json["verdict"]) == (0, "warm"), done.messages()


def test_a_cold_bucket_is_cold_for_lanes_too_and_nothing_is_drilled(warm: Flexwarm) -> None:
    warm.spec(TWO)
    assert warm.run_json("build").code == 0
    warm.spec(TWO.replace("q_len = 128", "q_len = 256"))
    done = warm.run_json("verify")
    assert (done.code, done.json["verdict"]) == (1, "cold")
    assert done.json["drill"]["state"] == "not run"


def test_a_single_lane_needs_no_drill_and_has_no_hazard(warm: Flexwarm) -> None:
    done = warm.run_json("verify")
    assert (done.code, done.json["drill"]["state"], done.json["hazards"]) == (0, "not needed", [])
    fixed = warm.run_json("verify", "--guard", "fix")
    assert (fixed.code, fixed.json["guard"], fixed.json["hazards"]) == (0, "fix", [])
