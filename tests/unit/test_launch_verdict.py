"""No false green for launch lines: each witness of each program must have spoken, and each odd word takes warm away."""

from __future__ import annotations

import dataclasses
import errno
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexwarm.errors import ExitCode
from flexwarm.events import Answer, Dense, Event, Hang, Hazard, Layer, LeftOut, Open, Read, Tuned, Untuned
from flexwarm.hazards import HazardCode
from flexwarm.launch_verdict import describe_status, judge_built_launch, judge_verified_launch, only_hazards
from flexwarm.manifest import JobEntry
from flexwarm.ops import publish
from flexwarm.ops.build_launch import retired
from flexwarm.program_events import Called, Held, Moved, Program, Silenced, Summary
from flexwarm.programs import Ended, SeenCompiler, Unseen
from flexwarm.reasons import Code, Kind, Reason
from flexwarm.target import NOTHING, STANDS_IN
from flexwarm.verdict import Outcome
from tests.launches import (
    COMPONENTS,
    HITS,
    KEYS,
    Change,
    answered,
    bye,
    called,
    codes,
    compiled,
    expectation,
    instead,
    judge,
    lookup,
    messages,
    plus,
    program,
    raised,
    rank,
    record,
    refused,
    silent,
    summary,
    warm,
    warm_ranks,
    without,
)


def hazard(code: HazardCode = HazardCode.FX_RACE) -> Hazard:
    return Hazard(t=4.0, job="lane-0", code=code, message="a call met a trace", owner="thread 'loader'")


def dense(*stack: str) -> Dense:
    return Dense(t=4.0, job="lane-0", shape=(1, 2, 64, 32), stack=stack)


def hang() -> Hang:
    return Hang(t=4.0, jobs=("lane-0",), message="two threads wait for each other", seconds=60.0, stacks={})


def moved() -> Moved:
    return Moved(t=4.0, name="TORCHINDUCTOR_CACHE_DIR", old="/bucket/inductor", new="/scratch")


def held() -> Held:
    return Held(t=4.0, job="lane-0", graph="0/0")


def ranks_with(change: Change) -> list[list[Event]]:
    """A warm launch of two ranks, one of which is changed."""
    launcher, first, second = warm_ranks()
    return [launcher, first, change(second)]


# ---- what is warm ----------------------------------------------------------------------------------------------------------


def test_a_launch_whose_every_rank_hits_is_warm() -> None:
    verdict = judge(warm_ranks(), expectation(ranks=2, said_by="--nproc-per-node 2", recorded={"rank 0": KEYS}))
    assert (verdict.kind, verdict.exit_code, codes(verdict), verdict.notes) == (Kind.WARM, ExitCode.OK, set(), ())
    assert [(one.record.name, one.outcome) for one in verdict.programs] == [("rank 0", Outcome.HIT), ("rank 1", Outcome.HIT)]


def test_a_program_without_a_launcher_is_warm_without_a_rank() -> None:
    assert judge([warm()], expectation(ranks=1)).kind is Kind.WARM
    assert judge([warm()]).kind is Kind.WARM


# ---- what is not: one program ----------------------------------------------------------------------------------------------

MISS = answered(Layer.FX, lookup(Layer.FX, Answer.MISS, reason="['key changed']"))
#: A backend of the user's hands a graph to Inductor, with AOTAutograd's cache off: AOTAutograd traces in each launch.
FX_ALONE: Change = lambda events: instead(  # noqa: E731
    Summary, summary(counters={**HITS, "inductor.fxgraph_cache_hit": 2})
)(plus(lookup(Layer.FX, graph="1/0"))(events))
BYPASS = answered(Layer.AOT, lookup(Layer.AOT, Answer.BYPASS, "", reason="Cannot cache a graph with a custom function"))


