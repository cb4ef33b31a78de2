"""``flexwarm clean``: show what goes and what stays, ask, delete."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from typing import Final

import click

from flexwarm.cli.options import lock_wait_option
from flexwarm.cli.session import Session, common_options
from flexwarm.errors import ExitCode, UsageError
from flexwarm.ops import clean as op
from flexwarm.store import Store, default_root

_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_BYTES: Final = {
    "B": 1,
    **{letter: 1000**power for power, letter in enumerate("KMGT", start=1)},
    **{letter + "i": 1024**power for power, letter in enumerate("KMGT", start=1)},
}
_CHOICES: Final = "--all, --stale, --older-than AGE, --max-size SIZE"


def quantity(pattern: str, units: Mapping[str, int], example: str) -> Callable[[str], int]:
    """A parser for an option that is a number with a unit; it gives the number of the smallest unit."""
    compiled = re.compile(r"(\d+(?:\.\d+)?) ?" + pattern, re.ASCII)

    def parse(value: str) -> int:
        match = compiled.fullmatch(value.strip())
        if match is None:
            raise click.BadParameter(f"{value!r} is not {example}")
        return int(float(match[1]) * units[match[2]])

    return parse


AGE: Final = quantity("([smhdw])", _SECONDS, "an age such as 12h, 30d or 2w (units: s, m, h, d, w)")
SIZE: Final = quantity("(B|[KMGT]i?)(?:(?<!B)B)?", _BYTES, "a size such as 500M, 10G or 10GiB")


@click.command("clean")
@common_options
@click.option("--all", "everything", is_flag=True, help="Every bucket, and the quarantine.")
@click.option("--stale", is_flag=True, help="Buckets of another torch, Triton, Python or machine than this one.")
@click.option("--older-than", type=AGE, metavar="AGE", help="Buckets last used longer ago: 12h, 30d, 2w.")
@click.option("--max-size", type=SIZE, metavar="SIZE", help="Least recently used first, until the rest fits: 500M, 10G.")
@click.option("--dry-run", is_flag=True, help="Show the plan; delete nothing.")
@click.option("--force", is_flag=True, help="Also delete buckets that runs are using now.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@lock_wait_option
def command(
    session: Session,
    everything: bool,
    stale: bool,
    older_than: int | None,
    max_size: int | None,
    dry_run: bool,
    force: bool,
    yes: bool,
    lock_wait_seconds: float,
) -> int:
    """Delete buckets, after showing what goes and what stays.

    Selections add up. A bucket that a process is using is skipped, and the process is named. With --force a bucket that
    `flexwarm run` is using is deleted all the same; one that a build or a verification is using never is.
    """
    if not (everything or stale or older_than is not None or max_size is not None):
        raise UsageError(f"say which buckets to delete: {_CHOICES}", "flexwarm clean --all --dry-run")
    store = Store.open(session.store or default_root(os.environ), create=False, trust_shared=session.trust_shared)
    selection = op.Selection(
        everything=everything,
        current=_current_digest(store) if stale else None,
        older_than_seconds=older_than,
        max_size_bytes=max_size,
        force=force,
    )
    now_unix = time.time()
    plan = op.decide(op.survey(store), op.leftovers(store, quarantine=everything), selection, now_unix=now_unix)
    if dry_run or plan.deletes_nothing:
        _show(session, plan, dry_run=dry_run, done=not dry_run, now_unix=now_unix)
        return ExitCode.OK
    if not yes and not _agreed(session, plan, now_unix=now_unix):
        session.say("nothing was deleted")
        return ExitCode.OK
    # Now that something is to be written, make what is missing: a store copied without its empty directories has no locks.
    store = Store.open(store.root, create=True, trust_shared=session.trust_shared)
    result = op.execute(store, plan, wait_seconds=lock_wait_seconds, notify=session.say, force=force)
    _show(session, result, dry_run=False, done=True, now_unix=now_unix)
    return ExitCode.OK


def _current_digest(store: Store) -> str:
    from flexwarm import toolchain

    return toolchain.fingerprint(os.environ, store=store).digest


def _agreed(session: Session, plan: op.Plan, *, now_unix: float) -> bool:
    if session.json or not sys.stdin.isatty():
        raise UsageError(
            "this deletes, and there is no terminal to ask on", "pass --yes to delete, or --dry-run to see the plan"
        )
    _show(session, plan, dry_run=False, done=False, now_unix=now_unix)
    try:
        return click.confirm("delete?", err=True)
    except click.Abort:  # the end of input is no answer, and no answer is no
        sys.stderr.write("\n")
        return False


def _show(session: Session, plan: op.Plan, *, dry_run: bool, done: bool, now_unix: float) -> None:
    if session.json:
        session.emit_json(plan.to_json(dry_run=dry_run))
        return
    taken = any(step.usage.leases for step in plan.having(op.Action.DELETE))
    if session.verbosity < 0 and done and not dry_run and not taken and not plan.having(op.Action.SKIP):
        return  # it did what it was told, and nobody will miss anything
    from flexwarm.render import clean as renderer

    renderer.render(plan, done=done, now_unix=now_unix)
