"""What the commands that take a launch line do alike: options to values, the operation, its result, its exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping

import click
from click.core import ParameterSource

from flexwarm.cli.session import Session
from flexwarm.errors import UsageError
from flexwarm.launch import Limits
from flexwarm.ops.launch_line import LaunchOptions, LaunchResult, LaunchWatcher
from flexwarm.request import Backward, Guard, Tuning
from flexwarm.target import Target

LaunchOperation = Callable[[LaunchOptions, Mapping[str, str], LaunchWatcher], LaunchResult]


def launch_options(
    session: Session,
    argv: tuple[str, ...] | None,
    limits: Limits,
    lock_wait_seconds: float,
    guard: str,
    backward: str,
    expect_ranks: int | None,
    target: Target | None = None,
    tuning: Tuning = Tuning.MISS,
    keeps_proof: bool = True,
) -> LaunchOptions:
    """The options of a launch line, from those of the command line.

    Raises:
        UsageError: options that contradict each other.
    """
    if backward != Backward.ENGINE.value and guard != Guard.FIX.value:
        raise UsageError(f"--guard-backward {backward} is a part of the remedy, which is not asked for", "add --guard fix")
    # The default is for one job of a spec; how long a whole launch takes only its user knows.
    source = click.get_current_context().get_parameter_source("job_timeout")
    limited = source not in (None, ParameterSource.DEFAULT)
    return LaunchOptions(
        argv=argv or (),
        root=session.store,
        trust_shared=session.trust_shared,
        lock_wait_seconds=lock_wait_seconds,
        hang_seconds=limits.hang_seconds,
        limit_seconds=limits.job_seconds if limited else None,
        guard=Guard(guard),
        backward=Backward(backward),
        expect_ranks=expect_ranks,
        target=target,
        tuning=tuning,
        keeps_proof=keeps_proof,
        # Standard output is data: with JSON it is the document alone, and the command's goes where people look.
        stdout=sys.__stderr__ if session.json else None,
    )


def launch_and_render(
    session: Session, options: LaunchOptions, operation: LaunchOperation, show: Callable[..., None] | None = None
) -> int:
    """Run ``operation`` and show what it came to.

    Args:
        show: prints the result for people, given it and the ``verbosity``; as a table if not given.

    Returns:
        The verdict's exit code.
    """
    result = operate(session, options, operation)
    if show is not None and not session.json:
        show(result, verbosity=session.verbosity)
    else:
        render_result(session, result, exit_code=int(result.verdict.exit_code))
    return int(result.verdict.exit_code)


def operate(
    session: Session,
    options: LaunchOptions,
    operation: LaunchOperation,
    on_end: Callable[[int], None] = lambda code: None,
) -> LaunchResult:
    """Run ``operation``; what it has to tell meanwhile goes to standard error."""
    watcher = LaunchWatcher(notify=lambda text: session.say(f"flexwarm: {text}"), on_end=on_end)
    return operation(options, dict(os.environ), watcher)


def render_result(session: Session, result: LaunchResult, *, exit_code: int, to_stderr: bool = False) -> None:
    """The result as JSON on standard output, or as a table."""
    from flexwarm.render import launch as render

    if session.json:
        session.emit_json(render.launch_json(result, exit_code))
    else:
        render.print_launch(result, verbosity=session.verbosity, to_stderr=to_stderr)