@pytest.mark.parametrize(
    ("change", "code", "kind", "exit_code"),
    [
        (MISS, Code.FX_MISS, Kind.COLD, ExitCode.NOT_WARM),
        (answered(Layer.AOT, lookup(Layer.AOT, Answer.MISS)), Code.AOT_MISS, Kind.COLD, ExitCode.NOT_WARM),
        (plus(lookup(Layer.TRITON, Answer.MISS, "kernel")), Code.TRITON_MISS, Kind.COLD, ExitCode.NOT_WARM),
        (BYPASS, Code.AOT_BYPASS, Kind.COLD, ExitCode.NOT_WARM),
        (answered(Layer.FX, lookup(Layer.FX, Answer.BYPASS, "")), Code.FX_BYPASS, Kind.COLD, ExitCode.NOT_WARM),
        (plus(compiled("cxx", detail="g++ a.cpp")), Code.COMPILED, Kind.COLD, ExitCode.NOT_WARM),
        (plus(compiled("autotune", detail="triton_flex")), Code.COMPILED, Kind.COLD, ExitCode.NOT_WARM),
        (plus(compiled("inductor", graph="")), Code.COMPILED, Kind.COLD, ExitCode.NOT_WARM),
        (answered(Layer.FX, lookup(Layer.FX, key="stranger")), Code.KEY_NOT_LISTED, Kind.COLD, ExitCode.NOT_WARM),
        (plus(moved()), Code.CACHE_MOVED, Kind.COLD, ExitCode.NOT_WARM),
        (answered(Layer.AOT, called("1/0", 256)), Code.NO_EVIDENCE, Kind.UNKNOWN, ExitCode.NOT_WARM),
        (answered(Layer.FX, called("1/0", 256)), Code.NO_EVIDENCE, Kind.UNKNOWN, ExitCode.NOT_WARM),
        (plus(called("1/0", 256)), Code.NO_EVIDENCE, Kind.UNKNOWN, ExitCode.NOT_WARM),
        (FX_ALONE, Code.NO_EVIDENCE, Kind.UNKNOWN, ExitCode.NOT_WARM),
        (instead(Summary, summary(checks={})), Code.NO_EVIDENCE, Kind.UNKNOWN, ExitCode.NOT_WARM),
        (without(Summary), Code.NO_EVIDENCE, Kind.UNKNOWN, ExitCode.NOT_WARM),
        (instead(Summary, summary(counters={})), Code.WITNESSES_DISAGREE, Kind.UNKNOWN, ExitCode.NOT_WARM),
        (
            instead(Summary, summary(counters={**HITS, "inductor.fxgraph_cache_miss": 1})),
            Code.WITNESSES_DISAGREE,
            Kind.UNKNOWN,
            ExitCode.NOT_WARM,
        ),
        (
            instead(Program, rank(1, components={"torch.version": "2.12.0"})),
            Code.TOOLCHAIN_MISMATCH,
            Kind.UNKNOWN,
            ExitCode.NOT_WARM,
        ),
        (plus(refused()), Code.REFUSED, Kind.BROKEN, ExitCode.UNSUPPORTED),
        (plus(held()), Code.NO_EVIDENCE, Kind.UNKNOWN, ExitCode.NOT_WARM),
        (plus(dense("/job/train.py:7 in branch")), Code.DENSE_FALLBACK, Kind.UNSAFE, ExitCode.UNSAFE),
        (plus(hang()), Code.COMPILE_DEADLOCK, Kind.UNSAFE, ExitCode.UNSAFE),
        (plus(raised()), Code.RAISED, Kind.BROKEN, ExitCode.JOB_FAILED),
        (lambda events: events[:-2], Code.CRASHED, Kind.BROKEN, ExitCode.WORKER_DIED),
        *((plus(hazard(code)), Code(code.value), Kind.UNSAFE, ExitCode.UNSAFE) for code in HazardCode),
    ],
)
def test_each_odd_or_missing_word_of_one_rank_takes_warm_from_the_launch(
    change: Change, code: Code, kind: Kind, exit_code: ExitCode
) -> None:
    verdict = judge(ranks_with(change))
    assert code in codes(verdict), messages(verdict)
    assert (verdict.kind, verdict.exit_code) == (kind, exit_code)
    assert verdict.programs[0].outcome is Outcome.HIT
    assert code in {reason.code for one in verdict.programs[1:] for reason in one.reasons}


def test_a_miss_names_the_call_its_line_and_torchs_own_reason() -> None:
    verdict = judge([MISS(warm())])
    (reason,) = [reason for reason in verdict.programs[0].reasons if reason.code is Code.FX_MISS]
    assert "attend of 1x2x128x32 float32, called at /job/train.py:128 in step" in reason.message
    assert "key changed" in reason.message
    assert "flexwarm build --" in reason.hint


def test_a_miss_outside_of_every_graph_says_so() -> None:
    verdict = judge([plus(lookup(Layer.FX, Answer.MISS, "late", graph=""))(warm())])
    assert "outside of a graph that was seen" in messages(verdict)


def test_inductor_that_ran_for_a_miss_is_no_reason_of_its_own_and_the_cxx_compiler_is() -> None:
    counters = {"inductor.fxgraph_cache_miss": 1, "aot_autograd.autograd_cache_hit": 1}
    change = instead(Summary, summary(counters=counters))
    verdict = judge([change(plus(compiled(), compiled("cxx", detail="g++ a.cpp"))(MISS(warm())))])
    assert sorted(reason.code for reason in verdict.programs[0].reasons) == [Code.COMPILED, Code.FX_MISS]
    assert "g++ a.cpp" in messages(verdict)


def test_what_changed_since_the_build_is_said_for_a_rank_that_missed_and_for_no_other() -> None:
    note = Reason(code=Code.ENV_CHANGED, message="OMP_NUM_THREADS was 2 and is 1")
    notes = {program.process: [note] for program in record(warm_ranks()).programs}
    verdict = judge_verified_launch(record(ranks_with(MISS)), expectation(), notes)
    assert [note in one.reasons for one in verdict.programs] == [False, True]
    listed = judge_verified_launch(
        record(ranks_with(answered(Layer.FX, lookup(Layer.FX, key="stranger")))), expectation(), notes
    )
    assert [note in one.reasons for one in listed.programs] == [False, True]


def test_a_key_of_the_build_that_is_not_asked_for_is_unknown_and_says_how_many() -> None:
    more = KEYS | {("fx", "seldom"), ("aot", "seldom")}
    expected = expectation(listed=more, recorded={"rank 0": more, "rank 1": KEYS})
    verdict = judge(warm_ranks(), expected)
    assert (verdict.kind, codes(verdict)) == (Kind.UNKNOWN, {Code.KEY_NOT_SEEN})
    assert [bool(one.reasons) for one in verdict.programs] == [True, False]
    assert "and 1 more" in messages(verdict)


def test_a_rank_that_made_the_calls_of_the_build_no_more_is_not_warm() -> None:
    launcher, first, _ = warm_ranks()
    verdict = judge([launcher, first, silent(rank(1))], expectation(recorded={"rank 1": KEYS}))
    assert (verdict.kind, codes(verdict)) == (Kind.UNKNOWN, {Code.KEY_NOT_SEEN})


def test_programs_that_cannot_be_told_apart_share_what_the_build_recorded() -> None:
    """A build merges their keys; each of them alone asks for a part."""
    keys = {("aot", "a1"), ("fx", "f1"), ("aot", "a2"), ("fx", "f2")}

    def one(number: int) -> list[Event]:
        return [
            program(pid=100 + number), called(), lookup(Layer.FX, key=f"f{number}"), lookup(Layer.AOT, key=f"a{number}"),
            summary(), bye(),
        ]  # fmt: skip

    expected = expectation(listed=keys, recorded={"python train.py": keys})
    assert judge([one(1), one(2)], expected).kind is Kind.WARM
    assert codes(judge([one(1), one(1)], expected)) == {Code.KEY_NOT_SEEN}


