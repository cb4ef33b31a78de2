"""The parts of the keys that a bucket's builds made, beside it: what a later miss is explained by, and nothing else.

Lines are only ever added, so that builds of several nodes may write at once; a build that is alone writes the file anew with
the keys that the bucket still has. It is no evidence: a line that cannot be read, because a crash cut it or two nodes of a
network filesystem wrote at once, is left out.
"""

from __future__ import annotations

import errno
import json
import os
import stat
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
    groups: dict[str, Group] = {}
    keys: dict[tuple[str, str], Key] = {}
    for line in _read(bucket).splitlines():
        data = _object(line)
        parts, made = data.get("parts"), data.get("groups")
        if _text(data, "group") and isinstance(parts, list) and all(_is_texts(part, 3) for part in parts):
            names, digests, texts = zip(*parts, strict=True) if parts else ((), (), ())
            groups[data["group"]] = group(data["group"], names, digests, texts)
        elif _text(data, "layer", "key") and isinstance(made, dict) and set(map(type, made.values())) <= {str}:
            if not groups.keys() >= set(made.values()):
                continue  # the line of one of them is lost
            found = {name: groups[digest] for name, digest in made.items()}
            keys[data["layer"], data["key"]] = Key(layer=data["layer"], key=data["key"], groups=found)
    return list(keys.values())


def _read(bucket: Bucket) -> bytes:
    try:
        descriptor = os.open(bucket.keys, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # of a pipe nobody is waited for
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise OSError(errno.EINVAL, "it is not a regular file")
            return file.read()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise store_error(error, f"read {bucket.keys}") from error


def _object(line: bytes) -> dict[str, Any]:
    """What a line says; nothing for one that was cut, or is not ours."""
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


def _text(data: dict[str, Any], *names: str) -> bool:
    return all(isinstance(data.get(name), str) for name in names)


def _is_texts(value: Any, count: int) -> bool:
    return isinstance(value, list) and len(value) == count and all(isinstance(item, str) for item in value)


def _lines(keys: Iterable[Key], groups: set[str], known: set[tuple[str, str]]) -> list[bytes]:
    """What is to be written of keys, without the groups and the keys that are there; both sets grow by what is added."""
    lines = []
    for key in keys:
        if (key.layer, key.key) in known or not all(one.parts for one in key.groups.values()):
            continue  # known, or not all of it was said
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
