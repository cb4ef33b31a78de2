"""The guard check: at each compiled call, in its own thread, what torch is told about FX tracing, and by whose doing."""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from flexwarm.events import Hazard
from flexwarm.hazards import SAID_AT_MOST, HazardCode
from flexwarm.observer import threads
from flexwarm.observer.recorder import Recorder
from flexwarm.observer.torch_api import tracing
from flexwarm.observer.torch_api.tracing import Fate, TracingApi

#: A flag counts as left behind when it is seen so often, with such pauses, and nobody traces.
LOOKS, LOOK_SECONDS = 5, 0.02
#: A trace that ended so shortly before a call was looked into was under way when the call was made.
JUST_SECONDS = 0.05
#: How many traces that have ended are remembered.
REMEMBERED = 256


@dataclass(slots=True)
class Trace:
    """The outermost trace of one thread. Times are of ``time.monotonic``, in seconds."""

    thread: int
    owner: str
    owner_lane: int | None
    stack: tuple[str, ...]
    began: float
    ended: float | None = None
    depth: int = 1


_FATES = {
    Fate.RAISE: "torch raises",
    Fate.INLINE: "torch runs it uncompiled, which is dense attention",
    Fate.PASS: "torch lets it pass",
}


class GuardWatch:
    """Reports hazards of tracing as they happen. One for each worker.

    Attributes:
        hold: set by a drill: entered inside each outermost trace, in the tracing thread.
    """

    def __init__(self, api: TracingApi, recorder: Recorder) -> None:
        self._api, self._recorder = api, recorder
        self._lock = threading.Lock()
        self._open: dict[int, Trace] = {}
        self._ended: deque[Trace] = deque(maxlen=REMEMBERED)
        self._said: dict[tuple[str | None, HazardCode], int] = {}
        self.hold: Callable[[], AbstractContextManager[None]] | None = None

    def start(self) -> None:
        tracing.observe_traces(self._api, self._trace)
        tracing.observe_queries(self._api, self._query, self._recorder.here)
        tracing.observe_patches(self._api, self._compile)

    def after_fork(self) -> None:
        """In a forked child: the traces and the lock are those of threads that it does not have."""
        self._lock, self._open = threading.Lock(), {}
        self._recorder.forget_engine()

    def stop(self) -> None:
        """Take the hooks off again."""
        tracing.observe_traces(self._api, None)
        tracing.observe_queries(self._api, None)
        tracing.observe_patches(self._api, None)

    @contextmanager
    def _trace(self) -> Iterator[None]:
        ident = threading.get_ident()
        with self._lock:
            trace = self._open.get(ident)
            if trace is not None:
                trace.depth += 1
            else:
                name, lane = self._recorder.name_of(ident), self._recorder.lane_of(ident)
                # Without the frames of this module and of contextlib.
                stack = threads.lines(sys._getframe(2))
                trace = Trace(thread=ident, owner=name, owner_lane=lane, stack=stack, began=time.monotonic())
                self._open[ident] = trace
        try:
            if trace.depth == 1 and self.hold is not None:
                with self.hold():
                    yield
            else:
                yield
        finally:
            with self._lock:
                trace.depth -= 1
                if not trace.depth:
                    trace.ended = time.monotonic()
                    del self._open[ident]
                    self._ended.append(trace)

    def _query(self, answer: bool) -> None:
        """An answer that torch's question did not count by itself, in the thread's seat."""
        seat = self._recorder.own_seat
        if seat is not None:
            seat.checks += 1
        if not answer:
            return
        fate = self._api.fate(answer)
        if fate is Fate.PASS:
            return
        ident = threading.get_ident()
        owner = self._owner(but=None)
        if owner is None:
            self._say(
                HazardCode.FX_LEAK,
                f"a compiled call was taken for a traced one, and no thread traces: {_FATES[fate]}",
                fate,
            )
        elif owner.thread == ident or ident in self._open:
            own = self._open.get(ident, owner)
            self._say(
                HazardCode.FX_NESTED,
                f"a compiled call was made inside a trace of its own thread: {_FATES[fate]}",
                fate,
                own,
            )
        else:
            self._say(HazardCode.FX_RACE, f"a compiled call was made while {owner.owner} traced: {_FATES[fate]}", fate, owner)

    def _compile(self) -> None:
        """Dynamo is about to compile in this thread; it takes off the patches of whatever trace is under way."""
        ident = threading.get_ident()
        if self._api.patcher() is None or threads.is_engines(ident):
            return
        with self._lock:
            if ident in self._open:
                return
        owner = self._owner(but=ident)
        if owner is not None:
            self._say(
                HazardCode.FOREIGN_PATCH,
                f"a function was compiled while {owner.owner} traced, and torch keeps the patches of a trace for all threads",
                owner=owner,
            )

    def _owner(self, but: int | None) -> Trace | None:
        """Who traces now: by what was seen to begin, else by the stacks of all threads."""
        with self._lock:
            seen = [trace for ident, trace in self._open.items() if ident != but]
        if seen:
            return min(seen, key=lambda trace: trace.began)
        with self._lock:
            last = self._ended[-1] if self._ended else None
        if last is not None and last.thread != threading.get_ident() and time.monotonic() - (last.ended or 0.0) < JUST_SECONDS:
            return last  # it was over when it was looked for, and under way when torch was asked
        for ident, frame in self._api.tracing_threads().items():
            if ident != but:
                name = self._recorder.name_of(ident)
                return Trace(
                    thread=ident, owner=name, owner_lane=self._recorder.lane_of(ident), stack=threads.lines(frame), began=0.0
                )
        return None

    def foreign_since(self, began: float) -> Trace | None:
        """A trace of another thread that was open at or after ``began`` (``time.monotonic``)."""
        ident = threading.get_ident()
        with self._lock:
            traces = [*self._open.values(), *self._ended]
        return next((x for x in traces if x.thread != ident and (x.ended is None or x.ended >= began)), None)

    def blame(self, error: BaseException, began: float) -> None:
        """Report a call that raised inside FX while another thread traced; ``began``: when the call did."""
        owner = self.foreign_since(began)
        if owner is None or not _raised_in_fx(error):
            return
        text = f"{type(error).__name__}: {str(error).strip().splitlines()[-1] if str(error).strip() else ''}"[:300]
        self._say(
            HazardCode.FOREIGN_PATCH, f"a call failed in torch.fx while {owner.owner} traced: {text}", Fate.RAISE, owner=owner
        )

    def at_rest(self) -> None:
        """At the end of a job: nothing of a trace may be left when nobody traces, and the guard must be on."""
        if self._api.silenced():
            self._say(HazardCode.FX_SILENCED, "torch._dynamo.config.error_on_nested_fx_trace is off in this thread")
        # What a trace leaves stays; what a lane beside this one is just about to set or to restore does not.
        leaked, patched = True, True
        for _ in range(LOOKS):
            leaked, patched = leaked and self._api.active(), patched and self._api.module_patched()
            with self._lock:
                busy = bool(self._open)
            if busy or self._api.tracing_threads() or not (leaked or patched):
                return
            time.sleep(LOOK_SECONDS)
        if leaked:
            self._say(
                HazardCode.FX_LEAK, "torch says that FX traces, and no thread does: every compiled call fails from now on"
            )
        if patched:
            self._say(HazardCode.FOREIGN_PATCH, "traces that overlapped have left torch.nn.Module patched for ever")

    def _say(self, code: HazardCode, message: str, fate: Fate | None = None, owner: Trace | None = None) -> None:
        job = self._recorder.job
        with self._lock:
            said = self._said[job, code] = self._said.get((job, code), 0) + 1
        if said > SAID_AT_MOST:
            return
        self._recorder.emit(
            Hazard(
                t=time.time(),
                job=job,
                code=code,
                message=message,
                fate=fate.value if fate else "",
                owner=owner.owner if owner else "",
                owner_lane=owner.owner_lane if owner else None,
                stack=owner.stack if owner else (),
            )
        )


def _raised_in_fx(error: BaseException) -> bool:
    """Whether any error of a chain was raised in torch.fx itself, and not in what it called."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        frames = traceback.walk_tb(link.__traceback__)
        names = [frame.f_code.co_filename.replace("\\", "/") for frame, _ in frames]
        if names and "/torch/fx/" in names[-1]:
            return True
        link = link.__cause__ or link.__context__
    return False
