"""What torch says of what went into a key of its graph caches: one line for each part, with a digest. Read in 2.9 to 2.14.1."""

from __future__ import annotations

import functools
import os
import pickle
import re
from collections.abc import Iterable
from types import ModuleType
from typing import Any

import torch

from flexwarm import canonical
from flexwarm.key_parts import GRAPH, Part
from flexwarm.observer.torch_api.modes import text_of

#: Characters that are kept of a part's text, and of the code of a graph.
_TEXT, _CODE = 2_000, 20_000
#: Of what AOTAutograd was asked for, which names every input.
_NAMES = 8_000
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


def _aot_settings() -> list[Part]:
    """AOTAutograd's settings as the calling thread sees them, which are one part of its key: ``autograd_config[name]``."""
    from torch._functorch import config

    settings = pickle.loads(config.save_config())
    return [
        Part(name=f"autograd_config[{name}]", digest=canonical.digest(text), text=text[:_TEXT])
        for name, value in sorted(settings.items())
        if not name.startswith("_") and (text := text_of(value))
    ]


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
            most = _NAMES if name == "aot_config" else _TEXT
            # torch's text of the graph is the code of the outermost alone, and that of AOTAutograd's settings a pickle.
            found.append(Part(name=name, digest=digest, text="" if name in ("gm", "autograd_config") else text[:most]))
            if name == "autograd_config":
                found += _aot_settings()
    module = getattr(graph, "gm", graph)
    inside = module.named_modules() if isinstance(module, torch.nn.Module) else ()
    for name, one in inside:
        if isinstance(one, torch.fx.GraphModule):
            code = str(one.code).strip()
            where = f"{GRAPH}.{name}" if name else GRAPH
            found.append(Part(name=where, digest=canonical.digest(code), text=code[:_CODE]))
    return found
