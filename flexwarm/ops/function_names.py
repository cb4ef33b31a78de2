"""How a spec names a mask or score function that a launch called: decided by its source, for importing it imports torch."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from flexwarm import modules
from flexwarm.calls import FunctionRef
from flexwarm.commandline import python_program
from flexwarm.errors import SpecError
from flexwarm.programs import LaunchRecord, ProgramRecord
from flexwarm.recorded_calls import Named, Unnamed
from flexwarm.workload import Function

#: How Python calls the module that is run, and how multiprocessing calls it in the processes that it spawns.
_MAIN = ("__main__", "__mp_main__")
#: A parameter of a factory with such a name is what a worker gives first.
_CONTEXT = ("context", "ctx")
_LOCALS = "<locals>"


def name_function(function: FunctionRef, path: Sequence[str]) -> Named | Unnamed:
    """The function's name in a spec.

    Args:
        path: where a worker looks for modules.
    """
    try:
        tree = ast.parse(Path(function.file).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return Unnamed(why=f"{function.name} has no source that could be read")
    parts = function.name.split(".")
    if "<lambda>" in parts:
        return Unnamed(why="a function of it is a lambda, which no module has by name")
    if len(parts) not in (1, 3) or (len(parts) == 3 and parts[1] != _LOCALS):
        return Unnamed(why=f"{function.name} is neither a function of a module nor made by one")
    module = _module(function, tree, path)
    if isinstance(module, Unnamed):
        return module
    definition = _definition(tree, parts[0])
    if definition is None:
        return Unnamed(why=f"module {module} does not bind {parts[0]} once, to a function without decorators")
    changed = _changed(function, tree, definition)
    if changed:
        return Unnamed(why=changed)
    if len(parts) == 1:
        return _plain(function, definition, module)
    return _made(function, definition, module, parts[2])


def _plain(function: FunctionRef, definition: ast.FunctionDef, module: str) -> Named | Unnamed:
    if definition.lineno != function.line:
        return Unnamed(why=f"{function.name} of module {module} is not the function that was called")
    bound = [name for name in _parameters(definition) if name in function.captured]
    if bound:
        return Unnamed(why=f"{function.name} is called through functools.partial, which no module has by name")
    return Named(name=f"{module}:{function.name}")


def _made(function: FunctionRef, factory: ast.FunctionDef, module: str, inner: str) -> Named | Unnamed:
    """The factory's name, with the arguments that it must have had."""
    found = [x for x in ast.walk(factory) if isinstance(x, ast.FunctionDef) and x.name == inner and x.lineno == function.line]
    returned = [x for x in ast.walk(factory) if isinstance(x, ast.Return) and isinstance(x.value, ast.Name)]
    if not found or inner not in [x.value.id for x in returned if isinstance(x.value, ast.Name)]:
        return Unnamed(why=f"{factory.name} of module {module} does not return {inner} as it is")
    arguments = factory.args
    if arguments.posonlyargs or arguments.vararg or arguments.kwarg:
        return Unnamed(why=f"{factory.name} of module {module} has parameters that a spec cannot give by name")
    stored = {x.id for x in ast.walk(factory) if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store)}
    args: dict[str, Any] = {}
    for number, name in enumerate(_parameters(factory)):
        value = function.captured.get(name)
        if isinstance(value, (bool, int, float)) or (isinstance(value, str) and not value.startswith("<")):
            if name in stored:
                return Unnamed(
                    why=f"{factory.name} of module {module} changes its parameter {name}, so what it was given is lost"
                )
            args[name] = value
        elif not (number == 0 and name in _CONTEXT):
            return Unnamed(
                why=f"what {factory.name} of module {module} was given as {name} is not known: {inner} does not capture it as "
                "a number, a text or a truth value"
            )
    return Named(name=f"{module}:{factory.name}", args=args)


def _parameters(function: ast.FunctionDef) -> list[str]:
    arguments = function.args
    return [x.arg for x in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]


def _definition(tree: ast.Module, name: str) -> ast.FunctionDef | None:
    """The module's function of that name, if nothing else at its top level has the name."""
    bound = [node for node in _top_level(tree.body) if name in _binds(node)]
    if len(bound) != 1 or not isinstance(bound[0], ast.FunctionDef) or bound[0].decorator_list:
        return None
    return bound[0]