def test_a_program_of_the_build_that_made_no_call_at_all_is_missed_by_its_keys() -> None:
    """A script that leaves its evaluation out this time has not proven it."""
    evaluation = frozenset({("aot", "e"), ("fx", "e")})
    expected = expectation(listed=KEYS | evaluation, recorded={"python train.py": KEYS, "python eval.py": evaluation})
    verdict = judge([warm()], expected)
    assert (verdict.kind, codes(verdict)) == (Kind.UNKNOWN, {Code.KEY_NOT_SEEN})
    assert "of python eval.py" in messages(verdict)


def test_a_program_that_a_later_build_of_the_line_did_not_start_is_asked_for_no_more() -> None:
    def job(line: str, name: str) -> JobEntry:
        return JobEntry(
            share=name, workload=name, detail={"line": line, "program": name}, keys=(), env={}, config_digest="",
            cold_seconds=None, built_at="",
        )  # fmt: skip

    of_spec = JobEntry(
        share="s", workload="w", detail={"q_len": 128}, keys=(), env={}, config_digest="", cold_seconds=None, built_at=""
    )
    jobs = {
        "a": job("l", "python train.py"),
        "b": job("l", "python eval.py"),
        "c": job("l", "rank 8"),
        "d": job("m", "x"),
        "e": of_spec,
    }
    left = retired(jobs, "l", {"python train.py"})
    assert left.keys() == jobs.keys()
    assert [share for share in jobs if left[share] != jobs[share]] == ["b"]
    assert (left["b"].detail["line"], left["b"].detail["program"]) == ("", "python eval.py")


def test_a_program_of_the_build_that_asked_for_nothing_of_its_own_or_is_a_rank_elsewhere_is_not_missed() -> None:
    assert judge([warm()], expectation(recorded={"python train.py": KEYS, "python train.py /tmp/1": KEYS})).kind is Kind.WARM
    assert judge([warm(rank(0))], expectation(recorded={"rank 8": {("fx", "there")}})).kind is not Kind.COLD
    assert Code.KEY_NOT_SEEN not in codes(judge([warm(rank(0))], expectation(recorded={"rank 8": {("fx", "there")}})))


def test_a_program_that_was_left_when_the_command_ended_has_not_shown_what_it_calls() -> None:
    left = [program(pid=500, argv=("python", "later.py"))]
    verdict = judge([warm(), left], left=(500,))
    assert (verdict.kind, codes(verdict)) == (Kind.UNKNOWN, {Code.NO_EVIDENCE})
    assert "python later.py (pid 500) was still running" in messages(verdict)
    assert judge([warm(), silent(left[0])], left=(500,)).kind is Kind.WARM
    worker = program(pid=500, argv=("python", "/torch/_inductor/compile_worker/__main__.py"))
    assert judge([warm(), [worker]], left=(500,)).kind is Kind.WARM
    loader = rank(0, of=1, pid=500, parent=100)
    assert judge([warm(rank(0, of=1)), [loader]], left=(500,)).kind is Kind.WARM


@pytest.mark.parametrize("odd", [refused(), hang(), hazard(), raised()])
def test_a_program_of_which_nothing_but_a_fault_was_seen_is_not_hidden_by_others(odd: Event) -> None:
    """Its observer may have failed, so that what it compiled is unknown."""
    other = plus(odd)(silent(program(pid=500, argv=("python", "other.py"))))
    verdict = judge([warm(), other])
    # What a program without compiled calls raises, and the command gets over, is nobody's business.
    assert (verdict.kind is Kind.WARM) == (odd == raised())


def test_lookups_that_torch_counted_and_nobody_saw_are_not_hidden_by_others() -> None:
    unseen = [program(pid=500), summary(counters={"inductor.fxgraph_cache_miss": 3}, checks={}), bye()]
    verdict = judge([warm(), unseen])
    assert (verdict.kind, codes(verdict)) == (Kind.UNKNOWN, {Code.WITNESSES_DISAGREE})


def test_dense_attention_names_the_line_that_called_it() -> None:
    verdict = judge([plus(dense("<eval_with_key>:3 in forward", "/job/train.py:7 in branch"))(warm())])
    assert "called from /job/train.py:7 in branch" in messages(verdict)


def test_a_cache_that_moved_is_said_with_both_values() -> None:
    assert "from '/bucket/inductor' to '/scratch'" in messages(judge([plus(moved())(warm())]))
    unset = dataclasses.replace(moved(), new=None)
    assert "to unset" in messages(judge([plus(unset)(warm())]))


def test_only_hazards_tells_whether_everything_else_is_warm() -> None:
    assert only_hazards(judge([plus(hazard())(warm())]))
    assert not only_hazards(judge([plus(hazard(), moved())(warm())]))


# ---- what is not: how the launch ended -------------------------------------------------------------------------------------


def test_a_command_that_fails_is_said_with_the_first_error_of_its_programs() -> None:
    launcher, first, second = warm_ranks()
    verdict = judge([launcher, plus(raised(6.0, error="RuntimeError"))(first), plus(raised(5.0))(second)], status=1)
    assert (verdict.kind, verdict.exit_code, codes(verdict)) == (Kind.BROKEN, ExitCode.JOB_FAILED, {Code.COMMAND_FAILED})
    assert "exited with status 1; rank 1: ValueError: no such data (/job/train.py:9 in load)" in messages(verdict)


def test_a_command_that_fails_without_an_error_of_a_program_is_said_with_its_status() -> None:
    verdict = judge([warm()], status=-9)
    assert codes(verdict) == {Code.COMMAND_FAILED}
    assert "was killed by SIGKILL" in messages(verdict)


_CALL = "nccl ncclGetUniqueId; use the gloo backend"


