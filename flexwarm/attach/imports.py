"""Act when a module has been imported, whoever imports it: a program loads torch's compilers in its own time."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_waiting: dict[str, list[Callable[[], None]]] = {}
#: Around the import of each module that is waited for.
around: Callable[[], AbstractContextManager[None]] = nullcontext
_finding = threading.local()


def after(name: str, action: Callable[[], None]) -> None:
    """Run ``action`` once the module is there: now if it is, else at the end of its import, in the importing thread."""
    module = sys.modules.get(name)
    if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
        action()
        return
    if not _waiting:
        sys.meta_path.insert(0, _Finder())
    _waiting.setdefault(name, []).append(action)


class _Finder(MetaPathFinder):
    """Asks the other finders, and adds what waits for the module to the end of its loading."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in _waiting or getattr(_finding, "name", "") == fullname:
            return None
        spec = None
        _finding.name = fullname
        try:
            for finder in list(sys.meta_path):
                find = getattr(finder, "find_spec", None)
                spec = find(fullname, path, target) if find is not None and finder is not self else None
                if spec is not None:
                    break
        finally:
            _finding.name = ""
        if spec is not None and hasattr(spec.loader, "exec_module"):
            _add_to(spec.loader, fullname)
        return spec


def _add_to(loader: Any, name: str) -> None:
    load = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        del loader.exec_module
        with around():
            load(module)
        for action in _waiting.pop(name, ()):
            action()

    loader.exec_module = exec_module
