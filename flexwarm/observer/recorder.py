"""Where every witness of a worker writes, and what it does at a miss."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

from flexwarm import events
from flexwarm.events import Compiled, Event, Heartbeat, Phase, Progress
from flexwarm.request import Purpose


class StopAtMiss(BaseException):
    """While verifying, ends a job at its first miss, before anything is compiled or written.

    A ``BaseException``, because Dynamo, AOTAutograd and Inductor turn an ``Exception`` into a fallback.
    """


class Recorder:
    """The event file of one worker, and the job that its events belong to.

    One job runs at a time in a worker; events of the autograd engine's own threads belong to it as well, so the job
    is a plain attribute and not thread-local.
    """

    def __init__(self, path: Path, purpose: Purpose) -> None:
        # O_APPEND and one write a line: threads and forked children of the job cannot tear a line.
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._pid = os.getpid()
        self.purpose = purpose
        self.job: str | None = None
        self.stopped = False

    def emit(self, event: Event) -> None:
        """Append one event. A forked child of the job says nothing: it is not this worker."""
        if os.getpid() != self._pid:
            return
        line = events.to_line(event).encode()
        while line:  # a disk that is nearly full takes part of a line
            line = line[os.write(self._fd, line) :]

    def phase(self, phase: Phase) -> None:
        self.emit(Progress(t=time.time(), job=self.job, phase=phase))

    def compiled(self, what: str, detail: str) -> None:
        """A compiler is about to run: said, and stopped while verifying."""
        self.emit(Compiled(t=time.time(), job=self.job, what=what, detail=detail))
        self.stop_if_verifying()

    def stop_if_verifying(self) -> None:
        if self.purpose is Purpose.VERIFY and os.getpid() == self._pid:
            self.stopped = True
            raise StopAtMiss

    def start_heartbeat(self, seconds: float) -> None:
        """Let a thread write a heartbeat: silence then means that the interpreter itself does not run."""

        def beat() -> None:
            while True:
                time.sleep(seconds)
                self.emit(Heartbeat(t=time.time()))

        threading.Thread(target=beat, name="flexwarm-heartbeat", daemon=True).start()
