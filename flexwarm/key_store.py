"""The parts of the keys that a bucket's builds made, beside it: what a later miss is explained by, and nothing else.

Lines are only ever added, so that builds of several nodes may write at once; a build that is alone writes the file anew with
the keys that the bucket still has. It is no evidence, and a line that cannot be read is left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Set
from typing import Any

from flexwarm import canonical
from flexwarm.files import append_lines, store_error, write_atomic
from flexwarm.key_parts import Group, Key, group
from flexwarm.store import Bucket


def append(bucket: Bucket, keys: Iterable[Key]) -> None:
    """Keep the parts of keys, of those that the bucket has none of.

    Raises:
        StoreError: they could not be written, or what is there cannot be read.
    """
    known = load(bucket)
    groups = {group.digest for key in known for group in key.groups.values()}
    lines = _lines(keys, groups, {(key.layer, key.key) for key in known})
    if lines:
        append_lines(bucket.keys, b"".join(lines))


def keep_only(bucket: Bucket, listed: Set[tuple[str, str]]) -> None:
    """Forget the keys that are not ``listed``, as (layer, key), if there are any.

    Raises:
        StoreError: the file could not be read or written.
    """
    known = load(bucket)
    kept = [key for key in known if (key.layer, key.key) in listed]
    if len(kept) < len(known):
        write_atomic(bucket.keys, b"".join(_lines(kept, set(), set())))


def load(bucket: Bucket) -> list[Key]:
    """What is known of a bucket's keys.

    Raises:
        StoreError: there is such a file and it cannot be read.
    """
    try:
        text = bucket.keys.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise store_error(error, f"read {bucket.keys}") from error
    groups: dict[str, Group] = {}
    keys: dict[tuple[str, str], Key] = {}
    for line in text.splitlines():
        try:
            data = json.loads(line)
            if "parts" in data:
                names, digests, texts = zip(*data["parts"], strict=True)
                groups[data["group"]] = group(data["group"], names, digests, texts)
            else:
                found = {name: groups[digest] for name, digest in data["groups"].items()}
                keys[data["layer"], data["key"]] = Key(layer=data["layer"], key=data["key"], groups=found)
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
    return list(keys.values())


def _lines(keys: Iterable[Key], groups: set[str], known: set[tuple[str, str]]) -> list[bytes]:
    """What is to be written of keys, without the groups and the keys that are there; both sets grow by what is added."""
    lines = []
    for key in keys:
        if (key.layer, key.key) in known:
            continue
        known.add((key.layer, key.key))
        for one in key.groups.values():
            if one.digest not in groups:
                groups.add(one.digest)
                parts = [[part.name, part.digest, part.text] for part in one.parts.values()]
                lines.append(_line({"group": one.digest, "parts": parts}))
        made = {name: one.digest for name, one in key.groups.items()}
        lines.append(_line({"layer": key.layer, "key": key.key, "groups": made}))
    return lines


def _line(data: dict[str, Any]) -> bytes:
    return canonical.text(data).encode() + b"\n"
