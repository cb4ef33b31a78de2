"""``flexwarm run``."""

from __future__ import annotations

from functools import partial

import click

from flexwarm.cli.options import (
    LaunchLineCommand,
    allow_tuning_option,
    expect_ranks_option,
    launch_limit_options,
    run_guard_options,
)
from flexwarm.cli.session import Session, common_options
from flexwarm.launch import Limits
from flexwarm.request import Tuning


@click.command("run", cls=LaunchLineCommand, short_help="Launch the real job with the bucket's environment.")
@click.option(
    "--on-miss",
    type=click.Choice(["allow", "warn", "fail"]),
    default="allow",
    show_default=True,
    envvar="FLEXWARM_ON_MISS",
    show_envvar=True,
    help="What to do about a compile: let it be, say so at once, or stop the job at the first one.",
)
@allow_tuning_option(Tuning.KEEP)
@expect_ranks_option
@run_guard_options
@launch_limit_options
@common_options
def command(
    session: Session,
    argv: tuple[str, ...] | None,
    on_miss: str,
    tuning: Tuning,
    expect_ranks: int | None,
    guard: str,
    backward: str,
    limits: Limits,
    lock_wait_seconds: float,
) -> int:
    """Run the launch line after -- with the bucket's environment, and say in the end what it compiled.

    Output and signals pass through, and the exit code is the command's own; with --on-miss fail it is 1 for a job that was
    stopped at a compile. The bucket is leased meanwhile: clean leaves it alone.
    """
    from flexwarm.cli.launching import launch_options, operate, render_result
    from flexwarm.observation import OnMiss
    from flexwarm.ops.run_launch import run_launch

    options = launch_options(session, argv, limits, lock_wait_seconds, guard, backward, expect_ranks, tuning=tuning)
    result = operate(session, options, partial(run_launch, on_miss=OnMiss(on_miss)), session.job_ended)
    code = result.command_exit_code if result.command_exit_code is not None else int(result.verdict.exit_code)
    # The command's own output has standard output for itself.
    render_result(session, result, exit_code=code, to_stderr=True)
    return code
