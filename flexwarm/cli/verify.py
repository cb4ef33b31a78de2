"""``flexwarm verify``."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from flexwarm.cli.options import limit_options, spec_argument
from flexwarm.cli.session import Session, common_options
from flexwarm.launch import Limits


@click.command("verify", short_help="Prove in new processes that a launch compiles nothing.")
@spec_argument
@click.option("--fast", is_flag=True, help="Only ask whether anything changed since the last proof; torch is not started.")
@limit_options
@common_options
def command(session: Session, spec: Path, fast: bool, limits: Limits, lock_wait_seconds: float) -> int:
    """Prove in new processes, in the layout of the job, that a launch of SPEC compiles nothing.

    Exit 0 is "warm": every key hit, no compiler ran, the disk did not change, and results agree with dense attention.
    Nothing is compiled, also when the bucket is cold: a job is stopped at its first miss.
    """
    from flexwarm.cli.running import run_and_render, run_options
    from flexwarm.ops.verify import verify

    return run_and_render(session, run_options(session, spec, limits, lock_wait_seconds), partial(verify, fast=fast))
