"""Identity of a toolchain and machine class, at two depths.

``select`` chooses the bucket: a compiled kernel must never be served where one of these differs.
``explain`` is recorded beside it: it cannot make a kernel wrong, but it can make a key miss, so it names causes.
Both are flat ``component -> value`` tables, so that comparing two fingerprints is comparing two tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flexwarm import canonical

SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One component that differs. ``None`` means that the component is absent on that side."""

    component: str
    old: str | None
    new: str | None
    selects: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """What a bucket's kernels depend on.

    Attributes:
        select: components whose change means another bucket, such as ``torch.version`` or ``cpu.capability``.
        explain: components that are only recorded, such as ``gpu.driver``, ``cxx.version`` or ``env.OMP_NUM_THREADS``.
    """

    select: Mapping[str, str]
    explain: Mapping[str, str]

    @property
    def digest(self) -> str:
        """Name of the bucket: 20 hexadecimal digits over ``select`` alone."""
        return canonical.digest({"schema": SCHEMA, "select": dict(self.select)})

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "digest": self.digest,
            "select": dict(sorted(self.select.items())),
            "explain": dict(sorted(self.explain.items())),
        }

    @classmethod
    def from_json(cls, data: Any) -> Fingerprint:
        """Inverse of :meth:`to_json`.

        Raises:
            ValueError: the data is not a fingerprint of this schema, or its digest is not that of its components.
        """
        if not isinstance(data, dict) or data.get("schema") != SCHEMA:
            raise ValueError(f"not a fingerprint of schema {SCHEMA}")
        select, explain = data.get("select"), data.get("explain")
        for table in (select, explain):
            if not isinstance(table, dict) or not all(isinstance(v, str) for v in table.values()):
                raise ValueError("a fingerprint's components must be text")
        value = cls(select=dict(select or {}), explain=dict(explain or {}))
        if data.get("digest") != value.digest:
            raise ValueError("the fingerprint's digest is not that of its components")
        return value


def differences(old: Fingerprint, new: Fingerprint) -> tuple[Change, ...]:
    """Each component that differs, those that select the bucket first, in order of name."""
    changes = [
        Change(component=name, old=a.get(name), new=b.get(name), selects=selects)
        for a, b, selects in ((old.select, new.select, True), (old.explain, new.explain, False))
        for name in sorted(a.keys() | b.keys())
        if a.get(name) != b.get(name)
    ]
    return tuple(changes)
