"""``flexwarm verify``."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from flexwarm.cli.options import (
    LaunchLineCommand,
    allow_tuning_option,
    expect_ranks_option,
    guard_options,
    limit_options,
    refuse_for_line,
    refuse_for_spec,
    refuse_tuning_for,
    spec_argument,
    spec_or_line,
    target_option,
)
from flexwarm.cli.session import Session, common_options
from flexwarm.launch import Limits
from flexwarm.request import Tuning
from flexwarm.target import Target


@click.command("verify", cls=LaunchLineCommand, short_help="Prove in new processes that a launch compiles nothing.")
@spec_argument
@click.option("--fast", is_flag=True, help="Only ask whether anything changed since the last proof; torch is not started.")
@click.option("--no-drill", is_flag=True, help="Leave out the drill of ranks with several lanes; the verdict says so.")
@allow_tuning_option(Tuning.TRY)
@expect_ranks_option
@guard_options
@target_option
@limit_options
@common_options
def command(
    session: Session,
    spec: Path | None,
    argv: tuple[str, ...] | None,
    fast: bool,
    no_drill: bool,
    tuning: Tuning,
    expect_ranks: int | None,
    guard: str,
    backward: str,
    target: Target | None,
    limits: Limits,
    lock_wait_seconds: float,
) -> int:
    """Prove in new processes, in the layout of the job, that a launch of SPEC compiles nothing.

    Exit 0 is "warm": every key hit, no compiler ran, the disk did not change, results agree with dense attention, and no
    call met a trace of another thread. Ranks with several lanes are drilled: a lane is held inside a compile while the
    others call.
    Nothing is compiled, also when the bucket is cold: a job is stopped at its first miss.

    With a launch line after -- the job itself is run, and is held at the first thing that the bucket does not have.
    """
    found = spec_or_line(spec, argv)
    refuse_tuning_for(target, tuning)
    if found is None:
        from flexwarm.cli.launching import launch_and_render, launch_options
        from flexwarm.ops.verify_launch import verify_launch

        refuse_for_line(fast, "--fast", "the proof of a launch line is the launch; --fast is for specs")
        refuse_for_line(no_drill, "--no-drill", "a launch line is not drilled; the drill is for specs")
        line = launch_options(session, argv, limits, lock_wait_seconds, guard, backward, expect_ranks, target, tuning)
        return launch_and_render(session, line, verify_launch)
    refuse_for_spec(expect_ranks)
    from flexwarm.cli.running import run_and_render, run_options
    from flexwarm.ops.verify import verify

    options = run_options(
        session,
        found,
        limits,
        lock_wait_seconds,
        guard=guard,
        backward=backward,
        drill=not no_drill,
        target=target,
        tuning=tuning,
    )
    return run_and_render(session, options, partial(verify, fast=fast))
