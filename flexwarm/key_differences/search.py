"""The causes for which two keys differ."""

from __future__ import annotations

from flexwarm.key_differences.cause import Cause, CauseKind
from flexwarm.key_differences.changes import Changes
from flexwarm.key_differences.graph import graph, unread
from flexwarm.key_differences.inputs import INPUT_COUNT, inputs
from flexwarm.key_differences.machine import machine
from flexwarm.key_differences.modes import gradients, modes
from flexwarm.key_differences.pairs import Differences
from flexwarm.key_differences.settings import absent, call, kernels, settings
from flexwarm.key_differences.triton import kernel_causes
from flexwarm.key_parts import GRAPH, Key

#: From what explains much to what explains nothing. Each takes away what it has looked at.
_STEPS = (absent, machine, gradients, inputs, graph, call, modes, kernels, settings)
#: The layer whose keys are of kernels, and not of graphs.
_TRITON = "triton"
_RANK = {kind: rank for rank, kind in enumerate(CauseKind)}


def causes(old: Key, new: Key) -> list[Cause]:
    """What differs between a key that was built and one that is asked for, most telling first.

    What follows from something that is named is left out: code from shapes, most of all. Parts are compared by their
    digests alone; a part that is not known is named with its texts, so that there is a cause if any part differs.
    """
    differences, changes = Differences(old, new), Changes()
    if new.layer == _TRITON:
        found = kernel_causes(old, new)
    else:
        found = [cause for step in _STEPS for cause in step(differences, changes)]
        found = [cause for cause in found if not _is_captured(cause, changes)]
    return sorted(dict.fromkeys(found or _unknown(old, new)), key=lambda cause: _RANK[cause.kind])


def _is_captured(cause: Cause, changes: Changes) -> bool:
    """Whether the graph has as many more inputs as its mask and score functions capture tensors, and for that."""
    if cause.kind is not CauseKind.INPUTS or cause.subject != INPUT_COUNT:
        return False
    return int(cause.new) - int(cause.old) == sum(changes.captured.values())


def _unknown(old: Key, new: Key) -> list[Cause]:
    """What differs, if nothing of it is understood."""
    return [
        unread(pair) if group == GRAPH or pair.name == "gm" else Cause(CauseKind.OTHER, pair.name, *pair.texts)
        for group, pairs in Differences(old, new).left.items()
        for pair in pairs
    ]
