"""``flexwarm doctor``."""

from __future__ import annotations

import os
from pathlib import Path

import click

from flexwarm.cli.session import Session, common_options


@click.command("doctor", short_help="Check this machine, its torch and the store; name known faults.")
@click.argument("spec", type=click.Path(path_type=Path), required=False)
@common_options
def command(session: Session, spec: Path | None) -> int:
    """Check this machine, its torch and Triton, the variables and the store, and name the known faults of these versions.

    With SPEC those faults that matter for it; without, all of these versions, with what must be so for each. A known fault
    alone is no failure. Starts nothing and imports no torch.
    """
    from flexwarm.ops.doctor import diagnose
    from flexwarm.render import doctor as render

    found = diagnose(dict(os.environ), root=session.store, trust_shared=session.trust_shared, spec=spec)
    if session.json:
        session.emit_json(render.to_json(found))
    else:
        render.human(found, verbosity=session.verbosity)
    return int(found.exit_code)
