"""Start the workers of a plan, read what they say, hold them to their limits, and leave no process behind.

Interprets nothing: it returns what was said and how each process ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from flexwarm import canonical, events, reaper
from flexwarm.errors import WorkerError
from flexwarm.events import (
    Bye,
    DrillDone,
    DrillLock,
    Event,
    Hang,
    Hello,
    JobDone,
    JobFailed,
    JobStopped,
    Phase,
    Progress,
    Refused,
    ShapeDone,
    StepDone,
)
from flexwarm.plan import Job, Plan, Worker
from flexwarm.record import End, Exit
from flexwarm.request import Conduct, JobRequest, Purpose, WorkerRequest

POLL_SECONDS = 0.02
#: Not ``-m``, which would put this directory first on the path: a ``queue.py`` or another ``flexwarm`` beside the spec would
#: then be imported in place of the real one. The worker adds the directory itself, once torch is imported. Where this
#: flexwarm lies comes last on the path: it is found also where it is not installed, and shadows nothing.
_START = """
import sys
sys.path[:1] = [entry for entry in sys.path[:1] if entry]
sys.path.append(sys.argv.pop())
from flexwarm.worker.__main__ import main
sys.exit(main())
"""
_HOME = str(Path(__file__).resolve().parents[1])
#: How long a process that is about to be ended gets to write its stacks into its log.
STACK_DUMP_SECONDS = 0.5
#: How long the kernel gets to end a process that was killed.
REAP_SECONDS = 30.0

OnEvent = Callable[[int, Event], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Seconds: for one job (importing torch counts as one), for a worker to say nothing at all, and for a hang.

    In a rank with several lanes the first is for one shape of one lane, or one lane's part of a drill.

    A worker writes a heartbeat every few seconds, so silence means that its interpreter does not run. A hang is found by
    the worker itself: its threads wait for each other, and nothing moves.
    """

    job_seconds: float = 1800.0
    silence_seconds: float = 120.0
    hang_seconds: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What the workers of one run said, by rank, and how they ended."""

    events: Mapping[int, tuple[Event, ...]]
    exits: Mapping[int, Exit]


def new_run_id() -> str:
    """Unique on every machine that shares the store; sorts by time."""
    return f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{os.getpid()}-{secrets.token_hex(3)}"


def run_plan(
    plan: Plan,
    *,
    conduct: Conduct,
    environ: Mapping[str, str],
    directory: Path,
    limits: Limits,
    on_event: OnEvent,
    before_jobs: Callable[[], bool] | None = None,
) -> Run:
    """Run every worker of ``plan`` to its end.

    Args:
        directory: an existing, empty directory for requests, events, gates and logs.
        environ: the environment that the workers' own variables are laid over.
        on_event: called with (rank, event) as events arrive, in this thread.
        before_jobs: called while the workers import torch; jobs begin only when it returned True, else the run ends here.

    Raises:
        WorkerError: a process could not be started.
    """
    run_id = directory.name
    processes: list[_Process] = []
    reaper.adopt_orphans()
    before = frozenset(reaper.children(os.getpid()))
    with reaping(run_id) as helper:
        try:
            for worker in plan.workers:
                processes.append(_start(worker, run_id, conduct, environ, directory, before_jobs is not None))
            wanted = before_jobs is None or before_jobs()
            if wanted:
                _open_gate(directory / "gate-start", "go")
                _supervise(processes, directory, limits, on_event, {job.id: job.leader for job in plan.jobs})
        finally:
            # Whatever ends this block, also a signal: first the groups, then all that left them.
            for process in processes:
                process.reap()
            reaper.kill_run(run_id)
            reaper.kill_descendants(before | {helper})
            for process in processes:
                process.read_events(on_event)
                process.close()
    return Run(events={p.worker.rank: tuple(p.said) for p in processes}, exits={p.worker.rank: p.ended() for p in processes})


@contextlib.contextmanager
def reaping(run_id: str) -> Iterator[int]:
    """A process that ends the run if this one is killed; see :mod:`flexwarm.reaper`. Yields its pid."""
    popen = subprocess.Popen(
        [sys.executable, "-I", "-S", reaper.__file__, run_id],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert popen.stdin is not None
    ended_well = False
    try:
        yield popen.pid
        ended_well = True
    finally:
        try:
            # A signal may have cut our own reaping short; then the reaper does it all again.
            popen.stdin.write(b"done" if ended_well else b"")
            popen.stdin.close()
        except BrokenPipeError:
            pass  # somebody killed the reaper; the run is over and was reaped by us
        popen.wait()


@dataclass(slots=True)
class _Process:
    """One worker process and what has been read from it so far."""

    worker: Worker
    popen: subprocess.Popen[bytes]
    events_path: Path
    log: Path
    said: list[Event] = field(default_factory=list)
    last_said: float = field(default_factory=time.monotonic)
    #: Since when the job under way is timed; importing torch counts as one. None while it waits for its leader.
    busy_since: float | None = field(default_factory=time.monotonic)
    hung_seconds: float | None = None
    overrun: tuple[End, float] | None = None
    _file: BinaryIO | None = None
    _partial: bytes = b""

    def read_events(self, on_event: OnEvent) -> None:
        """Read the whole lines that have arrived since the last call."""
        if self._file is None:
            try:
                self._file = self.events_path.open("rb")
            except FileNotFoundError:
                return  # the worker has not begun yet
        data = self._partial + self._file.read()
        *lines, self._partial = data.split(b"\n")
        for line in lines:
            try:
                event = events.from_line(line.decode())
            except ValueError as error:
                raise WorkerError(f"rank {self.worker.rank} wrote a line that is no event: {error}") from error
            self.last_said = time.monotonic()
            self._note(event)
            self.said.append(event)
            on_event(self.worker.rank, event)

    def _note(self, event: Event) -> None:
        """Time each job anew, and none while it waits for its leader or for the parent."""
        match event:
            case Progress(phase=Phase.WAIT):
                self.busy_since = None
            case Hello() | JobDone() | JobStopped() | JobFailed() | DrillDone() | DrillLock():
                self.busy_since = time.monotonic()
            case Progress() if self.busy_since is None:
                self.busy_since = time.monotonic()
            case ShapeDone() | StepDone() if len(self.worker.lanes) > 1:
                # The jobs of all lanes are done together, so what is timed is a shape of one of them.
                self.busy_since = time.monotonic()
            case Hang(seconds=seconds):
                self.hung_seconds = seconds

    def over_limit(self, limits: Limits) -> tuple[End, float] | None:
        now = time.monotonic()
        if self.hung_seconds is not None:
            return End.HUNG, self.hung_seconds
        if self.busy_since is not None and now - self.busy_since > limits.job_seconds:
            return End.TIMED_OUT, limits.job_seconds
        if now - self.last_said > limits.silence_seconds:
            return End.SILENT, limits.silence_seconds
        return None

    def end_for(self, overrun: tuple[End, float]) -> None:
        """End a worker that is past a limit, once it had a moment to write its stacks."""
        self.overrun = overrun
        with contextlib.suppress(ProcessLookupError):
            # Not by `send_signal`, which would take the exit status, and its group with it, if it has just ended.
            os.kill(self.popen.pid, signal.SIGCONT)  # a stopped process could not write them
            os.kill(self.popen.pid, signal.SIGUSR1)
        deadline = time.monotonic() + STACK_DUMP_SECONDS
        while not self.has_ended() and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        self.reap()

    def has_ended(self) -> bool:
        """Whether the worker has ended; it is not reaped, so that its number, which names its group, is still its own."""
        if self.popen.returncode is not None:
            return True
        return os.waitid(os.P_PID, self.popen.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def reap(self) -> None:
        """End the worker's whole group, then take its exit status. Once that is taken the number may be another's."""
        if self.popen.returncode is not None:
            return
        try:
            os.killpg(self.popen.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # it had not made its group yet; its parent-death signal and its marker end it
        try:
            self.popen.wait(REAP_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise WorkerError(f"process {self.popen.pid} of rank {self.worker.rank} cannot be ended by the kernel") from error

    def ended(self) -> Exit:
        status = self.popen.returncode
        if self.overrun is not None:
            end, limit = self.overrun
            return Exit(end=end, status=status, log=str(self.log), limit_seconds=limit)
        finished = status == 0 and any(isinstance(event, (Bye, Refused)) for event in self.said)
        return Exit(end=End.FINISHED if finished else End.DIED, status=status, log=str(self.log))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def _start(worker: Worker, run_id: str, conduct: Conduct, environ: Mapping[str, str], directory: Path, gated: bool) -> _Process:
    stem = f"rank-{worker.rank}"
    events_path, log, request_path = (directory / f"{stem}.{kind}" for kind in ("events.jsonl", "log", "request.json"))
    request = WorkerRequest(
        run=run_id,
        conduct=conduct,
        rank=worker.rank,
        parent=os.getpid(),
        events=str(events_path),
        lanes=len(worker.lanes),
        stagger_seconds=worker.stagger_seconds,
        context=worker.context,
        jobs=tuple(
            JobRequest(
                id=job.id,
                lane=job.lane,
                device=job.device,
                workload=job.workload,
                gate=_gate(directory, conduct.purpose, worker, job, gated),
            )
            for job in worker.jobs
        ),
    )
    request_path.write_text(json.dumps(request.to_json(), indent=1))
    try:
        with log.open("wb") as output:
            popen = subprocess.Popen(
                [sys.executable, "-c", _START, str(request_path), _HOME],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # The job's own variables are there before Python starts: Inductor reads its directory when imported.
                env={**environ, **worker.env, reaper.MARKER: run_id},
                start_new_session=True,
                # With umask 002 torch's directories would be writable by the group, and what they hold is run as code.
                umask=0o022,
            )
    except OSError as error:
        raise WorkerError(f"rank {worker.rank} could not be started: {error}") from error
    return _Process(worker=worker, popen=popen, events_path=events_path, log=log)


def _gate(directory: Path, purpose: Purpose, worker: Worker, job: Job, gated: bool) -> str | None:
    """The file that a job waits for: while building its leader's, while verifying the parent's.

    A leader in the same process is an earlier workload, or another lane of the same one, which takes its turn before.
    """
    own = {other.id for other in worker.jobs}
    if purpose is Purpose.BUILD and job.leader is not None and job.leader not in own:
        return str(_leader_gate(directory, job.leader))
    return str(directory / "gate-start") if gated else None


def _leader_gate(directory: Path, leader: str) -> Path:
    return directory / f"gate-{canonical.digest(leader)}"


def _open_gate(path: Path, answer: str) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_text(answer)
    os.replace(temporary, path)  # a waiting worker never sees a gate without its answer


def _supervise(
    processes: list[_Process], directory: Path, limits: Limits, on_event: OnEvent, leaders: Mapping[str, str | None]
) -> None:
    """Until every worker has ended: read, open gates of leaders that are done, end what is past its limits."""
    awaited = {leader for leader in leaders.values() if leader is not None}
    answered: set[str] = set()

    def answer(leader: str, text: str) -> None:
        if leader in awaited - answered:
            answered.add(leader)
            _open_gate(_leader_gate(directory, leader), text)

    def relay(rank: int, event: Event) -> None:
        match event:
            case JobDone(job=job):
                answer(job, "go")
            case JobFailed(job=job) | JobStopped(job=job):
                answer(job, f"{job} failed")
        on_event(rank, event)

    running = list(processes)
    while running:
        for process in list(running):
            ended = process.has_ended()  # before reading: what it wrote before it ended is then read for certain
            process.read_events(relay)
            if not ended and (overrun := process.over_limit(limits)) is not None:
                process.end_for(overrun)
            elif ended:
                process.reap()
                running.remove(process)
                for job in process.worker.jobs:
                    answer(job.id, f"{job.id} did not end")  # its followers must not wait for ever
        if running:
            time.sleep(POLL_SECONDS)
