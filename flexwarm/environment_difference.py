"""What of the environment and of torch's settings is not as it was at the build, and what each such thing does. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from flexwarm import environment, known_variables
from flexwarm.canonical import StrEnum
from flexwarm.environment import Effect

#: What the names of settings begin with: the module that has them, or ``torch``, where a call tells the value.
INDUCTOR, AOTAUTOGRAD, DYNAMO, TORCH = "torch._inductor.config", "torch._functorch.config", "torch._dynamo.config", "torch"


class Subject(StrEnum):
    """What is not as it was."""

    VARIABLE = "variable"
    SETTING = "setting"


class Change(StrEnum):
    """How; unset, empty and ``0`` are three values."""

    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"


class Compared(StrEnum):
    """What could be held against the build."""

    ALL = "all"  # variables and settings
    VARIABLES = "variables"  # no settings: nothing was started that could tell them
    KEYS = "keys"  # what enters keys or chooses code; the build kept no more
    HERE = "here"  # variables that are set here; the programs were not started, and a launcher may set others for them
    NONE = "none"  # there is no build to compare with


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What one process has, or had when it was built.

    Attributes:
        variables: name -> value; see :func:`flexwarm.environment.comparable`.
        settings: name -> value as text; empty if nobody told them.
    """

    variables: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One variable or setting. ``None``: it is not set, or there is no such setting.

    Attributes:
        does: what it does, in words.
        known: we know that; else it counts as part of a key.
    """

    subject: Subject
    name: str
    old: str | None
    new: str | None
    effect: Effect
    does: str
    known: bool = True

    @property
    def change(self) -> Change:
        if self.old is None:
            return Change.ADDED
        return Change.REMOVED if self.new is None else Change.CHANGED

    @property
    def matters(self) -> bool:
        return self.effect is not Effect.NEUTRAL

    def to_json(self) -> dict[str, Any]:
        return {
            "subject": self.subject.value,
            "name": self.name,
            "old": self.old,
            "new": self.new,
            "change": self.change.value,
            "effect": self.effect.value,
            "does": self.does,
            "known": self.known,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Compare:
    """What is not as it was, of one job or program or of several that differ alike.

    Attributes:
        owners: their names; empty for the environment of the command itself.
        why: why nothing, or not all, could be compared; empty otherwise.
    """

    owners: tuple[str, ...]
    compared: Compared
    differences: tuple[Difference, ...] = ()
    why: str = ""

    def to_json(self) -> dict[str, Any]:
        return {
            "jobs": list(self.owners),
            "compared": self.compared.value,
            "why": self.why,
            "differences": [difference.to_json() for difference in self.differences],
        }


#: In which order they are told.
_ORDER: Final = (Effect.DISABLES, Effect.KEY, Effect.CODE, Effect.MOVES, Effect.NEUTRAL)

_THREADS = known_variables.NOTES["OMP_NUM_THREADS"]
#: Settings of which torch's own calls tell the value -> what is to be said beside that they enter Inductor's key.
TOLD_BY_TORCH: Final = {
    "torch.get_float32_matmul_precision()": "",
    "torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction": "",
    "torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction": "",
    "torch.are_deterministic_algorithms_enabled()": "",
    "torch.is_deterministic_algorithms_warn_only_enabled()": "",
    "torch.get_default_dtype()": "that of torch 2.11 does not have it",
    "torch.get_num_threads()": _THREADS,
}


def differences(old: Surroundings, new: Surroundings) -> tuple[Difference, ...]:
    """Everything that differs, what turns a cache off first, and what changes nothing last. Settings only if both tell them."""
    off = environment.disabling(new.variables)
    found = [
        _variable(name, old.variables.get(name), new.variables.get(name), off)
        for name in sorted(old.variables.keys() | new.variables.keys())
        if old.variables.get(name) != new.variables.get(name)
    ]
    if old.settings and new.settings:
        found += [
            _setting(name, old.settings.get(name), new.settings.get(name))
            for name in sorted(old.settings.keys() | new.settings.keys())
            if old.settings.get(name) != new.settings.get(name)
        ]
    return tuple(sorted(found, key=lambda one: _ORDER.index(one.effect)))  # stable: variables, then settings, by name


def together(compares: Iterable[Compare]) -> tuple[Compare, ...]:
    """Those that differ alike as one, in the order of the first of each; what changes nothing parts nobody."""
    grouped: dict[tuple[object, ...], list[Compare]] = {}
    for one in compares:
        grouped.setdefault((one.compared, one.why, *(x for x in one.differences if x.matters)), []).append(one)
    found = []
    for alike in grouped.values():
        owners = tuple(owner for one in alike for owner in one.owners)
        every = dict.fromkeys(x for one in alike for x in one.differences)
        found.append(Compare(owners=owners, compared=alike[0].compared, differences=tuple(every), why=alike[0].why))
    return tuple(found)


def _variable(name: str, old: str | None, new: str | None, off: Iterable[str]) -> Difference:
    effect = environment.effect(name)
    known = True
    match effect:
        case Effect.KEY:
            does, known = _enters(name)
        case Effect.CODE:
            does = "can change code without entering a key"
        case Effect.DISABLES:
            does = "turns a cache off" if name in off else "turns a cache off with another value than this one"
        case Effect.MOVES:
            does = "moves the cache, or replaces the code that keeps it"
        case Effect.NEUTRAL:
            does = "is known to change nothing"
    return Difference(subject=Subject.VARIABLE, name=name, old=old, new=new, effect=effect, does=does, known=known)


def _enters(name: str) -> tuple[str, bool]:
    """Whose key a variable enters, and whether that is known."""
    if name in environment.SELECTING:
        return "selects the bucket", True
    owners = {
        "Inductor": known_variables.INDUCTOR,
        "AOTAutograd": known_variables.AOTAUTOGRAD,
        "Triton": known_variables.TRITON,
    }
    for owner, names in owners.items():
        if name in names:
            return _with_note(f"enters {owner}'s key", known_variables.NOTES.get(name, "")), True
    return "is not known to flexwarm, and counts as part of a key", False


def _setting(name: str, old: str | None, new: str | None) -> Difference:
    effect, does = Effect.KEY, "enters Inductor's key"
    if name in TOLD_BY_TORCH:
        does = _with_note(does, TOLD_BY_TORCH[name])
    elif name.startswith(f"{AOTAUTOGRAD}."):
        does = "enters AOTAutograd's key"
    elif name.startswith(f"{DYNAMO}."):
        effect, does = Effect.CODE, "can change code without entering a key"
    return Difference(subject=Subject.SETTING, name=name, old=old, new=new, effect=effect, does=does)


def _with_note(does: str, note: str) -> str:
    return f"{does} ({note})" if note else does