def _top_level(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that are run when the module is imported, or may be."""
    for node in body:
        yield node
        for name in ("body", "orelse", "finalbody"):
            if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                yield from _top_level(getattr(node, name, []))
        for handler in getattr(node, "handlers", []):
            yield from _top_level(handler.body)


def _binds(node: ast.stmt) -> set[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return {name}
        case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
            return {(alias.asname or alias.name).partition(".")[0] for alias in aliases}
        case ast.Assign(targets=targets):
            return {x.id for target in targets for x in ast.walk(target) if isinstance(x, ast.Name)}
        case ast.AnnAssign(target=ast.Name(id=name)) | ast.AugAssign(target=ast.Name(id=name)):
            return {name}
    return set()


def _changed(function: FunctionRef, tree: ast.Module, definition: ast.FunctionDef) -> str:
    """A number of its module that the function reads and that the program has set otherwise; empty if there is none."""
    local = {*_parameters(definition)}
    local |= {x.id for x in ast.walk(definition) if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store)}
    for name, value in function.captured.items():
        if name in local or not isinstance(value, (bool, int, float, str)):
            continue
        bound = [node for node in _top_level(tree.body) if name in _binds(node)]
        written = [x.value.value for x in bound if isinstance(x, ast.Assign) and isinstance(x.value, ast.Constant)]
        if written and len(written) == len(bound) and value not in written:
            return f"{function.name} reads {name}, which the program has set to {value!r} and its module to {written[-1]!r}"
    return ""


# ---- modules ---------------------------------------------------------------------------------------------------------------


def _module(function: FunctionRef, tree: ast.Module, path: Sequence[str]) -> str | Unnamed:
    """The name under which a worker finds the function's module."""
    top = function.name.partition(".")[0]
    if function.module not in _MAIN:
        name = function.module
        if not all(part.isidentifier() for part in name.split(".")):
            return Unnamed(why=f"{function.name} is in no module that has a name")
    else:
        found = module_name(function.file, path)
        if found is None:
            return Unnamed(why=f"{function.name} is in {function.file}, which cannot be imported by name from this directory")
        if not _guarded(tree):
            return Unnamed(
                why=f"{function.name} is in {function.file}, which has no if __name__ == '__main__', so importing it runs it"
            )
        name = found
    try:
        source = modules.find(Function(name=f"{name}:{top}"), path, top)
    except SpecError:
        return Unnamed(why=f"a worker does not find {top} in a module {name}: it looks in this directory and in PYTHONPATH")
    if not _same_file(source.path, function.file):
        return Unnamed(why=f"a worker finds another module {name}, {source.path}, than the job did, {function.file}")
    return name


def module_name(file: str, path: Sequence[str]) -> str | None:
    """The name by which a file is imported, from the directory nearest to it of those in ``path``."""
    for entry in sorted({os.path.realpath(x) for x in path}, key=len, reverse=True):
        relative = os.path.relpath(os.path.realpath(file), entry)
        parts = relative.removesuffix(".py").split(os.sep)
        if relative.endswith(".py") and all(part.isidentifier() for part in parts):
            packages = [os.path.join(entry, *parts[:number], "__init__.py") for number in range(1, len(parts))]
            if all(os.path.isfile(package) for package in packages):
                return ".".join(parts)
    return None


def _guarded(tree: ast.Module) -> bool:
    """Whether the module looks at how it was started, as a script does that may be imported."""
    for node in tree.body:
        if isinstance(node, ast.If) and isinstance(node.test, ast.Compare):
            sides = [node.test.left, *node.test.comparators]
            names = [x.id for x in sides if isinstance(x, ast.Name)]
            values = [x.value for x in sides if isinstance(x, ast.Constant)]
            if names == ["__name__"] and values == ["__main__"]:
                return True
    return False


def _same_file(one: str, other: str) -> bool:
    return bool(one) and os.path.realpath(one) == os.path.realpath(other)


def script_modules(record: LaunchRecord, path: Sequence[str]) -> Mapping[tuple[str, int], str]:
    """(host, pid) of each program -> the module that holds its script, or would if it had a name that can be imported."""
    programs = {(program.program.host, program.program.pid): program for program in record.programs}
    found = {key: _script_module(program, programs, path) for key, program in programs.items()}
    return {key: name for key, name in found.items() if name}


def _script_module(program: ProgramRecord, programs: Mapping[tuple[str, int], ProgramRecord], path: Sequence[str]) -> str:
    seen: set[tuple[str, int]] = set()
    while (key := (program.program.host, program.program.pid)) not in seen:
        seen.add(key)
        kind, name = python_program(program.program.argv)
        if kind == "-m" and all(part.isidentifier() for part in name.split(".")):
            return name
        if not kind and name:
            stem = os.path.basename(name).removesuffix(".py")
            text = "".join(char if char.isalnum() and char.isascii() else "_" for char in stem)
            return module_name(name, path) or (text if text.isidentifier() else "")
        # A process that another one has spawned runs that one's script.
        program = programs.get((program.program.host, program.program.parent), program)
    return ""
