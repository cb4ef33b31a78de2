"""A target is read whole or refused in one sentence that names the file and what is wrong."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from flexwarm.errors import UsageError
from flexwarm.target import Target, profile_from_json, profile_text, split_target

PROFILE: dict[str, Any] = {
    "schema": 1,
    "name": "NVIDIA Test",
    "total_memory_bytes": 1 << 30,
    "attributes": {"compute_capability_major": 9, "compute_capability_minor": 0, "multiprocessor_count": 2},
    "measured": False,
    "sources": {"*": "made up"},
    "host": {},
}


def changed(**changes: Any) -> dict[str, Any]:
    return {**copy.deepcopy(PROFILE), **changes}


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("h200", ("h200", 1)),
        ("h200:8", ("h200", 8)),
        ("h200:64", ("h200", 64)),
        ("./here/h200.json:2", ("./here/h200.json", 2)),
        ("./here/h200.json", ("./here/h200.json", 1)),
    ],
)
def test_a_target_is_a_profile_and_a_count(text: str, parts: tuple[str, int]) -> None:
    assert split_target(text) == parts


@pytest.mark.parametrize("text", ["h200:0", "h200:65", "h200:-1", "h200:two", "h200:", "h200:²"])
def test_a_count_that_is_none_is_refused_with_the_target(text: str) -> None:
    with pytest.raises(UsageError, match=text.replace("²", ".")):
        split_target(text)


def test_a_profile_goes_to_json_and_back() -> None:
    profile = profile_from_json(PROFILE, "p.json")
    assert profile.capability == "9.0"
    assert profile_from_json(profile.to_json(), "p.json") == profile


def test_the_text_for_the_library_has_each_value_once_and_in_one_order() -> None:
    profile = profile_from_json(PROFILE, "p.json")
    assert profile_text(profile).splitlines() == [
        "name = NVIDIA Test",
        "total_memory = 1073741824",
        "compute_capability_major = 9",
        "compute_capability_minor = 0",
        "multiprocessor_count = 2",
    ]


def test_targets_are_told_apart_by_count_and_by_every_value() -> None:
    profile = profile_from_json(PROFILE, "p.json")
    other = profile_from_json(changed(attributes={**PROFILE["attributes"], "multiprocessor_count": 3}), "p.json")
    targets = [Target(asked="p", profile=p, count=n) for p in (profile, other) for n in (1, 2)]
    assert len({target.identity for target in targets}) == 4


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ([], "not a device profile of schema 1"),
        (changed(schema=2), "not a device profile of schema 1"),
        (changed(name=3), "name must be text"),
        (changed(total_memory_bytes="80 GB"), "total_memory_bytes must be a whole number"),
        (changed(total_memory_bytes=True), "total_memory_bytes must be a whole number"),
        (changed(total_memory_bytes=0), "total_memory_bytes must be more than nothing"),
        (changed(measured="yes"), "measured must be true or false"),
        (changed(measured=1), "measured must be true or false"),
        (changed(attributes={}), "attributes.compute_capability_major is missing"),
        (changed(attributes={"compute_capability_major": 9}), "attributes.compute_capability_minor is missing"),
        (changed(attributes={**PROFILE["attributes"], "l2_cache_size": 1.5}), "attributes.l2_cache_size must be a whole"),
        (changed(sources={"*": 3}), "sources.. must be text"),
        (changed(host={"torch.version": 2.11}), "host.torch.version must be text"),
        (changed(driver_path=7), "driver_path must be text"),
        (changed(hosts={}), "hosts is no field"),
        ({key: value for key, value in PROFILE.items() if key != "host"}, "host must be a table"),
        (changed(name="two\nlines"), "name must be text on one line"),
    ],
)
def test_what_is_no_profile_is_refused_by_file_and_field(data: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        profile_from_json(data, "p.json")
    assert caught.value.message.startswith("p.json: ")
    assert "fingerprint --profile" in caught.value.hint
