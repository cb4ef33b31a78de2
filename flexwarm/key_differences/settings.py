"""What differs in how a graph is called and compiled: torch's settings and arguments."""

from __future__ import annotations

import re
from itertools import zip_longest

from flexwarm.key_differences.cause import UNSET, Cause, CauseKind
from flexwarm.key_differences.changes import Changes
from flexwarm.key_differences.devices import move
from flexwarm.key_differences.names import SOURCES, source
from flexwarm.key_differences.pairs import Differences, Pair, items, part, shortened, switch

_CONFIGURATIONS = ("autograd_config", "inductor_config", "inductor_config_comms")
#: Arguments of Inductor that say yes or no, in a user's words.
_ARGUMENTS = {
    "cudagraphs": "use of CUDA graphs",
    "cpp_wrapper": "use of the C++ wrapper",
    "fx_wrapper": "use of the FX wrapper",
    "aot_mode": "compiling ahead of time",
    "layout_opt": "layout optimization",
}
#: Other parts that are settings, and those of them that a user knows by another name.
_KNOWN = re.compile(
    r"_pass(es)?\b|_pass_|^cache_key_tag|^provenance_|^precompile_|partitioner|^compile_on_|_config|cudagraph|budget"
)
_SPOKEN = {
    "autograd_config": "the configuration of AOTAutograd",
    "cudagraph_override": "use of CUDA graphs",
    "cudagraph_annotation": "use of CUDA graphs",
    "region_activation_memory_budget": "the memory budget of activations",
}
_IN_PLACE = "the list of inputs that stay in place"
#: The fields of what AOTAutograd was asked for, in the order in which torch has them.
_AOT_FIELDS = (
    (CauseKind.INPUTS, "the number of parameters and buffers"),
    (CauseKind.SETTING, "keep_inference_input_mutations"),
    (CauseKind.SETTING, "is_export"),
    (CauseKind.SETTING, "no_tangents"),
    (CauseKind.DYNAMIC, "dynamic_shapes"),
    (CauseKind.INPUTS, "the source of the inputs"),
    (CauseKind.INPUTS, _IN_PLACE),
)


def absent(differences: Differences, changes: Changes) -> list[Cause]:
    """All settings of one kind, that one of the keys lacks: they are not named one by one."""
    found = []
    if differences.left.get("autograd_config"):
        whole = differences.take_one("", "autograd_config")  # what differs in it is named
        sides = [key.groups.get("autograd_config") for key in (differences.old, differences.new)]
        if (
            None in sides
            and whole is None
            and any(part(key, "", "autograd_config") for key in (differences.old, differences.new))
        ):
            differences.take("autograd_config")  # an earlier flexwarm kept them as a whole, which is the same
    for group in _CONFIGURATIONS:
        sides = [key.groups.get(group) for key in (differences.old, differences.new)]
        if None in sides and len(differences.left.get(group, ())) > 1:
            differences.take(group)
            found.append(Cause(CauseKind.OTHER, group, *(f"{len(side.parts)} settings" if side else UNSET for side in sides)))
    return found


def call(differences: Differences, changes: Changes) -> list[Cause]:
    """How the graph is called: which inputs stay in place, where they come from."""
    static = differences.take_one("fx_kwargs", "fx_kwargs[static_input_idxs]")
    config = differences.take_one("", "aot_config")
    if changes.inputs or changes.dynamic:
        return []
    found = [Cause(CauseKind.INPUTS, _IN_PLACE, *static.texts)] if static else []
    return found + (_aot_config(config) if config else [])


def _aot_config(pair: Pair) -> list[Cause]:
    texts = [part.text if part else "" for part in (pair.old, pair.new)]
    whole = all(text.endswith(")") for text in texts)  # else a text was cut
    sides = [items(text[1:-1] if whole else text[1:]) for text in texts if text.startswith("(")]
    found = []
    if len(sides) == 2:
        fields = list(zip_longest(*sides, fillvalue=UNSET) if whole else zip(*sides, strict=False))
        found = [_aot_field(at, old, new) for at, (old, new) in enumerate(fields) if old != new]
    return found or [Cause(CauseKind.OTHER, pair.name, *pair.texts)]


def _aot_field(at: int, old: str, new: str) -> Cause:
    kind, subject = _AOT_FIELDS[at] if at < len(_AOT_FIELDS) else (CauseKind.SETTING, "aot_config")
    if at == SOURCES:
        sources = zip_longest(items(old.strip("[]")), items(new.strip("[]")), fillvalue=UNSET)
        number, (old, new) = next(((n, pair) for n, pair in enumerate(sources) if pair[0] != pair[1]), (0, (old, new)))
        subject = f"the source of input {number}"
        if source(old) != source(new):
            old, new = source(old), source(new)
    return Cause(kind, subject, *shortened(old, new))


def kernels(differences: Differences, changes: Changes) -> list[Cause]:
    """Triton kernels of the user's own."""
    pairs = [*differences.take("user_defined_triton_source"), *differences.take("triton_kernel_source_codes")]
    return [Cause(CauseKind.KERNEL, "a Triton kernel that the graph calls", *pair.lines) for pair in pairs]


def settings(differences: Differences, changes: Changes) -> list[Cause]:
    """What is left."""
    named = {pair.setting.removeprefix("triton.") for pair in differences.left.get("inductor_config", ())}
    return [
        _setting(group, pair)
        for group, pairs in differences.left.items()
        for pair in pairs
        if not (pair.lone and changes.torch)  # another torch has other settings
        and not _follows(pair, changes)
        and not (group == "fx_kwargs" and pair.setting in named)
    ]


def _follows(pair: Pair, changes: Changes) -> bool:
    """Whether a setting only names the device that changed."""
    if not changes.devices:
        return False
    if "device_index" in pair.name:
        return True
    return bool(pair.old and pair.new and move(pair.old.text, changes.devices) == pair.new.text)


def _setting(group: str, pair: Pair) -> Cause:
    name, texts = pair.setting, pair.texts
    if "device_index" in name:
        return Cause(CauseKind.DEVICE, "the graph", *(f"cuda:{text}" if text.isdecimal() else text for text in texts))
    if group == "fx_kwargs" and name in _ARGUMENTS:
        return Cause(CauseKind.SETTING, _ARGUMENTS[name], *map(switch, texts))
    if group == "fx_kwargs" or group in _CONFIGURATIONS:
        return Cause(CauseKind.SETTING, name, *texts)
    kind = CauseKind.SETTING if _KNOWN.search(group or name) else CauseKind.OTHER
    return Cause(kind, _SPOKEN.get(pair.name, pair.name), *texts)
