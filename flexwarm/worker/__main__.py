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
from pathlib import Path

from flexwarm import __version__, canonical
from flexwarm.errors import FlexwarmError
from flexwarm.events import Bye, Hello, Phase, Refused
from flexwarm.observer.recorder import Recorder
from flexwarm.request import Guard, Purpose, WorkerRequest
from flexwarm.target import STANDS_IN

_PR_SET_PDEATHSIG = 1
HEARTBEAT_SECONDS = 5.0


def die_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when its parent dies, however it dies."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the call above
        os._exit(0)


def run_worker(request: WorkerRequest, recorder: Recorder) -> None:
    recorder.phase(Phase.IMPORT)
    started = time.perf_counter()
    # With a job id torch would keep what it learnt of shapes in the bucket, and start the next run from there. By variable
    # and not by its config, which from torch 2.12 on other threads than this one would not see.
    os.environ["TORCH_DYNAMO_AUTOMATIC_DYNAMIC_LOCAL_PGO"] = "0"
    import torch

    from flexwarm.observer import absent, caches, compilers, dense, recompiles, stand_in, watchdog
    from flexwarm.observer.costs import Meter
    from flexwarm.observer.guard import GuardWatch
    from flexwarm.observer.torch_api import resolve, sizes
    from flexwarm.observer.torch_api.tracing import enter_fake_mode, resolve_tracing
    from flexwarm.worker import drill, lanes

    api, tracing = resolve(), resolve_tracing()
    conduct = request.conduct
    if conduct.guard is Guard.FIX:
        from flexwarm import guard as remedy

        remedy.install(backward=conduct.backward.value)
    recorder.device_here = lambda: f"cuda:{torch.cuda.current_device()}" if torch.cuda.is_initialized() else ""
    if request.lanes > 1:
        # Lanes here end with each workload, and a training program's do not: this thread is the first in that mode, so
        # that a lane's end takes nothing with it.
        enter_fake_mode()
    guard = GuardWatch(tracing, recorder)
    guard.start()
    watchdog.watch(tracing, recorder, conduct.hang_seconds)
    recompiles.watch(api, recorder)
    compilers.watch_processes(recorder)
    compilers.watch_inductor(api, recorder)
    caches.watch(api, recorder)
    dense.watch(api, recorder)
    recorder.first_call = Meter.of_worker(api, recorder).first_call
    if any(job.device != "cpu" for job in request.jobs):
        compilers.watch_triton(recorder)
        stand_in.refuse_others()
        if stand_in.present():
            absent.watch(api, recorder)
            sizes.count_on_processor()
            sizes.hide_from_dynamo()
        else:
            compilers.watch_tuning(api, recorder)
    config = lanes.read_settings(api)
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
                "flexwarm.guard": conduct.remedy,
                STANDS_IN: stand_in.identity(),
                "flexwarm.path": str(Path(__file__).resolve().parents[1]),
            },
            config_digest=settled,
            config=config,
            import_seconds=time.perf_counter() - started,
        )
    )
    sys.path.insert(0, os.getcwd())  # as `python -m` would; from here on the user's modules are found
    bench = lanes.Bench(
        request=request,
        api=api,
        recorder=recorder,
        tracing=tracing,
        guard=guard,
        settled=settled,
        baseline=frozenset(sys.modules),
        environ=dict(os.environ),
        began_unix=time.time(),
    )
    several = request.lanes > 1
    for number, jobs in enumerate(lanes.rounds(request.jobs)):
        admitted = lanes.admitted(recorder, jobs)
        if not admitted:
            continue
        if conduct.purpose is Purpose.DRILL:
            drill.run(bench, admitted, number)
        else:
            lanes.run(bench, admitted, several=several)


def main() -> int:
    request = WorkerRequest.from_json(json.loads(Path(sys.argv[1]).read_text()))
    die_with_parent(request.parent)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    recorder = Recorder(Path(request.events), request.conduct.purpose, request.conduct.tuning)
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
