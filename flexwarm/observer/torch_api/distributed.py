"""The rendezvous store of the job's default process group, through a connection of our own.

Read in the sources of 2.11.0, 2.13.0 and 2.14.1. ``torch.distributed`` says which rank this is; that the store behind the
default group can be had is private.
"""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import Any

from flexwarm.observer.torch_api.probe import _function, _module, _part


def default_group() -> tuple[int, int] | None:
    """(rank, world size) of the default process group; None while there is none."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return int(distributed.get_rank()), int(distributed.get_world_size())


def default_store() -> Any | None:
    """The store that the ranks of the default group met in; None if it is none that other machines can reach.

    It is the program's own: the server goes with the last reference in rank 0, so nobody may keep this one.

    Raises:
        UnsupportedError: torch lacks a part.
    """
    module = _module("torch.distributed.distributed_c10d")
    find = _function(module, "_get_default_store")
    prefixed, network = (_part(_module("torch.distributed"), name) for name in ("PrefixStore", "TCPStore"))
    try:
        store = find()
    except (ValueError, KeyError, RuntimeError):
        return None  # the group was destroyed in between
    base = store
    while isinstance(base, prefixed):
        base = _part(base, "underlying_store")
    # A file's store counts those who have it open, and deletes the file with the last one: it is left alone.
    return store if isinstance(base, network) else None


def connect(store: Any, seconds: float) -> Any:
    """A connection of our own: what is asked through it never waits for what the program asks, nor the other way round.

    It does not keep the server alive. Blocks while it connects, without Python's global lock.

    Args:
        seconds: the longest time that one question may take.

    Raises:
        RuntimeError: torch's errors of the network are all of this kind.
        UnsupportedError: torch lacks a part.
    """
    own = _function(store, "clone")()
    own.set_timeout(timedelta(seconds=seconds))
    return own
