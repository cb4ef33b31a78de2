"""``flexwarm fingerprint``: what compiled kernels here depend on, alone or against a bucket."""

from __future__ import annotations

import os
import sys

import click

from flexwarm.cli.session import Session, common_options, stdout_is_terminal
from flexwarm.errors import ExitCode
from flexwarm.ops import fingerprint as op
from flexwarm.render import fingerprint as render
from flexwarm.store import Store, default_root


@click.command("fingerprint")
@click.option(
    "--diff",
    metavar="BUCKET",
    help="Name what differs from BUCKET (a digest, its first digits, or a path); exit 1 if that selects another bucket.",
)
@common_options
def command(session: Session, diff: str | None) -> int:
    """Print what compiled kernels depend on here: torch, Triton, Python, the CPU, the GPUs, variables.

    The first part selects the bucket; the second is recorded, to explain a miss.
    """
    environ = dict(os.environ)
    store = Store.open(session.store or default_root(environ), create=False, trust_shared=session.trust_shared)
    result = op.run(environ, store=store, diff=diff)
    code = ExitCode.OK if result.same_bucket else ExitCode.NOT_WARM
    if session.json:
        session.emit_json(render.to_json(result, code))
    else:
        render.human(result, sys.stdout, terminal=stdout_is_terminal())
    return code
