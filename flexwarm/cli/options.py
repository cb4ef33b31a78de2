"""Options that several commands share."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from flexwarm.errors import UsageError
from flexwarm.launch import Limits
from flexwarm.request import Backward, Guard, Tuning
from flexwarm.target import Target

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


class LaunchLineCommand(click.Command):
    """A command that takes a launch line after ``--``; everything there is the line's, also what looks like an option.

    The line is passed on as ``argv``, None where there is no ``--``.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own, line = split_line(args)
        ctx.params["argv"] = line
        try:
            return super().parse_args(ctx, own)
        except click.UsageError as error:
            if line is None and "unexpected extra argument" in error.message:
                # Most likely a launch line without its dashes.
                raise UsageError(error.message, f"a launch line stands after --: {ctx.command_path} -- CMD...") from error
            raise

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "-- CMD..."]


def split_line(arguments: Sequence[str]) -> tuple[list[str], tuple[str, ...] | None]:
    """flexwarm's own arguments, and the launch line after the first ``--``."""
    if "--" not in arguments:
        return list(arguments), None
    at = list(arguments).index("--")
    return list(arguments[:at]), tuple(arguments[at + 1 :])


def expect_ranks_option(function: F) -> F:
    """How many ranks of a launch line must report."""
    return click.option(
        "--expect-ranks",
        type=click.IntRange(min=1),
        envvar="FLEXWARM_EXPECT_RANKS",
        show_envvar=True,
        metavar="N",
        help="Ranks that must report; by default what the launch line, or the ranks themselves, say.",
    )(function)


def spec_argument(function: F) -> F:
    """The optional SPEC, which is ``flexwarm.toml`` here unless given: see :func:`spec_or_line`."""
    return click.argument("spec", type=click.Path(path_type=Path), required=False)(function)


def spec_or_line(spec: Path | None, argv: tuple[str, ...] | None) -> Path | None:
    """The spec to work on, or None where a launch line was given.

    Raises:
        UsageError: both were given.
    """
    if argv is not None and spec is not None:
        raise UsageError(f"both a spec ({spec}) and a launch line are given", "name one of the two; the line stands after --")
    return None if argv is not None else spec or Path(DEFAULT_SPEC)


def refuse_for_line(given: bool, option: str, why: str) -> None:
    """Raises:
    UsageError: an option was given that a launch line has no use for.
    """
    if given:
        raise UsageError(f"{option} and a launch line do not go together", why)


def refuse_for_spec(expect_ranks: int | None) -> None:
    """Raises:
    UsageError: an option was given that a spec has no use for; a variable that sets it is none.
    """
    context = click.get_current_context()
    if expect_ranks is not None and context.get_parameter_source("expect_ranks") is ParameterSource.COMMANDLINE:
        raise UsageError("--expect-ranks and a spec do not go together", "the spec's roles say how many ranks there are")


def refuse_tuning_for(target: Target | None, tuning: Tuning) -> None:
    """Raises:
    UsageError: tuning is allowed on GPUs that are not there.
    """
    if target is not None and tuning is not Tuning.MISS:
        raise UsageError("--allow-tuning and --target do not go together", "a GPU that is not there tunes nothing")


class _Target(click.ParamType[Target]):
    """``PROFILE[:COUNT]``."""

    name = "target"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Target:
        from flexwarm.toolchain.profiles import read_target

        return value if isinstance(value, Target) else read_target(str(value))


def target_option(function: F) -> F:
    """GPUs that are not here; passed on as ``target``."""
    return click.option(
        "--target",
        type=_Target(),
        metavar="PROFILE[:COUNT]",
        help="Work for COUNT GPUs that are not here, of a kind that flexwarm knows (h200) or of a profile's file.",
    )(function)


def allow_tuning_option(allowed: Tuning) -> Callable[[F], F]:
    """Whether tuning counts as a compile; passed on as ``tuning``, which is ``allowed`` where it does not."""

    def decorate(function: F) -> F:
        @wraps(function)
        def with_tuning(*args: Any, allow_tuning: bool, **kwargs: Any) -> Any:
            return function(*args, tuning=allowed if allow_tuning else Tuning.MISS, **kwargs)

        text = "Let a GPU time the variants of kernels that are all compiled, which else counts as a compile."
        return click.option("--allow-tuning", is_flag=True, help=text)(with_tuning)  # type: ignore[return-value]

    return decorate


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

    text = "Longest time for one job, and importing torch counts as one; for a launch line, if given, of all of it."
    decorated = _seconds_option("--job-timeout", defaults.job_seconds, 1.0, text)(with_limits)
    decorated = _hang_option(decorated)
    text = "Longest time without a sign of life from a worker."
    # A worker gives a sign of life every few seconds.
    decorated = _seconds_option("--silence-timeout", defaults.silence_seconds, 15.0, text)(decorated)
    return lock_wait_option(decorated)  # type: ignore[no-any-return]


def launch_limit_options(function: F) -> F:
    """The limits that a real launch has; passed on in the same way."""

    @wraps(function)
    def with_limits(*args: Any, hang_timeout: float, **kwargs: Any) -> Any:
        return function(*args, limits=Limits(hang_seconds=hang_timeout), **kwargs)

    return lock_wait_option(_hang_option(with_limits))  # type: ignore[no-any-return]


def _hang_option(function: Any) -> Any:
    text = "Longest time that threads may wait for each other over a compile."
    return _seconds_option("--hang-timeout", Limits().hang_seconds, 5.0, text)(function)


def _seconds_option(name: str, default: float, least: float, text: str) -> Any:
    return click.option(
        name,
        type=Seconds(least),
        default=default,
        show_default=True,
        envvar="FLEXWARM_" + name[2:].upper().replace("-", "_"),
        show_envvar=True,
        metavar="SECONDS",
        help=text,
    )


class _Guards(click.Choice[str]):
    """The choices of ``--guard``. Where ``off`` is none, a variable that says so for ``run`` is the default here."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        off = Guard.OFF.value
        if value == off not in self.choices and os.environ.get(_GUARD_VARIABLE) == off:
            return Guard.REPORT.value
        return str(super().convert(value, param, ctx))


_GUARD_VARIABLE = "FLEXWARM_GUARD"


def guard_options(function: F) -> F:
    """What workers and programs do about FX tracing; passed on as ``guard`` and ``backward``."""
    return _guard_options(function, [Guard.REPORT, Guard.FIX], "Report hazards of FX tracing, or install flexwarm.guard first.")


def run_guard_options(function: F) -> F:
    """The same for a real launch, which may do without."""
    text = "Look for hazards of FX tracing, do not even look, or install flexwarm.guard first."
    return _guard_options(function, list(Guard), text)


def _guard_options(function: F, choices: Sequence[Guard], text: str) -> F:
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
        type=_Guards([choice.value for choice in choices]),
        default=Guard.REPORT.value,
        show_default=True,
        envvar=_GUARD_VARIABLE,
        show_envvar=True,
        help=text,
    )(decorated)
