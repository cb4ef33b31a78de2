"""The drill: would a compile at run time hurt the other lanes of this rank, with this torch?

Warm calls meet another lane's trace for milliseconds, so waiting for luck proves nothing. Here, on an empty cache, each
lane in turn is made to compile and is held inside each of its traces until every other lane has made a warm call. For
lanes that share a device and run backward, the order that deadlocks is scripted too: one lane's backward waits to be
compiled while another lane compiles.

A step function makes its compiled calls itself, so what the others call meanwhile is a small attention call of the drill's
own. Each lane's step begins from nothing: Dynamo is reset, and the lane has a cache to itself.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from flexwarm.events import DrillDone, DrillLock, Phase, Progress
from flexwarm.evidence import GUARD_MESSAGE
from flexwarm.observer import threads
from flexwarm.observer.guard import GuardWatch
from flexwarm.observer.recorder import Recorder
from flexwarm.observer.torch_api.tracing import TracingApi, resolve_tracing
from flexwarm.request import HOLD_SECONDS, JobRequest
from flexwarm.worker import attention, lanes
from flexwarm.worker.attention import Arguments, Runner
from flexwarm.workload import Dtype, Shape, Workload

#: A lane is held in so many traces of one compile; Inductor makes more of them than teach anything.
HOLDS = 4
POLL_SECONDS = 0.02
#: Enough for every recompile that the drill asks for; the job's own limit is judged elsewhere.
RECOMPILE_LIMIT = 4096
#: What a lane calls while the step of another lane is held in a trace.
PROBE = Shape(batch=1, q_heads=1, kv_heads=1, head_dim=32, q_len=128, kv_len=128, dtype=Dtype.FLOAT32)
#: torch reads these anew at each use.
CACHE_DIRECTORIES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")


@dataclass(slots=True)
class _Count:
    """What was done while one lane was held; as in :class:`flexwarm.events.DrillDone`."""

    holds: int = 0
    calls: int = 0
    callers: set[int] = field(default_factory=set)
    waited: int = 0
    unanswered: int = 0


class _Script:
    """Who is held inside its traces, and until when. One for each workload."""

    def __init__(self, jobs: Sequence[JobRequest], tracing: TracingApi, recorder: Recorder) -> None:
        self._lanes = {job.lane for job in jobs}
        self._tracing, self._recorder = tracing, recorder
        self._changed = threading.Condition()
        self._holder: int | None = None
        self._until_locked = False
        self._hold = 0  # number of the hold under way; 0 for none
        self._done = _Count()
        self._called: set[int] = set()

    def take(self, lane: int, *, until_locked: bool = False) -> None:
        """From here on the lane is held in its traces.

        Args:
            until_locked: in the first trace alone, until a thread waits for torch's compile lock, which the lane holds;
                else in each, until every other lane has called.
        """
        with self._changed:
            self._holder, self._until_locked = lane, until_locked
            self._done = _Count()
            self._changed.notify_all()

    def release(self) -> _Count:
        """Nobody is held any more; what was done while somebody was."""
        with self._changed:
            self._holder = None
            self._changed.notify_all()
            return self._done

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Entered inside each outermost trace, in the tracing thread."""
        if self._is_holders():
            with self._changed:
                limit = 1 if self._until_locked else HOLDS
                if self._holder is not None and self._done.holds < limit and not self._hold:
                    self._stay()
        yield

    def _is_holders(self) -> bool:
        """A trace of the held lane's compile: its backward may be compiled in a thread of the autograd engine."""
        seat = self._recorder.own_seat
        return seat.lane == self._holder if seat is not None else threads.is_engines(threading.get_ident())

    def _stay(self) -> None:
        self._done.holds += 1
        self._hold, self._called = self._done.holds, set()
        self._changed.notify_all()
        deadline = time.monotonic() + HOLD_SECONDS
        while missing := self._missing():
            # A call that has to compile after all waits for this trace: it cannot meet it.
            if missing <= self._waiting():
                self._done.waited += len(missing)
                break
            if time.monotonic() > deadline:
                self._done.unanswered += 1
                break
            self._changed.wait(POLL_SECONDS)
        self._hold = 0
        self._changed.notify_all()

    def _missing(self) -> set[int | None]:
        """The lanes that have not called in this hold; no lane, but one thread, where a lock is to be waited for."""
        if self._until_locked:
            return set() if self._tracing.lock_waiters() else {None}
        return {lane for lane in self._lanes if lane != self._holder and lane not in self._called}

    def _waiting(self) -> set[int | None]:
        """The lanes whose threads wait for torch's compile lock."""
        return {self._recorder.lane_of(ident) for ident in self._tracing.lock_waiters()}

    def wait_for_hold(self) -> bool:
        """Until the lane that is to be held is; False if it is done before."""
        with self._changed:
            self._changed.wait_for(lambda: self._hold > 0 or self._holder is None)
            return self._hold > 0

    def beside(self, lane: int, call: Callable[[], None]) -> None:
        """Make one call inside each hold of another lane, until that lane is done."""
        answered = 0
        while True:
            with self._changed:
                self._changed.wait_for(lambda seen=answered: self._holder is None or self._hold > seen)  # type: ignore[misc]
                if self._holder is None:
                    return
                answered = self._hold
            try:
                call()
            finally:
                with self._changed:
                    if self._hold == answered:
                        self._called.add(lane)
                        self._done.calls += 1
                        self._done.callers.add(lane)
                    self._changed.notify_all()

    def leave(self, lane: int) -> None:
        """The lane calls no more, and nobody waits for it."""
        with self._changed:
            self._lanes.discard(lane)
            self._changed.notify_all()


