"""The plan and the result of ``clean`` for people; fits 60 columns."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from flexwarm.ops.clean import Action, Plan, Step
from flexwarm.render import text
from flexwarm.render.console import make_console

if TYPE_CHECKING:
    from rich.table import Table

_HEADINGS: Final = {
    (Action.DELETE, False): "to delete",
    (Action.DELETE, True): "deleted",
    (Action.KEEP, False): "to keep",
    (Action.KEEP, True): "kept",
    (Action.SKIP, False): "to skip",
    (Action.SKIP, True): "skipped",
}


def render(plan: Plan, *, done: bool, now_unix: float) -> None:
    """Print the plan to standard output; ``done`` says that it has been carried out."""
    console = make_console()
    for action in (Action.DELETE, Action.SKIP, Action.KEEP):
        steps = plan.having(action)
        if not steps:
            continue
        console.print(f"{_HEADINGS[action, done]}:", style="bold")
        console.print(_table(steps, now_unix))
        for step in steps:
            for holder in step.usage.holders:
                console.print(f"  {step.usage.bucket} {_tense(step, done)} {holder}", markup=False)
    if plan.leftovers:
        console.print(f"{'removed' if done else 'to remove'}: {_count(len(plan.leftovers), 'leftover tree')} of earlier runs")
    console.print(summary(plan, done=done))


def summary(plan: Plan, *, done: bool) -> str:
    """The one line that says what it comes to."""
    skipped = len(plan.having(Action.SKIP))
    tail = f"; {_count(skipped, 'bucket')} skipped" if skipped else ""
    if plan.deletes_nothing:
        return f"nothing to delete{tail}"
    deleted = _count(len(plan.having(Action.DELETE)), "bucket")
    size = text.size(plan.freed_bytes)
    return f"freed {size}: {deleted} deleted{tail}" if done else f"would free {size}: {deleted} to delete{tail}"


def _tense(step: Step, done: bool) -> str:
    if step.action is not Action.DELETE:
        return "is held by"
    return "was taken from" if done else "will be taken from"


def _table(steps: Iterable[Step], now_unix: float) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), collapse_padding=True)
    table.add_column("bucket", overflow="fold")
    table.add_column("size", justify="right", overflow="fold")
    table.add_column("files", justify="right", overflow="fold")
    table.add_column("last use", justify="right", overflow="fold")
    table.add_column("why", overflow="fold")
    for step in steps:
        usage = step.usage
        age = "unknown" if usage.last_use_unix is None else age_text(now_unix - usage.last_use_unix)
        table.add_row(usage.bucket, text.size(usage.size_bytes), str(usage.files), age, step.reason.value)
    return table


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def age_text(seconds: float) -> str:
    """How long ago, in the largest unit that gives at least 2, or ``now``."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length:.0f} {unit} ago"
    return f"{seconds:.0f} s ago" if seconds >= 1 else "now"
