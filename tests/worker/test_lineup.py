"""Lanes take each shape together, in turns or side by side, and a lane that leaves keeps nobody."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace

import pytest

from flexwarm.worker.lineup import LineUp

LIMIT = 20.0  # seconds; a script that takes longer is broken

Body = Callable[[int, int], None]


def go(lineup: LineUp, lanes: Sequence[int], body: Body, *, shapes: int = 3) -> dict[int, BaseException]:
    """Each lane in a thread of its own goes through the shapes and leaves; what a lane raised, by lane."""
    raised: dict[int, BaseException] = {}

    def lane(number: int) -> None:
        try:
            for shape in range(shapes):
                with lineup.shape(number):
                    body(number, shape)
        except Exception as error:  # noqa: BLE001 - handed to the test
            raised[number] = error
        finally:
            lineup.leave(number)

    threads = [threading.Thread(target=lane, args=(number,), daemon=True) for number in lanes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
        assert not thread.is_alive(), "a lane waits for ever"
    return raised


def test_in_turns_one_lane_at_a_time_goes_through_a_shape_in_order_of_the_lanes() -> None:
    order: list[tuple[int, int]] = []
    inside = threading.Semaphore(1)

    def body(lane: int, shape: int) -> None:
        assert inside.acquire(blocking=False), "two lanes at once"
        order.append((shape, lane))
        threading.Event().wait(0.01)
        inside.release()

    # Started last first, so that the order is not that in which they came.
    assert go(LineUp([2, 0, 1], turns=True, stagger_seconds=0), [2, 1, 0], body) == {}
    assert order == [(shape, lane) for shape in range(3) for lane in range(3)]


def test_side_by_side_all_lanes_are_in_one_shape_at_once() -> None:
    meeting = threading.Barrier(3)
    assert go(LineUp([0, 1, 2], turns=False, stagger_seconds=0), [0, 1, 2], lambda lane, shape: void(meeting.wait(LIMIT))) == {}


def void(value: object) -> None:
    """For a function that has to return nothing."""


@pytest.mark.parametrize("turns", [True, False])
def test_no_lane_begins_a_shape_before_the_others_have_done_theirs_before(turns: bool) -> None:
    last, first_began, hold = 1, threading.Event(), threading.Event()
    began: list[tuple[int, int]] = []

    def body(lane: int, shape: int) -> None:
        began.append((lane, shape))
        if lane == 0 and shape == 1:
            first_began.set()
        if lane == last and shape == 0:
            assert not first_began.wait(0.2), "lane 0 went on alone"
            hold.set()

    assert go(LineUp([0, 1], turns=turns, stagger_seconds=0), [0, 1], body, shapes=2) == {}
    assert hold.is_set()
    assert sorted(began[:2]) == [(0, 0), (1, 0)]
    assert sorted(began[2:]) == [(0, 1), (1, 1)]


@pytest.mark.parametrize("turns", [True, False])
@pytest.mark.parametrize("bad", [0, 1, 2])
@pytest.mark.parametrize("when", [0, 1])
def test_the_others_go_on_without_a_lane_that_failed(turns: bool, bad: int, when: int) -> None:
    began: list[tuple[int, int]] = []

    def body(lane: int, shape: int) -> None:
        began.append((lane, shape))
        if lane == bad and shape == when:
            raise ValueError("no data")

    raised = go(LineUp([0, 1, 2], turns=turns, stagger_seconds=0), [0, 1, 2], body)
    assert list(raised) == [bad]
    good = [lane for lane in range(3) if lane != bad]
    assert sorted(entry for entry in began if entry[0] != bad) == [(lane, shape) for lane in good for shape in range(3)]
    assert [shape for lane, shape in began if lane == bad] == list(range(when + 1))


@pytest.mark.parametrize("turns", [True, False])
@pytest.mark.parametrize("absent", [0, 1])
def test_a_lane_that_never_came_and_leaves_is_not_waited_for(turns: bool, absent: int) -> None:
    lineup = LineUp([0, 1], turns=turns, stagger_seconds=0)
    began = threading.Event()
    other = 1 - absent
    thread = threading.Thread(target=lambda: go(lineup, [other], lambda lane, shape: began.set()), daemon=True)
    thread.start()
    assert not began.wait(0.2), "it did not wait for the other lane"
    lineup.leave(absent)
    thread.join(LIMIT)
    assert not thread.is_alive()
    assert began.is_set()


def test_leaving_twice_is_leaving() -> None:
    lineup = LineUp([0, 1], turns=True, stagger_seconds=0)
    lineup.leave(0)
    lineup.leave(0)
    assert go(lineup, [1], lambda lane, shape: None) == {}


def slept(monkeypatch: pytest.MonkeyPatch, lanes: list[int], *, turns: bool) -> dict[int, list[float]]:
    """How long each lane slept before its shapes."""
    waits: dict[int, list[float]] = {lane: [] for lane in lanes}
    here = threading.local()
    monkeypatch.setattr("flexwarm.worker.lineup.time", SimpleNamespace(sleep=lambda seconds: here.waits.append(seconds)))
    lineup = LineUp(lanes, turns=turns, stagger_seconds=0.5)

    def lane(number: int) -> None:
        here.waits = waits[number]
        for _ in range(2):
            with lineup.shape(number):
                pass
        lineup.leave(number)

    threads = [threading.Thread(target=lane, args=(number,), daemon=True) for number in lanes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
        assert not thread.is_alive()
    return waits


def test_side_by_side_each_lane_starts_a_shape_later_than_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    assert slept(monkeypatch, [0, 1, 2], turns=False) == {0: [0.0, 0.0], 1: [0.5, 0.5], 2: [1.0, 1.0]}
    # The lanes that take part are counted, not those that the rank has.
    assert slept(monkeypatch, [3, 1], turns=False) == {1: [0.0, 0.0], 3: [0.5, 0.5]}


def test_in_turns_nobody_waits_longer_than_for_the_lane_before(monkeypatch: pytest.MonkeyPatch) -> None:
    assert slept(monkeypatch, [0, 1, 2], turns=True) == {0: [], 1: [], 2: []}