def test_the_call_that_a_gpu_that_is_not_there_did_not_answer_is_named_where_its_program_failed() -> None:
    launcher, first, second = warm_ranks()
    told = [dataclasses.replace(e, unanswered=_CALL) if isinstance(e, Summary) else e for e in second]
    hint = f"a GPU that is not there did not answer {_CALL}"
    of_torch, of_launcher = raised(5.0, error="RuntimeError"), raised(6.0, error="ChildFailedError")
    failed = judge([launcher, plus(of_launcher)(first), plus(of_torch)(told)], status=1)
    assert [(reason.code, reason.hint) for reason in failed.reasons] == [(Code.COMMAND_FAILED, hint)]
    went_on = judge([launcher, first, plus(of_torch)(told)])
    assert [(reason.code, reason.hint) for x in went_on.programs for reason in x.reasons] == [(Code.RAISED, hint)]
    # What a program got over is no cause of another one's end, nor of an error that torch does not raise.
    own = judge([launcher, first, plus(raised(5.0, error="KeyError"))(told)], status=1)
    assert [(reason.code, reason.hint) for reason in own.reasons] == [(Code.COMMAND_FAILED, "")]
    other = judge([launcher, plus(raised(5.0))(first), told], status=1)
    assert [(reason.code, reason.hint) for reason in other.reasons] == [(Code.COMMAND_FAILED, "")]
    assert codes(judge([launcher, first, told])) == set()


@pytest.mark.parametrize(
    ("status", "said"), [(0, "exited with status 0"), (-15, "was killed by SIGTERM"), (-200, "was killed by signal 200")]
)
def test_a_status_in_words(status: int, said: str) -> None:
    assert describe_status(status) == said


def cut(events: list[Event]) -> list[Event]:
    """As of a program that was killed in the middle."""
    return events[:-2]


def failing(events: list[Event], *, at: float, gone: float) -> list[Event]:
    return [dataclasses.replace(e, t=gone) if isinstance(e, Summary) else e for e in plus(raised(at))(events)]


def test_a_rank_that_the_launcher_killed_for_another_ones_error_did_not_crash() -> None:
    launcher, first, second = warm_ranks()
    said = [launcher, failing(first, at=5.0, gone=5.5), cut(second)]
    verdict = judge(said, gone=[None, 5.6, 5.9], status=1)
    assert (codes(verdict), verdict.exit_code) == ({Code.COMMAND_FAILED}, ExitCode.JOB_FAILED)
    elsewhere = judge(said, gone=[None, 5.6, None], status=1)  # on another machine nobody saw when it ended
    assert codes(elsewhere) == {Code.COMMAND_FAILED}


def test_a_rank_that_died_before_the_others_felt_it_crashed() -> None:
    launcher, first, second = warm_ranks()
    said = [launcher, failing(first, at=5.0, gone=5.5), cut(second)]
    verdict = judge(said, gone=[None, 5.6, 4.9], status=1)
    assert (codes(verdict), verdict.exit_code) == ({Code.COMMAND_FAILED, Code.CRASHED}, ExitCode.WORKER_DIED)
    # The other one's error came while the dead one was not yet seen to be gone; its end came later than that.
    late = judge(said, gone=[None, 5.6, 5.2], status=1)
    assert Code.CRASHED in codes(late)


def test_the_error_of_a_lost_peer_excuses_no_death_however_late_that_was_seen() -> None:
    launcher, first, second = warm_ranks()
    lost = raised(5.0, error="RuntimeError", message="Read error [127.0.0.1]:1: Connection reset by peer. This is ...")
    first = [dataclasses.replace(e, t=5.5) if isinstance(e, Summary) else e for e in plus(lost)(first)]
    verdict = judge([launcher, first, cut(second)], gone=[None, 5.6, 5.9], status=1)
    assert (codes(verdict), verdict.exit_code) == ({Code.COMMAND_FAILED, Code.CRASHED}, ExitCode.WORKER_DIED)


def leaving(events: list[Event], status: int | None, why: str = "", *, at: float = 5.5, how: str = "exit") -> list[Event]:
    """As of a program that leaves with a status."""
    left = {"t": at, "status": status, "why": why, "how": how}
    return [dataclasses.replace(e, **left) if isinstance(e, Summary) else e for e in events]


def test_a_rank_that_leaves_with_a_status_fails_the_command_and_is_named_with_it() -> None:
    """The launcher kills the others for it as for an error."""
    launcher, first, second = warm_ranks()
    launcher = plus(raised(6.0, error="ChildFailedError", message="train.py FAILED"))(launcher)
    said = [launcher, leaving(first, 3, "at /job/train.py:9 in main"), cut(second)]
    verdict = judge(said, gone=[None, 5.6, 5.9], status=1)
    assert (codes(verdict), verdict.exit_code) == ({Code.COMMAND_FAILED}, ExitCode.JOB_FAILED)
    assert "rank 0: exit status 3 at /job/train.py:9 in main" in messages(verdict)
    assert Code.CRASHED in codes(judge(said, gone=[None, 5.6, 5.2], status=1))  # it died before


def test_a_status_is_told_with_the_error_for_which_it_was_asked() -> None:
    launcher, first, second = warm_ranks()
    said = [launcher, leaving(first, 1, "ValueError at /job/train.py:9 in load: no data\nand more"), cut(second)]
    verdict = judge(said, gone=[None, 5.6, 5.9], status=1)
    assert "rank 0: exit status 1: ValueError at /job/train.py:9 in load: no data" in messages(verdict)
    assert "and more" not in messages(verdict)


def test_a_status_for_a_lost_peer_excuses_no_death() -> None:
    launcher, first, second = warm_ranks()
    lost = leaving(first, 1, "RuntimeError at /job/train.py:9 in f: [gloo] Connection closed by peer [127.0.0.1]:1")
    verdict = judge([launcher, lost, cut(second)], gone=[None, 5.6, 5.9], status=1)
    assert (codes(verdict), verdict.exit_code) == ({Code.COMMAND_FAILED, Code.CRASHED}, ExitCode.WORKER_DIED)


