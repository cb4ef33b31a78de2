"""What build and verify do alike around their operation: show its progress, render its result, give its exit code."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from flexwarm.cli.session import Session
from flexwarm.errors import UsageError
from flexwarm.launch import Limits
from flexwarm.ops.run import RunOptions, RunResult, Watcher
from flexwarm.request import Backward, Guard, Tuning
from flexwarm.target import Target

Operation = Callable[[RunOptions, Mapping[str, str], Watcher], RunResult]


def run_options(
    session: Session,
    spec: Path,
    limits: Limits,
    lock_wait_seconds: float,
    *,
    guard: str,
    backward: str,
    drill: bool = True,
    target: Target | None = None,
    tuning: Tuning = Tuning.MISS,
    keeps_proof: bool = True,
) -> RunOptions:
    """The options of a run, from those of the command line.

    Raises:
        UsageError: options that contradict each other.
    """
    if backward != Backward.ENGINE.value and guard != Guard.FIX.value:
        raise UsageError(f"--guard-backward {backward} is a part of the remedy, which is not asked for", "add --guard fix")
    return RunOptions(
        spec=spec,
        root=session.store,
        trust_shared=session.trust_shared,
        limits=limits,
        lock_wait_seconds=lock_wait_seconds,
        guard=Guard(guard),
        backward=Backward(backward),
        drill=drill,
        target=target,
        tuning=tuning,
        keeps_proof=keeps_proof,
    )


def run_and_render(session: Session, options: RunOptions, operation: Operation, show: Callable[..., None] | None = None) -> int:
    """Run ``operation`` under the eyes of the user.

    Args:
        show: prints the result for people, given it and the ``verbosity``; as a table if not given.

    Returns:
        The exit code.
    """
    from flexwarm.render import run as render
    from flexwarm.render.progress import RunProgress

    with RunProgress(session.command, quiet=session.verbosity < 0) as progress:
        watcher = Watcher(on_plan=progress.on_plan, on_event=progress.on_event, notify=progress.notify)
        result = operation(options, dict(os.environ), watcher)
    if session.json:
        session.emit_json(render.run_json(result))
    else:
        (show or render.print_run)(result, verbosity=session.verbosity)
    return int(result.verdict.exit_code)
