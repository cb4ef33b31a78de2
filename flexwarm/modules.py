"""Find a user's ``module:attribute`` in the source, without running it: importing it would import torch."""

from __future__ import annotations

import ast
import hashlib
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path

from flexwarm.errors import SpecError
from flexwarm.spec import Spec
from flexwarm.tables import suggestion
from flexwarm.workload import Function


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a function comes from. ``sha256`` is of the module's file, to explain a miss; None for a compiled module."""

    module: str
    path: str
    sha256: str | None


def search_path(environ: Mapping[str, str]) -> list[str]:
    """Where ``python -m`` started here looks: this directory, PYTHONPATH, then the installation."""
    extra = [entry for entry in environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    try:
        here = [os.getcwd()]
    except FileNotFoundError:  # somebody removed it
        here = []
    return [*here, *extra, *[entry for entry in sys.path if entry]]


def check_functions(spec: Spec, path: Sequence[str]) -> dict[str, Source]:
    """Find every user function of the spec.

    Returns:
        Module name -> its source.

    Raises:
        SpecError: a module or attribute is not there; the message names workload and key.
    """
    sources: dict[str, Source] = {}
    for workload in spec.workloads:
        for key, function in workload.functions:
            if not function.is_builtin:
                sources[function.module] = find(function, path, f"workload {workload.name!r}: {key}")
    return sources


def find(function: Function, path: Sequence[str], label: str) -> Source:
    """The source of one function's module, once its attribute is seen to be defined there."""
    found = _find_module(function.module, path, label)
    if found.origin is None or not found.origin.endswith(".py"):
        return Source(module=function.module, path=found.origin or "", sha256=None)
    try:
        data = Path(found.origin).read_bytes()
        tree = ast.parse(data)
    except (OSError, SyntaxError, ValueError) as error:
        raise SpecError(f"{label}: {found.origin} cannot be read as Python: {error}") from error
    names, open_ended = _defined_names(tree)
    if function.attribute not in names and not open_ended:
        raise SpecError(
            f"{label}: module {function.module!r} ({found.origin}) has no {function.attribute!r}",
            suggestion(function.attribute, sorted(names)),
        )
    return Source(module=function.module, path=found.origin, sha256=hashlib.sha256(data).hexdigest())


def _find_module(module: str, path: Sequence[str], label: str) -> ModuleSpec:
    """As the import system finds it, but without importing the parent packages on the way."""
    top, *rest = module.split(".")
    # An editable installation may be found by a hook of its own instead of on the path.
    found = PathFinder.find_spec(top, path) or find_spec(top)
    hint = f"looked in {path[0] if path else 'no directory'} (where you are), PYTHONPATH and the installation"
    if found is None:
        raise SpecError(f"{label}: there is no module {top!r}", hint)
    package = top
    for name in rest:
        # By its last name alone: with its full name the finder would ask for the parent, which was not imported.
        inside = found.submodule_search_locations
        found = PathFinder.find_spec(name, list(inside)) if inside is not None else None
        if found is None:
            raise SpecError(f"{label}: package {package!r} has no module {name!r}", hint)
        package = f"{package}.{name}"
    return found


def _defined_names(tree: ast.Module) -> tuple[set[str], bool]:
    """Names that the module's top level binds, and whether it may bind others that cannot be read off."""
    names: set[str] = set()
    open_ended = False
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
                open_ended |= name == "__getattr__"
            case ast.Name(id=name, ctx=ast.Store()):
                names.add(name)
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                for alias in aliases:
                    open_ended |= alias.name == "*"
                    names.add((alias.asname or alias.name).partition(".")[0])
            case ast.Call(func=ast.Name(id="globals" | "setattr" | "exec")):
                open_ended = True
    return names, open_ended