@pytest.mark.parametrize(
    ("status", "gone", "crashed"),
    [(None, 5.9, False), (None, 60.0, True), (None, None, True), (0, 5.9, True), (3, 60.0, False), (3, None, False)],
)
def test_a_status_that_is_not_known_excuses_only_a_death_at_once(status: int | None, gone: float | None, crashed: bool) -> None:
    launcher, first, second = warm_ranks()
    verdict = judge([launcher, leaving(first, status), cut(second)], gone=[None, 5.6, gone], status=1)
    assert (Code.CRASHED in codes(verdict)) is crashed


def test_a_helper_that_says_something_by_its_status_is_not_blamed_for_a_later_death() -> None:
    helper = leaving(silent(program(pid=600, argv=("python", "has_gpu.py"))), 1)
    verdict = judge([helper, cut(warm())], gone=[5.6, 60.0], status=-11)
    assert Code.CRASHED in codes(verdict)
    assert "has_gpu" not in messages(verdict)


def test_a_status_is_no_reason_where_the_command_ended_well() -> None:
    launcher, first, second = warm_ranks()
    assert judge([launcher, leaving(first, 3), second]).kind is Kind.WARM


def test_a_single_program_that_leaves_with_a_status_is_named_also_without_a_call() -> None:
    verdict = judge([leaving(silent(program()), 3, "at /job/train.py:9 in main")], status=3)
    assert "exit status 3 at /job/train.py:9 in main" in messages(verdict)


@pytest.mark.parametrize(
    ("error", "code", "kind", "said"),
    [
        (errno.ENOSPC, Code.NO_SPACE, Kind.BROKEN, "/store takes no more, so rank 1 could not say everything"),
        (errno.EDQUOT, Code.NO_SPACE, Kind.BROKEN, "/store takes no more"),
        (errno.EIO, Code.NO_EVIDENCE, Kind.UNKNOWN, "the event file of rank 1 could not be written any more: error EIO"),
        (0, Code.NO_EVIDENCE, Kind.UNKNOWN, "the event file of rank 1 could not be written any more"),
    ],
)
def test_a_program_that_could_not_say_everything_did_not_crash(error: int, code: Code, kind: Kind, said: str) -> None:
    launcher, first, second = warm_ranks()
    verdict = judge([launcher, first, cut(second)], silenced=[None, None, error])
    assert (codes(verdict), verdict.kind) == ({code}, kind)
    assert said in messages(verdict)


def test_a_call_after_the_end_was_told_is_missing_evidence_and_no_crash() -> None:
    late = [called("1/0", 256), lookup(Layer.FX, graph="1/0")]
    verdict = judge([[*warm(), *late]])
    assert (codes(verdict), verdict.kind) == ({Code.NO_EVIDENCE}, Kind.UNKNOWN)
    assert "after it had told its end" in messages(verdict)
    failed_exec = instead(Summary, summary(how="exec"))(warm())  # which goes on, and then is killed
    assert Code.CRASHED in codes(judge([[*failed_exec, *late]]))


def test_what_could_not_be_said_by_a_child_or_a_stranger_takes_warm_away() -> None:
    child = plus(Silenced(t=4.0, pid=7, error=errno.ENOSPC))
    assert codes(judge(ranks_with(child))) == {Code.NO_SPACE}
    quiet = child(silent(program(pid=600)))
    assert codes(judge([quiet, *warm_ranks()])) == {Code.NO_SPACE}
    assert codes(judge([*warm_ranks(), []], silenced=[None, None, None, errno.EIO])) == {Code.NO_EVIDENCE}
    assert codes(judge([*warm_ranks(), []])) == {Code.NO_EVIDENCE}


def test_an_error_that_the_command_got_over_excuses_nobody_it_is_no_reason_of() -> None:
    helper = plus(raised(2.0))(silent(program(pid=600, argv=("python", "helper.py"))))
    verdict = judge([helper, cut(warm())], gone=[2.5, 8.0])
    assert codes(verdict) == {Code.CRASHED}


def test_a_command_past_its_limit_is_said_with_the_option() -> None:
    verdict = judge([cut(warm())], ended=Ended.TIMED_OUT, status=-9)
    assert (verdict.exit_code, codes(verdict)) == (ExitCode.WORKER_DIED, {Code.TIMED_OUT})
    assert "--job-timeout" in verdict.reasons[0].hint


def test_a_hang_that_ended_the_launch_is_said_with_the_cycle_and_the_limit() -> None:
    verdict = judge([plus(hang())(cut(warm()))], ended=Ended.HUNG, status=-9)
    assert (verdict.exit_code, codes(verdict)) == (ExitCode.WORKER_DIED, {Code.HUNG, Code.COMPILE_DEADLOCK})
    assert "two threads wait for each other" in messages(verdict)


def test_a_launch_that_was_stopped_at_a_miss_says_the_miss_and_nothing_of_what_the_stop_left_undone() -> None:
    missing = [*MISS(warm(rank(1)))[:-2], held()]
    verdict = judge([warm_ranks()[0], cut(warm(rank(0))), missing], expectation(ranks=4), ended=Ended.AT_A_MISS, status=-9)
    assert (verdict.kind, codes(verdict)) == (Kind.COLD, {Code.FX_MISS})
    assert [one.outcome for one in verdict.programs] == [Outcome.HIT, Outcome.MISSED]


@pytest.mark.parametrize("ended", [Ended.AT_A_MISS, Ended.HUNG, Ended.INTERRUPTED, Ended.TIMED_OUT])
@pytest.mark.parametrize("said", [warm_ranks(), [], [silent(program())]])
def test_a_launch_that_was_stopped_is_never_warm_whatever_was_said(ended: Ended, said: list[list[Event]]) -> None:
    assert judge(said, ended=ended, status=-9).kind is not Kind.WARM
    assert judge(said, ended=ended).kind is not Kind.WARM


