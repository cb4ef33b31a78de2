"""``flexwarm build``."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import click

from flexwarm.cli.options import (
    LaunchLineCommand,
    expect_ranks_option,
    guard_options,
    limit_options,
    refuse_for_line,
    refuse_for_spec,
    spec_argument,
    spec_or_line,
    target_option,
)
from flexwarm.cli.session import Session, common_options
from flexwarm.launch import Limits
from flexwarm.target import Target


@click.command("build", cls=LaunchLineCommand, short_help="Compile what a spec or a launch line needs and is cold.")
@spec_argument
@click.option("-n", "--dry-run", is_flag=True, help="Print the plan; start nothing.")
@click.option("--rebuild", is_flag=True, help="Put a corrupt bucket into quarantine and build anew.")
@expect_ranks_option
@guard_options
@target_option
@limit_options
@common_options
def command(
    session: Session,
    spec: Path | None,
    argv: tuple[str, ...] | None,
    dry_run: bool,
    rebuild: bool,
    expect_ranks: int | None,
    guard: str,
    backward: str,
    target: Target | None,
    limits: Limits,
    lock_wait_seconds: float,
) -> int:
    """Compile what SPEC needs and is cold, in the layout of the job, and publish it in the bucket.

    With a launch line after -- the job itself is run, and compiles into the bucket.

    Exit 0: everything is stored (verdict "built"), or was there already ("warm"). A build with a job that failed publishes
    nothing.
    """
    found = spec_or_line(spec, argv)
    if found is None:
        from flexwarm.cli.launching import launch_and_render, launch_options
        from flexwarm.ops.build_launch import build_launch

        refuse_for_line(dry_run, "--dry-run", "a launch line has no plan; flexwarm build SPEC --dry-run prints one")
        line = launch_options(session, argv, limits, lock_wait_seconds, guard, backward, expect_ranks, target)
        return launch_and_render(session, line, partial(build_launch, rebuild=rebuild))
    refuse_for_spec(expect_ranks)
    from flexwarm.cli.running import run_and_render, run_options
    from flexwarm.ops.build import build, prepare_build
    from flexwarm.render import run as render

    options = run_options(session, found, limits, lock_wait_seconds, guard=guard, backward=backward, target=target)
    if not dry_run:
        return run_and_render(session, options, partial(build, rebuild=rebuild))
    prepared = prepare_build(options, dict(os.environ), create=False)
    if session.json:
        session.emit_json(render.plan_json(prepared.plan, prepared.bucket.digest))
    else:
        render.print_plan(prepared.plan, str(prepared.bucket.path))
    return 0
