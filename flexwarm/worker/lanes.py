"""The jobs of one workload in one rank: in the main thread, or in a thread for each lane as the job has them."""

from __future__ import annotations

import contextvars
import os
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from flexwarm import canonical, environment
from flexwarm.environment import Effect
from flexwarm.events import JobDone, JobFailed, JobStopped, Phase, Progress, Settings, Sources
from flexwarm.observer import caches, limits, sources, stand_in
from flexwarm.observer.guard import GuardWatch
from flexwarm.observer.modes import tell_modes
from flexwarm.observer.recorder import Recorder, StopAtMiss
from flexwarm.observer.torch_api import TorchApi
from flexwarm.observer.torch_api.tracing import TracingApi
from flexwarm.request import JobRequest, Purpose, WorkerRequest
from flexwarm.topology import LaneContext
from flexwarm.worker import attention, steps
from flexwarm.worker.lineup import LineUp

GATE_POLL_SECONDS = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What all jobs of a worker share.

    Attributes:
        settled: digest of Inductor's settings at the worker's hello.
        baseline: modules that were loaded before any of the user's.
        environ: the process's variables before any of the user's modules.
        began_unix: when the worker began.
    """

    request: WorkerRequest
    api: TorchApi
    recorder: Recorder
    tracing: TracingApi
    guard: GuardWatch
    settled: str
    baseline: frozenset[str]
    environ: Mapping[str, str]
    began_unix: float


@dataclass(slots=True)
class _End:
    """How one lane's job ended; both None while it has not."""

    error: Exception | None = None
    done: bool = False
    stopped: bool = False
    seconds: float = 0.0


def rounds(jobs: Sequence[JobRequest]) -> list[list[JobRequest]]:
    """The jobs of each workload, in the order in which the first lane has the workloads."""
    grouped: dict[str, list[JobRequest]] = {}
    for job in jobs:
        grouped.setdefault(job.workload.name, []).append(job)
    return list(grouped.values())


def wait_for_gate(path: str) -> str:
    """The text of the gate file once it is there: ``go``, or why the job cannot run. The parent bounds the wait."""
    while True:
        try:
            return Path(path).read_text()
        except FileNotFoundError:
            time.sleep(GATE_POLL_SECONDS)


def admitted(recorder: Recorder, jobs: Sequence[JobRequest]) -> list[JobRequest]:
    """The jobs whose gates open; the others are not run."""
    found = []
    for job in jobs:
        if job.gate is not None:
            recorder.emit(Progress(t=time.time(), job=job.id, phase=Phase.WAIT))
            if wait_for_gate(job.gate) != "go":
                continue
        found.append(job)
    return found


def run(bench: Bench, jobs: Sequence[JobRequest], *, several: bool) -> None:
    """The jobs of one workload to their ends.

    Args:
        several: the rank has several lanes, so that each job has a thread of its own, also a job that is alone here.
    """
    recorder, api = bench.recorder, bench.api
    workload = jobs[0].workload
    for job in jobs:
        recorder.emit(Progress(t=time.time(), job=job.id, phase=Phase.TRACE))
    # A workload is one call site of its own: what Dynamo learnt from the one before must not shape its graphs.
    api.reset()
    api.dynamo_config.recompile_limit = workload.recompile_limit
    before = caches.read_counters(api)
    ends = {job.id: _End() for job in jobs}
    began = time.perf_counter()
    try:
        with recorder.seat(jobs[0].id, jobs[0].device, jobs[0].lane if several else None):
            attention.load_functions(workload)
    except SystemExit as error:
        _fail_all(recorder, jobs, RuntimeError(f"a function of the spec called sys.exit({error.code!r})"))
    except StopAtMiss:
        for end in ends.values():
            end.stopped, end.seconds = True, time.perf_counter() - began
    except Exception as error:  # noqa: BLE001 - whatever a module of the user's raises is its jobs' outcome, said in full
        _fail_all(recorder, jobs, error)
    else:
        _run_lanes(bench, jobs, ends, several)
    counters = caches.counted_since(api, before)
    for job in jobs:
        _emit_end(bench, job, ends[job.id], counters)
    if any(not function.is_builtin for _, function in workload.functions):
        files = sources.loaded_since(bench.baseline, bench.began_unix)
        for job in jobs:
            recorder.emit(Sources(t=time.time(), job=job.id, files=files))


def _run_lanes(bench: Bench, jobs: Sequence[JobRequest], ends: Mapping[str, _End], several: bool) -> None:
    request = bench.request
    workload = jobs[0].workload
    shared = attention.share(workload) if workload.step is None else None
    lineup = LineUp(
        [job.lane for job in jobs],
        # A build that compiles beside itself may deadlock, or die; a launch from what it made does not compile.
        turns=request.conduct.purpose is Purpose.BUILD,
        stagger_seconds=request.stagger_seconds,
    )
    main = limits.read(bench.api)

    def lane(job: JobRequest) -> None:
        try:
            _run_job(bench, job, shared, lineup, main, ends[job.id], several)
        finally:
            lineup.leave(job.lane)

    if several:
        run_threads(jobs, lane, request.context)
    else:
        lane(jobs[0])


