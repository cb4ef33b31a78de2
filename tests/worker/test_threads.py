"""A stack as text: the user's lines, where in torch the thread is, and nothing of the observer."""

from __future__ import annotations

import _thread
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from flexwarm.observer import threads

OBSERVER = os.path.join(os.path.dirname(threads.__file__), "guard.py")
TORCH = "/site-packages/torch/fx/_symbolic_trace.py"


def called_from(*where: tuple[str, str], by: Callable[[], Any]) -> Any:
    """What ``by`` returns when functions of these files and names, outermost first, have called each other and it."""
    for file, name in reversed(where):
        names: dict[str, Any] = {"call": by}
        exec(compile(f"def {name}():\n    return call()\n", file, "exec"), names)
        by = names[name]
    return by()


def told(*where: tuple[str, str], limit: int = threads.KEPT) -> list[str]:
    """The last lines of a stack, which begin at the outermost of ``where``."""
    lines = called_from(*where, by=lambda: threads.lines(sys._getframe(1), limit=limit))
    outermost = next((n for n, line in enumerate(lines) if line.endswith(f"in {where[0][1]}")), 0)
    return list(lines[outermost:])


def test_a_stack_is_the_users_lines_outermost_first() -> None:
    assert told(("/u/train.py", "main"), ("/u/model.py", "forward")) == [
        "/u/train.py:2 in main",
        "/u/model.py:2 in forward",
    ]


def test_of_torchs_frames_only_the_innermost_is_shown() -> None:
    where = [("/u/train.py", "main"), (TORCH, "outer"), ("/u/mask.py", "mask"), (TORCH, "middle"), (TORCH, "trace")]
    assert told(*where) == ["/u/train.py:2 in main", "/u/mask.py:2 in mask", f"{TORCH}:2 in trace"]


def test_the_observers_own_frames_are_not_the_threads() -> None:
    where = [("/u/train.py", "main"), (TORCH, "trace"), (OBSERVER, "hook"), (OBSERVER, "say")]
    assert told(*where) == ["/u/train.py:2 in main", f"{TORCH}:2 in trace"]


def test_a_long_stack_keeps_its_innermost_lines() -> None:
    where = [("/u/train.py", f"f{number}") for number in range(30)]
    lines = called_from(*where, by=lambda: threads.lines(sys._getframe(1), limit=5))
    assert lines == tuple(f"/u/train.py:2 in f{number}" for number in range(25, 30))
    assert len(called_from(*where, by=lambda: threads.lines(sys._getframe(1)))) == threads.KEPT


def test_every_line_has_torchs_frames_too_with_their_text() -> None:
    where = [("/u/train.py", "main"), (TORCH, "outer"), (TORCH, "trace")]

    def here() -> tuple[str, ...]:
        return threads.every_line(sys._getframe(0))

    lines = called_from(*where, by=here)
    assert lines[-4:-1] == ("/u/train.py:2 in main", f"{TORCH}:2 in outer", f"{TORCH}:2 in trace")
    assert lines[-1].startswith(f"{__file__}:")
    assert lines[-1].endswith("in here: return threads.every_line(sys._getframe(0))")


def test_every_line_of_a_very_long_stack_are_the_innermost() -> None:
    where = [("/u/train.py", f"f{number}") for number in range(30)]
    lines = called_from(*where, by=lambda: threads.every_line(sys._getframe(1), limit=7))
    assert lines == tuple(f"/u/train.py:2 in f{number}" for number in range(23, 30))


def test_a_thread_that_has_ended_has_no_stack_and_never_that_of_who_asks() -> None:
    nobody = max(sys._current_frames()) + 1
    frame = threads.frame_of(nobody)
    assert frame is None
    assert threads.lines(frame) == ()
    assert threads.every_line(frame) == ()


def test_where_another_thread_is_can_be_told() -> None:
    inside, leave = threading.Event(), threading.Event()

    def waits_here() -> None:
        inside.set()
        leave.wait(20)

    thread = threading.Thread(target=waits_here, daemon=True)
    thread.start()
    assert inside.wait(20)
    try:
        assert thread.ident is not None
        assert any(line.endswith("in waits_here") for line in threads.lines(threads.frame_of(thread.ident)))
    finally:
        leave.set()
        thread.join(20)


@pytest.mark.parametrize("asked", [False, True], ids=["unknown to Python", "that ran Python"])
def test_a_thread_that_python_did_not_start_works_for_others(asked: bool) -> None:
    answers: list[bool] = []
    done = threading.Event()

    def foreign() -> None:
        if asked:
            threading.current_thread()
        answers.append(threads.is_engines(threading.get_ident()))
        done.set()

    _thread.start_new_thread(foreign, ())
    assert done.wait(20)
    thread = threading.Thread(target=lambda: answers.append(threads.is_engines(threading.get_ident())))
    thread.start()
    thread.join()
    assert answers == [True, False]
    assert not threads.is_engines(threading.get_ident())
