"""Which files a user's functions came from: their module and all that it imported, so that a change of any is seen."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Set
from pathlib import Path

from flexwarm.files import file_digest


def loaded_since(baseline: Set[str]) -> dict[str, str]:
    """Path -> SHA-256 of the files of modules that are not in ``baseline``, without Python's own and torch's.

    Those two are in the fingerprint by version. A file that cannot be read any more has the digest of nothing, which no
    file has later.
    """
    own = [Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")]
    installed = [Path(sysconfig.get_path(name)).resolve() for name in ("purelib", "platlib")]
    skipped = [directory / name for directory in installed for name in ("torch", "triton")]
    found = {}
    for name in sorted(set(sys.modules) - baseline):
        origin = getattr(sys.modules[name], "__file__", None)
        if not origin:
            continue
        path = Path(origin).resolve()
        in_installation = any(path.is_relative_to(directory) for directory in installed)
        if any(path.is_relative_to(directory) for directory in skipped):
            continue
        if not in_installation and any(path.is_relative_to(directory) for directory in own):
            continue
        found[str(path)] = file_digest(path)
    return found
