"""Keep what went into the keys of a build, and explain a miss by the key that is nearest of those."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set

from flexwarm import key_store
from flexwarm.errors import StoreError
from flexwarm.events import Layer
from flexwarm.evidence import LAYER_NAMES, short
from flexwarm.explanation import Explained, explain
from flexwarm.key_parts import Key
from flexwarm.manifest import Manifest
from flexwarm.reasons import Code, Reason
from flexwarm.store import Bucket

Notify = Callable[[str], None]
#: Causes of one job that are told; JSON and ``flexwarm explain`` have all.
_TOLD = 4


def keep(bucket: Bucket, keys: Iterable[Key], notify: Notify, *, only: Manifest | None = None) -> None:
    """Keep the parts of keys that a build has made. Without them a later miss is not explained, and nothing else is wrong.

    Args:
        only: forget those that this manifest does not list.
    """
    try:
        key_store.append(bucket, keys)
        if only is not None:
            key_store.keep_only(bucket, {(key.layer, key.key) for job in only.jobs.values() for key in job.keys})
    except StoreError as error:
        notify(f"what went into the keys is not kept, so a later miss is not explained: {error.message}")


def explain_misses(
    bucket: Bucket, missed: Mapping[str, Sequence[Key]], own: Mapping[str, Set[str]], notify: Notify
) -> dict[str, tuple[Explained, ...]]:
    """Job -> each key that it missed, with the nearest that the bucket has.

    Args:
        missed: by job.
        own: by job, the keys of its last build: of two that are equally near, one of these.
    """
    if not any(missed.values()):
        return {}
    try:
        known = key_store.load(bucket)
    except StoreError as error:
        notify(f"misses are not explained: {error.message}")
        return {}
    found = {job: explain(keys, known, own.get(job, frozenset())) for job, keys in missed.items()}
    return {job: explained for job, explained in found.items() if explained}


def reasons(explained: Sequence[Explained]) -> list[Reason]:
    """What is not as in the nearest keys; a cause that is in the keys of several layers is one reason."""
    layers: dict[str, list[str]] = {}
    for one in explained:
        for cause in one.causes:
            name = LAYER_NAMES[Layer(one.layer)]
            told = layers.setdefault(str(cause), [])
            if name not in told:
                told.append(name)
    found = [
        Reason(code=Code.KEY_CHANGED, message=f"{cause} (in the {' and '.join(names)} key)", hint="flexwarm build")
        for cause, names in layers.items()
    ]
    more = len(found) - _TOLD
    return found if more <= 0 else [*found[:_TOLD], _more(more)]


def _more(count: int) -> Reason:
    return Reason(
        code=Code.KEY_CHANGED, message=f"{count} more parts of the keys are not as they were", hint="flexwarm explain shows all"
    )


def unless_explained(differences: Sequence[Reason], explained: Sequence[Explained]) -> list[Reason]:
    """What changed since the build, without what the keys themselves say: settings that are in them, and differ or do not."""
    if not explained:
        return list(differences)
    return [reason for reason in differences if reason.code is not Code.CONFIG_CHANGED]


def named(explained: Explained) -> str:
    """``FX graph key fabc…``."""
    return f"{LAYER_NAMES[Layer(explained.layer)]} key {short(explained.key)}"
