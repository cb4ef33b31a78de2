"""``flexwarm verify``."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from flexwarm.cli.options import guard_options, limit_options, spec_argument
from flexwarm.cli.session import Session, common_options
from flexwarm.launch import Limits


@click.command("verify", short_help="Prove in new processes that a launch compiles nothing.")
@spec_argument
@click.option("--fast", is_flag=True, help="Only ask whether anything changed since the last proof; torch is not started.")
@click.option("--no-drill", is_flag=True, help="Leave out the drill of ranks with several lanes; the verdict says so.")
@guard_options
@limit_options
@common_options
def command(
    session: Session,
    spec: Path,
    fast: bool,
    no_drill: bool,
    guard: str,
    backward: str,
    limits: Limits,
    lock_wait_seconds: float,
) -> int:
    """Prove in new processes, in the layout of the job, that a launch of SPEC compiles nothing.

    Exit 0 is "warm": every key hit, no compiler ran, the disk did not change, results agree with dense attention, and no
    call met a trace of another thread. Ranks with several lanes are drilled: a lane is held inside a compile while the
    others call.
    Nothing is compiled, also when the bucket is cold: a job is stopped at its first miss.
    """
    from flexwarm.cli.running import run_and_render, run_options
    from flexwarm.ops.verify import verify

    options = run_options(session, spec, limits, lock_wait_seconds, guard=guard, backward=backward, drill=not no_drill)
    return run_and_render(session, options, partial(verify, fast=fast))
