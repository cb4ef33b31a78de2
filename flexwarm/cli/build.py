"""``flexwarm build``."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import click

from flexwarm.cli.options import guard_options, limit_options, spec_argument
from flexwarm.cli.session import Session, common_options
from flexwarm.launch import Limits


@click.command("build", short_help="Compile what a spec needs and is cold; publish it in the bucket.")
@spec_argument
@click.option("-n", "--dry-run", is_flag=True, help="Print the plan; start nothing.")
@click.option("--rebuild", is_flag=True, help="Put a corrupt bucket into quarantine and build anew.")
@guard_options
@limit_options
@common_options
def command(
    session: Session,
    spec: Path,
    dry_run: bool,
    rebuild: bool,
    guard: str,
    backward: str,
    limits: Limits,
    lock_wait_seconds: float,
) -> int:
    """Compile what SPEC needs and is cold, in the layout of the job, and publish it in the bucket.

    Exit 0: everything is stored (verdict "built"), or was there already ("warm"). A build with a job that failed publishes
    nothing.
    """
    from flexwarm.cli.running import run_and_render, run_options
    from flexwarm.ops.build import build, prepare_build
    from flexwarm.render import run as render

    options = run_options(session, spec, limits, lock_wait_seconds, guard=guard, backward=backward)
    if not dry_run:
        return run_and_render(session, options, partial(build, rebuild=rebuild))
    prepared = prepare_build(options, dict(os.environ), create=False)
    if session.json:
        session.emit_json(render.plan_json(prepared.plan, prepared.bucket.digest))
    else:
        render.print_plan(prepared.plan, str(prepared.bucket.path))
    return 0
