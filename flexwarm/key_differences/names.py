"""The names of a graph's inputs, of what torch says of where Dynamo took them from."""

from __future__ import annotations

import re

from flexwarm.key_differences.pairs import items, part
from flexwarm.key_parts import Key

#: Which field of what AOTAutograd was asked for says where the inputs come from.
SOURCES = 5
_STEP = re.compile(r"(?:local_name|global_name|member|index)='?([\w.]+)'?")
#: Steps that a user does not write.
_SILENT = {"_modules", "_parameters", "_buffers", "__dict__", "__closure__", "__self__"}


def source(text: str) -> str:
    """``block_mask.kv_indices`` of Dynamo's description of where an input comes from; the text itself if it has no names."""
    return ".".join(name for name in _STEP.findall(text) if name not in _SILENT) or text


def input_names(key: Key, count: int) -> list[str]:
    """The name of each input, or its number where that is not known: Inductor's keys have none.

    Args:
        count: how many inputs there are.
    """
    numbers = [str(number) for number in range(count)]
    config = part(key, "", "aot_config")
    fields = items(config.text[1:].removesuffix(")")) if config else []
    if len(fields) <= SOURCES or not fields[SOURCES].startswith("["):
        return numbers
    whole = fields[SOURCES].endswith("]")
    sources = items(fields[SOURCES][1:].removesuffix("]"))
    if not whole:
        sources.pop()  # the text was cut in it
    if len(sources) > count or (whole and len(sources) < count):
        return numbers  # it is not known which is which
    known = [source(text) if _STEP.search(text) else number for text, number in zip(sources, numbers, strict=False)]
    return [*known, *numbers[len(known) :]]
