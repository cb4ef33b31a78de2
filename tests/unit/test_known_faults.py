"""The table of known faults is data that is checked; which of its rows matter follows from versions and from the launch."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from flexwarm import spec
from flexwarm.known_faults import Condition, KnownFault, applying, facts_of_plan, parse
from flexwarm.ops.known_faults import TABLE
from flexwarm.plan import make_plan
from flexwarm.render.known_faults import fault_lines

FAULTS = parse(TABLE.read_text(encoding="utf-8"))
ROW = """
[[fault]]
id = "one"
title = "t"
package = "torch"
versions = "<2.13"
when = ["cpu"]
hurts_warm = false
consequence = "c"
remedy = "r"
source = "https://example.org/1"
seen = "read"
"""


def test_the_table_that_is_shipped_is_one_and_its_titles_are_phrases() -> None:
    assert len(FAULTS) >= 15
    assert len({fault.id for fault in FAULTS}) == len(FAULTS)
    for fault in FAULTS:
        for text in (fault.title, fault.consequence, fault.remedy):
            assert not text.endswith("."), fault.id
        assert fault.when, fault.id


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("<2.13", "2.13", "one: "),
        ('["cpu"]', '["gpu"]', "'gpu' is not a valid Condition"),
        ('"torch"', '"numpy"', "package is 'numpy'"),
        ("https://example.org/1", "issue 1", "no https address"),
        ('title = "t"', 'title = ""', "a text is missing"),
        ("hurts_warm = false", "hurts_warm = 1", "hurts_warm is true or false"),
        ('seen = "read"', 'seen = "heard"', "'heard' is not a valid Seen"),
        ('seen = "read"', 'seen = "read"\nwhy = "x"', "it must have"),
        ("[[fault]]", "[[faults]]", "a list of [[fault]]"),
    ],
)
def test_a_row_that_cannot_be_right_is_refused_by_name(old: str, new: str, said: str) -> None:
    with pytest.raises(ValueError, match=r".*") as error:
        parse(ROW.replace(old, new))
    assert said in str(error.value)


def test_two_faults_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="two faults are called one"):
        parse(ROW + ROW)


def ids(versions: Mapping[str, str], facts: Mapping[Condition, bool], *, certain: bool) -> set[str]:
    return {one.fault.id for one in applying(FAULTS, versions, facts) if one.certain is certain}


@pytest.mark.parametrize(
    ("version", "applies"),
    [("2.12.1", True), ("2.12.1+cu130", True), ("2.13.0", False), ("2.13.0+cpu", False), ("2.13.0a0", False), ("", False)],
)
def test_versions_are_compared_as_versions(version: str, applies: bool) -> None:
    (fault,) = parse(ROW)
    assert bool(applying([fault], {"torch": version}, {Condition.CPU: True})) is applies
    (two,) = parse(ROW.replace("<2.13", ">=2.9"))
    assert applying([two], {"torch": "2.10.0"}, {})


def test_what_is_not_known_may_matter_and_what_is_not_so_does_not() -> None:
    fault = KnownFault(**{**_fields(), "when": (Condition.CPU, Condition.GRADIENTS)})
    torch = {"torch": "2.11.0"}

    def certain(**facts: bool) -> list[bool]:
        return [one.certain for one in applying([fault], torch, {Condition(name): value for name, value in facts.items()})]

    assert certain(cpu=True, gradients=True) == [True]
    assert certain(cpu=True) == certain() == [False]
    assert certain(cpu=True, gradients=False) == certain(cpu=False) == []


def _fields() -> dict[str, object]:
    (fault,) = parse(ROW)
    return {name: getattr(fault, name) for name in KnownFault.__dataclass_fields__}


ROLE = '[[role]]\nname = "r"\n'
CALL = '[[workload]]\nname = "w"\nq_heads = 2\nhead_dim = 64\nq_len = 128\n'
STEP = '[[workload]]\nname = "w"\nstep = "mine:step"\n'


def facts(text: str, **environ: str) -> dict[Condition, bool]:
    found = spec.parse(f"schema = 1\n{text}", "s")
    return facts_of_plan(make_plan(found, environ=environ, bucket_path="/b", cores=2), environ)


def test_what_a_spec_says_of_its_launch() -> None:
    plain = facts(ROLE + 'devices = "cpu"\n' + CALL)
    assert {name for name, value in plain.items() if value} == {Condition.CPU, Condition.THREADS_UNSET}
    assert facts(ROLE + 'devices = "cpu"\n' + CALL, OMP_NUM_THREADS="2")[Condition.THREADS_UNSET] is False
    lanes = facts(ROLE + 'lanes = 2\ndevices = ["cuda:0", "cuda:0"]\n' + CALL + "grad = true\n")
    assert {Condition.CUDA, Condition.SEVERAL_LANES, Condition.SHARED_DEVICE, Condition.GRADIENTS} <= {
        name for name, value in lanes.items() if value
    }
    ranks = facts(ROLE + 'processes = 2\ndevices = "cuda:0-1"\n' + CALL)
    assert ranks[Condition.SEVERAL_DEVICES]
    assert ranks[Condition.SEVERAL_RANKS]
    alone = facts(ROLE + 'processes = 2\nisolate = true\ndevices = "cuda:0-1"\n' + CALL)
    assert not alone[Condition.SEVERAL_DEVICES]
    assert alone[Condition.SEVERAL_RANKS]
    selective = facts(ROLE + 'devices = "cuda:0"\n' + CALL + 'grad = true\ncall_site = "selective_checkpoint"\n')
    assert selective[Condition.CHECKPOINT]
    assert selective[Condition.SELECTIVE_CHECKPOINT]


def test_what_a_step_does_inside_is_not_known() -> None:
    found = facts(ROLE + 'devices = "cuda:0"\n' + STEP)
    assert found[Condition.OWN_CODE]
    assert not found.keys() & {Condition.GRADIENTS, Condition.CHECKPOINT, Condition.SELECTIVE_CHECKPOINT}


LANES = 'lanes = 2\ndevices = ["cuda:0", "cuda:1"]\n' + CALL
SHARED = 'lanes = 2\ndevices = ["cuda:0", "cuda:0"]\n' + CALL + "grad = true\n"
CHECKPOINT = 'devices = "cuda:0"\n' + CALL + 'grad = true\ncall_site = "checkpoint"\n'


@pytest.mark.parametrize(
    ("fault", "version", "other", "text"),
    [
        ("trace-flag-of-the-process", "2.11.0", "2.14.1", LANES),
        ("trace-patches-of-the-process", "2.14.1", "2.13.0", LANES),
        ("settings-of-the-thread", "2.12.0", "2.11.0", LANES),
        ("compile-deadlock-on-a-shared-device", "2.14.1", "2.10.0", SHARED),
        ("device-index-in-the-key", "2.11.0", "2.8.0", 'processes = 2\ndevices = "cuda:0-1"\n' + CALL),
        ("checkpoint-not-cached", "2.10.0", "2.11.0", CHECKPOINT),
        ("threads-not-in-the-key", "2.12.0", "2.13.0", 'devices = "cpu"\n' + CALL),
        ("threads-in-the-key", "2.13.0+cpu", "2.12.0", 'devices = "cpu"\n' + CALL),
    ],
)
def test_a_spec_is_told_what_matters_for_it_with_one_version_and_not_with_another(
    fault: str, version: str, other: str, text: str
) -> None:
    known = facts(ROLE + text)
    assert fault in ids({"torch": version}, known, certain=True)
    assert fault not in ids({"torch": other}, known, certain=True)


def test_people_read_what_is_certain_in_a_line_each_and_with_v_all_of_it() -> None:
    found = applying(FAULTS, {"torch": "2.13.0", "triton": "3.9.0"}, facts(ROLE + 'devices = "cpu"\n' + CALL))
    (line,) = fault_lines(found, 0)
    assert line.startswith("known fault (torch 2.13.0): the number of CPU threads is in the key")
    assert line.endswith("; build with the OMP_NUM_THREADS of the launch")
    verbose = fault_lines(found, 1)
    assert "  seen: https://github.com/pytorch/pytorch/pull/185049" in verbose
    assert fault_lines(found, 0, warm=True) == []  # a key that hits cannot miss for it
    assert fault_lines(found, 1, warm=True) == verbose
    every = applying(FAULTS, {"torch": "2.12.0", "triton": "3.9.0"}, dict.fromkeys(Condition, True))
    assert "makes compiled calls of other threads raise" in fault_lines(every, 0, warm=True)[0]
    short = fault_lines(every, 0)
    assert len(short) == 4
    assert short[-1].startswith(f"and {len(every) - 3} more known faults")
    assert all(line.startswith("may matter: ") for line in fault_lines(applying(FAULTS, {"torch": "2.12.0"}, {}), 1)[::4])
    assert fault_lines(applying(FAULTS, {"torch": "2.12.0"}, {}), 0) == []
