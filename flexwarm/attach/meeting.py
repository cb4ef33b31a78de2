"""The nodes of a launch tell each other what they have, through the rendezvous of the job itself: see :mod:`flexwarm.nodes`.

A flexwarm on one node has no way to another's. The job has one: the store of its default process group. The first rank of
each node that makes a compiled call puts its node's facts there and reads the others'; every rank is counted there, so that
it is known when all are. All of it happens in a thread of its own, with a connection of its own and without a question that
waits for anything, so the program is neither held up nor slowed down. A store that is gone is no error, and no news.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any

from flexwarm.canonical import plain
from flexwarm.errors import UnsupportedError
from flexwarm.events import Refused
from flexwarm.observation import Observation, OnMiss
from flexwarm.observer.recorder import Recorder
from flexwarm.observer.torch_api import distributed
from flexwarm.program_events import Nodes

#: Between two looks at the store.
LOOK_SECONDS = 0.5
#: How long after a compiled call it is looked for others: ranks make theirs at about the same time.
QUIET_SECONDS = 5.0
#: Longest time for one question.
ANSWER_SECONDS = 10.0
#: How long the end of a program waits for the answer to a question under way: Python may not end a thread inside of torch.
END_SECONDS = 2.0

#: In the store. A number of each is the next one's; the text under it is JSON.
_RANKS, _SAID, _NODE = "flexwarm/ranks", "flexwarm/said", "flexwarm/node"


class Meeting:
    """One rank's part. Without a process group, or in one of a single rank, nothing happens."""

    def __init__(self, observation: Observation, recorder: Recorder) -> None:
        self._observation, self._recorder = observation, recorder
        self._begun = False
        self._until = 0.0
        self._nodes: dict[str, Any] = {}
        self._missed: dict[str, str] = {}
        self._read = 0
        self._told: tuple[int, int] = (0, 0)
        self._thread: threading.Thread | None = None
        self.after_fork()

    def after_fork(self) -> None:
        """In a forked child there is no thread, and a lock may be one that nobody lets go. What was begun is the parent's."""
        self._thread = None
        self._telling = threading.Lock()
        self._wake, self._over, self._done = threading.Event(), threading.Event(), threading.Event()

    def follow(self, seconds: float = QUIET_SECONDS) -> bool:
        """A compiled call is made, in this rank. Returns at once; False if there is nobody to meet."""
        self._until = max(self._until, time.monotonic() + seconds)
        self._wake.set()
        if self._begun:
            return True
        group = distributed.default_group()
        if self._observation.node is None or group is None or group[1] < 2:
            return False
        self._begun = True
        return self._with_store(lambda store: self._start(store, group[1]))

    def _start(self, store: Any, world_size: int) -> None:
        thread = threading.Thread(target=self._run, args=([store], world_size), name="flexwarm-nodes", daemon=True)
        thread.start()
        self._thread = thread

    def wait(self, seconds: float) -> None:
        """Until this rank's node has told and heard everything, at most so long. Not for a user's program."""
        if self.follow(seconds):
            self._done.wait(seconds)

    def missed(self, what: str) -> None:
        """A rank is about to be stopped: the other nodes will wait for it. In the thread that will stand still."""
        group = distributed.default_group()
        if group is not None and group[1] > 1:
            self._with_store(lambda store: self._post(distributed.connect(store, ANSWER_SECONDS), missed=what))

    def end(self, *, wait: bool) -> None:
        """The program ends: say what is known. Nothing is asked any more, for rank 0 may be gone.

        Args:
            wait: for a question that is under way: the interpreter ends, and with it the thread.
        """
        self._over.set()
        self._wake.set()
        if wait and self._thread is not None:
            self._thread.join(END_SECONDS)
        self._tell(last=True)

    def _with_store(self, act: Callable[[Any], None]) -> bool:
        try:
            store = distributed.default_store()
            if store is not None:
                act(store)
            return store is not None
        except RuntimeError:
            return False  # the store is gone, and with it the launch
        except UnsupportedError as error:
            self._recorder.emit(Refused(t=time.time(), message=error.message, hint=error.hint))
            return False

    # ---- in the thread -------------------------------------------------------------------------------------------------

    def _run(self, holder: list[Any], world_size: int) -> None:
        try:
            # Not kept: in rank 0 the server lives as long as the program's own object.
            store = distributed.connect(holder.pop(), ANSWER_SECONDS)
            run = self._observation.run
            if store.add(f"{_NODE}/{run}", 1) == 1:
                self._post(store, facts=plain(self._observation.node))
                store.add(_RANKS, 1)
                self._listen(store, world_size)
            else:
                store.add(_RANKS, 1)  # another rank of this node reads
        except (RuntimeError, ValueError, UnsupportedError):
            pass  # the store is gone, or speaks of what this flexwarm does not know: there is no news then
        finally:
            self._done.set()

    def _post(self, store: Any, **said: Any) -> None:
        number = store.add(_SAID, 1)
        store.set(f"{_SAID}/{number}", json.dumps({"node": self._observation.run, **said}))

    def _listen(self, store: Any, world_size: int) -> None:
        """Until all ranks are there; where they stop at a miss, as long as compiled calls are made."""
        while not self._over.is_set():
            everyone = store.add(_RANKS, 0) >= world_size  # first, so that what they said before is read
            self._look(store)
            if everyone:
                self._tell()
                self._done.set()
                if self._observation.on_miss is not OnMiss.FAIL:
                    return
            self._wake.clear()
            if time.monotonic() < self._until:
                self._over.wait(LOOK_SECONDS)
            else:
                self._wake.wait()

    def _look(self, store: Any) -> None:
        """Read what was said since the last time. A number is given out before its text is there."""
        last = store.add(_SAID, 0)
        while self._read < last and store.check([f"{_SAID}/{self._read + 1}"]):
            said = json.loads(store.get(f"{_SAID}/{self._read + 1}"))
            self._read += 1
            if "facts" in said:
                self._nodes[said["node"]] = said["facts"]
            else:
                self._missed.setdefault(said["node"], said["missed"])

    def _tell(self, *, last: bool = False) -> None:
        with self._telling:
            known = (len(self._nodes), len(self._missed))
            if known == self._told or (self._over.is_set() and not last):
                return
            self._told = known
            nodes, missed = dict(self._nodes), dict(self._missed)
            self._recorder.emit(Nodes(t=time.time(), own=self._observation.run, nodes=nodes, missed=missed))
