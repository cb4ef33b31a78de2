"""Where the witnesses of an observed program write, which thread each event is of, and what happens at a miss."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from flexwarm import reaper
from flexwarm.events import Bye, Event
from flexwarm.observation import Observation, OnMiss
from flexwarm.observer import threads
from flexwarm.observer.recorder import Recorder, Seat
from flexwarm.program_events import SILENCED, Forked, Held, Program, Silenced, Spent
from flexwarm.request import Purpose

#: How long a program stands still at a miss before it ends itself, for want of a parent that ends it.
HELD_SECONDS = 120.0
#: The status with which it then ends.
HELD_STATUS = 86

#: Variables of launchers that say who a process is, the surest first: torchrun's are also set by accelerate and deepspeed.
_PLACES = {
    "rank": ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"),
    "local_rank": ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"),
    "world_size": ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS"),
    "local_world_size": ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"),
}


def place_by_variables(environ: Mapping[str, str]) -> dict[str, int]:
    """Who a process is in its launch, of what its launcher's variables say."""
    found = {}
    for name, variables in _PLACES.items():
        value = next((environ[variable] for variable in variables if environ.get(variable, "").isdigit()), None)
        if value is not None:
            found[name] = int(value)
    return found


class ProgramRecorder(Recorder):
    """The event file of one observed program.

    A thread takes a seat at its first compiled call and keeps it: ``lane-0`` is the main thread's, the others are numbered
    as they come, and a number is free again when its thread has ended.

    Attributes:
        subject_here: in a few words what that compile is of.
        before_hold: called before this program stands still at a miss.
        said_bye: the last that this process said is that it ends.
    """

    def __init__(self, observation: Observation, describe: Callable[[int | None], Program]) -> None:
        self._observation, self._describe = observation, describe
        self._seating = threading.Lock()
        self._checks: dict[str, int] = {}
        self._mute = False
        self.said_bye = False
        self._warned: set[str] = set()
        self.subject_here: Callable[[], str] = lambda: ""
        self.before_hold: Callable[[], None] = lambda: None
        self._file = self._path()
        purpose = Purpose.VERIFY if observation.on_miss is OnMiss.FAIL else Purpose.BUILD
        super().__init__(self._file, purpose, observation.tuning)
        self._identity = _identity(self._fd)
        super().emit(describe(None))

    def _path(self) -> Path:
        pid = os.getpid()
        return Path(self._observation.directory) / f"{socket.gethostname()}-{pid}-{reaper.started(pid)}.events.jsonl"

    # ---- forks ---------------------------------------------------------------------------------------------------------

    def after_fork(self) -> None:
        """In the child: one line to the parent's file. It gets a file of its own when it has something to say itself."""
        self._seating = threading.Lock()
        self.said_bye = False
        self.groups_told = set()
        pid = os.getpid()
        self._write(Forked(t=time.time(), pid=pid, started=reaper.started(pid), image=reaper.image(pid)))

    def emit(self, event: Event) -> None:
        """A file that cannot be written any more, on a full disk, is no reason to end a user's program.

        Nothing is said from then on, also not how the program ended: what is missing in between could be a hazard. That it
        is so is left as a sign.
        """
        if os.getpid() != self._pid:
            parent, self._pid = self._pid, os.getpid()
            self._begin_own_file()
            self._write(self._describe(parent))
        self.said_bye = isinstance(event, Bye)
        self._write(event)

    def _begin_own_file(self) -> None:
        """In a forked child. If it cannot have one, the parent's file says so, or else has the sign."""
        if self._mute:
            return
        try:
            own = self._open(self._path())
        except OSError as error:
            if self._is_open():
                self._write(Silenced(t=time.time(), pid=self._pid, error=error.errno or 0))
                if self._mute:  # a sign of its own, which no later line of the parent takes back
                    with contextlib.suppress(OSError):
                        os.symlink(str(error.errno or 0), f"{self._path()}{SILENCED}")
                self._mute = True
            else:
                self._file = self._path()
                self._fall_silent(error)
            return
        if self._is_open():
            os.close(self._fd)
        self._file, self._fd, self._identity = self._path(), own, _identity(own)

    def _write(self, event: Event) -> None:
        if not self._mute and not self._is_open():
            self._reopen()
        if not self._mute:
            try:
                super()._write(event)
            except OSError as error:
                self._fall_silent(error)

    def _fall_silent(self, error: OSError) -> None:
        """Leave a sign for the parent that needs no space: the file's time, or where there is no file a link beside it."""
        self._mute = True
        number = error.errno or 0
        try:
            if self._is_open() and stat.S_ISREG(os.fstat(self._fd).st_mode):
                os.utime(self._fd, (number, number))
                return
        except OSError:
            pass  # the disk itself fails
        try:
            os.symlink(str(number), f"{self._file}{SILENCED}")
        except OSError:
            pass  # there is no way left to say anything: what is then missing is the end of the program

    def _is_open(self) -> bool:
        """A program that closes all its descriptors, as a daemon does, may have opened a file of its own under our number."""
        return _identity(self._fd) == self._identity

    def _reopen(self) -> None:
        try:
            self._fd = self._open(self._file)
            self._identity = _identity(self._fd)
        except OSError as error:
            self._fall_silent(error)

    @property
    def has_a_file(self) -> bool:
        """Whether this process has said anything: a forked child may not have."""
        return os.getpid() == self._pid

    # ---- seats ---------------------------------------------------------------------------------------------------------

    #: Where the threads of autograd count, for nobody: so they are known at their next call without another look.
    _engines = Seat(job="", device="", lane=None, thread=0)

    @property
    def own_seat(self) -> Seat | None:
        seat: Seat | None = getattr(self.here, "seat", None)
        seat = seat if seat is not None else self._take_seat()
        return seat if seat is not self._engines else None

    @property
    def has_seat(self) -> bool:
        """Whether the calling thread has made a compiled call."""
        seat = getattr(self.here, "seat", None)
        return seat is not None and seat is not self._engines

    def forget_engine(self) -> None:
        if getattr(self.here, "seat", None) is self._engines:
            del self.here.seat

    def _take_seat(self) -> Seat:
        ident = threading.get_ident()
        if ident != threading.main_thread().ident and threads.is_engines(ident):
            self.here.seat = self._engines
            return self._engines
        with self._seating:
            alive = {thread.ident for thread in threading.enumerate()}
            for job, seat in list(self._seats.items()):
                if seat.thread not in alive or seat.thread == ident:  # an ended thread's number may be ours now
                    self._checks[job] = self._checks.get(job, 0) + seat.checks
                    del self._seats[job]
            main = ident == threading.main_thread().ident
            number = 0 if main else next(n for n in range(1, len(self._seats) + 2) if f"lane-{n}" not in self._seats)
            # Without a lane's number: `name_of` then says the thread's own name, which a user knows.
            seat = Seat(job=f"lane-{number}", device=self.device_here(), lane=None, thread=ident)
            self.here.seat = self._seats[seat.job] = seat
        return seat

    def name_of_caller(self) -> str:
        """The calling thread in a user's words."""
        return self.name_of(threading.get_ident())

    def checks(self) -> dict[str, int]:
        """Thread -> how often torch asked it whether FX traces."""
        found = dict(self._checks)
        for seat in self.seats():
            found[seat.job] = found.get(seat.job, 0) + seat.checks
        return found

    # ---- misses --------------------------------------------------------------------------------------------------------

    def stop_if_verifying(self) -> None:
        graph = self.graph_here()
        match self._observation.on_miss:
            case OnMiss.ALLOW:
                return
            case OnMiss.WARN:
                self._warn(graph)
            case OnMiss.FAIL:
                self.emit(Held(t=time.time(), job=self.job, graph=graph))
                self.before_hold()
                # Not an exception: the program's own handlers, and other ranks in a collective, would make it another story.
                # One that could not say that it stands here would wait for nobody.
                time.sleep(0.0 if self._mute else HELD_SECONDS)
                os._exit(HELD_STATUS)

    def _warn(self, graph: str) -> None:
        subject = self.subject_here() or "something outside of a graph"
        if subject in self._warned:
            return
        self._warned.add(subject)
        rank = place_by_variables(os.environ).get("rank")
        who = f"rank {rank}" if rank is not None else f"pid {os.getpid()}"
        try:
            sys.stderr.write(f"flexwarm: {who} compiles {subject}, which is not in the bucket\n")
        except (OSError, ValueError, AttributeError):
            pass  # the program closed its standard error: the summary says it

    def spent(self, seconds: float) -> None:
        self.emit(Spent(t=time.time(), job=self.job, graph=self.graph_here(), seconds=round(seconds, 3)))


def _identity(descriptor: int) -> tuple[int, int] | None:
    """Which file a descriptor is of; None if it is none."""
    try:
        status = os.fstat(descriptor)
    except OSError:
        return None
    return status.st_dev, status.st_ino
