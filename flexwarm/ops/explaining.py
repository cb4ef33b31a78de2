"""Keep what went into the keys of a build, and explain a miss by the key that is nearest of those."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set

from flexwarm import key_store
from flexwarm.errors import StoreError
from flexwarm.events import Layer
from flexwarm.explanation import Explained, explain
from flexwarm.key_differences import Cause, CauseKind
from flexwarm.key_parts import Key
from flexwarm.lookups import LAYER_NAMES
from flexwarm.manifest import Manifest
from flexwarm.reasons import Code, Reason
from flexwarm.store import Bucket

Notify = Callable[[str], None]
#: Causes of one job that are told; JSON and ``flexwarm explain`` have all.
_TOLD = 4
#: Keys of one launch that are explained, each once: a launch of many graphs misses all of them for one cause or two.
_EXPLAINED = 48


def keep(bucket: Bucket, keys: Iterable[Key], notify: Notify, *, only: Manifest | None = None) -> None:
    """Keep the parts of keys that a build has made. Without them a later miss is not explained, and nothing else is wrong.

    Args:
        only: forget those that this manifest does not list, but for kernels of Triton's that were tried.
    """
    keys = list(keys)
    try:
        key_store.append(bucket, keys)
        if only is not None:
            asked = {(key.layer, key.key) for key in keys if key.layer == Layer.TRITON}  # also one whose compile failed
            key_store.keep_only(bucket, only.keys | asked)
    except StoreError as error:
        notify(f"what went into the keys is not kept, so a later miss is not explained: {error.message}")


def explain_misses(
    bucket: Bucket,
    known: Manifest | None,
    missed: Mapping[str, Sequence[Key]],
    own: Mapping[str, Set[str]],
    notify: Notify,
) -> dict[str, tuple[Explained, ...]]:
    """Job -> each key that it missed and no build has made, with the nearest that one has; of many keys the first.

    Args:
        known: what the bucket has. A key of it is missed for another cause than what it is made of.
        missed: by job.
        own: by job, the keys of its last build: of two that are equally near, one of these.
    """
    listed = known.keys if known is not None else frozenset()
    wanted = {job: [key for key in keys if (key.layer, key.key) not in listed] for job, keys in missed.items()}
    if not any(wanted.values()):
        return {}
    explained: dict[tuple[str, str], Explained | None] = {}
    try:
        told = key_store.load(bucket)
        # A build asked for it as well, and its compile failed there: what it is made of is no cause.
        tried = {(key.layer, key.key) for key in told if key.layer == Layer.TRITON} - listed if listed else set()
        wanted = {job: [key for key in keys if (key.layer, key.key) not in tried] for job, keys in wanted.items()}
        made = [key for key in told if not listed or (key.layer, key.key) in listed]
        for job, keys in wanted.items():
            for key in keys:
                if (key.layer, key.key) not in explained and len(explained) < _EXPLAINED:
                    explained[key.layer, key.key] = explain(key, made, own.get(job, frozenset()))
    except Exception as error:  # noqa: BLE001 - whatever goes wrong, an explanation decides nothing
        why = error.message if isinstance(error, StoreError) else f"{type(error).__name__}: {error}"
        notify(f"misses are not explained: {why}")
    found = {job: tuple(one for key in keys if (one := explained.get((key.layer, key.key)))) for job, keys in wanted.items()}
    return {job: ones for job, ones in found.items() if ones}


def reasons(explained: Sequence[Explained], build: str = "flexwarm build") -> list[Reason]:
    """What is not as in the nearest keys; a cause that is in the keys of several layers is one reason.

    Args:
        build: how to build, for the hint.
    """
    layers: dict[str, list[str]] = {}
    for one in sorted(explained, key=lambda one: list(Layer).index(Layer(one.layer))):
        for cause in one.causes:
            name = LAYER_NAMES[Layer(one.layer)]
            told = layers.setdefault(str(cause) if one.layer == Layer.AOT else _as_above(cause, explained), [])
            if name not in told:
                told.append(name)
    found = [
        Reason(code=Code.KEY_CHANGED, message=f"{cause} (in the {' and '.join(names)} key)", hint=build)
        for cause, names in layers.items()
    ]
    more = len(found) - _TOLD
    if more <= 0:
        return found
    message = f"{more} more parts of the keys are not as they were"
    return [*found[:_TOLD], Reason(code=Code.KEY_CHANGED, message=message, hint="flexwarm explain shows all")]


def _as_above(cause: Cause, explained: Sequence[Explained]) -> str:
    """A cause in Inductor's key, as a sentence. It knows inputs by number, where AOTAutograd has their names.

    The same change is the same cause, unless several of AOTAutograd's inputs have changed so: then it is not known which.
    """
    change = (cause.kind, cause.old, cause.new)
    if cause.subject.startswith(("input ", "inputs ")):
        above = {x for one in explained if one.layer == Layer.AOT for x in one.causes if (x.kind, x.old, x.new) == change}
        named = [x for x in above if x.subject.startswith(("input ", "inputs "))]
        cause = named[0] if len(named) == 1 else cause
    return str(cause)


def unless_explained(differences: Sequence[Reason], explained: Sequence[Explained]) -> list[Reason]:
    """What changed since the build, without the settings where the keys say which of them matter."""
    kinds = {cause.kind for one in explained if one.layer != Layer.TRITON for cause in one.causes[:_TOLD]}
    settings = {CauseKind.SETTING, CauseKind.PRECISION, CauseKind.THREADS, CauseKind.DETERMINISM}
    return [reason for reason in differences if reason.code is not Code.CONFIG_CHANGED or not kinds & settings]
