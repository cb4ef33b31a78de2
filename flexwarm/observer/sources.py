"""Which files a user's functions came from: their module and all that it imported, so that a change of any is seen."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Set
from pathlib import Path
from types import ModuleType

from flexwarm.files import file_digest


def loaded_since(baseline: Set[str], began_unix: float, *, packages: bool = True) -> dict[str, str]:
    """Path -> SHA-256 of the files of modules that are not in ``baseline``, without Python's own and torch's.

    Those two are in the fingerprint by version. A module in an archive is the archive; one that was made in memory has no
    file. The digest is empty, and then proves nothing, for a file that cannot be read or that was written since
    ``began_unix``: what was imported may not be what lies there now.

    Args:
        packages: those of installed packages too.
    """
    own = [Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")]
    installed = [Path(sysconfig.get_path(name)).resolve() for name in ("purelib", "platlib")]
    skipped = [directory / name for directory in installed for name in ("torch", "triton")]
    found = {}
    for name in sorted(set(sys.modules) - baseline):
        module = sys.modules.get(name)
        # By its own dictionary: a lazy module's attribute access may import, or raise.
        origin = vars(module).get("__file__") if isinstance(module, ModuleType) else None
        if not isinstance(origin, str):
            continue
        path = Path(origin).resolve()
        while not path.exists() and path != path.parent:
            path = path.parent
        in_installation = any(path.is_relative_to(directory) for directory in installed)
        if not path.is_file() or any(path.is_relative_to(directory) for directory in skipped):
            continue
        if in_installation and not packages:
            continue
        if not in_installation and any(path.is_relative_to(directory) for directory in own):
            continue
        found[str(path)] = "" if path.stat().st_ctime > began_unix else file_digest(path)
    return found
