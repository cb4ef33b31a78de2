"""The table of known faults is data that is checked; which of its rows matter follows from versions and from the launch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from flexwarm import spec
from flexwarm.calls import CompiledCall
from flexwarm.canonical import plain
from flexwarm.events import Event
from flexwarm.known_faults import Condition, Facts, KnownFault, applying, facts_of_plan, parse
from flexwarm.ops.known_faults import TABLE, facts_of_program
from flexwarm.plan import make_plan
from flexwarm.program_events import Called
from flexwarm.render.known_faults import fault_lines
from tests import launches

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
    assert len(FAULTS) >= 20
    assert {condition for fault in FAULTS for condition in fault.when} == set(Condition)
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


def ids(versions: Mapping[str, str], cases: tuple[Facts, ...], *, certain: bool) -> set[str]:
    return {one.fault.id for one in applying(FAULTS, versions, cases) if one.certain is certain}


@pytest.mark.parametrize(
    ("version", "applies"),
    [("2.12.1", True), ("2.12.1+cu130", True), ("2.13.0", False), ("2.13.0+cpu", False), ("2.13.0a0", False), ("", False)],
)
def test_versions_are_compared_as_versions(version: str, applies: bool) -> None:
    (fault,) = parse(ROW)
    assert bool(applying([fault], {"torch": version}, [{Condition.CPU: True}])) is applies
    (two,) = parse(ROW.replace("<2.13", ">=2.9"))
    assert applying([two], {"torch": "2.10.0"}, [{}])


def test_what_is_not_known_may_matter_and_what_is_not_so_does_not() -> None:
    fault = KnownFault(**{**_fields(), "when": (Condition.CPU, Condition.GRADIENTS)})
    torch = {"torch": "2.11.0"}

    def certain(*cases: Facts) -> list[bool]:
        return [one.certain for one in applying([fault], torch, cases)]

    cpu, gradients = Condition.CPU, Condition.GRADIENTS
    assert certain({cpu: True, gradients: True}) == [True]
    assert certain({cpu: True}) == certain({}) == [False]
    assert certain({cpu: True, gradients: False}) == certain({cpu: False}) == certain() == []
    # What is so of one job and what is so of another do not add up; one job of which all is so is enough.
    one, other = {cpu: True, gradients: False}, {cpu: False, gradients: True}
    assert certain(one, other) == []
    assert certain(one, {cpu: True}) == [False]
    assert certain({cpu: True}, {cpu: True, gradients: True}) == [True]


def _fields() -> dict[str, object]:
    (fault,) = parse(ROW)
    return {name: getattr(fault, name) for name in KnownFault.__dataclass_fields__}


ROLE = '[[role]]\nname = "r"\n'
CALL = '[[workload]]\nname = "w"\nq_heads = 2\nhead_dim = 64\nq_len = 128\n'
STEP = '[[workload]]\nname = "w"\nstep = "mine:step"\n'


def cases(text: str, **environ: str) -> tuple[Facts, ...]:
    found = spec.parse(f"schema = 1\n{text}", "s")
    return facts_of_plan(make_plan(found, environ=environ, bucket_path="/b", cores=2), environ)


def so(text: str, **environ: str) -> set[Condition]:
    """What is so of a spec whose jobs are all alike."""
    (facts,) = cases(text, **environ)
    return {name for name, value in facts.items() if value}


def test_what_a_spec_says_of_its_launch() -> None:
    assert so(ROLE + 'devices = "cpu"\n' + CALL) == {Condition.CPU, Condition.THREADS_UNSET}
    assert so(ROLE + 'devices = "cpu"\n' + CALL, OMP_NUM_THREADS="2") == {Condition.CPU}
    lanes = so(ROLE + 'lanes = 2\ndevices = ["cuda:0", "cuda:0"]\n' + CALL + "grad = true\n")
    assert {Condition.CUDA, Condition.SEVERAL_LANES, Condition.SHARED_DEVICE, Condition.GRADIENTS} <= lanes
    ranks = so(ROLE + 'processes = 2\ndevices = "cuda:0-1"\n' + CALL)
    assert {Condition.SEVERAL_DEVICES, Condition.SEVERAL_RANKS} <= ranks
    alone = so(ROLE + 'processes = 2\nisolate = true\ndevices = "cuda:0-1"\n' + CALL)
    assert Condition.SEVERAL_RANKS in alone
    assert Condition.SEVERAL_DEVICES not in alone
    selective = so(ROLE + 'devices = "cuda:0"\n' + CALL + 'grad = true\ncall_site = "selective_checkpoint"\n')
    assert {Condition.CHECKPOINT, Condition.SELECTIVE_CHECKPOINT} <= selective


def test_what_a_step_does_inside_is_not_known_and_an_attention_call_has_nothing_inside() -> None:
    inside = {
        *(Condition.GRADIENTS, Condition.CHECKPOINT, Condition.SELECTIVE_CHECKPOINT, Condition.AUTOGRAD_FUNCTION),
        *(Condition.AUTOCAST_INSIDE, Condition.OPAQUE_CALLABLE, Condition.BUCKETED_GATHERS, Condition.OWN_KERNELS),
    }
    (step,) = cases(ROLE + 'devices = "cuda:0"\n' + STEP)
    assert not step.keys() & inside
    (call,) = cases(ROLE + 'devices = "cuda:0"\n' + CALL)
    assert {call[condition] for condition in inside} == {False}


def test_threads_of_one_role_and_gradients_of_another_are_no_fault_of_either() -> None:
    two = """
