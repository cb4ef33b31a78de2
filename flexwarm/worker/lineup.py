"""How the lanes of a rank go through the shapes of a workload, or the calls of a step: side by side, or one after the other."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class LineUp:
    """Lanes take each shape together, so that what Dynamo learns of shapes does not depend on which lane is faster.

    A lane that failed leaves, and the others go on without it.

    Args:
        lanes: the lanes that take part.
        turns: one lane at a time, in order of the lanes; else all at once.
        stagger_seconds: how much later than the lane before it a lane starts with a shape.
    """

    def __init__(self, lanes: Iterable[int], *, turns: bool, stagger_seconds: float) -> None:
        self._order = sorted(lanes)
        self._turns, self._stagger = turns, stagger_seconds
        self._changed = threading.Condition()
        self._arrived = dict.fromkeys(self._order, 0)
        self._done = dict.fromkeys(self._order, 0)

    @contextmanager
    def shape(self, lane: int) -> Iterator[None]:
        """One shape of one lane; entered when its turn has come."""
        with self._changed:
            number = self._arrived[lane] = self._arrived[lane] + 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: all(count >= number for count in self._arrived.values()))
            if self._turns:
                self._changed.wait_for(lambda: all(self._done[x] >= number for x in self._arrived if x < lane))
        if not self._turns:
            time.sleep(self._stagger * self._order.index(lane))
        yield
        with self._changed:
            self._done[lane] = number
            self._changed.notify_all()

    def leave(self, lane: int) -> None:
        """The lane takes no more shapes, whatever it has done."""
        with self._changed:
            self._arrived.pop(lane, None)
            self._changed.notify_all()