def run(bench: lanes.Bench, jobs: Sequence[JobRequest], number: int) -> None:
    """Drill the lanes of one workload; what happens to them is in their events, and each lane says when it is done.

    Args:
        number: of the workload in this rank: what it compiles in its holds must not be there from another workload.
    """
    recorder, api = bench.recorder, bench.api
    for job in jobs:
        recorder.emit(Progress(t=time.time(), job=job.id, phase=Phase.TRACE))
    api.reset()
    api.dynamo_config.recompile_limit = RECOMPILE_LIMIT
    workload = jobs[0].workload
    try:
        attention.load_functions(workload)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a module of the user's raises, said in full
        for job in jobs:
            lanes.emit_failure(recorder, job.id, RuntimeError(f"{type(error).__name__}: {error}"))
        return
    script = _Script(jobs, resolve_tracing(), recorder)
    stage = _Stage(jobs)
    called = workload if workload.step is None else _probe(workload)
    shared = attention.share(called)
    # Every new scale is a compile of its own where nothing is dynamic; no length, which a user's mask may not be made for.
    fixed = attention.compiled_call(called, dynamic=False)
    part = _Lane if workload.step is None else _StepLane
    bench.guard.hold = script.hold

    def lane(job: JobRequest) -> None:
        with recorder.seat(job.id, job.device, job.lane):
            try:
                # From torch 2.12 on a thread has its own limit.
                api.dynamo_config.recompile_limit = RECOMPILE_LIMIT
                part(bench, job, called, shared, fixed, script, stage, jobs, number).run()
            except SystemExit as error:
                lanes.emit_failure(recorder, job.id, RuntimeError(f"a function of the spec called sys.exit({error.code!r})"))
            except Exception as error:  # noqa: BLE001 - a lane's outcome, said in full
                lanes.emit_failure(recorder, job.id, error)
            finally:
                stage.leave(job.lane)
                script.leave(job.lane)
                bench.guard.at_rest()

    lanes.run_threads(jobs, lane, bench.request.context)
    bench.guard.hold = None


def _probe(workload: Workload) -> Workload:
    """The drill's own attention call, where a workload has none that it could make."""
    return replace(workload, shapes=(PROBE,), step=None, step_dtype=None)


class _Stage:
    """A barrier that lanes may leave: a lane that failed must not keep the others."""

    def __init__(self, jobs: Sequence[JobRequest]) -> None:
        self._changed = threading.Condition()
        self._passed = dict.fromkeys((job.lane for job in jobs), 0)

    def next(self, lane: int) -> None:
        """Wait until every lane has come so far."""
        with self._changed:
            self._passed[lane] += 1
            number = self._passed[lane]
            self._changed.notify_all()
            self._changed.wait_for(lambda: all(count >= number for count in self._passed.values()))

    def leave(self, lane: int) -> None:
        with self._changed:
            self._passed.pop(lane, None)
            self._changed.notify_all()

    def has(self, lane: int) -> bool:
        with self._changed:
            return lane in self._passed


