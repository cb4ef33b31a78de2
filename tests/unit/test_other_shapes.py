"""A bucket that was built without its GPU is for a GPU of one size: nothing of that is in a key."""

from __future__ import annotations

import dataclasses

import pytest

from flexwarm.manifest import JobEntry
from flexwarm.ops import publish
from flexwarm.reasons import Code
from flexwarm.target import Target
from flexwarm.toolchain import profiles

SHAPE = {"multiprocessor_count": 132, "warp_size": 32}


def job(**detail: object) -> JobEntry:
    return JobEntry(
        share="s", workload="w", detail=detail, keys=(), env={}, config_digest="", cold_seconds=None, built_at="2026"
    )


def built_for(**shape: int) -> JobEntry:
    return job(built_for={"name": "NVIDIA H200", "shape": {**SHAPE, **shape}})


@pytest.mark.parametrize(
    ("jobs", "here", "found"),
    [
        ([built_for()], [SHAPE], 0),
        ([built_for()], [SHAPE, SHAPE], 0),
        ([built_for(multiprocessor_count=66)], [SHAPE], 1),
        ([built_for()], [SHAPE, {**SHAPE, "multiprocessor_count": 114}], 1),
        ([built_for(), built_for(warp_size=64)], [SHAPE], 1),
    ],
)
def test_another_size_is_named(
    jobs: list[JobEntry], here: list[dict[str, int]], found: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profiles, "ask_driver", lambda: here)
    reasons = publish.other_shapes(jobs)
    assert [reason.code for reason in reasons] == [Code.FINGERPRINT_CHANGED] * found
    assert all("NVIDIA H200" in reason.message for reason in reasons)


def test_what_was_built_on_the_gpu_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiles, "ask_driver", lambda: pytest.fail("nobody is to be asked"))
    assert publish.other_shapes([job()]) == []


def test_a_target_is_asked_instead_of_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiles, "ask_driver", lambda: pytest.fail("the GPU is not there"))
    profile = profiles.read_profile("h200")
    target = Target(asked="./half.json", profile=profile, count=1)
    whole = job(built_for={"name": profile.name, "shape": profile.shape})
    assert publish.other_shapes([whole], target) == []
    half = dataclasses.replace(profile, attributes={**profile.attributes, "multiprocessor_count": 66})
    (reason,) = publish.other_shapes([whole], dataclasses.replace(target, profile=half))
    assert reason.message == "built for NVIDIA H200 with multiprocessor_count 132, and ./half.json has 66"
