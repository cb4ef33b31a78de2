"""Options that several commands share."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click

from flexwarm.launch import Limits
from flexwarm.request import Backward, Guard

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_SPEC = "flexwarm.toml"


class Seconds(click.ParamType[float]):
    """A finite number of seconds, of at least ``least``."""

    name = "seconds"

    def __init__(self, least: float) -> None:
        self.least = least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            seconds = float(value)
        except ValueError:
            seconds = math.nan
        if not (math.isfinite(seconds) and seconds >= self.least):
            self.fail(f"{value!r} is not a number of seconds of at least {self.least:g}", param, ctx)
        return seconds


def spec_argument(function: F) -> F:
    """The optional SPEC, ``flexwarm.toml`` here unless given."""
    return click.argument("spec", type=click.Path(path_type=Path), default=DEFAULT_SPEC, required=False)(function)


def lock_wait_option(function: F) -> F:
    """How long to wait for a lock."""
    return click.option(
        "--lock-wait",
        "lock_wait_seconds",
        type=Seconds(0.0),
        default=600.0,
        show_default=True,
        envvar="FLEXWARM_LOCK_WAIT",
        show_envvar=True,
        metavar="SECONDS",
        help="Longest wait for another process's lock.",
    )(function)


def limit_options(function: F) -> F:
    """Time limits of workers; passed on as ``limits`` beside ``lock_wait_seconds``."""
    defaults = Limits()

    @wraps(function)
    def with_limits(*args: Any, job_timeout: float, silence_timeout: float, hang_timeout: float, **kwargs: Any) -> Any:
        limits = Limits(job_seconds=job_timeout, silence_seconds=silence_timeout, hang_seconds=hang_timeout)
        return function(*args, limits=limits, **kwargs)

    decorated: Any = with_limits
    for name, default, least, text in (
        ("--job-timeout", defaults.job_seconds, 1.0, "Longest time for one job; importing torch counts as one."),
        # A worker gives a sign of life every few seconds.
        ("--hang-timeout", defaults.hang_seconds, 5.0, "Longest time that threads may wait for each other over a compile."),
        ("--silence-timeout", defaults.silence_seconds, 15.0, "Longest time without a sign of life from a worker."),
    ):
        decorated = click.option(
            name,
            type=Seconds(least),
            default=default,
            show_default=True,
            envvar="FLEXWARM_" + name[2:].upper().replace("-", "_"),
            show_envvar=True,
            metavar="SECONDS",
            help=text,
        )(decorated)
    return lock_wait_option(decorated)  # type: ignore[no-any-return]


def guard_options(function: F) -> F:
    """What workers do about FX tracing; passed on as ``guard`` and ``backward``."""
    decorated = click.option(
        "--guard-backward",
        "backward",
        type=click.Choice([choice.value for choice in Backward]),
        default=Backward.ENGINE.value,
        show_default=True,
        envvar="FLEXWARM_GUARD_BACKWARD",
        show_envvar=True,
        help="With --guard fix: who runs backward passes, autograd's threads or the thread that calls.",
    )(function)
    return click.option(
        "--guard",
        type=click.Choice([choice.value for choice in Guard]),
        default=Guard.REPORT.value,
        show_default=True,
        envvar="FLEXWARM_GUARD",
        show_envvar=True,
        help="Report hazards of FX tracing, or install flexwarm.guard in the workers and prove that it is enough.",
    )(decorated)
