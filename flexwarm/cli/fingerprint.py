"""``flexwarm fingerprint``: what compiled kernels here depend on, alone or against a bucket."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import click

from flexwarm.cli.session import Session, common_options, stdout_is_terminal
from flexwarm.errors import ExitCode, StoreError, UsageError
from flexwarm.files import write_atomic
from flexwarm.ops import fingerprint as op
from flexwarm.render import fingerprint as render
from flexwarm.store import Store, default_root
from flexwarm.target import DeviceProfile


@click.command("fingerprint")
@click.argument("bucket", required=False, metavar="[BUCKET]")
@click.option(
    "--diff",
    metavar="BUCKET",
    help="Name what is not as in BUCKET (a digest, its first digits, or a path); exit 1 if that selects another bucket.",
)
@click.option(
    "--profile",
    "device",
    type=click.IntRange(min=0),
    is_flag=False,
    flag_value=0,
    metavar="[DEVICE]",
    help="Write the profile of GPU DEVICE, 0 if none is named: what --target needs to build for it elsewhere.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Where --profile writes; standard output by default.",
)
@common_options
def command(session: Session, bucket: str | None, diff: str | None, device: int | None, output: Path | None) -> int:
    """Print what compiled kernels depend on here: torch, Triton, Python, the CPU, the GPUs, variables.

    The first part selects the bucket; the second is recorded, to explain a miss. With BUCKET, what it was built for, which
    needs no torch here: flexwarm fingerprint A --diff B names what differs between two buckets.
    """
    environ = dict(os.environ)
    if output is not None and device is None:
        raise UsageError("-o is where --profile writes, which is not asked for", "flexwarm fingerprint --profile -o FILE")
    if diff is not None and device is not None:
        raise UsageError("--diff and --profile do not go together", "ask for one of the two")
    if bucket is not None and device is not None:
        raise UsageError("--profile is of a GPU of this machine, and not of a bucket", "leave BUCKET out")
    store = Store.open(session.store or default_root(environ), create=False, trust_shared=session.trust_shared)
    if device is not None:
        write_profile(op.profile(environ, store=store, device=device), output)
        return ExitCode.OK
    result = op.run(environ, store=store, diff=diff, of=bucket)
    code = ExitCode.OK if result.same_bucket else ExitCode.NOT_WARM
    if session.json:
        session.emit_json(render.to_json(result, code))
    else:
        render.human(result, sys.stdout, terminal=stdout_is_terminal())
    return code


def write_profile(profile: DeviceProfile, output: Path | None) -> None:
    """As JSON, to a file that is written whole or not at all, or to standard output.

    Raises:
        UsageError: the file cannot be written.
    """
    text = json.dumps(profile.to_json(), indent=1) + "\n"
    if output is None:
        sys.stdout.write(text)
        return
    try:
        write_atomic(output, text.encode())
    except StoreError as error:
        raise UsageError(error.message, "name another file with -o") from error
