"""A lane is held inside its trace until the others have called, and what was not tried is not counted."""

from __future__ import annotations

import _thread
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import cast

import pytest

from flexwarm import spec
from flexwarm.observer.recorder import Recorder
from flexwarm.observer.torch_api.tracing import TracingApi
from flexwarm.request import JobRequest, Purpose
from flexwarm.worker import drill
from flexwarm.worker.drill import HOLDS, _Count, _Script, _Stage

LIMIT = 20.0


class Tracing:
    """What torch would say of its compile lock."""

    def __init__(self) -> None:
        self.waiters: tuple[int, ...] = ()

    def lock_waiters(self) -> tuple[int, ...]:
        return self.waiters


def requests(lanes: int) -> list[JobRequest]:
    text = 'schema = 1\n[[workload]]\nname = "w"\nq_heads = 4\nhead_dim = 64\nq_len = 128\n'
    (workload,) = spec.parse(text, "s").workloads
    return [JobRequest(id=f"w/r:0.{n}", lane=n, device="cpu", workload=workload, gate=None) for n in range(lanes)]


class Drilled:
    """A script with lanes in threads of their own."""

    def __init__(self, directory: Path, lanes: int) -> None:
        self.tracing = Tracing()
        self.recorder = Recorder(directory / "events", Purpose.DRILL)
        self.jobs = requests(lanes)
        self.script = _Script(self.jobs, cast(TracingApi, self.tracing), self.recorder)
        self._threads: list[threading.Thread] = []
        self._raised: list[BaseException] = []

    def lane(self, lane: int, body: Callable[[], object]) -> threading.Thread:
        """The lane does something, in its seat."""

        def run() -> None:
            job = self.jobs[lane]
            try:
                with self.recorder.seat(job.id, job.device, job.lane):
                    body()
            except Exception as error:  # noqa: BLE001 - handed to the test
                self._raised.append(error)

        thread = threading.Thread(target=run, name=f"lane-{lane}", daemon=True)
        thread.start()
        self._threads.append(thread)
        return thread

    def end(self) -> list[BaseException]:
        """Every lane has ended; what they raised."""
        for thread in self._threads:
            thread.join(LIMIT)
            assert not thread.is_alive(), "a lane waits for ever"
        return self._raised

    def held(self, lane: int, traces: int = 1, inside: Callable[[], object] = lambda: None) -> Callable[[], None]:
        """The lane is to be held in so many traces; what was counted is in ``counts``."""

        def body() -> None:
            for _ in range(traces):
                with self.script.hold():
                    inside()
            self.counts[lane] = self.script.release()

        self.counts: dict[int, _Count] = {}
        self.script.take(lane)
        return body


@pytest.fixture
def two(tmp_path: Path) -> Drilled:
    return Drilled(tmp_path, 2)


@pytest.fixture
def three(tmp_path: Path) -> Drilled:
    return Drilled(tmp_path, 3)


def test_a_lane_is_held_in_its_trace_until_each_other_lane_has_called(three: Drilled) -> None:
    order: list[str] = []
    body = three.held(0, inside=lambda: order.append("trace goes on"))
    for lane in (1, 2):
        three.lane(lane, partial(three.script.beside, lane, lambda: order.append("call")))
    three.lane(0, body)
    assert three.end() == []
    assert order == ["call", "call", "trace goes on"]
    assert three.counts[0] == _Count(holds=1, calls=2, callers={1, 2})


def test_the_others_call_once_in_each_hold(two: Drilled) -> None:
    calls: list[int] = []
    body = two.held(0, traces=3)
    two.lane(1, lambda: two.script.beside(1, lambda: calls.append(1)))
    two.lane(0, body)
    assert two.end() == []
    assert (len(calls), two.counts[0]) == (3, _Count(holds=3, calls=3, callers={1}))


def test_a_lane_is_held_in_so_many_traces_and_no_more(two: Drilled) -> None:
    body = two.held(0, traces=HOLDS + 5)
    two.lane(1, lambda: two.script.beside(1, lambda: None))
    two.lane(0, body)
    assert two.end() == []
    assert two.counts[0] == _Count(holds=HOLDS, calls=HOLDS, callers={1})


def test_a_call_that_waits_for_the_lock_is_waited_for_no_longer_and_is_no_call_inside_the_trace(two: Drilled) -> None:
    let_go = threading.Event()

    def compiles_after_all() -> None:
        two.tracing.waiters = (threading.get_ident(),)
        let_go.wait(LIMIT)
        two.tracing.waiters = ()

    body = two.held(0)
    two.lane(1, lambda: two.script.beside(1, compiles_after_all))
    holder = two.lane(0, body)
    holder.join(LIMIT)
    assert not holder.is_alive()
    let_go.set()
    assert two.end() == []
    assert two.counts[0] == _Count(holds=1, waited=1)


