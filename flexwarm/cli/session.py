"""What a command was told about its output, and the only places that print."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

SCHEMA = 1


@dataclass(slots=True)
class Session:
    """Options that every command has. Filled while parsing, read by the error boundary too.

    Attributes:
        command: the command's name, for JSON.
        format: ``human`` or ``json``.
        verbosity: -1 quiet, 0 normal, 1 or more verbose.
        store: the store's root as given, or None for the default.
        trust_shared: use a store that other users can write.
        job_exit_code: what the user's real job ended with, once it has: whatever goes wrong after that is told, and takes
            the job's exit code from nobody who waits for it.
    """

    command: str = ""
    format: str = "human"
    verbosity: int = 0
    store: Path | None = None
    trust_shared: bool = False
    job_exit_code: int | None = None

    def job_ended(self, code: int) -> None:
        self.job_exit_code = code

    def exit_code(self, code: int) -> int:
        """What the process ends with, where a command came to ``code``."""
        return code if self.job_exit_code is None else self.job_exit_code

    @property
    def json(self) -> bool:
        return self.format == "json"

    def emit_json(self, payload: Mapping[str, Any]) -> None:
        """One JSON document on standard output, with the fields that every document has first."""
        document = {"schema": SCHEMA, "command": self.command, **payload}
        sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=False) + "\n")

    def say(self, message: str, level: int = 0) -> None:
        """A line for people, on standard error; ``level`` 1 needs ``-v``."""
        if self.verbosity < level:
            return
        try:
            sys.stderr.write(message + "\n")
        except OSError:
            pass  # nobody reads any more: no reason to stop

    def fail(self, message: str, hint: str, code: int) -> int:
        """Say why the command cannot go on: to people on standard error, to machines as JSON."""
        code = self.exit_code(code)
        if self.json:
            self.emit_json({"verdict": None, "exit_code": int(code), "error": {"message": message, "hint": hint}})
        try:
            sys.stderr.write(f"flexwarm: {message}\n" + (f"  next: {hint}\n" if hint else ""))
        except (OSError, ValueError):
            pass  # standard error is full or closed: the exit code still says it
        return code


def common_options(function: F) -> F:
    """``--store``, ``--format``, ``-q``, ``-v`` on a command; passes the filled :class:`Session` first."""

    def keep(name: str, change: Callable[[Any], Any] = lambda value: value) -> Callable[..., None]:
        def callback(ctx: click.Context, param: click.Parameter, value: Any) -> None:
            session = ctx.ensure_object(Session)
            session.command = ctx.info_name or ""
            if value:
                setattr(session, name, change(value))

        return callback

    options = [
        click.option(
            "--store",
            type=click.Path(path_type=Path),
            envvar="FLEXWARM_STORE",
            metavar="DIR",
            expose_value=False,
            callback=keep("store"),
            help="Cache root [env: FLEXWARM_STORE; default: the user's cache directory].",
        ),
        click.option(
            "--trust-shared",
            is_flag=True,
            envvar="FLEXWARM_TRUST_SHARED",
            show_envvar=True,
            expose_value=False,
            callback=keep("trust_shared"),
            help="Use a store that other users can write. A compiled cache is code.",
        ),
        click.option(
            "--format",
            type=click.Choice(["human", "json"]),
            envvar="FLEXWARM_FORMAT",
            expose_value=False,
            is_eager=True,
            callback=keep("format"),
            help="What standard output carries [env: FLEXWARM_FORMAT; default: human].",
        ),
        click.option(
            "-q",
            "--quiet",
            is_flag=True,
            expose_value=False,
            callback=keep("verbosity", lambda _: -1),
            help="Only the verdict and errors.",
        ),
        click.option("-v", "--verbose", count=True, expose_value=False, callback=keep("verbosity"), help="More detail."),
    ]
    decorated: Any = click.pass_obj(function)
    for option in reversed(options):
        decorated = option(decorated)
    return decorated  # type: ignore[no-any-return]


def stdout_is_terminal() -> bool:
    """Whether a person is likely to read standard output as it comes."""
    return sys.stdout.isatty() and os.environ.get("TERM", "") != "dumb"
