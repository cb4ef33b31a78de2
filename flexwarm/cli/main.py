"""The one edge of the program: signals in, every error to a sentence and an exit code, commands loaded lazily."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from types import FrameType
from typing import NoReturn

import click

from flexwarm import __version__
from flexwarm.cli.session import Session
from flexwarm.errors import ExitCode, FlexwarmError, Interrupted
from flexwarm.files import store_error

#: Command -> the module that holds it. A module is imported only when its command is asked for,
#: so that `flexwarm --help` and `verify --fast` start without paying for the others.
COMMANDS: dict[str, tuple[str, str]] = {
    "fingerprint": ("flexwarm.cli.fingerprint", "Print what compiled kernels here depend on; compare with a bucket."),
    "build": ("flexwarm.cli.build", "Compile what a spec needs and is cold; publish it in the bucket."),
    "verify": ("flexwarm.cli.verify", "Prove in new processes that a launch compiles nothing."),
    "env": ("flexwarm.cli.env", "Print the variables a launch needs to use the bucket."),
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
  8    unsafe: warm, but a hazard is open
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
    """


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit; never returns and never lets an expected error show a traceback."""
    session = Session()
    # Whatever the user's umask: what lies in a store is run as code, so nobody else may write it.
    os.umask(os.umask(0o022) | 0o022)
    _raise_on_signals()
    try:
        result = cli.main(args=argv, prog_name="flexwarm", standalone_mode=False, obj=session)
        _flush()
        if not isinstance(result, int):
            raise TypeError(f"a command returned {result!r} instead of an exit code")
        code = int(result)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        code = ExitCode.USAGE
    except click.UsageError as error:
        hint = f"{error.ctx.command_path} --help" if error.ctx else "flexwarm --help"
        code = session.fail(error.format_message(), f"try '{hint}'", ExitCode.USAGE)
    except click.exceptions.Exit as error:
        code = error.exit_code
    except (click.Abort, KeyboardInterrupt):
        code = session.fail("interrupted", "", ExitCode.INTERRUPTED)
    except Interrupted as error:
        what = {signal.SIGINT: "interrupted", signal.SIGHUP: "hung up"}.get(signal.Signals(error.signum), "terminated")
        code = session.fail(f"{what}; no worker is left and the store is whole", "", error.exit_code)
    except FlexwarmError as error:
        code = session.fail(error.message, error.hint, error.exit_code)
    except BrokenPipeError:
        # The reader of our output went away (`flexwarm ... | head`): not a fault of the command, and nothing to say it to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = ExitCode.NOT_WARM
    except OSError as error:
        # The machine's doing, not ours: a full disk, a right that is missing, a directory that went away.
        if session.verbosity > 0:
            _print_traceback()
        failed = store_error(error, f"use {error.filename}" if error.filename else "go on")
        code = session.fail(failed.message, failed.hint, failed.exit_code)
    except Exception:  # noqa: BLE001 - the edge: anything unexpected is our bug, shown with its traceback
        _print_traceback()
        code = session.fail("this is a bug in flexwarm; please report it with the traceback above", "", ExitCode.BUG)
    sys.exit(int(code))


def _print_traceback() -> None:
    import traceback  # rarely needed, and it would make every start slower

    traceback.print_exc()


def _flush() -> None:
    """Flush here, where a closed pipe is still handled, and not in the interpreter's exit."""
    sys.stdout.flush()


def _raise_on_signals() -> None:
    """SIGINT, SIGTERM and SIGHUP unwind the stack, so that workers are reaped and locks are let go."""

    def raise_interrupted(signum: int, frame: FrameType | None) -> None:
        # A second signal while unwinding must not cut the reaping short.
        for other in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(other, signal.SIG_IGN)
        raise Interrupted(signum)

    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(signum) is not signal.SIG_IGN:  # nohup asked for SIGHUP to be ignored
            signal.signal(signum, raise_interrupted)
