"""What a diagnosis came to, for people and as JSON."""

from __future__ import annotations

from typing import Any

from flexwarm.canonical import plain
from flexwarm.ops.doctor import Diagnosis, Status
from flexwarm.render.known_faults import fault_lines

_STYLES = {Status.OK: "green", Status.WARN: "yellow", Status.FAIL: "bold red"}


def to_json(found: Diagnosis) -> dict[str, Any]:
    """The document's fields after the common ones."""
    checks = [{name: value for name, value in plain(check).items() if name != "exit_code"} for check in found.checks]
    faults = [fault.to_json() for fault in found.faults]
    return {"verdict": None, "exit_code": int(found.exit_code), "checks": checks, "known_faults": faults}


def human(found: Diagnosis, *, verbosity: int) -> None:
    """A line for each check, what to do, and the known faults."""
    from rich.text import Text

    from flexwarm.render.console import make_console

    console = make_console()

    def line(text: str | Text) -> None:
        console.print(text, soft_wrap=not console.is_terminal, highlight=False, markup=False)

    for check in found.checks:
        if verbosity >= 0 or check.status is not Status.OK:
            line(Text.assemble((f"{check.status.value:<4}", _STYLES[check.status]), f"  {check.name}: {check.message}"))
            if check.hint:
                line(f"      next: {check.hint}")
    for text in fault_lines(found.faults, max(verbosity, 1)) if verbosity >= 0 else ():
        line(text)
