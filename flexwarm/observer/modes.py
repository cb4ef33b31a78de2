"""Tell the settings of torch under which a job or program compiles, so that a later one can be held against them."""

from __future__ import annotations

import os
import time

from flexwarm.canonical import digest
from flexwarm.events import Modes
from flexwarm.observer.recorder import Recorder
from flexwarm.observer.torch_api import TorchApi
from flexwarm.observer.torch_api.modes import read_modes

#: (pid, digest) of what was told in full; a forked child has a file of its own.
_told: set[tuple[int, str]] = set()


def tell_modes(api: TorchApi, recorder: Recorder, job: str | None) -> None:
    """As the calling thread sees them; in full once a process."""
    values = read_modes(api)
    name = digest(values)
    told = (os.getpid(), name) in _told
    _told.add((os.getpid(), name))
    recorder.emit(Modes(t=time.time(), job=job, digest=name, values={} if told else values))
