"""No false green: a verdict of warm needs every witness to have spoken, and each missing or odd one takes it away."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from flexwarm import spec
from flexwarm.errors import ExitCode
from flexwarm.events import (
    Answer,
    Compiled,
    Dense,
    Event,
    Hang,
    Hazard,
    Hello,
    JobDone,
    JobFailed,
    JobStopped,
    Layer,
    Lookup,
    Open,
    Phase,
    Progress,
    ShapeDone,
    Tuned,
    Untuned,
    from_line,
    to_line,
)
from flexwarm.evidence import GUARD_MESSAGE
from flexwarm.hazards import REMEDIES, HazardCode
from flexwarm.plan import Plan, make_plan
from flexwarm.reasons import EXIT_ORDER, MEANING, Code, Kind, Reason
from flexwarm.record import End, Exit, fold
from flexwarm.verdict import Outcome, Verdict, conclude, judge_build, judge_verify, notes

SPEC = 'schema = 1\n[[workload]]\nname = "w"\nq_heads = 4\nhead_dim = 64\nq_len = 256\n'
PLAN = make_plan(spec.parse(SPEC, "s"), environ={}, bucket_path="/b", cores=2)
JOB = PLAN.jobs[0].id
COMPONENTS = {"torch.version": "2.13.0"}
KEYS = frozenset({("aot", "akey"), ("fx", "fkey")})
HITS = {"inductor.fxgraph_cache_hit": 1, "aot_autograd.autograd_cache_hit": 1}
CLEAN_EXIT = Exit(end=End.FINISHED, status=0, log="/log")


def lookup(layer: Layer, answer: Answer = Answer.HIT, key: str | None = None, *, job: str = JOB) -> Lookup:
    return Lookup(t=0, job=job, layer=layer, answer=answer, key=key or f"{layer.value[0]}key", reason="")


def shape_done(**changes: Any) -> ShapeDone:
    values: dict[str, Any] = {
        "t": 0, "job": JOB, "shape": 0, "calls": 2, "checks": 2, "first_seconds": 1.0, "repeat_seconds": 0.1,
        "error": 1e-6, "tolerance": 1e-3, "agrees": True,
    }  # fmt: skip
    return ShapeDone(**{**values, **changes})


def hazard(code: HazardCode, **changes: Any) -> Hazard:
    values: dict[str, Any] = {
        "t": 0, "job": JOB, "code": code, "message": "a call was made while thread 'loader' traced",
        "owner": "thread 'loader'", "stack": ("mine.py:3 in trace",),
    }  # fmt: skip
    return Hazard(**{**values, **changes})


def failed(error: str, message: str, *, job: str = JOB) -> JobFailed:
    return JobFailed(t=0, job=job, error=error, message=message, traceback="")


def hang(*jobs: str) -> Hang:
    message = "lane 0 holds torch's compile lock and waits for the autograd engine, while lane 1 (in call) waits for that lock"
    return Hang(t=0, jobs=jobs or (JOB,), message=message, seconds=60.5, stacks={"lane 0": ("a.py:1 in f",)})


def hello(components: dict[str, str] = COMPONENTS) -> Hello:
    return Hello(t=0, pid=1, host="h", components=components, config_digest="c", config={}, import_seconds=1.0)


def warm_events() -> list[Event]:
    from flexwarm.events import Bye

    return [
        hello(),
        Progress(t=0, job=JOB, phase=Phase.TRACE),
        lookup(Layer.FX),
        lookup(Layer.AOT),
        shape_done(),
        JobDone(t=0, job=JOB, counters=HITS, seconds=2.0),
        Bye(t=0),
    ]


def judge(events: list[Event], *, exit: Exit = CLEAN_EXIT, disk: tuple[str, ...] = (), plan: Plan = PLAN) -> Verdict:
    # Through the text form, as it comes from a worker.
    said = [from_line(to_line(event)) for event in events]
    record = fold(plan, {0: said}, {0: exit})
    return judge_verify(record, {JOB: KEYS}, {}, disk, COMPONENTS)


def codes(verdict: Verdict) -> set[Code]:
    return {reason.code for job in verdict.jobs for reason in job.reasons} | {reason.code for reason in verdict.reasons}


def test_every_witness_agreeing_is_warm() -> None:
    verdict = judge(warm_events())
    assert (verdict.kind, verdict.exit_code) == (Kind.WARM, ExitCode.OK)
    assert not codes(verdict)


Change = Callable[[list[Event]], list[Event]]


def without(kind: type) -> Change:
    return lambda events: [event for event in events if not isinstance(event, kind)]


def plus(*added: Event) -> Change:
    return lambda events: [*events[:2], *added, *events[2:]]


def instead(kind: type, replacement: Event) -> Change:
    return lambda events: [replacement if isinstance(event, kind) else event for event in events]


@pytest.mark.parametrize(
    ("change", "code", "kind"),
    [
        (without(Lookup), Code.NO_EVIDENCE, Kind.UNKNOWN),
        (without(ShapeDone), Code.NO_EVIDENCE, Kind.UNKNOWN),
        (lambda events: [e for e in events if getattr(e, "layer", None) is not Layer.FX], Code.KEY_NOT_SEEN, Kind.UNKNOWN),
        (plus(lookup(Layer.FX, key="other")), Code.KEY_NOT_LISTED, Kind.COLD),
        (plus(lookup(Layer.FX)), Code.WITNESSES_DISAGREE, Kind.UNKNOWN),
        (plus(lookup(Layer.FX, Answer.MISS)), Code.FX_MISS, Kind.COLD),
        (plus(lookup(Layer.AOT, Answer.MISS)), Code.AOT_MISS, Kind.COLD),
        (plus(lookup(Layer.TRITON, Answer.MISS)), Code.TRITON_MISS, Kind.COLD),
        (plus(lookup(Layer.FX, Answer.BYPASS)), Code.FX_BYPASS, Kind.COLD),
        (plus(lookup(Layer.AOT, Answer.BYPASS)), Code.AOT_BYPASS, Kind.COLD),
        (plus(Compiled(t=0, job=JOB, what="cxx", detail="g++ x.cpp")), Code.COMPILED, Kind.COLD),
        (plus(Compiled(t=0, job=JOB, what="autotune", detail="k")), Code.COMPILED, Kind.COLD),
        (plus(Compiled(t=0, job=None, what="cxx", detail="g++ x.cpp")), Code.COMPILED, Kind.COLD),
        (plus(Dense(t=0, job=JOB, shape=(1, 4, 256, 64), stack=())), Code.DENSE_FALLBACK, Kind.UNSAFE),
        (instead(ShapeDone, shape_done(agrees=False)), Code.WRONG_RESULT, Kind.BROKEN),
        (instead(ShapeDone, shape_done(agrees=False, error=None)), Code.WRONG_RESULT, Kind.BROKEN),
        (instead(ShapeDone, shape_done(agrees=None, error=None)), Code.NO_EVIDENCE, Kind.UNKNOWN),
        (plus(Untuned(t=0, job=JOB, kernel="a value", open=Open.VALUE)), Code.UNTUNED, Kind.COLD),
        (instead(JobDone, JobFailed(t=0, job=JOB, error="E", message="m", traceback="")), Code.RAISED, Kind.BROKEN),
        (instead(JobDone, JobStopped(t=0, job=JOB, counters={}, seconds=1)), Code.NO_EVIDENCE, Kind.UNKNOWN),
        (instead(JobDone, JobDone(t=0, job=JOB, counters={}, seconds=1)), Code.WITNESSES_DISAGREE, Kind.UNKNOWN),
        (
            instead(JobDone, JobDone(t=0, job=JOB, counters={**HITS, "inductor.fxgraph_cache_miss": 1}, seconds=1)),
            Code.WITNESSES_DISAGREE,
            Kind.UNKNOWN,
        ),
        (instead(Hello, hello({"torch.version": "2.12.0"})), Code.TOOLCHAIN_MISMATCH, Kind.UNKNOWN),
        (without(Hello), Code.NO_EVIDENCE, Kind.UNKNOWN),
        # Two calls, of which torch asked about one, or about none: nobody looked whether they met a trace.
        (instead(ShapeDone, shape_done(checks=1)), Code.NO_EVIDENCE, Kind.UNKNOWN),
        (instead(ShapeDone, shape_done(checks=0)), Code.NO_EVIDENCE, Kind.UNKNOWN),
        (plus(hazard(HazardCode.FX_LEAK, job=None)), Code.FX_LEAK, Kind.UNSAFE),
        (plus(hang()), Code.COMPILE_DEADLOCK, Kind.UNSAFE),
    ],
)
def test_each_missing_or_odd_piece_of_evidence_takes_warm_away(change: Change, code: Code, kind: Kind) -> None:
    verdict = judge(change(warm_events()))
    assert code in codes(verdict)
    assert verdict.kind is kind
    assert verdict.exit_code is not ExitCode.OK


def test_the_call_that_a_gpu_that_is_not_there_did_not_answer_is_named_beside_the_log() -> None:
    end = dataclasses.replace(failed("RuntimeError", "NCCL error"), unanswered="nccl ncclGetUniqueId; use the gloo backend")
    (reason,) = judge(instead(JobDone, end)(warm_events())).jobs[0].reasons
    hint = "a GPU that is not there did not answer nccl ncclGetUniqueId; use the gloo backend; log: /log"
    assert (reason.code, reason.message, reason.hint) == (Code.RAISED, "RuntimeError: NCCL error", hint)


@pytest.mark.parametrize("checks", [2, 3, 100])
def test_the_guard_may_be_asked_more_often_than_there_are_calls(checks: int) -> None:
    assert judge(instead(ShapeDone, shape_done(checks=checks))(warm_events())).kind is Kind.WARM


def test_tuning_that_is_allowed_takes_nothing_away_and_is_told_with_its_time() -> None:
    tuned = [Tuned(t=0, job=JOB, kernel=kernel, seconds=0.25, kept=False) for kernel in ("one", "one", "two")]
    said = [from_line(to_line(event)) for event in plus(*tuned)(warm_events())]
    record = fold(PLAN, {0: said}, {0: CLEAN_EXIT})
    verdict = judge_verify(record, {JOB: KEYS}, {}, (), COMPONENTS)
    assert (verdict.kind, verdict.jobs[0].outcome) == (Kind.WARM, Outcome.HIT)
    (note,) = notes(record)
    assert note.startswith("2 kernels were tuned, in 0.75 s, and nothing of it is kept: each rank")
    stray = Tuned(t=0, job=None, kernel="three", seconds=0.25, kept=False)  # by a thread whose job has ended
    record = fold(PLAN, {0: [*said, stray]}, {0: CLEAN_EXIT})
    assert {event.kernel for event in record.tuned} == {"one", "two", "three"}
    assert notes(record)[0].startswith("3 kernels were tuned, in 1 s")


def test_tuning_that_is_not_allowed_is_named_with_both_ways_out() -> None:
    verdict = judge(plus(Compiled(t=0, job=JOB, what="autotune", detail="triton_per_fused_0"))(warm_events()))
    (reason,) = verdict.jobs[0].reasons
    assert reason.message == "kernels are tuned: triton_per_fused_0"
    assert reason.hint == "flexwarm build keeps what is chosen; --allow-tuning lets each launch tune"


def test_calls_that_torch_did_not_ask_about_are_said_with_both_numbers() -> None:
    verdict = judge(instead(ShapeDone, shape_done(calls=12, checks=7))(warm_events()))
    (reason,) = verdict.jobs[0].reasons
    assert "12 compiled calls" in reason.message
    assert "asked 7 times" in reason.message


@pytest.mark.parametrize("code", list(HazardCode))
@pytest.mark.parametrize("job", [JOB, None])
def test_each_hazard_alone_is_unsafe_with_its_remedy(code: HazardCode, job: str | None) -> None:
    verdict = judge(plus(hazard(code, job=job))(warm_events()))
    assert (verdict.kind, verdict.exit_code, codes(verdict)) == (Kind.UNSAFE, ExitCode.UNSAFE, {Code(code.value)})
    (reason,) = verdict.jobs[0].reasons if job else verdict.reasons
    assert "thread 'loader'" in reason.message
    assert reason.hint == REMEDIES[code]
    if job:
        # Dense attention has an outcome of its own.
        assert verdict.jobs[0].outcome is (Outcome.DENSE if code is HazardCode.DENSE_FALLBACK else Outcome.UNSAFE)
    else:
        assert "rank 0" in reason.message


def test_a_hazard_is_said_once_for_each_thread_that_brought_it_about_with_how_often() -> None:
    other = hazard(HazardCode.FX_RACE, owner="lane 1", message="a call was made while lane 1 traced")
    race = hazard(HazardCode.FX_RACE)
    verdict = judge(plus(race, other, race, race)(warm_events()))
    assert [reason.message for reason in verdict.jobs[0].reasons] == [
        "a call was made while thread 'loader' traced (3 times)",
        "a call was made while lane 1 traced",
    ]


def test_hazards_of_nobody_that_say_different_things_are_each_said() -> None:
    said = [f"recompile_limit is 64 here and 8 in {where}" for where in ("lane 0", "autograd's thread of cuda:0")]
    drift = [hazard(HazardCode.LANE_CONFIG_DRIFT, owner="", stack=(), message=message) for message in said]
    verdict = judge(plus(*drift)(warm_events()))
    assert [reason.message for reason in verdict.jobs[0].reasons] == said


def test_a_hazard_makes_nothing_better_than_it_is_without() -> None:
    race = plus(hazard(HazardCode.FX_RACE))
    cold = judge(race(plus(lookup(Layer.FX, Answer.MISS))(warm_events())))
    assert (cold.kind, cold.exit_code, codes(cold)) == (Kind.UNSAFE, ExitCode.UNSAFE, {Code.FX_RACE, Code.FX_MISS})
    wrong = judge(race(instead(ShapeDone, shape_done(agrees=False))(warm_events())))
    assert (wrong.kind, wrong.exit_code) == (Kind.BROKEN, ExitCode.JOB_FAILED)


GUARDS_OWN = failed("RuntimeError", GUARD_MESSAGE + " a torch.compile'd function.")


@pytest.mark.parametrize(
    ("end", "seen", "expected", "exit_code"),
    [
        (GUARDS_OWN, hazard(HazardCode.FX_RACE, fate="raise"), {Code.FX_RACE}, ExitCode.UNSAFE),
        (GUARDS_OWN, hazard(HazardCode.FX_NESTED, fate="raise"), {Code.FX_NESTED}, ExitCode.UNSAFE),
        (GUARDS_OWN, hazard(HazardCode.FX_LEAK, fate="raise"), {Code.FX_LEAK}, ExitCode.UNSAFE),
        # The hazard did not make a call raise, so something else did.
        (GUARDS_OWN, hazard(HazardCode.FX_RACE, fate="inline"), {Code.FX_RACE, Code.RAISED}, ExitCode.JOB_FAILED),
        (GUARDS_OWN, hazard(HazardCode.FX_SILENCED), {Code.FX_SILENCED, Code.RAISED}, ExitCode.JOB_FAILED),
        # Another error is not torch's answer to a trace.
        (
            failed("RuntimeError", "CUDA out of memory"),
            hazard(HazardCode.FX_RACE, fate="raise"),
            {Code.FX_RACE, Code.RAISED},
            ExitCode.JOB_FAILED,
        ),
        (
            failed("ValueError", GUARD_MESSAGE),
            hazard(HazardCode.FX_RACE, fate="raise"),
            {Code.FX_RACE, Code.RAISED},
            ExitCode.JOB_FAILED,
        ),
        # A call that meets the patches of a trace fails in any way.
        (
            failed("AttributeError", "'Proxy' object has no attribute 'x'"),
            hazard(HazardCode.FOREIGN_PATCH, fate="raise"),
            {Code.FOREIGN_PATCH},
            ExitCode.UNSAFE,
        ),
        # A compile beside a trace, which went well; the job failed of something else.
        (
            failed("ValueError", "this lane has no data"),
            hazard(HazardCode.FOREIGN_PATCH),
            {Code.FOREIGN_PATCH, Code.RAISED},
            ExitCode.JOB_FAILED,
        ),
    ],
)
def test_a_hazard_is_the_reason_of_a_failed_job_only_where_it_made_the_job_fail(
    end: JobFailed, seen: Hazard, expected: set[Code], exit_code: ExitCode
) -> None:
    verdict = judge(plus(seen)(instead(JobDone, end)(warm_events())))
    assert (codes(verdict), verdict.exit_code) == (expected, exit_code)


def test_torchs_error_for_a_trace_is_a_failed_job_where_no_hazard_was_seen() -> None:
    verdict = judge(instead(JobDone, GUARDS_OWN)(warm_events()))
    assert (codes(verdict), verdict.exit_code) == ({Code.RAISED}, ExitCode.JOB_FAILED)
    assert GUARD_MESSAGE in verdict.jobs[0].reasons[0].message


def test_a_rank_that_hung_is_broken_and_the_cycle_is_named() -> None:
    exit = Exit(end=End.HUNG, status=-9, log="/log", limit_seconds=60.5)
    verdict = judge([*warm_events()[:3], hang()], exit=exit)
    assert (verdict.kind, verdict.exit_code) == (Kind.BROKEN, ExitCode.WORKER_DIED)
    assert codes(verdict) == {Code.HUNG, Code.COMPILE_DEADLOCK}
    assert verdict.jobs[0].outcome is Outcome.HUNG
    (cycle,) = verdict.reasons
    assert cycle.message == f"rank 0: {hang().message}"
    assert cycle.hint == REMEDIES[HazardCode.COMPILE_DEADLOCK]
    (reason,) = verdict.jobs[0].reasons
    assert "60.5 s" in reason.message
    assert "--hang-timeout" in reason.hint


def test_a_file_of_the_bucket_that_changed_is_a_witness_that_disagrees() -> None:
    verdict = judge(warm_events(), disk=("inductor/x.so",))
    assert (verdict.kind, codes(verdict)) == (Kind.UNKNOWN, {Code.DISK_CHANGED})


@pytest.mark.parametrize(
    ("exit", "code"),
    [
        (Exit(end=End.DIED, status=-11, log="/log"), Code.CRASHED),
        (Exit(end=End.DIED, status=0, log="/log"), Code.CRASHED),
        (Exit(end=End.TIMED_OUT, status=-9, log="/log", limit_seconds=5), Code.TIMED_OUT),
        (Exit(end=End.SILENT, status=-9, log="/log", limit_seconds=5), Code.SILENT),
        (Exit(end=End.HUNG, status=-9, log="/log", limit_seconds=5), Code.HUNG),
    ],
)
def test_a_worker_that_ended_early_breaks_the_run_and_names_where(exit: Exit, code: Code) -> None:
    verdict = judge(warm_events()[:3], exit=exit)
    assert (verdict.kind, verdict.exit_code, codes(verdict)) == (Kind.BROKEN, ExitCode.WORKER_DIED, {code})
    assert "trace" in verdict.jobs[0].reasons[0].message


def test_a_worker_that_died_after_its_last_job_is_not_warm_either() -> None:
    verdict = judge(warm_events()[:-1], exit=Exit(end=End.DIED, status=-11, log="/log"))
    assert (verdict.kind, verdict.exit_code) == (Kind.BROKEN, ExitCode.WORKER_DIED)
    assert "SIGSEGV" in verdict.reasons[0].message


def test_no_job_at_all_is_not_warm() -> None:
    assert conclude([], [], best=Kind.WARM).kind is Kind.UNKNOWN


def test_where_several_exit_codes_apply_the_order_is_7_6_5_3_8_1() -> None:
    assert [int(code) for code in EXIT_ORDER] == [7, 6, 5, 3, 8, 1]
    worst_first = [Code.CORRUPT_FILE, Code.CRASHED, Code.RAISED, Code.DENSE_FALLBACK, Code.FX_MISS]
    for position, expected in enumerate([7, 6, 5, 8, 1]):
        reasons = [Reason(code=code, message="") for code in worst_first[position:]]
        assert int(conclude([], reasons, best=Kind.WARM).exit_code) == expected


def test_every_reason_has_a_meaning_and_none_of_them_is_success() -> None:
    assert set(MEANING) == set(Code)
    for kind, exit_code in MEANING.values():
        assert kind not in (Kind.WARM, Kind.BUILT)
        assert exit_code in EXIT_ORDER


def build_events(answer: Answer) -> list[Event]:
    counters = {f"{group}_{answer.value}": 1 for group in ("inductor.fxgraph_cache", "aot_autograd.autograd_cache")}
    done = JobDone(t=0, job=JOB, counters=counters, seconds=1)
    return [hello(), lookup(Layer.AOT, answer), lookup(Layer.FX, answer), shape_done(), done]


def built(events: list[Event], stored: frozenset[tuple[str, str]] = KEYS, *, written: bool = True) -> Verdict:
    from flexwarm.events import Bye

    return judge_build(fold(PLAN, {0: [*events, Bye(t=0)]}, {0: CLEAN_EXIT}), stored, COMPONENTS, written)


def test_a_build_that_compiled_is_built_and_not_warm_because_nothing_proved_it() -> None:
    assert built(build_events(Answer.MISS)).kind is Kind.BUILT


def test_a_build_in_which_all_hit_and_nothing_was_written_is_warm() -> None:
    assert built(build_events(Answer.HIT), written=False).kind is Kind.WARM
    assert built(build_events(Answer.HIT), written=True).kind is Kind.BUILT


def test_a_key_that_was_compiled_and_not_stored_is_not_built() -> None:
    verdict = built(build_events(Answer.MISS), frozenset({("fx", "fkey")}))
    assert (verdict.kind, codes(verdict)) == (Kind.COLD, {Code.NOT_STORED})


@pytest.mark.parametrize("code", list(HazardCode))
def test_a_hazard_in_a_build_is_unsafe_too(code: HazardCode) -> None:
    verdict = built([*build_events(Answer.MISS), hazard(code)])
    assert (verdict.kind, verdict.exit_code, codes(verdict)) == (Kind.UNSAFE, ExitCode.UNSAFE, {Code(code.value)})


def test_a_build_in_which_torch_was_not_asked_at_each_call_is_not_built() -> None:
    events = [shape_done(checks=1) if isinstance(event, ShapeDone) else event for event in build_events(Answer.MISS)]
    assert (built(events).kind, codes(built(events))) == (Kind.UNKNOWN, {Code.NO_EVIDENCE})


@pytest.mark.parametrize("code", list(HazardCode))
def test_a_build_with_a_hazard_is_published_only_if_its_kernels_are_those_of_a_launch(code: HazardCode) -> None:
    from flexwarm.ops.build import _is_whole

    whole = _is_whole(built([*build_events(Answer.MISS), hazard(code)]))
    assert whole == (code not in (HazardCode.DENSE_FALLBACK, HazardCode.RECOMPILE_LIMIT, HazardCode.COMPILE_DEADLOCK))


def test_a_build_that_ended_in_a_hazard_is_not_published() -> None:
    from flexwarm.ops.build import _is_whole

    events = [GUARDS_OWN if isinstance(event, JobDone) else event for event in build_events(Answer.MISS)]
    verdict = built([*events, hazard(HazardCode.FX_RACE, fate="raise")])
    assert verdict.kind is Kind.UNSAFE
    assert not _is_whole(verdict)


def test_a_follower_that_misses_what_its_leader_stored_shows_keys_that_are_not_stable() -> None:
    job = dataclasses.replace(PLAN.jobs[0], leader="w/default:9")
    plan = Plan(workers=(dataclasses.replace(PLAN.workers[0], jobs=(job,)),))
    from flexwarm.events import Bye

    record = fold(plan, {0: [*build_events(Answer.MISS), Bye(t=0)]}, {0: CLEAN_EXIT})
    assert Code.WITNESSES_DISAGREE in codes(judge_build(record, KEYS, COMPONENTS, True))
