"""Where a bucket was built without its GPU: recorded once, by whoever compiled, and told to whoever uses it."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flexwarm import __version__, toolchain
from flexwarm.manifest import JobEntry, KeyEntry, Manifest
from flexwarm.ops import publish
from flexwarm.ops.run import RunResult
from flexwarm.plan import Plan
from flexwarm.reasons import Kind
from flexwarm.render.run import origin_notes
from flexwarm.target import DeviceProfile, Target
from flexwarm.verdict import conclude

PROFILE = DeviceProfile(name="NVIDIA Test", total_memory_bytes=1, attributes={"multiprocessor_count": 2}, measured=True)
TARGET = Target(asked="./test.json", profile=PROFILE, count=2)
ELSEWHERE = {
    "host": "ci-7",
    "user": "uid 1001",
    "platform": "Linux x86_64 glibc 2.36",
    "processor": "Some CPU",
    "flexwarm": "0.1.0",
    "profile": "h200",
    "measured": False,
}


def job(share: str = "s", keys: tuple[str, ...] = ("k",), **detail: Any) -> JobEntry:
    return JobEntry(
        share=share,
        workload="w",
        detail=detail,
        keys=tuple(KeyEntry(layer="fx", key=key) for key in keys),
        env={},
        config_digest="",
        cold_seconds=None,
        built_at="2026-01-01T00:00:00+00:00",
    )


def manifest_of(*jobs: JobEntry) -> Manifest:
    return Manifest(
        fingerprint="ab" * 10, created_at="", flexwarm_version="0", files=(), jobs={entry.share: entry for entry in jobs}
    )


def test_a_job_says_for_which_gpu_and_on_which_machine_by_whom_and_from_what() -> None:
    detail = publish.built_for(TARGET)
    assert detail["built_for"] == {"name": "NVIDIA Test", "shape": {"multiprocessor_count": 2}}
    origin = detail["built_on"]
    assert (origin["host"], origin["flexwarm"]) == (socket.gethostname(), __version__)
    assert (origin["profile"], origin["measured"]) == ("./test.json", True)
    assert str(os.geteuid()) in origin["user"]
    assert origin["platform"].startswith(f"{os.uname().sysname} {os.uname().machine}")
    assert isinstance(origin["processor"], str)


def test_what_was_built_with_its_gpu_says_nothing() -> None:
    assert publish.built_for(None) == {}


def test_a_user_without_a_name_is_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 987654)
    assert publish.built_for(TARGET)["built_on"]["user"] == "uid 987654"


def test_the_processor_is_what_the_kernel_calls_it() -> None:
    text = Path("/proc/cpuinfo").read_text()
    processor = toolchain.machine()["processor"]
    assert processor in text if "model name" in text else processor == "unknown"


def test_who_finds_everything_built_has_not_built_it() -> None:
    """So a warm build, whoever starts it, has nothing to write."""
    known = job(**{**publish.built_for(TARGET), "built_on": ELSEWHERE})
    entry = job(**publish.built_for(TARGET))
    assert publish.keep_origin(known, entry) == known


def test_who_compiled_something_has() -> None:
    entry = job(keys=("k", "new"), **publish.built_for(TARGET))
    assert publish.keep_origin(job(**{**publish.built_for(TARGET), "built_on": ELSEWHERE}), entry) == entry
    assert publish.keep_origin(None, entry) == entry


def test_an_origin_that_nobody_wrote_down_is_not_made_up_later() -> None:
    known = job(built_for={"name": "NVIDIA Test", "shape": {"multiprocessor_count": 2}})
    assert publish.keep_origin(known, job(**publish.built_for(TARGET))) == known


def test_a_build_on_the_gpu_is_no_build_without_it() -> None:
    assert publish.keep_origin(job(**{**publish.built_for(TARGET), "built_on": ELSEWHERE}), job()) == job()


def test_each_origin_is_told_once() -> None:
    detail = {**publish.built_for(TARGET), "built_on": ELSEWHERE}
    unknown = job("c", built_for=detail["built_for"])
    found = publish.origins(manifest_of(job("a", **detail), job("b", **detail), unknown, job("d")))
    assert found == ({"gpu": "NVIDIA Test", **ELSEWHERE}, {"gpu": "NVIDIA Test", **dict.fromkeys(ELSEWHERE)})
    assert publish.origins(manifest_of(job())) == publish.origins(None) == ()


def result(**changes: Any) -> RunResult:
    value = RunResult(
        verdict=conclude([], [], best=Kind.WARM),
        bucket="ab" * 10,
        bucket_path="/b",
        plan=Plan(workers=()),
        record=None,
        cold_seconds={},
        seconds=1.0,
        built_for=({"gpu": "NVIDIA Test", **ELSEWHERE}, {"gpu": "NVIDIA Test", **ELSEWHERE, "profile": "./other.json"}),
    )
    return replace(value, **changes)


def test_on_the_gpu_machine_one_line_says_who_built_it_and_where() -> None:
    assert origin_notes(result()) == ["built for NVIDIA Test without it, on ci-7 by uid 1001"]
    unknown = {"gpu": "NVIDIA Test", **dict.fromkeys(ELSEWHERE)}
    assert origin_notes(result(built_for=(unknown,))) == ["built for NVIDIA Test without it"]
    assert origin_notes(result(built_for=())) == []


def test_where_the_gpu_is_not_the_verdict_says_that_already() -> None:
    assert origin_notes(result(target="2 x NVIDIA Test")) == []