[[role]]
name = "r"
lanes = 2
devices = ["cuda:0", "cuda:0"]
[[role]]
name = "s"
devices = "cuda:1"
[[workload]]
name = "w"
roles = ["{}"]
q_heads = 2
head_dim = 64
q_len = 128
grad = true
[[workload]]
name = "x"
q_heads = 2
head_dim = 64
q_len = 128
"""
    fault, torch = "compile-deadlock-on-a-shared-device", {"torch": "2.11.0"}
    assert fault in ids(torch, cases(two.format("r")), certain=True)
    assert fault not in ids(torch, cases(two.format("s")), certain=True) | ids(torch, cases(two.format("s")), certain=False)
    # A device of another workload is no other index of this one's key.
    index = "device-index-in-the-key"
    apart = two.format("s").replace('name = "x"', 'name = "x"\nroles = ["r"]')
    assert index not in ids(torch, cases(apart), certain=True)
    assert index in ids(torch, cases(two.format("s")), certain=True)


@pytest.mark.parametrize(
    ("lines", "certain"),
    [
        ('mask_mod = "causal"\nq_heads = 4\nkv_heads = 2\nq_len = 100\n', True),
        ('mask_mod = "causal"\nq_heads = 4\nkv_heads = 2\nq_len = 64\n', False),  # both heads together are one block
        ('mask_mod = "causal"\nq_heads = 4\nkv_heads = 2\nq_len = [128, 256]\n', False),  # the kernel for long queries
        ('mask_mod = "causal"\nq_heads = 6\nkv_heads = 2\nq_len = 100\n', False),  # as for groups of three
        ("q_heads = 4\nkv_heads = 2\nq_len = 100\n", False),  # no mask, no block
        (
            'mask_mod = "causal"\nq_heads = 4\nkv_heads = 2\nq_len = 100\n'
            "kernel_options = { FORCE_USE_FLEX_ATTENTION = true }\n",
            None,
        ),
    ],
)
def test_short_queries_with_grouped_heads_are_those_whose_block_is_larger_than_the_masks(
    lines: str, certain: bool | None
) -> None:
    (facts,) = cases(ROLE + f'devices = "cuda:0"\n[[workload]]\nname = "w"\nhead_dim = 64\n{lines}')
    assert facts.get(Condition.SHORT_GROUPED_QUERIES) is certain


LANES = 'lanes = 2\ndevices = ["cuda:0", "cuda:1"]\n' + CALL
SHARED = 'lanes = 2\ndevices = ["cuda:0", "cuda:0"]\n' + CALL + "grad = true\n"
SHORT = (
    'devices = "cuda:0"\n[[workload]]\nname = "w"\nmask_mod = "causal"\nq_heads = 4\nkv_heads = 2\nhead_dim = 64\nq_len = 100\n'
)
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
        ("short-grouped-queries-do-not-compile", "2.14.1", "2.10.0", SHORT),
        ("header-outside-the-cache", "2.11.0", "2.12.0", 'devices = "cpu"\n' + CALL),
        ("vector-probe-imports-torch", "2.12.0", "2.13.0", 'devices = "cpu"\n' + CALL),
        ("threads-not-in-the-key", "2.12.0", "2.13.0", 'devices = "cpu"\n' + CALL),
        ("threads-in-the-key", "2.13.0+cpu", "2.12.0", 'devices = "cpu"\n' + CALL),
    ],
)
def test_a_spec_is_told_what_matters_for_it_with_one_version_and_not_with_another(
    fault: str, version: str, other: str, text: str
) -> None:
    known = cases(ROLE + text)
    assert fault in ids({"torch": version}, known, certain=True)
    assert fault not in ids({"torch": other}, known, certain=True)


def test_people_read_what_is_certain_in_a_line_each_and_with_v_all_of_it() -> None:
    found = applying(FAULTS, {"torch": "2.13.0", "triton": "3.9.0"}, cases(ROLE + 'devices = "cpu"\n' + CALL))
    (line,) = fault_lines(found, 0)
    assert line.startswith("known fault (torch 2.13.0): the number of CPU threads is in the key")
    assert line.endswith("; build with the OMP_NUM_THREADS of the launch")
    verbose = fault_lines(found, 1)
    assert "  seen: https://github.com/pytorch/pytorch/pull/185049" in verbose
    assert fault_lines(found, 0, warm=True) == []  # a key that hits cannot miss for it
    assert fault_lines(found, 1, warm=True) == verbose
    every = applying(FAULTS, {"torch": "2.12.0", "triton": "3.9.0"}, [dict.fromkeys(Condition, True)])
    assert "makes compiled calls of other threads raise" in fault_lines(every, 0, warm=True)[0]
    short = fault_lines(every, 0)
    assert len(short) == 4
    assert short[-1].startswith(f"and {len(every) - 3} more known faults")
    assert all(line.startswith("may matter: ") for line in fault_lines(applying(FAULTS, {"torch": "2.12.0"}, [{}]), 1)[::4])
    assert fault_lines(applying(FAULTS, {"torch": "2.12.0"}, [{}]), 0) == []


def of_programs(*graphs: list[tuple[str, CompiledCall]]) -> list[dict[Condition, bool]]:
    """What is said of programs that make these calls, each in a thread."""
    said = []
    for number, calls in enumerate(graphs):
        events: list[Event] = [launches.rank(number, of=len(graphs))]
        for index, (lane, made) in enumerate(calls):
            events.append(Called(t=2.0, job=lane, call=plain(replace(made, graph=f"{index}/0"))))
        said.append(events)
    record = launches.record(said)
    return [dict(facts_of_program(record, program)) for program in record.programs]


def on(device: str, *, grad: bool = False, nesting: tuple[str, ...] = ()) -> CompiledCall:
    made = launches.call(grad=grad, nesting=nesting)
    return replace(made, inputs=tuple(replace(tensor, device=device, requires_grad=grad) for tensor in made.inputs))


def test_what_a_launch_was_seen_to_do_is_said_of_each_program_by_itself() -> None:
    threads, trained = of_programs(
        [("lane-0", on("cuda:0")), ("lane-1", on("cuda:0"))],
        [("lane-0", on("cuda:1", grad=True, nesting=("autograd_function_apply",)))],
    )
    assert threads[Condition.SHARED_DEVICE]
    assert threads[Condition.SEVERAL_RANKS]
    assert Condition.GRADIENTS not in threads  # a later step may have some
    assert threads[Condition.CPU] is False
    assert trained[Condition.GRADIENTS]
    assert trained[Condition.AUTOGRAD_FUNCTION]
    fault = "compile-deadlock-on-a-shared-device"
    assert fault in ids({"torch": "2.11.0"}, (threads, trained), certain=False)
    (apart,) = of_programs([("lane-0", on("cuda:0", grad=True)), ("lane-1", on("cuda:1", grad=True))])
    assert Condition.SHARED_DEVICE not in apart
    (both,) = of_programs([("lane-0", on("cuda:0", grad=True)), ("lane-1", on("cuda:0", grad=True))])
    assert fault in ids({"torch": "2.11.0"}, (both,), certain=True)


def test_a_model_is_not_said_to_have_what_was_not_seen_in_it() -> None:
    (model,) = of_programs([("lane-0", on("cpu", grad=True))])
    assert "autograd-function-bypasses" in ids({"torch": "2.13.0"}, (model,), certain=False)
    assert "autocast-bypasses" in ids({"torch": "2.13.0"}, (model,), certain=False)