# ---- what is not: who is missing -------------------------------------------------------------------------------------------


def test_an_empty_record_is_never_warm() -> None:
    for expected in (expectation(), expectation(ranks=1), expectation(ranks=2), expectation(blind="python -I")):
        assert judge([], expected).kind is Kind.UNKNOWN
        assert judge_built_launch(record([]), expected, frozenset()).kind is Kind.UNKNOWN


def test_programs_without_a_compiled_call_are_no_evidence_and_are_counted() -> None:
    verdict = judge([silent(program()), silent(program(pid=101))])
    assert (verdict.kind, codes(verdict)) == (Kind.UNKNOWN, {Code.NO_EVIDENCE})
    assert "2 programs imported torch, and none of them made a compiled call" in messages(verdict)


def test_a_line_that_cannot_be_observed_says_which_word_of_it_is_why() -> None:
    verdict = judge([], expectation(blind="python -I ignores PYTHONPATH"))
    assert codes(verdict) == {Code.NOT_OBSERVED}
    assert "python -I ignores PYTHONPATH" in messages(verdict)


def test_a_line_that_looks_blind_and_was_observed_all_the_same_is_judged_by_what_was_seen() -> None:
    assert judge([warm()], expectation(blind="srun --export=NONE")).kind is Kind.WARM


@pytest.mark.parametrize(("there", "expected"), [(2, 3), (2, 1), (1, 2)])
def test_another_number_of_ranks_than_expected_is_a_finding_with_both_numbers(there: int, expected: int) -> None:
    said = [warm(rank(number, of=there)) for number in range(there)]
    verdict = judge(said, expectation(ranks=expected, said_by=f"--expect-ranks {expected}"))
    assert (verdict.kind, codes(verdict)) == (Kind.UNKNOWN, {Code.RANK_MISSING})
    ranks = "1 rank" if there == 1 else f"{there} ranks"
    assert f"{ranks} reported, and {expected} were expected (--expect-ranks {expected})" in messages(verdict)


def test_ranks_that_are_fewer_than_their_own_launcher_started_are_a_finding() -> None:
    verdict = judge([warm(rank(0, of=8, local=4)), warm(rank(1, of=8, local=4))])
    assert codes(verdict) == {Code.RANK_MISSING}
    assert "2 of the 4 ranks on node0 reported" in messages(verdict)


def test_ranks_of_other_machines_are_not_missed_here() -> None:
    assert judge([warm(rank(0, of=8, local=2)), warm(rank(1, of=8, local=2))]).kind is Kind.WARM


def test_each_machine_must_have_all_of_its_own_ranks() -> None:
    said = [
        warm(rank(0, of=4, local=2)),
        warm(rank(1, of=4, local=2)),
        warm(rank(2, of=4, local=2, host="node1")),
    ]
    assert "1 of the 2 ranks on node1 reported" in messages(judge(said))


def test_a_process_that_used_torch_and_said_nothing_is_named_with_why() -> None:
    unseen = (Unseen(pid=77, argv=("/usr/bin/python3", "-I", "other.py")), Unseen(pid=78, argv=()))
    verdict = judge([warm()], unseen=unseen)
    assert (verdict.kind, codes(verdict)) == (Kind.UNKNOWN, {Code.NOT_OBSERVED})
    first, second = verdict.reasons
    assert "process 77" in first.message
    assert "-I" in first.message
    assert "ignores PYTHONPATH" in first.message
    assert "its environment or its path was changed" in second.message


@pytest.mark.parametrize("gone", [None, 8.0])
def test_a_program_that_raised_and_then_died_is_no_excuse_for_itself(gone: float | None) -> None:
    """The error is said, Python waits for a thread, and is killed before it could say the end."""
    said = [program(), called(), lookup(Layer.FX), lookup(Layer.AOT), raised()]
    verdict = judge([said], gone=[gone])
    assert (verdict.kind, verdict.exit_code, codes(verdict)) == (Kind.BROKEN, ExitCode.JOB_FAILED, {Code.RAISED})


def test_what_a_gpu_that_is_not_there_says_is_of_no_gpu() -> None:
    """A line may preload it by itself."""
    components = {**COMPONENTS, STANDS_IN: "2 x NVIDIA H200 0123456789"}
    verdict = judge([warm(program(components=components))], expectation(components={**COMPONENTS, STANDS_IN: NOTHING}))
    assert (verdict.kind, verdict.exit_code, codes(verdict)) == (Kind.UNKNOWN, ExitCode.NOT_WARM, {Code.TOOLCHAIN_MISMATCH})
    # And the other way round: a program that got none of the target's GPUs.
    verdict = judge([warm(program(components={**COMPONENTS, STANDS_IN: NOTHING}))], expectation(components=components))
    assert codes(verdict) == {Code.TOOLCHAIN_MISMATCH}


def test_a_value_that_was_read_while_compiling_makes_a_build_cold() -> None:
    read = Untuned(t=3.0, job="lane-0", kernel="a value", open=Open.VALUE, graph="0/0")
    verdict = judge_built_launch(record([plus(read)(warm())]), expectation(), frozenset(KEYS))
    assert (verdict.kind, codes(verdict)) == (Kind.COLD, {Code.UNTUNED})


def test_a_graph_that_is_left_to_the_gpu_is_not_stored_and_no_reason_against_a_build() -> None:
    said = plus(Untuned(t=3.0, job="lane-0", kernel="mm", open=Open.GRAPH, graph="0/0"))(warm())
    for layer, key in sorted(KEYS):
        said = plus(LeftOut(t=3.0, job="lane-0", layer=Layer(layer), key=key, graph="0/0"))(said)
    verdict = judge_built_launch(record([said]), expectation(), frozenset())
    assert (verdict.kind, codes(verdict)) == (Kind.BUILT, set())
    assert [program.outcome for program in verdict.programs] == [Outcome.UNTUNED]
    assert "untuned: mm: flexwarm build on the GPU chooses" in " ".join(verdict.notes)
    # What else is not stored is a fault, also beside such a choice.
    other = plus(LeftOut(t=3.0, job="lane-0", layer=Layer.FX, key="another", graph="0/0"))(warm())
    assert codes(judge_built_launch(record([other]), expectation(), frozenset())) == {Code.NOT_STORED}


