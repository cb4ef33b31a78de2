"""What the guard costs a warm compiled call: the check while verifying, and the remedy in training.

    python benchmarks/guard_overhead.py [--rounds 15]

Prints one table, in Markdown: nanoseconds for each call of the question that torch asks, and microseconds for each call of
a small compiled function, bare, with the remedy, and with the check; all in one process, in turns. Needs no GPU.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

CALLS = 20_000


def seconds_a_call(function: Callable[[], object]) -> float:
    began = time.perf_counter()
    for _ in range(CALLS):
        function()
    return (time.perf_counter() - began) / CALLS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    import torch

    from flexwarm import guard
    from flexwarm.observer.guard import GuardWatch
    from flexwarm.observer.recorder import Recorder
    from flexwarm.observer.torch_api import tracing
    from flexwarm.request import Purpose

    api = tracing.resolve_tracing()
    query = torch.fx._symbolic_trace.is_fx_symbolic_tracing
    x = torch.ones(4)
    compiled = torch.compile(lambda value: value + 1, backend="eager")
    compiled(x)
    with tempfile.TemporaryDirectory() as name:
        recorder = Recorder(Path(name) / "events", Purpose.VERIFY)
        watch = GuardWatch(api, recorder)

        def bare() -> None:
            guard.uninstall()
            watch.stop()

        def remedy() -> None:
            watch.stop()
            guard.install()

        def check() -> None:
            guard.uninstall()
            watch.start()

        states = {"bare": bare, "guard.install()": remedy, "the check while verifying": check}
        asked: dict[str, list[float]] = {state: [] for state in states}
        called: dict[str, list[float]] = {state: [] for state in states}
        with recorder.seat("job", "cpu", None):
            for _ in range(rounds):
                for state, enter in states.items():
                    enter()
                    asked[state].append(seconds_a_call(query) * 1e9)
                    called[state].append(seconds_a_call(lambda: compiled(x)) * 1e6)
        bare()
    print("| state | the question, ns | more than bare | a compiled call, us | more than bare |\n|---|---|---|---|---|")
    for state in states:
        question, call = statistics.median(asked[state]), statistics.median(called[state])
        more_question = question - statistics.median(asked["bare"])
        # Of pairs in one round: what drifts from round to round falls out.
        more_call = statistics.median(a - b for a, b in zip(called[state], called["bare"], strict=True))
        print(f"| {state} | {question:.0f} | {more_question:.0f} | {call:.2f} | {more_call:.2f} |")
    print(f"\nPython {platform.python_version()}, torch {torch.__version__}, medians of {rounds} rounds of {CALLS} calls")


if __name__ == "__main__":
    main()
