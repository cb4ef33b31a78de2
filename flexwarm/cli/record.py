"""``flexwarm record``."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import click

from flexwarm.cli.options import DEFAULT_SPEC, LaunchLineCommand, launch_limit_options, run_guard_options
from flexwarm.cli.session import Session, common_options
from flexwarm.launch import Limits

_STANDARD_OUTPUT = "-"


@click.command("record", cls=LaunchLineCommand, short_help="Write a spec of what a launch line compiles.")
@click.option(
    "-o",
    "--output",
    type=click.Path(allow_dash=True),
    default=DEFAULT_SPEC,
    show_default=True,
    metavar="FILE",
    help="The spec that is written; - prints it, and the command's own output goes to standard error.",
)
@click.option("--force", is_flag=True, help="Replace the file if it is there.")
@run_guard_options
@launch_limit_options
@common_options
def command(
    session: Session,
    argv: tuple[str, ...] | None,
    output: str,
    force: bool,
    guard: str,
    backward: str,
    limits: Limits,
    lock_wait_seconds: float,
) -> int:
    """Run the launch line after -- as run does, and write the attention calls that it compiled as a spec.

    What no workload can say, such as a compiled model, becomes a step function that is yours to write. The exit code is the
    command's own if it failed, 0 when the spec was written, and 1 when nothing was compiled.
    """
    from flexwarm.cli.launching import launch_options
    from flexwarm.ops.launch_line import LaunchWatcher
    from flexwarm.ops.record import record_launch
    from flexwarm.render import record as render

    options = launch_options(session, argv, limits, lock_wait_seconds, guard, backward, None)
    path = None if output == _STANDARD_OUTPUT else Path(output)
    if path is None:
        options = replace(options, stdout=sys.__stderr__)
    watcher = LaunchWatcher(notify=lambda text: session.say(f"flexwarm: {text}"))
    result = record_launch(options, dict(os.environ), watcher, path=path, force=force)
    for level, line in render.record_lines(result):
        session.say(line, level)
    if session.json:
        session.emit_json(render.record_json(result))
    elif path is None:
        sys.stdout.write(result.text)
    return result.exit_code
