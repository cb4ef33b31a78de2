"""Which attention ran: dense attention is told by its own function being called on real tensors, not by a wrapper's type."""

from __future__ import annotations

import functools
import time
import traceback
from typing import Any

from flexwarm.events import Dense
from flexwarm.hazards import SAID_AT_MOST
from flexwarm.observer.recorder import Recorder
from flexwarm.observer.torch_api import TorchApi


def watch(api: TorchApi, recorder: Recorder) -> None:
    """Report each call that materialises a score matrix of real numbers, of each job the first ones: a run makes millions."""
    dense = api.flex_module.math_attention
    said: dict[str | None, int] = {}

    @functools.wraps(dense)
    def reporting_dense(query: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(query, api.fake_tensors) and said.get(recorder.job, 0) < SAID_AT_MOST:
            said[recorder.job] = said.get(recorder.job, 0) + 1
            frames = traceback.extract_stack(limit=40)[:-1]
            lines = [f"{frame.filename}:{frame.lineno} in {frame.name}" for frame in frames if "/torch/" not in frame.filename]
            recorder.emit(
                Dense(t=time.time(), job=recorder.job, shape=tuple(int(n) for n in query.shape), stack=tuple(lines[-6:]))
            )
        return dense(query, *args, **kwargs)

    api.flex_module.math_attention = reporting_dense