def test_a_line_whose_build_left_a_graph_to_the_gpu_is_not_warm_where_that_graph_is_not_asked_for() -> None:
    left = [Reason(code=Code.UNTUNED, message="one of 22 for mm is left")]
    verdict = judge([warm()], expectation(left_open={"gone.py": left}))
    assert (verdict.kind, codes(verdict)) == (Kind.COLD, {Code.UNTUNED})


def test_what_is_left_open_and_what_was_tuned_is_noted() -> None:
    variants = Untuned(t=3.0, job="lane-0", kernel="triton_red", open=Open.VARIANT, graph="0/0")
    verdict = judge_built_launch(record([plus(variants)(warm())]), expectation(), frozenset(KEYS))
    assert (verdict.kind, codes(verdict)) == (Kind.WARM, set())
    assert "untuned: triton_red: flexwarm build on the GPU times the variants" in " ".join(verdict.notes)
    read = Read(t=3.0, job="lane-0", place="train.py:7 in main")
    assert "reads values from a GPU that is not there, at train.py:7 in main" in " ".join(
        judge_built_launch(record([plus(read)(warm())]), expectation(), frozenset(KEYS)).notes
    )
    tuned = [Tuned(t=3.0, job="lane-0", kernel=name, seconds=0.25, graph="0/0") for name in ("a", "b", "a")]
    events = warm()
    for event in tuned:
        events = plus(event)(events)
    assert "2 kernels were tuned, in 0.75 s" in judge_built_launch(record([events]), expectation(), frozenset(KEYS)).notes


#: What Inductor and Triton start on a machine that compiles for another one.
INDUCTORS = "g++ /store/b/inductor/ab/cxyz.main.cpp -D TORCH_INDUCTOR_CPP_WRAPPER -march=native"
TRITONS = "/usr/bin/gcc /venv/triton/backends/nvidia/driver.c -O3 -shared -fPIC -Wno-psabi -o /tmp/t/cuda_utils.so"


@pytest.mark.parametrize(
    ("event", "other", "refused"),
    [
        (compiled("cxx", detail=INDUCTORS), "/store/b", True),
        (compiled("cxx", detail=INDUCTORS, graph=""), "/store/b", True),
        (compiled("cxx", detail=INDUCTORS), "", False),
        (compiled("cxx", detail=TRITONS), "/store/b", False),
        (compiled("cxx", detail="g++ /home/me/own.cpp -o own.so"), "/store/b", False),
        (compiled("triton", detail="ptxas --gpu-name=sm_90a /tmp/x.ptx"), "/store/b", False),
    ],
)
def test_cxx_for_the_processor_here_is_not_published_for_a_machine_with_another(
    event: Event, other: str, refused: bool
) -> None:
    expected = expectation(other_processor=other)
    verdict = judge_built_launch(record([plus(event)(warm())]), expected, frozenset(KEYS))
    if not refused:
        assert (verdict.kind, codes(verdict)) == (Kind.BUILT, set())
        return
    assert (verdict.kind, verdict.exit_code, codes(verdict)) == (Kind.BROKEN, ExitCode.UNSUPPORTED, {Code.REFUSED})
    assert "C++ was compiled for the processor here, and the target's machine has another" in messages(verdict)
    assert not publish.is_whole(verdict.programs[0].reasons)
    # A verification has stopped it, and says that.
    assert codes(judge([plus(event)(warm())], expected)) == {Code.COMPILED}


COMPILERS = tuple(SeenCompiler(pid=900 + n, argv=("g++", "-c", f"{n}.cpp")) for n in range(3))


def test_a_compiler_that_no_program_reported_makes_a_launch_cold() -> None:
    verdict = judge(warm_ranks(), compilers=COMPILERS)
    assert (verdict.kind, verdict.exit_code, codes(verdict)) == (Kind.COLD, ExitCode.NOT_WARM, {Code.COMPILED})
    assert "g++ 0.cpp (process 900), and 2 more" in messages(verdict)
    assert "and" not in messages(judge(warm_ranks(), compilers=COMPILERS[:1])).partition("(")[2]


def test_a_compiler_that_a_program_reported_is_told_once() -> None:
    verdict = judge([plus(compiled("cxx", detail="g++ a.cpp"))(warm())], compilers=COMPILERS)
    assert [reason.code for reason in verdict.reasons] == []
    assert codes(verdict) == {Code.COMPILED}


def test_a_build_in_which_a_build_tool_compiled_is_built_and_not_warm() -> None:
    stored = frozenset(KEYS)
    assert judge_built_launch(record([warm()]), expectation(), stored).kind is Kind.WARM
    verdict = judge_built_launch(record([warm()], compilers=COMPILERS), expectation(), stored)
    assert (verdict.kind, codes(verdict)) == (Kind.BUILT, set())


def test_an_observer_that_could_not_begin_is_refused_also_where_all_others_hit() -> None:
    verdict = judge([[refused("the observer could not begin")], *warm_ranks()])
    assert (verdict.kind, verdict.exit_code, codes(verdict)) == (Kind.BROKEN, ExitCode.UNSUPPORTED, {Code.REFUSED})


def test_a_file_of_the_bucket_that_changed_is_a_witness_that_disagrees_unless_something_compiled() -> None:
    disk = tuple(f"inductor/{n}.so" for n in range(5))
    verdict = judge([warm()], expectation(disk=disk))
    assert (verdict.kind, codes(verdict)) == (Kind.UNKNOWN, {Code.DISK_CHANGED})
    assert "and 2 more" in messages(verdict)
    assert Code.DISK_CHANGED not in codes(judge([MISS(warm())], expectation(disk=disk)))