class _Lane:
    """One lane's part.

    Args:
        called: the attention call that the lane makes while another one is held.
    """

    def __init__(
        self,
        bench: lanes.Bench,
        job: JobRequest,
        called: Workload,
        shared: attention.Shared,
        fixed: Callable[..., Any],
        script: _Script,
        stage: _Stage,
        jobs: Sequence[JobRequest],
        number: int,
    ) -> None:
        self._bench = bench
        self._recorder: Recorder = bench.recorder
        self._guard: GuardWatch = bench.guard
        self._job, self._fixed, self._script, self._stage, self._jobs = job, fixed, script, stage, jobs
        computes = bench.request.conduct.computes
        self._runner = Runner(called, job.device, shared, bench.recorder, bench.guard, computes=computes)
        self._shape = called.shapes[0]
        self._number = number

    def run(self) -> None:
        self._runner.enter()
        for other in self._jobs:
            # In turns: lanes that compile beside each other are what the last part is about.
            self._stage.next(self._job.lane)
            if other.lane == self._job.lane:
                self._warm_up()
        self._recorder.phase(Phase.RUN)
        for number, other in enumerate(self._jobs):
            self._stage.next(self._job.lane)
            if not self._stage.has(other.lane):
                continue
            if other.lane == self._job.lane:
                self._be_held(lambda number=number: self._runner.call(self._new(number), self._fixed))  # type: ignore[misc]
            else:
                self._call_beside()
        if self._job.workload.grad:
            self._lock_in_backward()
        self._stage.next(self._job.lane)

    def _warm_up(self) -> None:
        self._warm = self._runner.arguments(self._shape)
        self._runner.call(self._warm, self._fixed)

    def _be_held(self, compile_anew: Callable[[], object]) -> None:
        self._script.take(self._job.lane)
        self._stage.next(self._job.lane)
        try:
            compile_anew()
        finally:
            done = self._script.release()
        self._recorder.emit(
            DrillDone(
                t=time.time(),
                job=self._job.id,
                holds=done.holds,
                calls=done.calls,
                callers=len(done.callers),
                waited=done.waited,
                unanswered=done.unanswered,
            )
        )

    def _call_beside(self) -> None:
        self._stage.next(self._job.lane)
        self._script.beside(self._job.lane, self._warm_call)

    def _warm_call(self) -> None:
        """A call of what is compiled; a call that torch's guard makes fail is what the drill is after, and is said already."""
        try:
            self._runner.forward(self._warm, self._fixed)
        except RuntimeError as error:
            if not str(error).startswith(GUARD_MESSAGE):
                raise

    def _lock_in_backward(self) -> None:
        """On each device that lanes share: a backward that is not compiled yet, beside a compile that needs its thread.

        One device after the other, for what is scripted is of the whole rank.
        """
        number = len(self._jobs)
        for device in dict.fromkeys(job.device for job in self._jobs):
            self._stage.next(self._job.lane)
            mates = [job.lane for job in self._jobs if job.device == device]
            if self._job.lane in mates[:1] and len(mates) > 1:
                self._backward_beside_compile(self._new(number))
            elif self._job.lane in mates[1:2]:
                self._compile_beside_backward(self._new(number + 1))
            else:
                self._stage.next(self._job.lane)
            number += 2

    def _backward_beside_compile(self, new: Arguments) -> None:
        result = self._runner.forward(new, self._fixed)  # its backward is not compiled yet
        self._stage.next(self._job.lane)
        if self._script.wait_for_hold():
            self._runner.backward(new, result)

    def _compile_beside_backward(self, new: Arguments) -> None:
        self._script.take(self._job.lane, until_locked=True)
        try:
            self._stage.next(self._job.lane)
            self._runner.call(new, self._fixed)
        finally:
            done = self._script.release()
        self._recorder.emit(DrillLock(t=time.time(), job=self._job.id, met=done.holds > 0 and not done.unanswered))

    def _new(self, number: int) -> Arguments:
        """Arguments that no lane has called with: they are compiled anew."""
        scale = self._job.workload.scale or self._shape.head_dim**-0.5
        return self._runner.arguments(self._shape, scale=scale * (1.0 + (1 + number + 1000 * self._number) / 2**16))


class _StepLane(_Lane):
    """One lane's part where the workload is a step function."""

    def run(self) -> None:
        lane = self._job.lane
        stepper = lanes.step_runner(self._bench, self._job)
        self._runner.enter()
        for holder in self._jobs:
            self._stage.next(lane)
            present = self._stage.has(holder.lane)
            self._stage.next(lane)  # nobody may fail, and be gone, before all have looked
            if not present:
                continue
            if holder.lane == lane:
                self._bench.api.reset()  # the step was compiled for the lane before; all are idle
            self._stage.next(lane)
            for other in self._jobs:
                # In turns, as a build: what meets whom is scripted.
                if other.lane == lane:
                    self._warm_up()
                self._stage.next(lane)
            self._recorder.phase(Phase.RUN)
            if holder.lane == lane:
                with _cache_of(lane):
                    self._be_held(lambda: stepper.call(0))
            else:
                self._call_beside()
        self._stage.next(lane)


@contextmanager
def _cache_of(lane: int) -> Iterator[None]:
    """The process compiles into an empty cache of one lane's: what another lane's step has compiled is not found there."""
    before = {name: os.environ[name] for name in CACHE_DIRECTORIES}
    os.environ.update({name: f"{path}-lane-{lane}" for name, path in before.items()})
    try:
        yield
    finally:
        os.environ.update(before)
