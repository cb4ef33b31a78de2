"""``flexwarm explain``."""

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


@click.command("explain", cls=LaunchLineCommand, short_help="Say why a launch would compile: what is not as it was built.")
@spec_argument
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
    tuning: Tuning,
    expect_ranks: int | None,
    guard: str,
    backward: str,
    target: Target | None,
    limits: Limits,
    lock_wait_seconds: float,
) -> int:
    """Say of each key that a launch of SPEC misses what is not as in the nearest key that was built.

    Does what verify does, without the drill, and has its exit codes: 0 where there is nothing to explain. It leaves no proof.
    With -v every part of a key that differs, with -vv all that is known of it.

    With a launch line after -- the job itself is run, up to the first thing that the bucket does not have.
    """
    from flexwarm.render.explain import print_explained

    found = spec_or_line(spec, argv)
    refuse_tuning_for(target, tuning)
    if found is None:
        from flexwarm.cli.launching import launch_and_render, launch_options
        from flexwarm.ops.verify_launch import verify_launch

        line = launch_options(
            session, argv, limits, lock_wait_seconds, guard, backward, expect_ranks, target, tuning, keeps_proof=False
        )
        return launch_and_render(session, line, verify_launch, show=print_explained)
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
        drill=False,
        target=target,
        tuning=tuning,
        keeps_proof=False,
    )
    return run_and_render(session, options, partial(verify, fast=False), show=print_explained)
