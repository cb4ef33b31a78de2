"""One rank, started with the path of its request. Says everything in its event file; exits with 0 when it said bye."""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import platform
import signal
import socket
import sys
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from flexwarm import __version__, canonical, environment
from flexwarm.environment import Effect
from flexwarm.errors import FlexwarmError
from flexwarm.events import Bye, Hello, JobDone, JobFailed, JobStopped, Phase, Refused, Settings, Sources
from flexwarm.observer.recorder import Recorder, StopAtMiss
from flexwarm.request import JobRequest, WorkerRequest

if TYPE_CHECKING:
    from flexwarm.observer.torch_api import TorchApi

_PR_SET_PDEATHSIG = 1
HEARTBEAT_SECONDS = 5.0
GATE_POLL_SECONDS = 0.01


def die_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when its parent dies, however it dies."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the call above
        os._exit(0)


def wait_for_gate(path: str) -> str:
    """The text of the gate file once it is there: ``go``, or why the job cannot run. The parent bounds the wait."""
    while True:
        try:
            return Path(path).read_text()
        except FileNotFoundError:
            time.sleep(GATE_POLL_SECONDS)


def run_worker(request: WorkerRequest, recorder: Recorder) -> None:
    recorder.phase(Phase.IMPORT)
    started = time.perf_counter()
    import torch

    from flexwarm.observer import caches, compilers, dense
    from flexwarm.observer.torch_api import resolve
    from flexwarm.worker import attention, sources

    api = resolve()
    compilers.watch_processes(recorder)
    compilers.watch_inductor(api, recorder)
    caches.watch(api, recorder)
    dense.watch(api, recorder)
    if any(job.device != "cpu" for job in request.jobs):
        compilers.watch_triton(recorder)
        compilers.watch_autotune(api, recorder)
    config = read_settings(api)
    settled = canonical.digest(config)
    recorder.emit(
        Hello(
            t=time.time(),
            pid=os.getpid(),
            host=socket.gethostname(),
            components={
                "torch.version": torch.__version__,
                "torch.git": str(torch.version.git_version),
                "torch.cuda": str(torch.version.cuda or "none"),
                "python.version": platform.python_version(),
                "cpu.capability": torch.backends.cpu.get_cpu_capability(),
                "flexwarm.version": __version__,
                "flexwarm.path": str(Path(__file__).resolve().parents[1]),
            },
            config_digest=settled,
            config=config,
            import_seconds=time.perf_counter() - started,
        )
    )
    sys.path.insert(0, os.getcwd())  # as `python -m` would; from here on the user's modules are found
    baseline, environ, began_unix = frozenset(sys.modules), dict(os.environ), time.time()
    for job in request.jobs:
        recorder.job = job.id
        if job.gate is not None:
            recorder.phase(Phase.WAIT)
            answer = wait_for_gate(job.gate)
            if answer != "go":
                continue
        recorder.phase(Phase.TRACE)
        # A workload is one call site of its own: what Dynamo learnt from the one before must not shape its graphs.
        api.reset()
        api.dynamo_config.recompile_limit = job.workload.recompile_limit
        # With a job id torch would keep what it learnt of shapes in the bucket, and start the next run from there.
        api.dynamo_config.automatic_dynamic_local_pgo = False
        before, started = caches.read_counters(api), time.perf_counter()
        recorder.stopped = False
        try:
            attention.run(job.workload, job.device, recorder)
        except StopAtMiss:
            _emit_end(JobStopped, job, recorder, caches.counted_since(api, before), started)
        except SystemExit as error:
            _emit_failure(job, recorder, RuntimeError(f"a function of the spec called sys.exit({error.code!r})"))
        except Exception as error:  # noqa: BLE001 - whatever a job raises is that job's outcome, said in full
            _emit_failure(job, recorder, error)
        else:
            # A stop that something swallowed is still a stop.
            kind = JobStopped if recorder.stopped else JobDone
            moved = moved_caches(environ)
            if moved:
                _emit_failure(job, recorder, RuntimeError(moved))
            else:
                _emit_end(kind, job, recorder, caches.counted_since(api, before), started)
        config = read_settings(api)
        if canonical.digest(config) != settled:
            recorder.emit(Settings(t=time.time(), job=job.id, config_digest=canonical.digest(config), config=config))
        if any(not function.is_builtin for _, function in job.workload.functions):
            recorder.emit(Sources(t=time.time(), job=job.id, files=sources.loaded_since(baseline, began_unix)))
    recorder.job = None


def read_settings(api: TorchApi) -> dict[str, str]:
    """Inductor's settings that enter its keys, as text."""
    return {name: repr(value) for name, value in api.inductor_config.save_config_portable().items()}


def _emit_end(
    kind: type[JobDone] | type[JobStopped], job: JobRequest, recorder: Recorder, counters: dict[str, int], started: float
) -> None:
    recorder.emit(kind(t=time.time(), job=job.id, counters=counters, seconds=time.perf_counter() - started))


def moved_caches(before: Mapping[str, str]) -> str:
    """What a user's module did to a variable on which all evidence rests; empty if nothing.

    torch reads its cache directories anew at each use: a module that sets one takes the job out of the bucket.
    """
    for name in sorted({*before, *os.environ}):
        if environment.effect(name) in (Effect.MOVES, Effect.DISABLES) and before.get(name) != os.environ.get(name):
            old, new = (repr(env[name]) if name in env else "unset" for env in (before, os.environ))
            return f"a module that the spec names changed {name} from {old} to {new}, so the bucket was not used"
    return ""


def _emit_failure(job: JobRequest, recorder: Recorder, error: Exception) -> None:
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
            job=job.id,
            error=type(root).__name__,
            message=message,
            traceback="".join(traceback.format_exception(error))[-8000:],
        )
    )
    try:
        traceback.print_exception(error)  # to the worker's log, whole
    except (OSError, ValueError):
        pass  # a user's module closed it; the event has said what happened


def main() -> int:
    request = WorkerRequest.from_json(json.loads(Path(sys.argv[1]).read_text()))
    die_with_parent(request.parent)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    recorder = Recorder(Path(request.events), request.purpose)
    recorder.start_heartbeat(HEARTBEAT_SECONDS)
    try:
        run_worker(request, recorder)
    except FlexwarmError as error:
        recorder.emit(Refused(t=time.time(), message=error.message, hint=error.hint))
        return 0
    recorder.emit(Bye(t=time.time()))
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        pass  # a user's module closed it
    # Interpreter teardown with torch loaded takes a noticeable part of a warm start and proves nothing, and a thread of the
    # user's could keep it from ending.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