def test_a_thread_that_waits_for_the_lock_and_is_no_lane_is_no_lanes_call(
    two: Drilled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drill, "HOLD_SECONDS", 0.2)
    two.tracing.waiters = (1,)
    two.lane(0, two.held(0))
    assert two.end() == []
    assert two.counts[0] == _Count(holds=1, unanswered=1)


def test_a_hold_that_nobody_answers_ends_at_its_limit_and_is_counted_as_that(
    two: Drilled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drill, "HOLD_SECONDS", 0.2)
    began = time.monotonic()
    two.lane(0, two.held(0))
    assert two.end() == []
    assert time.monotonic() - began >= 0.2
    assert two.counts[0] == _Count(holds=1, unanswered=1)


def test_a_call_that_returns_after_the_hold_is_no_call_inside_it(two: Drilled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drill, "HOLD_SECONDS", 0.2)
    begun, let_go = threading.Event(), threading.Event()

    def slow() -> None:
        begun.set()
        let_go.wait(LIMIT)

    body = two.held(0)
    two.lane(1, lambda: two.script.beside(1, slow))
    holder = two.lane(0, body)
    assert begun.wait(LIMIT)
    holder.join(LIMIT)
    let_go.set()
    assert two.end() == []
    assert two.counts[0] == _Count(holds=1, unanswered=1)


def test_a_trace_of_another_lane_is_not_held(two: Drilled) -> None:
    two.script.take(0)
    with two.recorder.seat("w/r:0.1", "cpu", 1), two.script.hold():
        pass
    assert two.script.release() == _Count()


def test_a_trace_while_nobody_is_to_be_held_is_not_held(two: Drilled) -> None:
    with two.recorder.seat("w/r:0.0", "cpu", 0), two.script.hold():
        pass
    assert two.script.release() == _Count()


def test_a_trace_in_a_thread_of_the_autograd_engine_is_the_holders(two: Drilled) -> None:
    done = threading.Event()

    def backward() -> None:
        with two.script.hold():
            pass
        done.set()

    two.script.take(0)
    two.lane(1, lambda: two.script.beside(1, lambda: None))
    _thread.start_new_thread(backward, ())
    assert done.wait(LIMIT)
    assert two.script.release() == _Count(holds=1, calls=1, callers={1})
    assert two.end() == []


def test_a_trace_in_a_thread_of_the_users_is_not_held(two: Drilled) -> None:
    two.script.take(0)
    inside = threading.Event()

    def loader() -> None:
        with two.script.hold():
            inside.set()

    thread = threading.Thread(target=loader, daemon=True)
    thread.start()
    assert inside.wait(LIMIT)
    thread.join(LIMIT)
    assert two.script.release() == _Count()


def test_a_lane_that_left_is_not_waited_for(three: Drilled) -> None:
    body = three.held(0)
    three.lane(1, lambda: three.script.beside(1, lambda: None))
    holder = three.lane(0, body)
    three.script.leave(2)
    holder.join(LIMIT)
    assert three.end() == []
    assert three.counts[0] == _Count(holds=1, calls=1, callers={1})


def test_a_call_that_fails_ends_its_lane_and_not_the_hold(two: Drilled) -> None:
    def fails() -> None:
        raise ValueError("no data")

    body = two.held(0)
    two.lane(1, lambda: two.script.beside(1, fails))
    two.lane(0, body)
    (error,) = two.end()
    assert isinstance(error, ValueError)
    assert two.counts[0].holds == 1


def test_until_the_lock_is_wanted_a_lane_is_held_in_its_first_trace_alone(two: Drilled) -> None:
    order: list[str] = []

    def body() -> None:
        for number in range(2):
            with two.script.hold():
                order.append(f"trace {number}")
        order.append("done")

    two.script.take(0, until_locked=True)
    two.lane(0, body)
    assert two.script.wait_for_hold()
    assert order == []
    two.tracing.waiters = (1,)
    assert two.end() == []
    assert order == ["trace 0", "trace 1", "done"]
    assert two.script.release() == _Count(holds=1)


def test_who_waits_for_a_hold_is_told_that_there_will_be_none(two: Drilled) -> None:
    two.script.take(0, until_locked=True)
    told: list[bool] = []
    two.lane(1, lambda: told.append(two.script.wait_for_hold()))
    two.script.release()
    assert two.end() == []
    assert told == [False]


def test_no_lane_passes_a_stage_before_the_others_and_one_that_left_keeps_nobody() -> None:
    stage, passed = _Stage(requests(3)), threading.Event()

    def first() -> None:
        stage.next(0)
        passed.set()

    thread = threading.Thread(target=first, daemon=True)
    thread.start()
    other = threading.Thread(target=lambda: stage.next(1), daemon=True)
    other.start()
    assert not passed.wait(0.2)
    assert stage.has(2)
    stage.leave(2)
    assert not stage.has(2)
    for waiting in (thread, other):
        waiting.join(LIMIT)
        assert not waiting.is_alive()
    assert passed.is_set()
