"""The rich console that results are printed on."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

#: In a pipe or a CI log nobody's terminal decides where a line ends, so nothing is cut or wrapped early.
PIPE_COLUMNS = 160


def make_console(*, stderr: bool = False) -> Console:
    """A console for standard output (or error) as it is now: colours and width only where a person looks."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    # On a terminal rich asks for the width at each print, so that a table follows a window that is resized.
    return Console(file=stream, width=None if stream.isatty() else PIPE_COLUMNS, highlight=False, emoji=False)