# ---- notes -----------------------------------------------------------------------------------------------------------------


def test_ranks_that_call_different_things_are_noted_with_the_lines_and_stay_warm() -> None:
    other = [rank(1), called("0/0", 256), *warm()[2:]]
    third = [rank(2), called("0/0", 256), *warm()[2:]]
    verdict = judge([warm(rank(0)), other, third])
    assert verdict.kind is Kind.WARM
    only_first, only_others, why = verdict.notes
    assert only_first == "only rank 0 compiles attend of 1x2x128x32 float32, called at /job/train.py:128 in step"
    assert only_others.startswith("only rank 1, 2 compiles attend of 1x2x256x32")
    assert "collectives" in why


def test_a_long_list_of_calls_is_counted() -> None:
    """A rank with five calls beside one that makes the first of them."""
    keys = {(layer, f"{layer[0]}{n}") for layer in ("aot", "fx") for n in range(5)}
    many: list[Event] = [rank(1)]
    for n in range(5):
        many += [called(f"{n}/0", 128 * (n + 1)), *(lookup(Layer(x), key=f"{x[0]}{n}", graph=f"{n}/0") for x in ("aot", "fx"))]
    counters = dict.fromkeys(HITS, 5)
    one = [rank(0), called("0/0", 128), lookup(Layer.FX, key="f0"), lookup(Layer.AOT, key="a0"), summary(), bye()]
    verdict = judge([one, [*many, summary(counters=counters), bye()]], expectation(listed=keys))
    assert verdict.kind is Kind.WARM, messages(verdict)
    assert verdict.notes[0].endswith("; and 1 more")
    assert "rank 0" not in verdict.notes[0]


def test_ranks_that_make_no_compiled_call_are_noted_where_others_do() -> None:
    verdict = judge([warm(rank(0, of=3)), silent(rank(1, of=3)), silent(rank(2, of=3))])
    assert verdict.kind is Kind.WARM
    assert verdict.notes == ("rank 1, 2 made no compiled call",)


# ---- builds ----------------------------------------------------------------------------------------------------------------


def built(said: Sequence[Sequence[Event]], stored: frozenset[tuple[str, str]] = KEYS) -> tuple[Kind, set[Code]]:
    verdict = judge_built_launch(record(said), expectation(listed=frozenset()), stored)
    return verdict.kind, codes(verdict)


MISSED = {f"{name.rpartition('_')[0]}_miss": 1 for name in HITS}


def building() -> list[Event]:
    change = instead(Summary, summary(counters=MISSED))
    for layer in (Layer.FX, Layer.AOT):
        change = _both(change, answered(layer, lookup(layer, Answer.MISS)))
    return plus(compiled())(change(warm()))


def _both(first: Change, second: Change) -> Change:
    return lambda events: second(first(events))


def test_a_build_that_stored_everything_is_built_and_one_that_compiled_nothing_is_warm() -> None:
    assert built([building()]) == (Kind.BUILT, set())
    assert built([warm()]) == (Kind.WARM, set())
    assert built([building(), warm(program(pid=101))]) == (Kind.BUILT, set())


def test_a_key_that_was_compiled_and_not_stored_is_not_built() -> None:
    assert built([building()], frozenset({("fx", "fkey")})) == (Kind.COLD, {Code.NOT_STORED})


def test_a_graph_that_inductor_compiled_and_no_cache_was_asked_for_is_not_built() -> None:
    assert Code.NOT_STORED in built([plus(compiled())(building())])[1]


@pytest.mark.parametrize("change", [BYPASS, plus(moved()), plus(refused()), instead(Summary, summary(checks={})), cut])
def test_what_takes_warm_from_a_verification_takes_built_from_a_build(change: Change) -> None:
    kind, _ = built([change(warm())])
    assert kind not in (Kind.WARM, Kind.BUILT)


# ---- the law ---------------------------------------------------------------------------------------------------------------


def _evidence() -> list[tuple[int, int]]:
    return [(number, at) for number, events in enumerate(warm_ranks()) for at in range(len(events)) if number > 0]


@given(st.sets(st.sampled_from(_evidence()), min_size=1))
def test_no_part_of_the_evidence_can_be_left_out_of_a_warm_launch(gone: set[tuple[int, int]]) -> None:
    """Only who called may be missing: every key still hit, is one that a build recorded, and torch counted the same."""
    said = warm_ranks()
    left = [[event for at, event in enumerate(events) if (number, at) not in gone] for number, events in enumerate(said)]
    verdict = judge(left, expectation(ranks=2, recorded={"rank 0": KEYS, "rank 1": KEYS}))
    only_calls = all(isinstance(said[number][at], Called) for number, at in gone)
    assert (verdict.kind is Kind.WARM) == only_calls
    assert (verdict.exit_code is ExitCode.OK) == only_calls


@given(st.sets(st.sampled_from(_evidence()), min_size=1))
def test_what_is_left_of_a_launch_of_which_nothing_is_known_before_is_warm_only_by_its_own_words(
    gone: set[tuple[int, int]],
) -> None:
    """Without a build of this line and a number of ranks: each program that is left must be whole, and there must be one."""
    said = warm_ranks()
    left = [[event for at, event in enumerate(events) if (number, at) not in gone] for number, events in enumerate(said)]
    verdict = judge(left)
    whole = [events for events in left[1:] if events]
    complete = all(len(events) == 6 or not any(isinstance(e, Called) for e in events) for events in whole)
    if verdict.kind is Kind.WARM:
        assert len(whole) == 2, "the ranks say how many they are"
        assert complete
        for events in whole:
            assert isinstance(events[0], Program)
            assert {type(event).__name__ for event in events} >= {"Lookup", "Summary", "Bye"}
