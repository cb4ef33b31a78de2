"""No false green with several lanes: their evidence is of all of them together, and a drill can only take warm away."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flexwarm import spec
from flexwarm.errors import ExitCode
from flexwarm.events import (
    Answer,
    Bye,
    Compiled,
    Dense,
    DrillDone,
    DrillLock,
    Event,
    JobDone,
    JobStopped,
    Layer,
    Lookup,
    Phase,
    Progress,
    Refused,
    ShapeDone,
    from_line,
    to_line,
)
from flexwarm.evidence import GUARD_MESSAGE
from flexwarm.hazards import REMEDIES, HazardCode
from flexwarm.ops.drill import drill_plan
from flexwarm.plan import Plan, make_plan
from flexwarm.reasons import Code, Kind
from flexwarm.record import End, Exit, Record, fold
from flexwarm.verdict import Outcome, Verdict, judge_build, judge_verify, with_drill
from tests.unit.test_verdict import CLEAN_EXIT, COMPONENTS, codes, failed, hang, hazard, hello, lookup, shape_done

WORKLOAD = '[[workload]]\nname = "w"\nq_heads = 4\nhead_dim = 64\nq_len = 256\n'


def plan(role: str, workloads: str = WORKLOAD) -> Plan:
    text = f'schema = 1\n[[role]]\nname = "r"\n{role}\n{workloads}'
    return make_plan(spec.parse(text, "s"), environ={}, bucket_path="/b", cores=2)


#: Two lanes on one device: one of them is served, and serves the other.
ONE_DEVICE = plan("lanes = 2")
#: Two lanes on a device each: each of them asks for keys of its own.
TWO_DEVICES = plan('lanes = 2\ndevices = "cuda:0-1"')
FIRST, SECOND = (job.id for job in ONE_DEVICE.jobs)

Expected = dict[str, frozenset[tuple[str, str]]]


def keys(number: int) -> frozenset[tuple[str, str]]:
    return frozenset({("aot", f"akey{number}"), ("fx", f"fkey{number}")})


SHARED: Expected = {FIRST: keys(0), SECOND: keys(0)}
OWN: Expected = {FIRST: keys(0), SECOND: keys(1)}


def asked(job: str, number: int, answer: Answer = Answer.HIT) -> list[Event]:
    return [lookup(layer, answer, f"{layer.value[0]}key{number}", job=job) for layer in (Layer.AOT, Layer.FX)]


def done(job: str, hits: int = 1) -> JobDone:
    counters = {"inductor.fxgraph_cache_hit": hits, "aot_autograd.autograd_cache_hit": hits}
    return JobDone(t=0, job=job, counters=counters, seconds=1)


def one_device() -> list[Event]:
    return [
        hello(),
        *(Progress(t=0, job=job, phase=Phase.TRACE) for job in (FIRST, SECOND)),
        *asked(FIRST, 0),
        shape_done(job=FIRST),
        shape_done(job=SECOND),
        done(FIRST),
        done(SECOND),
        Bye(t=0),
    ]


def two_devices() -> list[Event]:
    return [
        hello(),
        *(Progress(t=0, job=job, phase=Phase.TRACE) for job in (FIRST, SECOND)),
        *asked(FIRST, 0),
        *asked(SECOND, 1),
        shape_done(job=SECOND),
        shape_done(job=FIRST),
        done(FIRST, 2),
        done(SECOND, 2),
        Bye(t=0),
    ]


def recorded(plan: Plan, events: Sequence[Event], exit: Exit | None) -> Record:
    # Through the text form, as it comes from a worker.
    said = [from_line(to_line(event)) for event in events]
    return fold(plan, {0: said}, {} if exit is None else {0: exit})


def judge(
    events: Sequence[Event], *, plan: Plan = ONE_DEVICE, expected: Expected = SHARED, exit: Exit | None = CLEAN_EXIT
) -> Verdict:
    return judge_verify(recorded(plan, events, exit), expected, {}, (), COMPONENTS)


def codes_by_job(verdict: Verdict) -> dict[str, set[Code]]:
    return {job.job.id: {reason.code for reason in job.reasons} for job in verdict.jobs}


def test_a_lane_that_was_served_what_another_lane_had_loaded_is_warm() -> None:
    verdict = judge(one_device())
    assert (verdict.kind, verdict.exit_code, codes(verdict)) == (Kind.WARM, ExitCode.OK, set())
    assert [job.outcome for job in verdict.jobs] == [Outcome.HIT, Outcome.HIT]


def test_lanes_that_ask_for_keys_of_their_own_are_warm() -> None:
    verdict = judge(two_devices(), plan=TWO_DEVICES, expected=OWN)
    assert (verdict.kind, codes(verdict)) == (Kind.WARM, set())


def test_it_does_not_matter_which_lane_came_first_and_asked() -> None:
    events = [dataclasses.replace(event, job=SECOND) if isinstance(event, Lookup) else event for event in one_device()]
    assert judge(events).kind is Kind.WARM


def test_a_key_of_a_lane_that_no_lane_asked_for_is_not_seen() -> None:
    # As many questions as torch counted, but not for the key of the second device.
    events = one_device()
    verdict = judge(events, plan=TWO_DEVICES, expected=OWN)
    assert (verdict.kind, verdict.exit_code, codes(verdict)) == (Kind.UNKNOWN, ExitCode.NOT_WARM, {Code.KEY_NOT_SEEN})
    assert any("akey1" in reason.message for job in verdict.jobs for reason in job.reasons)


def test_a_key_that_hit_for_no_lanes_build_is_not_listed() -> None:
    verdict = judge(two_devices(), expected=SHARED)
    assert (verdict.kind, codes(verdict)) == (Kind.COLD, {Code.KEY_NOT_LISTED})


def test_questions_that_torch_counted_of_all_lanes_must_all_have_been_seen() -> None:
    events = [done(event.job, 2) if isinstance(event, JobDone) else event for event in one_device()]
    assert (judge(events).kind, codes(judge(events))) == (Kind.UNKNOWN, {Code.WITNESSES_DISAGREE})
    unseen = [done(event.job, 1) if isinstance(event, JobDone) else event for event in two_devices()]
    assert codes(judge(unseen, plan=TWO_DEVICES, expected=OWN)) == {Code.WITNESSES_DISAGREE}


@pytest.mark.parametrize("answer", [Answer.MISS, Answer.BYPASS])
@pytest.mark.parametrize(("lane", "other"), [(FIRST, SECOND), (SECOND, FIRST)])
def test_a_miss_on_one_lane_is_cold_and_named_there(lane: str, other: str, answer: Answer) -> None:
    """As it is said while verifying: the lane was stopped, the other one came to its end."""
    stopped = JobStopped(t=0, job=lane, counters={}, seconds=1)
    number = [FIRST, SECOND].index(lane)
    events: list[Event] = [e for e in two_devices() if getattr(e, "job", None) != lane]
    events[1:1] = [Progress(t=0, job=lane, phase=Phase.TRACE), *asked(lane, number, answer), stopped]
    verdict = judge(events, plan=TWO_DEVICES, expected=OWN)
    assert (verdict.kind, verdict.exit_code) == (Kind.COLD, ExitCode.NOT_WARM)
    expected = {Answer.MISS: {Code.AOT_MISS, Code.FX_MISS}, Answer.BYPASS: {Code.AOT_BYPASS, Code.FX_BYPASS}}[answer]
    assert codes_by_job(verdict) == {lane: expected, other: set()}


Change = Callable[[list[Event]], list[Event]]


def without(kind: type, job: str) -> Change:
    return lambda events: [event for event in events if not (isinstance(event, kind) and getattr(event, "job", None) == job)]


def instead(kind: type, job: str, replacement: Event) -> Change:
    return lambda events: [
        replacement if isinstance(event, kind) and getattr(event, "job", None) == job else event for event in events
    ]


def plus(*added: Event) -> Change:
    return lambda events: [*events[:3], *added, *events[3:]]


@pytest.mark.parametrize("lane", [FIRST, SECOND])
@pytest.mark.parametrize(
    ("change", "code", "kind"),
    [
        (lambda lane: without(ShapeDone, lane), Code.NO_EVIDENCE, Kind.UNKNOWN),
        (lambda lane: instead(ShapeDone, lane, shape_done(job=lane, checks=1)), Code.NO_EVIDENCE, Kind.UNKNOWN),
        (lambda lane: instead(ShapeDone, lane, shape_done(job=lane, agrees=False)), Code.WRONG_RESULT, Kind.BROKEN),
        (lambda lane: instead(JobDone, lane, failed("E", "m", job=lane)), Code.RAISED, Kind.BROKEN),
        (
            lambda lane: instead(JobDone, lane, JobStopped(t=0, job=lane, counters={}, seconds=1)),
            Code.NO_EVIDENCE,
            Kind.UNKNOWN,
        ),
        (lambda lane: plus(lookup(Layer.TRITON, Answer.MISS, job=lane)), Code.TRITON_MISS, Kind.COLD),
        (lambda lane: plus(Compiled(t=0, job=lane, what="cxx", detail="g++ x.cpp")), Code.COMPILED, Kind.COLD),
        (lambda lane: plus(Dense(t=0, job=lane, shape=(1, 4, 256, 64), stack=())), Code.DENSE_FALLBACK, Kind.UNSAFE),
        (lambda lane: plus(hazard(HazardCode.FX_RACE, job=lane)), Code.FX_RACE, Kind.UNSAFE),
        (lambda lane: plus(hazard(HazardCode.LANE_CONFIG_DRIFT, job=lane)), Code.LANE_CONFIG_DRIFT, Kind.UNSAFE),
    ],
)
def test_what_takes_warm_away_from_one_lane_is_its_own_and_the_run_is_not_warm(
    lane: str, change: Callable[[str], Change], code: Code, kind: Kind
) -> None:
    verdict = judge(change(lane)(one_device()))
    assert verdict.kind is kind
    assert verdict.exit_code is not ExitCode.OK
    other = SECOND if lane == FIRST else FIRST
    assert codes_by_job(verdict) == {lane: {code}, other: set()}


def test_a_hazard_on_one_lane_does_not_excuse_torchs_error_on_the_other() -> None:
    events = plus(hazard(HazardCode.FX_RACE, job=FIRST, fate="raise"))(one_device())
    verdict = judge(instead(JobDone, SECOND, failed("RuntimeError", GUARD_MESSAGE, job=SECOND))(events))
    assert verdict.exit_code is ExitCode.JOB_FAILED
    assert codes_by_job(verdict) == {FIRST: {Code.FX_RACE}, SECOND: {Code.RAISED}}


@pytest.mark.parametrize(
    ("exit", "code"),
    [
        (Exit(end=End.DIED, status=-11, log="/log"), Code.CRASHED),
        (Exit(end=End.TIMED_OUT, status=-9, log="/log", limit_seconds=5), Code.TIMED_OUT),
        (Exit(end=End.SILENT, status=-9, log="/log", limit_seconds=5), Code.SILENT),
    ],
)
def test_a_lane_without_an_end_is_named_and_the_one_that_had_ended_is_not(exit: Exit, code: Code) -> None:
    verdict = judge(without(JobDone, SECOND)(one_device())[:-1], exit=exit)
    assert (verdict.kind, verdict.exit_code) == (Kind.BROKEN, ExitCode.WORKER_DIED)
    assert codes_by_job(verdict) == {FIRST: set(), SECOND: {code}}
    assert "trace" in verdict.jobs[1].reasons[0].message


def test_a_lane_without_an_end_is_not_warm_also_where_its_worker_ended_well() -> None:
    verdict = judge(without(JobDone, SECOND)(one_device()))
    assert verdict.exit_code is not ExitCode.OK
    assert codes_by_job(verdict)[SECOND]
    assert codes_by_job(verdict)[FIRST] == set()


def test_lanes_that_hung_are_each_named_and_the_cycle_once() -> None:
    exit = Exit(end=End.HUNG, status=-9, log="/log", limit_seconds=6)
    verdict = judge([*one_device()[:3], hang(FIRST, SECOND)], exit=exit)
    assert (verdict.kind, verdict.exit_code) == (Kind.BROKEN, ExitCode.WORKER_DIED)
    assert codes_by_job(verdict) == {FIRST: {Code.HUNG}, SECOND: {Code.HUNG}}
    assert [reason.code for reason in verdict.reasons] == [Code.COMPILE_DEADLOCK]


def said_of(jobs: dict[str, str], events: Sequence[Any]) -> list[Event]:
    """The events of some jobs as those of others; what is of no job stays."""
    return [dataclasses.replace(x, job=jobs[x.job]) if getattr(x, "job", None) in jobs else x for x in events]


def test_a_rank_is_not_proven_by_what_another_rank_asked() -> None:
    two = plan("processes = 2\nlanes = 2")
    third, fourth = (job.id for job in two.jobs[2:])
    renamed = {FIRST: third, SECOND: fourth}
    other = said_of(renamed, one_device())
    expected: Expected = {job.id: keys(0) for job in two.jobs}

    def judged(second: list[Event]) -> Verdict:
        record = fold(two, {0: one_device(), 1: second}, {0: CLEAN_EXIT, 1: CLEAN_EXIT})
        return judge_verify(record, expected, {}, (), COMPONENTS)

    assert judged(other).kind is Kind.WARM
    silent = judged([event for event in other if not isinstance(event, Lookup)])
    assert silent.kind is Kind.UNKNOWN
    assert codes_by_job(silent)[FIRST] == set()
    assert Code.KEY_NOT_SEEN in codes_by_job(silent)[third]


def test_a_workload_is_not_proven_by_what_another_one_asked() -> None:
    two = plan("lanes = 2", WORKLOAD + WORKLOAD.replace('"w"', '"x"'))
    events = one_device()
    renamed = {FIRST: "x/r:0.0", SECOND: "x/r:0.1"}
    said = [event for event in events if getattr(event, "job", None) and not isinstance(event, Lookup)]
    more = said_of(renamed, said)
    expected: Expected = {job.id: keys(0) for job in two.jobs}
    verdict = judge([*events[:-1], *more, Bye(t=0)], plan=two, expected=expected)
    assert verdict.kind is Kind.UNKNOWN
    found = codes_by_job(verdict)
    assert found["w/r:0.0"] == found["w/r:0.1"] == set()
    assert Code.NO_EVIDENCE in found["x/r:0.0"] & found["x/r:0.1"]


ESSENTIAL = (Lookup, ShapeDone, JobDone)


@settings(max_examples=400, deadline=None)
@given(st.data())
@pytest.mark.parametrize("shared", [True, False], ids=["one device", "two devices"])
def test_nothing_that_lacks_a_piece_of_the_evidence_of_two_lanes_is_warm(shared: bool, data: st.DataObject) -> None:
    events, of, expected = (one_device(), ONE_DEVICE, SHARED) if shared else (two_devices(), TWO_DEVICES, OWN)
    assert judge(events, plan=of, expected=expected).kind is Kind.WARM
    essential = [number for number, event in enumerate(events) if isinstance(event, ESSENTIAL)]
    lacking = data.draw(st.sets(st.sampled_from(essential), min_size=1))
    lacking |= data.draw(st.sets(st.sampled_from(range(len(events)))))
    verdict = judge([e for number, e in enumerate(events) if number not in lacking], plan=of, expected=expected)
    assert verdict.kind is not Kind.WARM
    assert verdict.exit_code is not ExitCode.OK


# ---- builds --------------------------------------------------------------------------------------------------------------


def built(events: Sequence[Event], of: Plan) -> Verdict:
    return judge_build(recorded(of, events, CLEAN_EXIT), keys(0) | keys(1), COMPONENTS, True)


def compiled(lanes: dict[str, int]) -> list[Event]:
    """Each lane has missed keys of a number of its own, and compiled them."""
    missed = {"inductor.fxgraph_cache_miss": len(lanes), "aot_autograd.autograd_cache_miss": len(lanes)}
    events: list[Event] = [hello()]
    for job, number in lanes.items():
        events += asked(job, number, Answer.MISS)
    for job in (FIRST, SECOND):
        events += [shape_done(job=job), JobDone(t=0, job=job, counters=missed, seconds=1)]
    return [*events, Bye(t=0)]


def test_lanes_that_compiled_what_they_needed_are_built() -> None:
    verdict = built(compiled({FIRST: 0}), ONE_DEVICE)
    assert (verdict.kind, codes(verdict)) == (Kind.BUILT, set())
    assert [job.outcome for job in verdict.jobs] == [Outcome.COMPILED, Outcome.HIT]
    assert built(compiled({FIRST: 0, SECOND: 1}), TWO_DEVICES).kind is Kind.BUILT


def test_a_lane_may_miss_what_its_leader_in_the_same_rank_had_not_stored_yet() -> None:
    assert ONE_DEVICE.jobs[1].leader == FIRST
    verdict = built(compiled({FIRST: 0, SECOND: 0}), ONE_DEVICE)
    assert (verdict.kind, codes(verdict)) == (Kind.BUILT, set())


def test_a_lane_that_misses_what_another_rank_had_stored_shows_keys_that_are_not_stable() -> None:
    jobs = tuple(dataclasses.replace(job, leader="w/r:9.0") for job in ONE_DEVICE.jobs)
    of = Plan(workers=(dataclasses.replace(ONE_DEVICE.workers[0], jobs=jobs),))
    verdict = built(compiled({FIRST: 0}), of)
    assert codes_by_job(verdict) == {FIRST: {Code.WITNESSES_DISAGREE}, SECOND: set()}


def test_a_build_in_which_a_lane_did_not_end_is_not_built() -> None:
    events = without(JobDone, SECOND)(compiled({FIRST: 0}))
    assert built(events, ONE_DEVICE).exit_code is not ExitCode.OK


# ---- the drill -----------------------------------------------------------------------------------------------------------

WARM = judge(one_device())


def drill_done(job: str, **changes: Any) -> DrillDone:
    return DrillDone(**{"t": 0, "job": job, "holds": 3, "calls": 3, "callers": 1, "waited": 0, "unanswered": 0, **changes})


def drill_events() -> list[Event]:
    return [
        hello(),
        *(Progress(t=0, job=job, phase=Phase.RUN) for job in (FIRST, SECOND)),
        drill_done(FIRST),
        drill_done(SECOND),
        Bye(t=0),
    ]


def drilled(
    events: Sequence[Event], *, exit: Exit | None = CLEAN_EXIT, of: Plan = ONE_DEVICE, before: Verdict = WARM
) -> Verdict:
    return with_drill(before, recorded(drill_plan(of, "/scratch"), events, exit))


def test_a_drill_that_found_nothing_leaves_a_warm_verdict_as_it_was() -> None:
    assert drilled(drill_events()) == WARM


def test_a_drill_makes_no_verdict_better() -> None:
    unsafe = judge(plus(hazard(HazardCode.FX_RACE, job=SECOND))(one_device()))
    after = drilled(drill_events(), before=unsafe)
    assert (after.kind, after.exit_code, codes_by_job(after)) == (Kind.UNSAFE, ExitCode.UNSAFE, codes_by_job(unsafe))


@pytest.mark.parametrize("code", list(HazardCode))
def test_a_hazard_in_the_drill_is_unsafe_and_said_to_be_of_the_drill(code: HazardCode) -> None:
    events = [*drill_events(), hazard(code, job=SECOND, fate="raise")]
    verdict = drilled(events)
    assert (verdict.kind, verdict.exit_code) == (Kind.UNSAFE, ExitCode.UNSAFE)
    assert codes_by_job(verdict) == {FIRST: set(), SECOND: {Code(code.value)}}
    (reason,) = verdict.jobs[1].reasons
    assert reason.message.startswith("in the drill: a call was made while thread 'loader' traced")
    assert reason.hint == REMEDIES[code]
    assert verdict.jobs[0].outcome is Outcome.HIT
    assert verdict.jobs[1].outcome in (Outcome.UNSAFE, Outcome.DENSE)


def test_a_hazard_in_the_drill_that_belongs_to_no_lane_is_unsafe_too() -> None:
    verdict = drilled([*drill_events(), hazard(HazardCode.FX_LEAK, job=None)])
    assert (verdict.kind, verdict.exit_code) == (Kind.UNSAFE, ExitCode.UNSAFE)
    (reason,) = verdict.reasons
    assert (reason.code, reason.message.startswith("in the drill: rank 0: ")) == (Code.FX_LEAK, True)


def test_dense_attention_in_the_drill_is_unsafe() -> None:
    verdict = drilled([*drill_events(), Dense(t=0, job=FIRST, shape=(1, 4, 256, 64), stack=("a.py:1 in f",))])
    assert (verdict.kind, verdict.exit_code) == (Kind.UNSAFE, ExitCode.UNSAFE)
    assert codes_by_job(verdict) == {FIRST: {Code.DENSE_FALLBACK}, SECOND: set()}
    assert "in the drill" in verdict.jobs[0].reasons[0].message


@pytest.mark.parametrize(
    "said",
    [
        {"holds": 0, "calls": 0},
        {"holds": 0, "calls": 3},
        {"unanswered": 1},
        {"calls": 2},
        {"calls": 2, "waited": 0, "unanswered": 1},
        # All calls waited for the trace: not one was made inside of it.
        {"calls": 0, "callers": 0, "waited": 3},
        {"callers": 0},
        {"calls": 1, "waited": 1},
    ],
)
@pytest.mark.parametrize("lane", [FIRST, SECOND])
def test_a_drill_that_did_not_try_what_it_should_proves_nothing(lane: str, said: dict[str, int]) -> None:
    verdict = drilled(instead(DrillDone, lane, drill_done(lane, **said))(drill_events()))
    assert (verdict.kind, verdict.exit_code) == (Kind.UNKNOWN, ExitCode.NOT_WARM)
    other = SECOND if lane == FIRST else FIRST
    assert codes_by_job(verdict) == {lane: {Code.NO_EVIDENCE}, other: set()}
    (reason,) = [reason for job in verdict.jobs for reason in job.reasons]
    assert f"held lane {lane[-1]}" in reason.message
    assert "--no-drill" in reason.hint


@pytest.mark.parametrize("said", [{"calls": 1, "waited": 2}, {"calls": 4}, {"holds": 1, "calls": 1}])
def test_a_call_that_waited_for_the_trace_counts_beside_one_that_met_it(said: dict[str, int]) -> None:
    assert drilled(instead(DrillDone, SECOND, drill_done(SECOND, **said))(drill_events())).kind is Kind.WARM


def test_each_other_lane_must_have_called_in_each_hold() -> None:
    three = plan("lanes = 3")
    lanes = [job.id for job in three.jobs]
    before = judge(
        [
            hello(),
            *asked(FIRST, 0),
            *(shape_done(job=job) for job in lanes),
            *(done(job) for job in lanes),
            Bye(t=0),
        ],
        plan=three,
        expected=dict.fromkeys(lanes, keys(0)),
    )
    assert before.kind is Kind.WARM

    def after(calls: int, callers: int = 2, waited: int = 0) -> Verdict:
        said = [drill_done(job, holds=2, calls=4, callers=2) for job in lanes[1:]]
        first = drill_done(FIRST, holds=2, calls=calls, callers=callers, waited=waited)
        return drilled([hello(), first, *said, Bye(t=0)], of=three, before=before)

    assert after(4).kind is Kind.WARM
    assert after(3).kind is Kind.UNKNOWN
    assert after(2).kind is Kind.UNKNOWN
    # One lane called in each hold, and the other one only ever waited for the trace to be over.
    assert after(2, callers=1, waited=2).kind is Kind.UNKNOWN
    assert after(2, callers=2, waited=2).kind is Kind.WARM


def test_of_lanes_that_share_a_device_the_second_must_have_compiled_beside_a_backward() -> None:
    sharing = plan('lanes = 3\ndevices = "cuda:0"', WORKLOAD + "grad = true\n")
    lanes = [job.id for job in sharing.jobs]
    before = judge(
        [hello(), *asked(FIRST, 0), *(shape_done(job=job) for job in lanes), *(done(job) for job in lanes), Bye(t=0)],
        plan=sharing,
        expected=dict.fromkeys(lanes, keys(0)),
    )
    assert before.kind is Kind.WARM
    held = [drill_done(job, holds=2, calls=4, callers=2) for job in lanes]

    def after(*said: Event) -> Verdict:
        return drilled([hello(), *held, *said, Bye(t=0)], of=sharing, before=before)

    assert after(DrillLock(t=0, job=lanes[1], met=True)).kind is Kind.WARM
    for said in ((), (DrillLock(t=0, job=lanes[1], met=False),), (DrillLock(t=0, job=lanes[0], met=True),)):
        verdict = after(*said)
        assert (verdict.kind, codes_by_job(verdict)[lanes[1]]) == (Kind.UNKNOWN, {Code.NO_EVIDENCE})
        assert "while a backward" in verdict.jobs[1].reasons[0].message


def test_lanes_with_devices_of_their_own_have_no_backward_to_meet() -> None:
    apart = plan('lanes = 2\ndevices = "cuda:0-1"', WORKLOAD + "grad = true\n")
    events = [*asked(FIRST, 0), *asked(SECOND, 1), shape_done(job=FIRST), shape_done(job=SECOND)]
    before = judge(
        [hello(), *events, done(FIRST, 2), done(SECOND, 2), Bye(t=0)], plan=apart, expected={FIRST: keys(0), SECOND: keys(1)}
    )
    assert before.kind is Kind.WARM
    assert drilled(drill_events(), of=apart, before=before).kind is Kind.WARM


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_no_drill_that_lacks_what_a_lane_should_have_said_leaves_warm(data: st.DataObject) -> None:
    events = drill_events()
    held = [number for number, event in enumerate(events) if isinstance(event, (DrillDone, Bye))]
    lacking = data.draw(st.sets(st.sampled_from(held), min_size=1))
    lacking |= data.draw(st.sets(st.sampled_from(range(len(events)))))
    said = [e for number, e in enumerate(events) if number not in lacking]
    # A worker that did not say bye did not finish, whatever its status was.
    finished = any(isinstance(event, Bye) for event in said)
    exit = CLEAN_EXIT if finished else Exit(end=End.DIED, status=0, log="/log")
    assert drilled(said, exit=exit).kind is not Kind.WARM


@pytest.mark.parametrize("signal", [6, 9, 11])
def test_a_drilled_rank_that_died_of_a_signal_is_a_crash_with_its_phase(signal: int) -> None:
    verdict = drilled(drill_events()[:3], exit=Exit(end=End.DIED, status=-signal, log="/log"))
    assert (verdict.kind, verdict.exit_code, codes(verdict)) == (Kind.UNSAFE, ExitCode.UNSAFE, {Code.CRASH})
    (reason,) = verdict.reasons
    assert reason.message.startswith("in the drill: rank 0 was killed by SIG")
    assert "in phase run" in reason.message
    assert reason.hint == REMEDIES[HazardCode.CRASH]


def test_a_drilled_rank_that_died_of_a_signal_after_all_was_said_is_a_crash_too() -> None:
    verdict = drilled(drill_events()[:-1], exit=Exit(end=End.DIED, status=-11, log="/log"))
    assert (verdict.kind, verdict.exit_code, codes(verdict)) == (Kind.UNSAFE, ExitCode.UNSAFE, {Code.CRASH})


def test_a_drilled_rank_that_hung_is_a_deadlock_and_unsafe_not_broken() -> None:
    exit = Exit(end=End.HUNG, status=-9, log="/log", limit_seconds=60)
    verdict = drilled([*drill_events()[:3], hang(FIRST, SECOND)], exit=exit)
    assert (verdict.kind, verdict.exit_code) == (Kind.UNSAFE, ExitCode.UNSAFE)
    assert codes(verdict) == {Code.COMPILE_DEADLOCK}
    (reason,) = verdict.reasons
    assert reason.message == f"in the drill: rank 0: {hang().message}"
    assert reason.hint == REMEDIES[HazardCode.COMPILE_DEADLOCK]


@pytest.mark.parametrize(
    ("exit", "code"),
    [
        (Exit(end=End.TIMED_OUT, status=-9, log="/log", limit_seconds=5), Code.TIMED_OUT),
        (Exit(end=End.SILENT, status=-9, log="/log", limit_seconds=5), Code.SILENT),
        (Exit(end=End.DIED, status=3, log="/log"), Code.CRASHED),
        (Exit(end=End.DIED, status=0, log="/log"), Code.CRASHED),
    ],
)
@pytest.mark.parametrize("said", [3, 5])
def test_a_drilled_rank_that_ended_in_another_way_is_broken(said: int, exit: Exit, code: Code) -> None:
    verdict = drilled(drill_events()[:said], exit=exit)
    assert (verdict.kind, verdict.exit_code, codes(verdict)) == (Kind.BROKEN, ExitCode.WORKER_DIED, {code})
    assert "in the drill rank 0" in verdict.reasons[0].message
    assert "/log" in verdict.reasons[0].hint


def test_a_drilled_rank_that_refused_says_why() -> None:
    verdict = drilled([Refused(t=0, message="this torch is not known", hint="use another")])
    assert (verdict.kind, verdict.exit_code, codes(verdict)) == (Kind.BROKEN, ExitCode.UNSUPPORTED, {Code.REFUSED})
    assert [(reason.message, reason.hint) for reason in verdict.reasons] == [("this torch is not known", "use another")]


def test_a_drilled_rank_whose_end_nobody_saw_proves_nothing() -> None:
    verdict = drilled(drill_events(), exit=None)
    assert (verdict.kind, codes(verdict)) == (Kind.UNKNOWN, {Code.NO_EVIDENCE})


def test_a_lane_that_failed_in_the_drill_is_a_failed_job() -> None:
    verdict = drilled(instead(DrillDone, SECOND, failed("ValueError", "no data", job=SECOND))(drill_events()))
    assert (verdict.kind, verdict.exit_code) == (Kind.BROKEN, ExitCode.JOB_FAILED)
    assert codes_by_job(verdict) == {FIRST: set(), SECOND: {Code.RAISED}}
    assert verdict.jobs[1].reasons[0].message == "in the drill: ValueError: no data"


def test_a_lane_that_torchs_guard_made_fail_in_the_drill_is_unsafe() -> None:
    race = hazard(HazardCode.FX_RACE, job=SECOND, fate="raise")
    events = instead(DrillDone, SECOND, failed("RuntimeError", GUARD_MESSAGE, job=SECOND))([*drill_events(), race])
    verdict = drilled(events)
    assert (verdict.kind, verdict.exit_code) == (Kind.UNSAFE, ExitCode.UNSAFE)
    assert codes_by_job(verdict) == {FIRST: set(), SECOND: {Code.FX_RACE}}


def test_a_workload_that_was_not_drilled_keeps_its_own_reasons() -> None:
    two = plan("lanes = 2", WORKLOAD + WORKLOAD.replace('"w"', '"x"').replace("256", "512"))
    record = recorded(two, [hello(), Bye(t=0)], CLEAN_EXIT)
    before = judge_verify(record, {job.id: keys(0) for job in two.jobs}, {}, (), COMPONENTS)
    after = drilled([*drill_events(), hazard(HazardCode.FX_RACE, job=FIRST)], of=two, before=before)
    assert codes_by_job(after)["x/r:0.0"] == codes_by_job(before)["x/r:0.0"]
    assert Code.FX_RACE in codes_by_job(after)[FIRST]
