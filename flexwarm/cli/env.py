"""``flexwarm env``."""

from __future__ import annotations

import os
import shlex

import click

from flexwarm.cli.session import Session, common_options


@click.command("env", short_help="Print the variables a launch needs to use the bucket.")
@common_options
def command(session: Session) -> int:
    """Print the variables with which a launch on this machine uses its bucket, for eval "$(flexwarm env)"."""
    from flexwarm.ops.env import bucket_variables

    digest, variables = bucket_variables(
        dict(os.environ),
        root=session.store,
        trust_shared=session.trust_shared,
        notify=lambda text: session.say(f"flexwarm: {text}"),
    )
    if session.json:
        session.emit_json({"verdict": None, "exit_code": 0, "bucket": digest, "variables": variables})
    else:
        for name, value in variables.items():
            click.echo(f"export {name}={shlex.quote(value)}")
    return 0