def run_threads(jobs: Sequence[JobRequest], target: Callable[[JobRequest], None], context: LaneContext) -> None:
    """``target`` in a thread for each lane, until all have ended; what ``target`` raises is a bug and is raised here."""
    errors: list[BaseException] = []

    def run(job: JobRequest) -> None:
        try:
            target(job)
        except BaseException as error:  # noqa: BLE001 - raised again in the main thread
            errors.append(error)

    threads = []
    for job in jobs:
        inside = contextvars.copy_context() if context is LaneContext.COPY else contextvars.Context()
        threads.append(threading.Thread(target=inside.run, args=(run, job), name=f"lane-{job.lane}"))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def _run_job(
    bench: Bench,
    job: JobRequest,
    shared: attention.Shared | None,
    lineup: LineUp,
    main: Mapping[str, str],
    end: _End,
    several: bool,
) -> None:
    recorder, api = bench.recorder, bench.api
    began = time.perf_counter()
    with recorder.seat(job.id, job.device, job.lane if several else None) as seat:
        try:
            enter, parts = _parts(bench, job, shared)
            enter()
            if several:
                limits.report_drift(recorder, main, "the main thread", limits.read(api), f"lane {job.lane}")
            if job.workload.grad:
                found = limits.read_in_autograd(api, torch.device(job.device))
                if found is not None:
                    where, there = found
                    own, there = (limits.read_for_backward(x, job.workload) for x in (limits.read(api), there))
                    limits.report_drift(recorder, own, "the calling thread", there, where)
            for part in parts:
                with lineup.shape(job.lane):
                    part()
        except StopAtMiss:
            end.stopped = True
        except SystemExit as error:
            end.error = RuntimeError(f"a function of the spec called sys.exit({error.code!r})")
        except Exception as error:  # noqa: BLE001 - whatever a job raises is that job's outcome, said in full
            end.error = error
        else:
            end.done = True
        bench.guard.at_rest()
        # A stop that something swallowed is still a stop.
        end.stopped = end.stopped or (seat.stopped and end.error is None)
        end.seconds = time.perf_counter() - began
        if end.error is not None:
            emit_failure(recorder, job.id, end.error)
        # In this thread: from torch 2.12 on each has settings of its own.
        # Under the lock of compiles: before 2.12 another lane's compile may have its own options in force for the process.
        with bench.tracing.lock():
            config = read_settings(api)
            tell_modes(api, recorder, job.id)
        if canonical.digest(config) != bench.settled:
            recorder.emit(Settings(t=time.time(), job=job.id, config_digest=canonical.digest(config), config=config))


def _parts(
    bench: Bench, job: JobRequest, shared: attention.Shared | None
) -> tuple[Callable[[], None], list[Callable[[], None]]]:
    """What makes the job's device current, and what the job does: its shapes or the calls of its step, in order."""
    if shared is None:
        stepper = step_runner(bench, job)
        return stepper.enter, [partial(stepper.step, number) for number in range(job.workload.steps)]
    computes = bench.request.conduct.computes
    runner = attention.Runner(job.workload, job.device, shared, bench.recorder, bench.guard, computes=computes)
    return runner.enter, [partial(runner.shape, number, shape) for number, shape in enumerate(job.workload.shapes)]


def step_runner(bench: Bench, job: JobRequest) -> steps.StepRunner:
    """The step function of a job, in this rank."""
    return steps.StepRunner(job, bench.request.rank, bench.environ, bench.recorder, bench.guard)


def _emit_end(bench: Bench, job: JobRequest, end: _End, counters: Mapping[str, int]) -> None:
    if not (end.done or end.stopped) or end.error is not None:
        return
    kind = JobStopped if end.stopped else JobDone
    moved = moved_caches(bench.environ)
    if moved:
        emit_failure(bench.recorder, job.id, RuntimeError(moved))
    else:
        bench.recorder.emit(kind(t=time.time(), job=job.id, counters=dict(counters), seconds=end.seconds))


def read_settings(api: TorchApi) -> dict[str, str]:
    """Inductor's settings that enter its keys, as text, as the calling thread sees them."""
    return {name: repr(value) for name, value in api.inductor_config.save_config_portable().items()}


def moved_caches(before: Mapping[str, str]) -> str:
    """What a user's module did to a variable on which all evidence rests; empty if nothing.

    torch reads its cache directories anew at each use: a module that sets one takes the job out of the bucket.
    """
    for name in sorted({*before, *os.environ}):
        if environment.effect(name) in (Effect.MOVES, Effect.DISABLES) and before.get(name) != os.environ.get(name):
            old, new = (repr(env[name]) if name in env else "unset" for env in (before, os.environ))
            return f"a module that the spec names changed {name} from {old} to {new}, so the bucket was not used"
    return ""


def _fail_all(recorder: Recorder, jobs: Sequence[JobRequest], error: Exception) -> None:
    for job in jobs:
        emit_failure(recorder, job.id, error)


def emit_failure(recorder: Recorder, job: str, error: Exception) -> None:
    """A job's failure as an event, by the error at the root of it; and whole in the worker's log."""
    root: BaseException = error
    while root.__cause__ is not None:
        root = root.__cause__
    message = str(root).strip().split("\n")[0][:500]
    if not message and root.__traceback__ is not None:
        last = traceback.extract_tb(root.__traceback__)[-1]
        message = f"at {last.filename}:{last.lineno}"
    recorder.emit(
        JobFailed(
            t=time.time(),
            job=job,
            error=type(root).__name__,
            message=message,
            traceback="".join(traceback.format_exception(error))[-8000:],
            # What torch itself raises is one.
            unanswered=stand_in.unanswered() if isinstance(root, RuntimeError) else "",
        )
    )
    try:
        traceback.print_exception(error)
    except (OSError, ValueError):
        pass  # a user's module closed it; the event has said what happened
