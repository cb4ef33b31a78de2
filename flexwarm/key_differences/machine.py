"""What differs in torch, Triton, CUDA and the GPU."""

from __future__ import annotations

import re
from itertools import zip_longest

from flexwarm.key_differences.cause import UNSET, Cause, CauseKind
from flexwarm.key_differences.changes import Changes
from flexwarm.key_differences.pairs import DIGEST, Differences, Pair, shortened
from flexwarm.key_parts import Part

#: What torch has among the versions of the system.
_VERSIONS = (
    ("triton", CauseKind.TRITON, "Triton"),
    ("cuda", CauseKind.CUDA, "CUDA"),
    ("hip", CauseKind.CUDA, "HIP"),
)
#: A digest of sources that torch sets behind Triton's version.
_SOURCES = re.compile(r"[0-9a-f]{64}\b")


def machine(differences: Differences, changes: Changes) -> list[Cause]:
    found = []
    torch = differences.take_one("", "torch_version")
    if torch:
        changes.torch = True
        found.append(Cause(CauseKind.TORCH, "torch", *torch.contents))
    system = {pair.setting: pair for pair in differences.take("system_info")}
    device, version = system.get("device"), system.get("version")
    known = [_gpu(device)] if device else []
    if version and not (device and version.lone):  # without a GPU there are no versions either
        known += _versions(version)
    if system and not known:
        known = [Cause(CauseKind.GPU, "the GPU, Triton or CUDA", *(version or next(iter(system.values()))).texts)]
    return found + known


def _gpu(pair: Pair) -> Cause:
    old, new = _entry(pair.old, "name") or UNSET, _entry(pair.new, "name") or UNSET
    return Cause(CauseKind.GPU, "the GPU", *((old, new) if old != new else pair.texts))


def _versions(pair: Pair) -> list[Cause]:
    entries = ((kind, subject, _entry(pair.old, name), _entry(pair.new, name)) for name, kind, subject in _VERSIONS)
    return [Cause(kind, subject, *_version(old, new)) for kind, subject, old, new in entries if old != new]


def _version(old: str, new: str) -> tuple[str, str]:
    """Two versions that differ; with the beginnings of the digests if it is in the sources."""
    first, second = (_SOURCES.split(text)[0] or UNSET for text in (old, new))
    if first != second:
        return first, second
    for one, other in zip_longest(_SOURCES.findall(old), _SOURCES.findall(new), fillvalue="none"):
        if one != other:
            return f"{first} ({one[:DIGEST]})", f"{second} ({other[:DIGEST]})"
    return shortened(old, new)


def _entry(part: Part | None, name: str) -> str:
    """The value of a name in the text of a dictionary."""
    found = re.search(rf"'{name}': (?:'([^']*)'?|([^,}}]+))", part.text) if part else None
    return (found[1] or found[2] or "") if found else ""
