"""What goes on, on standard error: a live table on a terminal, one line a job elsewhere. Folds the events it is shown."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

from flexwarm.events import (
    Answer,
    Bye,
    Compiled,
    DrillDone,
    Event,
    Hang,
    Hello,
    JobDone,
    JobFailed,
    JobStopped,
    Lookup,
    Phase,
    Progress,
    Refused,
    Settings,
    ShapeDone,
    Sources,
    StepDone,
)
from flexwarm.plan import Job, Plan
from flexwarm.render.text import duration

if TYPE_CHECKING:
    from rich.live import Live


@dataclass(slots=True)
class _Row:
    """One job as far as it has come."""

    job: Job
    phase: str = Phase.START.value
    started: float | None = None
    ended: float | None = None
    outcome: str = ""
    hits: int = 0
    misses: int = 0
    compiles: int = 0
    shapes: int = 0


class RunProgress:
    """Shows a run while it lasts; use as a context manager, so that the terminal is whole again however it ends."""

    def __init__(self, title: str, *, quiet: bool) -> None:
        self._title, self._quiet = title, quiet
        self._live: Live | None = None
        self._rows: dict[str, _Row] = {}
        self._plan: Plan | None = None
        self._began = time.monotonic()

    def __enter__(self) -> RunProgress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()

    def on_plan(self, plan: Plan, title: str) -> None:
        """The workers are about to start; ``title`` is what for, where that is not the command."""
        self._title = title or self._title
        self._plan = plan
        if self._live is not None:  # of the run before, such as the verification before its drill
            self._live.stop()
            self._live = None
        self._rows = {job.id: _Row(job=job) for job in plan.jobs}
        if self._quiet:
            return
        if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
            from rich.live import Live

            from flexwarm.render.console import make_console

            # The table is redrawn when the console asks, so that elapsed time runs on while a compiler is silent.
            self._live = Live(
                console=make_console(stderr=True),
                get_renderable=self._table,
                refresh_per_second=8,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()
        else:
            leaders = sum(job.leader is None for job in plan.jobs)
            self._line(f"{self._title}: {len(plan.jobs)} jobs on {len(plan.workers)} ranks ({leaders} distinct)")

    def notify(self, message: str) -> None:
        """One line beside the table."""
        if self._live is not None:
            self._live.console.print(message, markup=False)
        else:
            self._line(message)

    def on_event(self, rank: int, event: Event) -> None:
        """Move one row on."""
        if isinstance(event, (Hello, Settings, Sources, Refused, Hang, Bye)):
            return
        if isinstance(event, Progress) and event.job is None:
            for row in self._rows.values():
                if row.job.rank == rank and row.ended is None:
                    row.phase = event.phase.value
            return
        row_of = self._rows.get(getattr(event, "job", None) or "")
        if row_of is not None:
            self._advance(row_of, event)

    def _advance(self, row: _Row, event: Event) -> None:
        match event:
            case Progress(phase=phase):
                row.phase = phase.value
                if row.started is None and phase is not Phase.WAIT:
                    row.started = time.monotonic()
            case Lookup(answer=Answer.HIT):
                row.hits += 1
            case Lookup(answer=Answer.MISS):
                row.misses += 1
            case Compiled():
                row.compiles += 1
            case ShapeDone() | StepDone():
                row.shapes += 1
            case JobDone():
                self._end(row, "compiled" if row.misses else "hit")
            case DrillDone():
                self._end(row, "drilled")
            case JobStopped():
                self._end(row, "missed")
            case JobFailed():
                self._end(row, "failed")
            case _:
                pass

    def _end(self, row: _Row, outcome: str) -> None:
        row.ended, row.outcome, row.phase = time.monotonic(), outcome, "done"
        if self._live is None:
            took = duration(row.ended - (row.started or row.ended))
            self._line(f"{row.job.id} ({row.job.device}): {outcome} in {took}, {row.hits} hit, {row.misses} missed")

    def _line(self, text: str) -> None:
        if self._quiet:
            return
        try:
            sys.stderr.write(text + "\n")
        except (OSError, ValueError):
            pass  # nobody reads any more: no reason to stop a build

    def _table(self) -> Any:
        from rich.table import Table
        from rich.text import Text

        now = time.monotonic()
        table = Table(box=None, pad_edge=False, header_style="bold", title_justify="left")
        done = sum(row.ended is not None for row in self._rows.values())
        table.title = f"{self._title}: {done} of {len(self._rows)} jobs, {duration(now - self._began)}"
        for name in ("job", "phase", "shapes", "time", "outcome"):
            # Wide enough for any time from the start: a column that grows would fold the rows anew while one looks.
            width = {"phase": 7, "time": 9, "outcome": 8}.get(name)
            table.add_column(name, overflow="fold", no_wrap=name != "job", min_width=width)
        for row in self._visible():
            elapsed = None if row.started is None else (row.ended or now) - row.started
            style = {"hit": "green", "drilled": "green", "compiled": "cyan", "": "dim"}.get(row.outcome, "yellow")
            table.add_row(
                Text(row.job.id),
                row.phase,
                f"{row.shapes}/{row.job.workload.parts}",
                duration(elapsed),
                Text(row.outcome or "…", style=style),
            )
        return table

    def _visible(self) -> list[_Row]:
        """Rows that fit the screen: those under way first; a table that scrolls cannot be redrawn in place."""
        rows = list(self._rows.values())
        room = max(3, (self._live.console.height if self._live else 24) - 4)
        if len(rows) <= room:
            return rows
        return sorted(rows, key=lambda row: (row.ended is not None, row.started is None))[:room]
