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
    Hello,
    JobDone,
    JobFailed,
    JobStopped,
    Layer,
    Lookup,
    Phase,
    Progress,
    ShapeDone,
    from_line,
    to_line,
)
from flexwarm.plan import Plan, make_plan
from flexwarm.reasons import EXIT_ORDER, MEANING, Code, Kind, Reason
from flexwarm.record import End, Exit, fold
from flexwarm.verdict import Verdict, conclude, judge_build, judge_verify

SPEC = 'schema = 1\n[[workload]]\nname = "w"\nq_heads = 4\nhead_dim = 64\nq_len = 256\n'
PLAN = make_plan(spec.parse(SPEC, "s"), environ={}, bucket_path="/b", cores=2)
JOB = PLAN.jobs[0].id
COMPONENTS = {"torch.version": "2.13.0"}
KEYS = frozenset({("aot", "akey"), ("fx", "fkey")})
HITS = {"inductor.fxgraph_cache_hit": 1, "aot_autograd.autograd_cache_hit": 1}
CLEAN_EXIT = Exit(end=End.FINISHED, status=0, log="/log")


def lookup(layer: Layer, answer: Answer = Answer.HIT, key: str | None = None) -> Lookup:
    return Lookup(t=0, job=JOB, layer=layer, answer=answer, key=key or f"{layer.value[0]}key", reason="")


def shape_done(**changes: Any) -> ShapeDone:
    values: dict[str, Any] = {
        "t": 0, "job": JOB, "shape": 0, "calls": 2, "first_seconds": 1.0, "repeat_seconds": 0.1,
        "error": 1e-6, "tolerance": 1e-3, "agrees": True,
    }  # fmt: skip
    return ShapeDone(**{**values, **changes})


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
    ],
)
def test_each_missing_or_odd_piece_of_evidence_takes_warm_away(change: Change, code: Code, kind: Kind) -> None:
    verdict = judge(change(warm_events()))
    assert code in codes(verdict)
    assert verdict.kind is kind
    assert verdict.exit_code is not ExitCode.OK


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


def test_a_follower_that_misses_what_its_leader_stored_shows_keys_that_are_not_stable() -> None:
    job = dataclasses.replace(PLAN.jobs[0], leader="w/default:9")
    plan = Plan(workers=(dataclasses.replace(PLAN.workers[0], jobs=(job,)),))
    from flexwarm.events import Bye

    record = fold(plan, {0: [*build_events(Answer.MISS), Bye(t=0)]}, {0: CLEAN_EXIT})
    assert Code.WITNESSES_DISAGREE in codes(judge_build(record, KEYS, COMPONENTS, True))
