"""The one edge of the program: signals in, every error to a sentence and an exit code, commands loaded lazily."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from types import FrameType
from typing import NoReturn, TextIO

import click

from flexwarm import __version__
from flexwarm.cli.session import Session
from flexwarm.errors import ExitCode, FlexwarmError, Interrupted
from flexwarm.files import store_error

#: Command -> the module that holds it. A module is imported only when its command is asked for,
#: so that `flexwarm --help` and `verify --fast` start without paying for the others.
COMMANDS: dict[str, tuple[str, str]] = {
    "fingerprint": ("flexwarm.cli.fingerprint", "Print what compiled kernels here depend on; compare with a bucket."),
    "build": ("flexwarm.cli.build", "Compile what a spec or a launch line needs and is cold."),
    "verify": ("flexwarm.cli.verify", "Prove in new processes that a launch compiles nothing."),
    "explain": ("flexwarm.cli.explain", "Say why a launch would compile: what is not as it was built."),
    "run": ("flexwarm.cli.run", "Launch the real job with the bucket's environment."),
    "record": ("flexwarm.cli.record", "Write a spec of what a launch line compiles."),
    "env": ("flexwarm.cli.env", "Print the variables a launch needs to use the bucket."),
    "doctor": ("flexwarm.cli.doctor", "Check this machine, its torch and the store; name known faults."),
    "clean": ("flexwarm.cli.clean", "Delete buckets, after showing what goes and what stays."),
}


class LazyGroup(click.Group):
    """A group that knows its commands' names and one-line helps without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = import_module(COMMANDS[cmd_name][0]).command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


EPILOG = """\b
Exit codes:
  0    done; the verdict is warm (build: everything is stored)
  1    not warm: something compiled, missed, bypassed or was never run
  2    usage: option or spec
  3    this machine or build cannot do it
  4    busy: a lock was held too long
  5    a job failed in the compiler, raised, or gave a wrong result
  6    a worker died, hung or was killed
  7    the store is corrupt or tampered with
  8    unsafe: a call raises, hangs, crashes or runs dense attention, or would
  70   a bug in flexwarm
  130  interrupted (143: terminated, 129: hung up)
"""


@click.group(cls=LazyGroup, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", message="flexwarm %(version)s")
def cli() -> None:
    """Prove, before a launch, that flex_attention compiles nothing.

    \b
    flexwarm build spec.toml     compile, once, in the job's own layout
    flexwarm verify spec.toml    prove it in new processes; exit 0 is warm
    flexwarm clean --all         give the space back
    
    flexwarm build -- torchrun --nproc-per-node 8 train.py --steps 2
    flexwarm verify -- torchrun --nproc-per-node 8 train.py --steps 2
    flexwarm run -- torchrun --nproc-per-node 8 train.py
    """


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit; never returns and never lets an expected error show a traceback."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    session = Session(format=_format(arguments))
    # Whatever the user's umask: what lies in a store is run as code, so nobody else may write it.
    os.umask(os.umask(0o022) | 0o022)
    _raise_on_signals()
    _open_closed_streams()
    stdout, held = sys.stdout, io.StringIO()
    if not stdout.isatty():
        # Written at once when the command is done, so that an output that cannot be written stops no build half-way and
        # takes no exit code away.
        sys.stdout = held
    try:
        try:
            code = _run(arguments, session)
        finally:
            sys.stdout = stdout
        code = _write(held.getvalue(), code)
    except Interrupted as error:
        os._exit(session.exit_code(error.exit_code))  # while the last words were being said
    sys.exit(session.exit_code(code))


def _run(arguments: list[str], session: Session) -> int:
    """The exit code of a command; whatever it raises is said here."""
    try:
        result = cli.main(args=arguments, prog_name="flexwarm", standalone_mode=False, obj=session)
        if result is None and not session.command:
            return ExitCode.OK  # the group's own --help and --version
        if not isinstance(result, int):
            raise TypeError(f"a command returned {result!r} instead of an exit code")
        return int(result)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return ExitCode.USAGE
    except click.UsageError as error:
        hint = f"{error.ctx.command_path} --help" if error.ctx else "flexwarm --help"
        return session.fail(error.format_message(), f"try '{hint}'", ExitCode.USAGE)
    except click.exceptions.Exit as error:
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return session.fail("interrupted", "", ExitCode.INTERRUPTED)
    except Interrupted as error:
        what = {signal.SIGINT: "interrupted", signal.SIGHUP: "hung up"}.get(signal.Signals(error.signum), "terminated")
        return session.fail(f"{what}; no worker is left and the store is whole", "", error.exit_code)
    except FlexwarmError as error:
        return session.fail(error.message, error.hint, error.exit_code)
    except OSError as error:
        # The machine's doing, not ours: a full disk, a right that is missing, a directory that went away.
        if session.verbosity > 0:
            _print_traceback()
        failed = store_error(error, f"use {error.filename}" if error.filename else "go on")
        return session.fail(failed.message, failed.hint, failed.exit_code)
    except Exception:  # noqa: BLE001 - the edge: anything unexpected is our bug, shown with its traceback
        _print_traceback()
        return session.fail("this is a bug in flexwarm; please report it with the traceback above", "", ExitCode.BUG)


def _format(arguments: list[str]) -> str:
    """What the user asked for, also where the command line turns out to be wrong before the option was read."""
    asked = os.environ.get("FLEXWARM_FORMAT", "")
    arguments = arguments[: arguments.index("--")] if "--" in arguments else arguments  # the rest is a launch line's
    for position, argument in enumerate(arguments):
        if argument.startswith("--format="):
            asked = argument.partition("=")[2]
        elif argument == "--format" and position + 1 < len(arguments):
            asked = arguments[position + 1]
    return "json" if asked == "json" else "human"


def _open_closed_streams() -> None:
    """A stream that the caller closed is None; every write to it would be a traceback."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - for the rest of the process
        # A name that the terminal's encoding does not have must not end a command.
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _write(text: str, code: int) -> int:
    """Put the held output out; the exit code, which only an output that is lost can change."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        _silence(sys.stdout)  # the reader has what it wanted (`flexwarm ... | head`)
    except OSError as error:
        _silence(sys.stdout)
        _tell(f"flexwarm: standard output cannot be written: {error.strerror}\n")
        code = code or ExitCode.UNSUPPORTED
    _tell("")
    return int(code)


def _tell(text: str) -> None:
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except (OSError, ValueError):
        _silence(sys.stderr)  # there is nobody left to say it to


def _silence(stream: TextIO) -> None:
    """Let what is still in the stream's buffer go nowhere, or the interpreter's exit would fail on it again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _print_traceback() -> None:
    import traceback  # rarely needed, and it would make every start slower

    traceback.print_exc()


def _raise_on_signals() -> None:
    """SIGINT, SIGTERM and SIGHUP unwind the stack, so that workers are reaped and locks are let go."""

    def raise_interrupted(signum: int, frame: FrameType | None) -> None:
        # A second signal while unwinding must not cut the reaping short.
        for other in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(other, signal.SIG_IGN)
        raise Interrupted(signum)

    # A caller that ignores the end of its children makes ours be reaped by the kernel, and how they ended be lost.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(signum) is not signal.SIG_IGN:  # nohup asked for SIGHUP to be ignored
            signal.signal(signum, raise_interrupted)
