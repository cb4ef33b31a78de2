"""Run a step function of the user's as training would: called with a context, in the lane's thread, nothing of it looked at."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from importlib import import_module

import torch

from flexwarm import canonical
from flexwarm.events import Phase, StepDone
from flexwarm.observer.guard import GuardWatch
from flexwarm.observer.recorder import Recorder
from flexwarm.request import JobRequest
from flexwarm.step import StepContext
from flexwarm.workload import Workload


class StepRunner:
    """One step function on one lane; events say what happened, an exception is the job's failure.

    Args:
        rank: of this process, through all roles.
        environ: the process's variables before any of the user's modules; what torchrun sets is read from them.
    """

    def __init__(self, job: JobRequest, rank: int, environ: Mapping[str, str], recorder: Recorder, guard: GuardWatch) -> None:
        self._workload, self._lane, self._rank, self._environ = job.workload, job.lane, rank, environ
        self._recorder, self._guard = recorder, guard
        self._device = torch.device(job.device)
        # From what is called and not from the process or the name: every rank, lane and run draws the same numbers.
        self._generator = torch.Generator().manual_seed(int(canonical.digest(self._workload.subject(), 8), 16))
        self._function = _load(self._workload)

    def enter(self) -> None:
        """Make the device current in the calling thread."""
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)

    def call(self, number: int) -> None:
        """One call of the function, until the device has done what it asked for."""
        step, dtype = self._workload.step, self._workload.step_dtype
        assert step is not None, "the workload is a step"
        assert dtype is not None, "a step has a dtype"
        context = StepContext(
            rank=self._rank,
            local_rank=int(self._environ["LOCAL_RANK"]),
            world_size=int(self._environ["WORLD_SIZE"]),
            lane=self._lane,
            role=self._environ["ROLE_NAME"],
            device=self._device,
            dtype=getattr(torch, dtype.value),
            generator=self._generator,
            number=number,
        )
        began = time.monotonic()
        try:
            self._function(context, **(step.args or {}))
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)
        except Exception as error:
            self._guard.blame(error, began)
            raise

    def step(self, number: int) -> None:
        """The same, and said."""
        self._recorder.phase(Phase.RUN if number else Phase.TRACE)
        seat = self._recorder.own_seat
        assert seat is not None, "a step is run by a job"
        checks_before = seat.checks
        with nullcontext() if number else self._recorder.first_call():
            started = time.perf_counter()
            self.call(number)
            seconds = time.perf_counter() - started
        checks = seat.checks - checks_before
        self._recorder.emit(StepDone(t=time.time(), job=seat.job, number=number, checks=checks, seconds=seconds))


def _load(workload: Workload) -> Callable[..., object]:
    """The function itself; its module is loaded already.

    Raises:
        TypeError: the attribute cannot be called.
    """
    assert workload.step is not None, "the workload is a step"
    function: Callable[..., object] = getattr(import_module(workload.step.module), workload.step.attribute)
    if not callable(function):
        raise TypeError(f"{workload.step.name} is {function!r}, which cannot be called")
    return function
