"""Where every witness of a worker writes, and what it does at a miss."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from flexwarm import events
from flexwarm.events import Compiled, Event, Heartbeat, Layer, LeftOut, Open, Phase, Progress, Tuned, Untuned
from flexwarm.request import Purpose, Tuning


class StopAtMiss(BaseException):
    """While verifying, ends a job at its first miss, before anything is compiled or written.

    A ``BaseException``, because Dynamo, AOTAutograd and Inductor turn an ``Exception`` into a fallback.
    """


@dataclass(slots=True)
class Seat:
    """What one thread works on.

    Attributes:
        lane: of the rank; None where the main thread is the only one.
        checks: how often torch asked this thread whether FX traces, since the job began.
        stopped: the job was told to stop at a miss, also if something swallowed that.
    """

    job: str
    device: str
    lane: int | None
    thread: int
    checks: int = 0
    stopped: bool = False


class Recorder:
    """The event file of one worker, and the job that each event belongs to.

    A thread that runs a job takes a seat. Threads without one, such as autograd's own, work for a seated thread: for the
    only one, or for one on the device that they serve.

    Attributes:
        here: has the calling thread's seat as ``seat``, which counts its checks: no such attribute, or None, if it has none.
    """

    def __init__(self, path: Path, purpose: Purpose, tuning: Tuning = Tuning.MISS) -> None:
        self._fd = self._open(path)
        self._pid = os.getpid()
        self.purpose = purpose
        #: What is done where a GPU is to choose between variants of a kernel.
        self.on_tuning = tuning
        self.here = threading.local()
        self._seats: dict[str, Seat] = {}
        #: Groups of parts of keys that are in the file: see :mod:`flexwarm.observer.key_details`.
        self.groups_told: set[str] = set()
        #: The device that the calling thread serves, where it has no seat; empty if that cannot be known.
        self.device_here: Callable[[], str] = lambda: ""
        #: Around each first call of a job: what a start is measured by.
        self.first_call: Callable[[], AbstractContextManager[None]] = nullcontext
        #: Dynamo's number of the graph that the calling thread compiles; empty if nobody follows that.
        self.graph_here: Callable[[], str] = lambda: ""

    @staticmethod
    def _open(path: Path) -> int:
        # O_APPEND and one write a line: threads and forked children of the job cannot tear a line.
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    @contextmanager
    def seat(self, job: str, device: str, lane: int | None) -> Iterator[Seat]:
        """The calling thread works on a job."""
        seat = Seat(job=job, device=device, lane=lane, thread=threading.get_ident())
        self.here.seat = self._seats[job] = seat
        try:
            yield seat
        finally:
            self.here.seat = None
            del self._seats[job]

    @property
    def own_seat(self) -> Seat | None:
        """The calling thread's seat, if it has one."""
        return getattr(self.here, "seat", None)

    def forget_engine(self) -> None:
        """In a forked child: the calling thread is the main one now, also if it was autograd's."""

    def seat_here(self) -> Seat | None:
        """The seat that the calling thread has, or works for."""
        own = self.own_seat
        seats = list(self._seats.values())
        if own is not None or len(seats) < 2:
            return own or (seats[0] if seats else None)
        device = self.device_here()
        return next((seat for seat in seats if seat.device == device), seats[0])

    @property
    def job(self) -> str | None:
        seat = self.seat_here()
        return seat.job if seat is not None else None

    def seats(self) -> tuple[Seat, ...]:
        return tuple(self._seats.values())

    def name_of(self, ident: int) -> str:
        """A thread in a user's words."""
        seat = next((seat for seat in self.seats() if seat.thread == ident), None)
        if seat is not None and seat.lane is not None:
            return f"lane {seat.lane}"
        if ident == threading.main_thread().ident:
            return "the main thread"
        thread = next((thread for thread in threading.enumerate() if thread.ident == ident), None)
        # What Python did not start, and what only looks started because it once ran Python, is the autograd engine's.
        if thread is None or thread.name.startswith("Dummy-"):
            return f"thread {ident} of the autograd engine"
        return f"thread {thread.name!r}"

    def lane_of(self, ident: int) -> int | None:
        return next((seat.lane for seat in self.seats() if seat.thread == ident), None)

    def emit(self, event: Event) -> None:
        """Append one event. A forked child of the job says nothing: it is not this worker."""
        if os.getpid() == self._pid:
            self._write(event)

    def _write(self, event: Event) -> None:
        line = events.to_line(event).encode()
        while line:  # a disk that is nearly full takes part of a line
            line = line[os.write(self._fd, line) :]

    def phase(self, phase: Phase) -> None:
        self.emit(Progress(t=time.time(), job=self.job, phase=phase))

    def compiled(self, what: str, detail: str) -> None:
        """A compiler is about to run: said, and stopped while verifying."""
        self.emit(Compiled(t=time.time(), job=self.job, what=what, detail=detail, graph=self.graph_here()))
        self.stop_if_verifying()

    def untuned(self, kernel: str, left: Open) -> None:
        """Something was to be decided by a GPU that is not there: see :class:`flexwarm.events.Untuned`."""
        self.emit(Untuned(t=time.time(), job=self.job, kernel=kernel, open=left, graph=self.graph_here()))

    def left_out(self, layer: Layer, key: str) -> None:
        """What was compiled under a key is not stored, and on purpose."""
        self.emit(LeftOut(t=time.time(), job=self.job, layer=layer, key=key, graph=self.graph_here()))

    def tunes(self, detail: str) -> None:
        """Variants of a kernel are about to be timed, which is like a compile unless it is allowed."""
        if self.on_tuning is Tuning.MISS:
            self.compiled("autotune", detail)

    @contextmanager
    def tuning(self, kernel: str) -> Iterator[None]:
        """A GPU times a kernel's variants."""
        began = time.perf_counter()
        try:
            yield
        finally:
            seconds = round(time.perf_counter() - began, 6)
            kept, graph = self.on_tuning is not Tuning.TRY, self.graph_here()
            self.emit(Tuned(t=time.time(), job=self.job, kernel=kernel, seconds=seconds, graph=graph, kept=kept))

    def spent(self, seconds: float) -> None:
        """A graph was compiled, which took so long. A worker has no use for it: it times its calls."""

    def stop_if_verifying(self) -> None:
        if self.purpose is Purpose.VERIFY and os.getpid() == self._pid:
            seat = self.seat_here()
            if seat is not None:
                seat.stopped = True
            raise StopAtMiss

    def start_heartbeat(self, seconds: float) -> None:
        """Let a thread write a heartbeat: silence then means that the interpreter itself does not run."""

        def beat() -> None:
            while True:
                time.sleep(seconds)
                self.emit(Heartbeat(t=time.time()))

        threading.Thread(target=beat, name="flexwarm-heartbeat", daemon=True).start()
