"""The user's spec, from its file."""

from __future__ import annotations

from pathlib import Path

from flexwarm import spec
from flexwarm.errors import UsageError
from flexwarm.spec import Spec


def read_spec(path: Path) -> Spec:
    """The spec in a file.

    Raises:
        UsageError: it cannot be read.
        SpecError: it cannot be right.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        hint = "name one: flexwarm build SPEC; examples/cpu.toml is one to begin with"
        raise UsageError(f"there is no spec file {path}", hint) from error
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UsageError(f"the spec file {path} cannot be read: {why}", "name a TOML file that you can read") from error
    return spec.parse(text, str(path))
