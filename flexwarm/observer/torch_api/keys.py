"""What torch says of what went into a key of its graph caches: one line for each part, with a digest. Read in 2.9 to 2.14.1."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterable
from types import ModuleType
from typing import Any

import torch

from flexwarm import canonical
from flexwarm.key_parts import GRAPH, Part

#: Characters that are kept of a part's text, and of the code of a graph.
_TEXT, _CODE = 2_000, 20_000
_LINE = re.compile(r"\[(\w+)\] ([^:\[]*(?:\[.*?\])?): (.*)", re.DOTALL)


def say_parts_of_aot_keys(module: ModuleType) -> None:
    """From 2.13 on AOTAutograd says them only where it logs them, to save time; here also of a key that it has nothing of."""
    lines = getattr(module, "_get_debug_lines_for_cache_key", None)
    if lines is None:
        return

    @functools.wraps(lines)
    def always_lines(pickler: Any, details: Any, key: str) -> list[str]:
        said: list[str] = lines(pickler, details, key)
        try:
            if said or os.path.isdir(module.AOTAutogradCache._get_tmp_dir_for_key(key)):
                return said
            return list(pickler.debug_lines(details))
        except Exception:  # noqa: BLE001 - an error here would be a bypass, of a key that is made already
            return []

    module._get_debug_lines_for_cache_key = always_lines  # type: ignore[attr-defined]


def parts(lines: Iterable[str], graph: Any) -> list[Part]:
    """The parts of a key.

    Args:
        lines: as torch says them.
        graph: the module that was asked for, or what wraps it. Of graphs inside of it, such as a mask function, torch says
            nothing but the digest of the whole.
    """
    found = []
    for line in lines:
        match = _LINE.fullmatch(line)
        if match is not None:
            digest, name, text = match.groups()
            # torch's text of the graph is the code of the outermost alone.
            found.append(Part(name=name, digest=digest, text="" if name == "gm" else text[:_TEXT]))
    module = getattr(graph, "gm", graph)
    inside = module.named_modules() if isinstance(module, torch.nn.Module) else ()
    for name, one in inside:
        if isinstance(one, torch.fx.GraphModule):
            code = str(one.code).strip()
            where = f"{GRAPH}.{name}" if name else GRAPH
            found.append(Part(name=where, digest=canonical.digest(code), text=code[:_CODE]))
    return found
