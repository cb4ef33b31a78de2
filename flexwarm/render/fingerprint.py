"""A fingerprint, or how it differs from another, for people and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, TextIO

from flexwarm import canonical
from flexwarm.errors import ExitCode
from flexwarm.ops.fingerprint import FingerprintResult

_SELECTS, _EXPLAINS = "selects the bucket", "recorded to explain"


def to_json(result: FingerprintResult, code: ExitCode) -> dict[str, Any]:
    """The document's fields after the common ones."""
    payload: dict[str, Any] = {
        "verdict": None,
        "exit_code": int(code),
        "bucket": result.fingerprint.digest,
        "fingerprint": result.fingerprint.to_json(),
    }
    payload["here"] = result.here
    if result.changes is not None and result.old is not None:
        payload["diff"] = result.old.digest
        payload["changes"] = canonical.plain(result.changes)
    return payload


def human(result: FingerprintResult, out: TextIO, *, terminal: bool) -> None:
    """Tables that a terminal of any width shows whole; elsewhere one unbroken line for each component."""
    if result.old is None:
        head = [f"bucket  {result.fingerprint.digest}"]
        groups = [
            (_SELECTS, [(name, _shown(value)) for name, value in sorted(result.fingerprint.select.items())]),
            (_EXPLAINS, [(name, _shown(value)) for name, value in sorted(result.fingerprint.explain.items())]),
        ]
    else:
        changes = result.changes or ()
        # Two buckets are named in the order in which their values stand below.
        here, there = ("here", "bucket") if result.here else ("to", "from")
        head = [f"{here:<6}  {result.fingerprint.digest}", f"{there:<6}  {result.old.digest}"]
        head = head if result.here else head[::-1]
        if not changes:
            head.append("nothing differs")
        groups = [
            (
                f"{title} ({there} -> {here})",
                [(c.component, f"{_shown(c.old)} -> {_shown(c.new)}") for c in changes if c.selects is selects],
            )
            for title, selects in ((_SELECTS, True), (_EXPLAINS, False))
        ]
    shown = [(title, rows) for title, rows in groups if rows]
    if terminal:
        _tables(head, shown, out)
    else:
        _lines(head, shown, out)


def _shown(value: str | None) -> str:
    """Unset and empty must not look alike, and no variable may send a terminal its own control characters."""
    if value is None:
        return "(unset)"
    return value if value and value.isprintable() else json.dumps(value)


def _lines(head: Iterable[str], groups: Iterable[tuple[str, list[tuple[str, str]]]], out: TextIO) -> None:
    for line in head:
        out.write(f"{line}\n")
    for title, rows in groups:
        width = max(len(name) for name, _ in rows)
        out.write(f"\n{title}\n")
        for name, value in rows:
            out.write(f"  {name:<{width}}  {value}\n")


def _tables(head: Iterable[str], groups: Iterable[tuple[str, list[tuple[str, str]]]], out: TextIO) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(file=out, highlight=False)
    for line in head:
        console.print(Text(line, style="bold"))
    for title, rows in groups:
        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column(overflow="fold", style="cyan")
        table.add_column(overflow="fold", ratio=1)
        for name, value in rows:
            table.add_row(Text(f"  {name}"), Text(value))
        console.print()
        console.print(Text(title, style="bold"))
        console.print(table)
