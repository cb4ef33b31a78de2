"""Each event belongs to the job of the thread that brought it about, or that it works for."""

from __future__ import annotations

import _thread
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from flexwarm.events import Compiled, Event, Phase, Progress, from_line
from flexwarm.observer.recorder import Recorder, Seat, StopAtMiss
from flexwarm.request import Purpose

LIMIT = 20.0


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    return Recorder(tmp_path / "events", Purpose.BUILD)


def said(tmp_path: Path) -> list[Event]:
    return [from_line(line) for line in (tmp_path / "events").read_text().splitlines()]


def in_thread(function: Callable[[], object], name: str = "other") -> None:
    """To its end, in a new thread; what it raises is raised here."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            function()
        except BaseException as error:  # noqa: BLE001 - raised again
            raised.append(error)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    thread.join(LIMIT)
    assert not thread.is_alive()
    if raised:
        raise raised[0]


@contextmanager
def seated(recorder: Recorder, job: str, device: str, lane: int | None) -> Iterator[Seat]:
    """Another thread has a seat during the block."""
    taken, leave = threading.Event(), threading.Event()
    seats: list[Seat] = []

    def sit() -> None:
        with recorder.seat(job, device, lane) as seat:
            seats.append(seat)
            taken.set()
            assert leave.wait(LIMIT)

    thread = threading.Thread(target=sit, name=f"lane-{lane}", daemon=True)
    thread.start()
    assert taken.wait(LIMIT)
    try:
        yield seats[0]
    finally:
        leave.set()
        thread.join(LIMIT)
        assert not thread.is_alive()


def test_outside_of_all_jobs_an_event_belongs_to_none(recorder: Recorder, tmp_path: Path) -> None:
    assert (recorder.job, recorder.own_seat, recorder.seat_here(), recorder.seats()) == (None, None, None, ())
    recorder.phase(Phase.IMPORT)
    (event,) = said(tmp_path)
    assert isinstance(event, Progress)
    assert (event.job, event.phase) == (None, Phase.IMPORT)


def test_the_thread_that_has_a_seat_works_on_its_job_until_it_leaves(recorder: Recorder, tmp_path: Path) -> None:
    with recorder.seat("w/r:0", "cpu", None) as seat:
        assert recorder.own_seat is recorder.seat_here() is seat
        assert (seat.job, seat.device, seat.lane, seat.thread) == ("w/r:0", "cpu", None, threading.get_ident())
        assert (seat.checks, seat.stopped) == (0, False)
        recorder.phase(Phase.TRACE)
    assert recorder.job is None
    with pytest.raises(KeyError), recorder.seat("w/r:1", "cpu", None):
        raise KeyError
    assert (recorder.job, recorder.seats()) == (None, ())
    (event,) = said(tmp_path)
    assert isinstance(event, Progress)
    assert event.job == "w/r:0"


def test_each_lane_has_a_seat_of_its_own(recorder: Recorder) -> None:
    with seated(recorder, "w/r:0.1", "cuda:1", 1) as other, recorder.seat("w/r:0.0", "cuda:0", 0) as mine:
        assert recorder.job == "w/r:0.0"
        assert recorder.own_seat is mine
        assert list(recorder.seats()) == [other, mine]
    assert recorder.seats() == ()


def test_a_thread_without_a_seat_works_for_the_only_one_that_has(recorder: Recorder) -> None:
    with seated(recorder, "w/r:0.1", "cuda:1", 1) as seat:
        assert recorder.own_seat is None
        assert recorder.seat_here() is seat
        assert recorder.job == "w/r:0.1"


@pytest.mark.parametrize("device", ["cuda:0", "cuda:1", "cuda:2"])
def test_of_several_a_thread_without_a_seat_works_for_the_one_on_its_device(recorder: Recorder, device: str) -> None:
    recorder.device_here = lambda: device
    with (
        seated(recorder, "w/r:0.0", "cuda:0", 0),
        seated(recorder, "w/r:0.1", "cuda:1", 1),
        seated(recorder, "w/r:0.2", "cuda:2", 2),
    ):
        assert recorder.own_seat is None
        assert recorder.job == f"w/r:0.{device[-1]}"


@pytest.mark.parametrize("device", ["", "cuda:9"])
def test_a_thread_whose_device_is_nobodys_works_for_the_first(recorder: Recorder, device: str) -> None:
    recorder.device_here = lambda: device
    with seated(recorder, "w/r:0.0", "cuda:0", 0), seated(recorder, "w/r:0.1", "cuda:1", 1):
        assert recorder.job == "w/r:0.0"


def test_a_thread_with_a_seat_is_not_asked_for_its_device(recorder: Recorder) -> None:
    def device() -> str:
        raise AssertionError("asked")

    recorder.device_here = device
    with seated(recorder, "w/r:0.0", "cuda:0", 0), recorder.seat("w/r:0.1", "cuda:1", 1):
        assert recorder.job == "w/r:0.1"


def test_threads_are_named_as_users_know_them(recorder: Recorder) -> None:
    assert recorder.name_of(threading.get_ident()) == "the main thread"
    with recorder.seat("w/r:0", "cpu", None):
        assert recorder.name_of(threading.get_ident()) == "the main thread"
        assert recorder.lane_of(threading.get_ident()) is None
    with seated(recorder, "w/r:0.1", "cuda:1", 1) as seat:
        assert recorder.name_of(seat.thread) == "lane 1"
        assert recorder.lane_of(seat.thread) == 1
    names: list[str] = []
    in_thread(lambda: names.append(recorder.name_of(threading.get_ident())), name="loader")
    assert names == ["thread 'loader'"]


def test_a_thread_that_python_did_not_start_is_the_autograd_engines(recorder: Recorder) -> None:
    names: list[tuple[int, str, str]] = []
    done = threading.Event()

    def foreign() -> None:
        ident = threading.get_ident()
        before = recorder.name_of(ident)
        threading.current_thread()  # Python keeps a dummy for it from here on
        names.append((ident, before, recorder.name_of(ident)))
        done.set()

    _thread.start_new_thread(foreign, ())
    assert done.wait(LIMIT)
    ((ident, before, after),) = names
    assert before == after == f"thread {ident} of the autograd engine"


@pytest.mark.parametrize("purpose", list(Purpose))
def test_only_a_verification_stops_at_a_compile_which_is_said_in_any_case(tmp_path: Path, purpose: Purpose) -> None:
    recorder = Recorder(tmp_path / "events", purpose)
    with recorder.seat("w/r:0.1", "cuda:1", 1) as seat:
        stopped = False
        try:
            recorder.compiled("cxx", "g++ x.cpp")
        except StopAtMiss:
            stopped = True
        assert stopped is seat.stopped is (purpose is Purpose.VERIFY)
    (event,) = said(tmp_path)
    assert isinstance(event, Compiled)
    assert (event.job, event.what) == ("w/r:0.1", "cxx")


def test_a_stop_in_a_thread_without_a_seat_stops_the_lane_that_it_works_for(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "events", Purpose.VERIFY)
    recorder.device_here = lambda: "cuda:1"
    with seated(recorder, "w/r:0.0", "cuda:0", 0) as first, seated(recorder, "w/r:0.1", "cuda:1", 1) as second:
        with pytest.raises(StopAtMiss):
            in_thread(recorder.stop_if_verifying)
        assert (first.stopped, second.stopped) == (False, True)


def test_a_stop_is_no_exception_that_a_compiler_would_take_for_a_failure() -> None:
    assert not issubclass(StopAtMiss, Exception)


def test_a_forked_child_says_nothing(recorder: Recorder, tmp_path: Path) -> None:
    child = os.fork()
    if not child:
        try:
            recorder.phase(Phase.RUN)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    recorder.phase(Phase.CHECK)
    assert [event.phase for event in said(tmp_path) if isinstance(event, Progress)] == [Phase.CHECK]


def test_lanes_that_speak_at_once_do_not_tear_each_others_lines(recorder: Recorder, tmp_path: Path) -> None:
    together = threading.Barrier(4)

    def speak(lane: int) -> None:
        with recorder.seat(f"w/r:0.{lane}", "cpu", lane):
            together.wait(LIMIT)
            for _ in range(200):
                recorder.compiled("cxx", "x" * 400)

    threads = [threading.Thread(target=speak, args=(lane,), daemon=True) for lane in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
        assert not thread.is_alive()
    events = [event for event in said(tmp_path) if isinstance(event, Compiled)]
    assert [sum(event.job == f"w/r:0.{lane}" for event in events) for lane in range(4)] == [200] * 4
