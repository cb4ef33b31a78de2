"""``flexwarm verify``."""

from __future__ import annotations

import os
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
    from flexwarm.ops.run import Watcher
    from flexwarm.ops.verify import VerifyOptions, verify
    from flexwarm.render import run as render
    from flexwarm.render.progress import RunProgress

    options = VerifyOptions(
        spec=spec,
        root=session.store,
        trust_shared=session.trust_shared,
        fast=fast,
        limits=limits,
        lock_wait_seconds=lock_wait_seconds,
    )
    with RunProgress("verify", quiet=session.verbosity < 0) as progress:
        watcher = Watcher(on_plan=progress.on_plan, on_event=progress.on_event, notify=progress.notify)
        result = verify(options, dict(os.environ), watcher)
    if session.json:
        session.emit_json(render.run_json(result))
    else:
        render.print_run(result, verbosity=session.verbosity)
    return int(result.verdict.exit_code)
