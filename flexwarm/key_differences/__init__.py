"""Why a cache key is not the one that was built: what differs between the parts of two keys, in a user's words. Pure."""

from __future__ import annotations

from flexwarm.key_differences.cause import UNSET, Cause, CauseKind
from flexwarm.key_differences.distance import nearest
from flexwarm.key_differences.search import causes

__all__ = ["UNSET", "Cause", "CauseKind", "causes", "nearest"]
