"""What goes into Triton's key of a kernel, and the moment at which its cache does not have it. Read in Triton 3.6 to 3.9.

``triton.compiler.compiler.compile`` calls globals of its module: ``make_backend``, ``get_cache_key(src, backend, options,
env_vars)``, ``get_cache_manager(hash)``, and only where nothing is stored the backend's ``add_stages``.
"""

from __future__ import annotations

import functools
import hashlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flexwarm import canonical
from flexwarm.key_parts import GENERATED, KERNEL, Part

_NAMES = ("make_backend", "get_cache_key", "get_cache_manager")
#: Characters that are kept of a part's text, and of the source of a kernel.
_TEXT, _CODE = 500, 20_000


@dataclass(slots=True)
class Kernel:
    """A kernel that Triton is asked for.

    Attributes:
        hash: Triton's key, 64 hexadecimal digits; empty until it is known.
    """

    source: Any
    backend: Any
    options: Any
    variables: Mapping[str, str]
    hash: str = ""

    @property
    def name(self) -> str:
        return str(getattr(self.source, "name", "kernel"))

    def parts(self) -> list[Part]:
        """The parts of its key, as torch's keys have theirs."""
        found = [
            _part("triton", _triton_key(), _triton_version()),
            _part("target", f"{self.backend.target}"),
            _part("backend", str(self.backend.hash())),
            *_hook(),
            *_source(self.source),
            *_options(self.options),
        ]
        return [*found, *(_part(f"environment[{name}]", value) for name, value in sorted(self.variables.items()))]


class _Here(threading.local):
    def __init__(self) -> None:
        self.kernel: Kernel | None = None


def watch(on_miss: Callable[[Kernel], None]) -> bool:
    """Call ``on_miss`` with each kernel that the cache does not have, before it is compiled.

    Returns:
        False where this Triton has not what that takes.
    """
    from triton.compiler import compiler

    if not all(callable(getattr(compiler, name, None)) for name in _NAMES):
        return False
    here = _Here()
    make_backend, get_cache_key, get_cache_manager = (getattr(compiler, name) for name in _NAMES)

    @functools.wraps(make_backend)
    def watched_backend(*args: Any, **kwargs: Any) -> Any:
        backend = make_backend(*args, **kwargs)
        add_stages = backend.add_stages
        if getattr(add_stages, "tells_flexwarm", False):
            return backend  # one that was made before

        @functools.wraps(add_stages)
        def reporting_stages(*args: Any, **kwargs: Any) -> Any:
            kernel, here.kernel = here.kernel, None
            if kernel is not None:
                on_miss(kernel)
            return add_stages(*args, **kwargs)

        reporting_stages.tells_flexwarm = True  # type: ignore[attr-defined]
        with suppress(AttributeError):  # where it takes none, Triton's own report, after the compile, is all there is
            backend.add_stages = reporting_stages
        return backend

    @functools.wraps(get_cache_key)
    def remembering_key(*args: Any, **kwargs: Any) -> Any:
        here.kernel = _asked(args, kwargs)
        return get_cache_key(*args, **kwargs)

    @functools.wraps(get_cache_manager)
    def remembering_manager(*args: Any, **kwargs: Any) -> Any:
        if here.kernel is not None and not here.kernel.hash:
            here.kernel.hash = str(next(iter((*args, *kwargs.values())), ""))
        return get_cache_manager(*args, **kwargs)

    compiler.make_backend, compiler.get_cache_key = watched_backend, remembering_key
    compiler.get_cache_manager = remembering_manager
    return True


def _asked(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Kernel | None:
    """The kernel that a key is made for; None of another Triton, whose arguments are not these."""
    values = [*args, *kwargs.values()]
    return Kernel(values[0], values[1], values[2], values[3]) if len(values) == 4 else None


def _hook() -> Iterator[Part]:
    """What a user's hook adds to every key."""
    from triton import knobs

    hook = getattr(knobs.runtime, "add_stages_inspection_hook", None)
    if hook is not None:
        yield _part("add_stages_inspection_hook", str(hook()[0]))


def _part(name: str, value: str, text: str | None = None) -> Part:
    digest = value if len(value) <= 64 else canonical.digest(value)
    return Part(name=name, digest=digest, text=value[:_TEXT] if text is None else text)


def _triton_key() -> str:
    from triton.runtime.cache import triton_key

    return str(triton_key())


def _triton_version() -> str:
    import triton

    return str(triton.__version__)


def _source(source: Any) -> Iterator[Part]:
    """The kernel's code and what it is specialised for; of one that is given as IR, that alone."""
    function = getattr(source, "fn", None)
    if function is None:
        text = str(source.src)
        yield _part(KERNEL, str(source.name))
        yield _part("source", canonical.digest(text), text[:_CODE])
        return
    yield _part(KERNEL, str(source.name))
    # The function's key is of its text, its line, and the functions and constants that it uses.
    generated = _is_generated(function)
    yield _part("source", str(function.cache_key), GENERATED if generated else str(function.src)[:_CODE])
    if not generated:
        yield _part("line", str(function.starting_line_number))
        for name, called in sorted(_called(function, {}).items()):
            yield _part(f"calls[{name}]", canonical.digest(str(called.src)), str(called.src)[:_CODE])
    for (name, _), (value, _) in function.used_global_vals.items():
        if type(value).__name__ == "constexpr":  # others may not change, and are in no key
            yield _part(f"global[{name}]", str(value))
    names = list(function.arg_names)
    for name, kind in source.signature.items():
        yield _part(f"signature[{name}]", str(kind))
    for path, value in source.constants.items():
        yield _part(f"constants[{_argument(names, path)}]", str(getattr(value, "cache_key", value)), str(value)[:_TEXT])
    for path, attributes in source.attrs.items():
        yield _part(f"attributes[{_argument(names, path)}]", str(attributes))


def _called(function: Any, found: dict[str, Any]) -> dict[str, Any]:
    """Kernels that a kernel calls, and those that these call, by name; of a module's attributes nothing is known."""
    code = getattr(function.fn, "__code__", None)
    for name in code.co_names if code is not None else ():
        value = function.fn.__globals__.get(name)
        if name not in found and hasattr(value, "cache_key") and hasattr(value, "src"):
            found[name] = value
            _called(value, found)
    return found


def _argument(names: list[str], path: Any) -> str:
    """``x``, or ``x.1`` of a tuple's second item."""
    first, *rest = path if isinstance(path, tuple) else (path,)
    name = names[first] if isinstance(first, int) and first < len(names) else str(first)
    return ".".join([name, *map(str, rest)])


def _is_generated(function: Any) -> bool:
    """Whether Inductor wrote it: the graph's key explains it, and its text is long."""
    cache = os.environ.get("TORCHINDUCTOR_CACHE_DIR", "")
    return bool(cache) and str(function.fn.__code__.co_filename).startswith(os.path.join(cache, ""))


def _options(options: Any) -> Iterator[Part]:
    for name, value in sorted(vars(options).items()):
        if name == "extern_libs":  # in the key by what is in them, and not by where they are
            for library, path in sorted(value):
                yield _part(f"library[{library}]", hashlib.sha256(Path(path).read_bytes()).hexdigest(), str(library))
        else:
            yield _part(f"options[{name}]", str(value))
