"""A step function in the spec, the plan, the evidence and what people see of it: no false green for it either."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flexwarm import modules, spec
from flexwarm.canonical import plain
from flexwarm.errors import ExitCode, SpecError
from flexwarm.events import (
    Answer,
    Bye,
    Dense,
    DrillDone,
    Event,
    JobDone,
    JobStopped,
    Layer,
    Lookup,
    Phase,
    Progress,
    StepDone,
    from_line,
    to_line,
)
from flexwarm.evidence import compiles_beside_backward, drill_reasons
from flexwarm.hazards import HazardCode
from flexwarm.ops.drill import drill_plan
from flexwarm.ops.run import RunResult
from flexwarm.plan import Plan, make_plan
from flexwarm.reasons import Code, Kind
from flexwarm.record import Record, fold
from flexwarm.render.run import plan_json, run_json
from flexwarm.spec import ATTENTION_KEYS
from flexwarm.verdict import Outcome, Verdict, judge_build, judge_verify
from flexwarm.workload import Compile, Dtype, Function, Workload, workload_from_json
from tests.unit.test_verdict import CLEAN_EXIT, COMPONENTS, HITS, KEYS, codes, failed, hazard, hello, lookup, shape_done

STEP = '[[workload]]\nname = "train"\nstep = "pkg.warm:step"\n'


def parse(text: str) -> spec.Spec:
    return spec.parse("schema = 1\n" + text, "spec.toml")


def workload(lines: str = "") -> Workload:
    (found,) = parse(STEP + lines + "\n").workloads
    return found


def refused(lines: str) -> SpecError:
    with pytest.raises(SpecError) as caught:
        parse(STEP + lines + "\n")
    assert caught.value.exit_code is ExitCode.USAGE
    assert "\n" not in caught.value.message
    assert "'train'" in caught.value.message
    return caught.value


# ---- the spec ------------------------------------------------------------------------------------------------------------


def test_a_step_is_called_twice_without_arguments_unless_the_spec_says_otherwise() -> None:
    found = workload()
    assert found.step == Function(name="pkg.warm:step", args={})
    assert (found.steps, found.step_dtype, found.recompile_limit, found.roles) == (2, Dtype.BFLOAT16, 8, ())
    assert (found.shapes, found.grad, found.compile, found.mask, found.score) == ((), False, Compile(), None, None)


def test_what_a_step_is_given_reaches_the_worker() -> None:
    lines = (
        'step_args = { layers = 2, sizes = [1, 2], deep = { on = true } }\nsteps = 5\ndtype = "float32"\nrecompile_limit = 16'
    )
    found = workload(lines)
    assert found.step == Function(name="pkg.warm:step", args={"layers": 2, "sizes": [1, 2], "deep": {"on": True}})
    assert (found.steps, found.step_dtype, found.recompile_limit) == (5, Dtype.FLOAT32, 16)
    assert workload_from_json(json.loads(json.dumps(plain(found)))) == found


@pytest.mark.parametrize("key", ATTENTION_KEYS)
def test_a_key_of_an_attention_call_beside_a_step_is_refused_by_its_name(key: str) -> None:
    error = refused(f"{key} = 1")
    assert f"{key}: describes an attention call" in error.message
    assert "'pkg.warm:step'" in error.message
    assert f"leave {key} out" in error.hint


def test_every_key_of_a_workload_is_of_attention_or_of_steps_or_of_both() -> None:
    with pytest.raises(SpecError) as attention:
        parse('[[workload]]\nname = "w"\nq_heads = 1\nhead_dim = 16\nq_len = 16\nqqqqqqqqqqqq = 1\n')
    known = set(attention.value.hint.removeprefix("known keys: ").split(", "))
    own = set(refused("qqqqqqqqqqqq = 1").hint.removeprefix("known keys: ").split(", "))
    assert own == {"name", "roles", "step", "step_args", "steps", "dtype", "recompile_limit"}
    assert known == own | set(ATTENTION_KEYS)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("steps = 0", ["steps", "at least 1", "0"]),
        ("steps = [2, 3]", ["steps", "whole number", "a list"]),
        ('dtype = "float8"', ["dtype", "float8", "bfloat16"]),
        ('dtype = ["float32", "bfloat16"]', ["dtype", "text", "a list"]),
        ("recompile_limit = 0", ["recompile_limit", "at least 1"]),
        ("step_args = 3", ["step_args", "a table"]),
        ("step_args = { day = 2026-01-01 }", ["step_args.day", "a number, text"]),
        ("step_args = { deep = [{ day = 2026-01-01 }] }", ["step_args.deep.day", "a number, text"]),
        ("step_args = { rate = nan }", ["step_args.rate", "finite"]),
        ("step_arg = { layers = 2 }", ["step_arg", "unknown key"]),
    ],
)
def test_what_cannot_be_right_about_a_step_is_named(lines: str, words: list[str]) -> None:
    error = refused(lines)
    for word in words:
        assert word in error.message, error.message


@pytest.mark.parametrize("name", ["step", "pkg.warm", "pkg.warm:", ":step", "pkg warm:step", "pkg:a.b", "pkg/warm.py:step"])
def test_a_step_that_is_not_a_modules_attribute_is_refused(name: str) -> None:
    with pytest.raises(SpecError, match="module:attribute"):
        parse(STEP.replace("pkg.warm:step", name))


def test_a_step_may_run_on_the_cpu_with_several_lanes_and_beside_attention_calls() -> None:
    role = '[[role]]\nname = "r"\nlanes = 2\n'
    found = parse(role + STEP + '[[workload]]\nname = "w"\nq_heads = 1\nhead_dim = 16\nq_len = 16\n')
    assert [w.step is None for w in found.workloads] == [False, True]


def test_the_module_of_a_step_is_found_without_importing_it_and_one_without_the_function_is_refused(tmp_path: Path) -> None:
    package = tmp_path / "pkg"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('imported')\n")
    (package / "warm.py").write_text("raise SystemExit('imported')\ndef step(context): ...\n")
    found = modules.check_functions(parse(STEP), [str(tmp_path)])
    assert found["pkg.warm"].path == str(package / "warm.py")
    assert found["pkg.warm"].sha256 is not None
    (package / "warm.py").write_text("def steps(context): ...\n")
    with pytest.raises(SpecError, match=r"workload 'train': step: .* has no 'step'"):
        modules.check_functions(parse(STEP), [str(tmp_path)])


def test_the_context_is_there_for_training_code_without_importing_torch() -> None:
    program = "import sys; from flexwarm.step import StepContext; print(sorted(set(sys.modules) & {'torch', 'rich', 'click'}))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# ---- the plan ------------------------------------------------------------------------------------------------------------


def plan(text: str = STEP) -> Plan:
    return make_plan(parse(text), environ={}, bucket_path="/b", cores=2)


def test_ranks_of_a_role_share_what_a_step_compiles_and_roles_do_not_for_its_context_says_the_role() -> None:
    role = '[[role]]\nname = "{}"\nprocesses = 2\nenv = {{ OMP_NUM_THREADS = "1" }}\n'
    jobs = plan(role.format("a") + role.format("b") + STEP).jobs
    assert [job.leader for job in jobs] == [None, "train/a:0", None, "train/b:2"]


def test_arguments_and_number_of_calls_of_a_step_are_part_of_what_is_compiled_and_its_name_is_not() -> None:
    one = plan().jobs[0].share
    assert plan(STEP.replace('"train"', '"renamed"')).jobs[0].share == one
    for line in ("step_args = { layers = 2 }", "steps = 3", 'dtype = "float32"', "recompile_limit = 9"):
        assert plan(STEP + line + "\n").jobs[0].share != one


def test_a_plan_says_the_function_and_how_often_it_is_called_in_place_of_shapes() -> None:
    (worker,) = plan_json(plan(STEP + "steps = 3\n"), "b")["workers"]
    (job,) = worker["jobs"]
    assert (job["step"], job["steps"], job["shapes"]) == ("pkg.warm:step", 3, [])


def test_each_step_function_with_its_arguments_is_a_kind_of_its_own_for_the_drill() -> None:
    texts = ["", "step_args = { n = 1 }\n", "step_args = { n = 1 }\nsteps = 3\n", "step_args = { n = 2 }\n"]
    steps = "".join(STEP.replace('"train"', f'"s{number}"') + text for number, text in enumerate(texts))
    attention = '[[workload]]\nname = "w"\nq_heads = 4\nhead_dim = 64\nq_len = 256\n'
    (worker,) = drill_plan(plan('[[role]]\nname = "r"\nlanes = 2\n' + steps + attention), "/s").workers
    assert [job.workload.name for job in worker.jobs if job.lane == 0] == ["s0", "s1", "s3", "w"]


# ---- the evidence --------------------------------------------------------------------------------------------------------

PLAN = plan()
JOB = PLAN.jobs[0].id


def step_done(number: int, checks: int = 3, *, job: str = JOB) -> StepDone:
    return StepDone(t=0, job=job, number=number, checks=checks, seconds=2.0 - number)


def warm_events() -> list[Event]:
    return [
        hello(),
        Progress(t=0, job=JOB, phase=Phase.TRACE),
        lookup(Layer.FX, job=JOB),
        lookup(Layer.AOT, job=JOB),
        step_done(0),
        step_done(1),
        JobDone(t=0, job=JOB, counters=HITS, seconds=2.0),
        Bye(t=0),
    ]


def recorded(events: list[Event]) -> Record:
    # Through the text form, as it comes from a worker.
    return fold(PLAN, {0: [from_line(to_line(event)) for event in events]}, {0: CLEAN_EXIT})


def judge(events: list[Event]) -> Verdict:
    return judge_verify(recorded(events), {JOB: KEYS}, {}, (), COMPONENTS)


def built(events: list[Event]) -> Verdict:
    return judge_build(recorded(events), KEYS, COMPONENTS, True)


def test_a_step_whose_calls_all_returned_and_asked_and_hit_is_warm() -> None:
    verdict = judge(warm_events())
    assert (verdict.kind, verdict.exit_code, codes(verdict)) == (Kind.WARM, ExitCode.OK, set())
    assert verdict.jobs[0].outcome is Outcome.HIT


Change = Callable[[list[Event]], list[Event]]


def without(*gone: type) -> Change:
    return lambda events: [event for event in events if not isinstance(event, gone)]


def instead(kind: type, *replacement: Event) -> Change:
    return lambda events: [*without(kind, Bye)(events), *replacement, Bye(t=0)]


def plus(*added: Event) -> Change:
    return lambda events: [*events[:2], *added, *events[2:]]


DENSE = Dense(t=0, job=JOB, shape=(1, 2, 64, 32), stack=("mine.py:3 in attend",))
STOPPED = JobStopped(t=0, job=JOB, counters={}, seconds=1)


@pytest.mark.parametrize(
    ("change", "code", "kind"),
    [
        (without(StepDone), Code.NO_EVIDENCE, Kind.UNKNOWN),
        (instead(StepDone, step_done(0)), Code.NO_EVIDENCE, Kind.UNKNOWN),
        (instead(StepDone, step_done(1)), Code.NO_EVIDENCE, Kind.UNKNOWN),
        (instead(StepDone, step_done(0), step_done(0)), Code.NO_EVIDENCE, Kind.UNKNOWN),
        (instead(StepDone, step_done(0), step_done(1), step_done(2)), Code.NO_EVIDENCE, Kind.UNKNOWN),
        (instead(StepDone, shape_done(job=JOB)), Code.NO_EVIDENCE, Kind.UNKNOWN),
        (instead(StepDone, step_done(0, 0), step_done(1, 0)), Code.NO_EVIDENCE, Kind.UNKNOWN),
        (without(Lookup), Code.NO_EVIDENCE, Kind.UNKNOWN),
        (lambda events: [e for e in events if getattr(e, "layer", None) is not Layer.AOT], Code.NO_EVIDENCE, Kind.UNKNOWN),
        (plus(lookup(Layer.FX, key="other", job=JOB)), Code.KEY_NOT_LISTED, Kind.COLD),
        (plus(lookup(Layer.FX, job=JOB)), Code.WITNESSES_DISAGREE, Kind.UNKNOWN),
        (plus(lookup(Layer.AOT, Answer.MISS, job=JOB)), Code.AOT_MISS, Kind.COLD),
        (plus(lookup(Layer.FX, Answer.BYPASS, job=JOB)), Code.FX_BYPASS, Kind.COLD),
        (plus(DENSE), Code.DENSE_FALLBACK, Kind.UNSAFE),
        (plus(hazard(HazardCode.FX_RACE, job=JOB)), Code.FX_RACE, Kind.UNSAFE),
        (instead(JobDone, failed("ValueError", "no data", job=JOB)), Code.RAISED, Kind.BROKEN),
        (instead(JobDone, STOPPED), Code.NO_EVIDENCE, Kind.UNKNOWN),
        (without(JobDone), Code.LEADER_FAILED, Kind.BROKEN),
    ],
)  # fmt: skip
def test_evidence_of_a_step_that_is_missing_or_odd_takes_warm_away(change: Change, code: Code, kind: Kind) -> None:
    verdict = judge(change(warm_events()))
    assert (verdict.kind, code in codes(verdict)) == (kind, True), codes(verdict)


@settings(max_examples=60, deadline=None)
@given(st.sets(st.integers(min_value=0, max_value=len(warm_events()) - 1), min_size=1))
def test_no_part_of_what_was_said_can_be_left_out_but_the_phase(gone: set[int]) -> None:
    events = warm_events()
    left = [event for number, event in enumerate(events) if number not in gone]
    needed = [event for event in events if not isinstance(event, (Progress, Bye))]
    verdict = judge(left)
    assert (verdict.kind is Kind.WARM) == all(event in left for event in needed), codes(verdict)


def test_dense_attention_is_told_by_the_last_line_that_is_in_a_file() -> None:
    seen = dataclasses.replace(DENSE, stack=("mine.py:9 in step", "mine.py:3 in attend", "<eval_with_key>.7:14 in forward"))
    (reason,) = judge(plus(seen)(warm_events())).jobs[0].reasons
    assert reason.message.endswith("called from mine.py:3 in attend")
    generated = dataclasses.replace(DENSE, stack=("<string>:1 in f",))
    (reason,) = judge(plus(generated)(warm_events())).jobs[0].reasons
    assert reason.message.endswith("called from <string>:1 in f")


def test_calls_that_made_no_compiled_call_are_no_evidence_as_long_as_none_of_them_did() -> None:
    verdict = judge(instead(StepDone, step_done(0, 0), step_done(1, 0))(warm_events()))
    assert "the step made no compiled call" in [reason.message for reason in verdict.jobs[0].reasons]
    # A step that calls compiled code in its first call alone is a step all the same.
    assert judge(instead(StepDone, step_done(0, 1), step_done(1, 0))(warm_events())).kind is Kind.WARM


def test_how_many_calls_returned_is_said() -> None:
    verdict = judge(instead(StepDone, step_done(0))(warm_events()))
    assert [reason.message for reason in verdict.jobs[0].reasons] == ["only 1 of 2 calls of the step returned"]


def test_the_first_call_of_a_step_is_what_compiling_or_loading_took() -> None:
    assert recorded(warm_events()).jobs[JOB].first_seconds == 2.0
    assert recorded(without(StepDone)(warm_events())).jobs[JOB].first_seconds is None


def test_a_later_call_that_compiles_is_normal_in_a_build_and_its_keys_are_recorded() -> None:
    counters = {f"{name}_miss": 2 for name in ("inductor.fxgraph_cache", "aot_autograd.autograd_cache")}
    first = [lookup(layer, Answer.MISS, job=JOB) for layer in (Layer.AOT, Layer.FX)]
    second = [lookup(layer, Answer.MISS, f"{layer.value}-eval", job=JOB) for layer in (Layer.AOT, Layer.FX)]
    said: list[Event] = [hello(), *first, step_done(0), *second, step_done(1)]
    record = recorded([*said, JobDone(t=0, job=JOB, counters=counters, seconds=2), Bye(t=0)])
    keys = frozenset(record.jobs[JOB].keys)
    assert len(keys) == 4
    assert judge_build(record, keys, COMPONENTS, True).kind is Kind.BUILT
    assert codes(judge_build(record, KEYS, COMPONENTS, True)) == {Code.NOT_STORED}


@pytest.mark.parametrize("change", [without(StepDone), instead(StepDone, step_done(0, 0), step_done(1, 0))])
def test_a_build_without_the_evidence_is_not_built(change: Change) -> None:
    verdict = built(change(warm_events()))
    assert (verdict.kind, codes(verdict)) == (Kind.UNKNOWN, {Code.NO_EVIDENCE})


def test_a_rank_that_misses_what_the_first_one_compiled_is_told_what_a_step_may_depend_on() -> None:
    job = dataclasses.replace(PLAN.jobs[0], leader="train/default:9")
    followers = Plan(workers=(dataclasses.replace(PLAN.workers[0], jobs=(job,)),))
    said = [*plus(lookup(Layer.FX, Answer.MISS, job=JOB))(warm_events())]
    verdict = judge_build(fold(followers, {0: said}, {0: CLEAN_EXIT}), KEYS, COMPONENTS, True)
    hints = [reason.hint for reason in verdict.jobs[0].reasons if reason.code is Code.WITNESSES_DISAGREE]
    assert any("depends on the rank" in hint for hint in hints)


def test_the_drill_of_a_step_needs_holds_and_calls_and_no_backward_beside_a_compile() -> None:
    found = drill_plan(plan('[[role]]\nname = "r"\nlanes = 2\n' + STEP), "/s")
    first, second = (job.id for job in found.jobs)
    drilled = [DrillDone(t=0, job=job, holds=2, calls=2, callers=1, waited=0, unanswered=0) for job in (first, second)]
    record = fold(found, {0: [hello(), *drilled, Bye(t=0)]}, {0: CLEAN_EXIT})
    for job in (first, second):
        assert drill_reasons(record.jobs[job], record) == []
        assert not compiles_beside_backward(record.jobs[job], record)
    record = fold(found, {0: [hello(), drilled[0], Bye(t=0)]}, {0: CLEAN_EXIT})
    assert [reason.code for reason in drill_reasons(record.jobs[second], record)] == [Code.NO_EVIDENCE]


def test_json_has_each_call_of_a_step_beside_an_empty_list_of_shapes() -> None:
    record = recorded(warm_events())
    result = RunResult(
        verdict=judge(warm_events()), bucket="b", bucket_path="/b", plan=PLAN, record=record, cold_seconds={}, seconds=1.0
    )
    (job,) = run_json(result)["jobs"]
    assert job["shapes"] == []
    assert job["steps"] == [{"number": 0, "checks": 3, "seconds": 2.0}, {"number": 1, "checks": 3, "seconds": 1.0}]
    assert job["first_call_seconds"] == 2.0
