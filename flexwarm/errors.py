"""Every way in which flexwarm can be unable to go on: one sentence, one next step, one exit code.

A job that fails is a value in a record, not an exception. An exception that is not in this tree is a bug
and ends with exit code 70 and its traceback.
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """What the process returns; a contract with every CI step that calls flexwarm."""

    OK = 0
    NOT_WARM = 1
    USAGE = 2
    UNSUPPORTED = 3
    BUSY = 4
    JOB_FAILED = 5
    WORKER_DIED = 6
    CORRUPT = 7
    UNSAFE = 8
    BUG = 70
    HUNG_UP = 129
    INTERRUPTED = 130
    TERMINATED = 143


class FlexwarmError(Exception):
    """Base of all expected failures.

    Args:
        message: one sentence that names what is wrong and where.
        hint: what to do next, preferably a command; empty when the message says it.
    """

    exit_code: ExitCode = ExitCode.BUG

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message, hint)  # both arguments, so that the error survives pickling
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message


class UsageError(FlexwarmError):
    """An option that cannot be right."""

    exit_code = ExitCode.USAGE


class SpecError(UsageError):
    """A spec file that cannot be right; the message names the table and the key."""


class UnsupportedError(FlexwarmError):
    """This machine, Python or torch cannot do what was asked."""

    exit_code = ExitCode.UNSUPPORTED


class BusyError(FlexwarmError):
    """A lock was held by someone else for longer than the limit."""

    exit_code = ExitCode.BUSY


class WorkerError(FlexwarmError):
    """A worker could not be started at all."""

    exit_code = ExitCode.WORKER_DIED


class StoreError(FlexwarmError):
    """The store cannot be used as it is: rights, space, format."""

    exit_code = ExitCode.UNSUPPORTED


class CorruptError(FlexwarmError):
    """The store holds something that is not what was written; the message names the file."""

    exit_code = ExitCode.CORRUPT


class Interrupted(BaseException):
    """A signal asked the command to end. Not an ``Exception``: nothing but the command's edge may catch it.

    Args:
        signum: the signal's number.
    """

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum

    @property
    def exit_code(self) -> int:
        return 128 + self.signum
