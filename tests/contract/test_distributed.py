"""What flexwarm believes of the rendezvous store of a process group, and that a connection of its own disturbs nobody."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from flexwarm.errors import UnsupportedError
from flexwarm.observer.torch_api import distributed

pytestmark = pytest.mark.torch

PATIENCE = timedelta(seconds=20)


@contextmanager
def group(store: Any) -> Iterator[None]:
    """The default process group of one rank, over a store."""
    import torch.distributed as dist

    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        yield
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def network_store() -> Any:
    from torch.distributed import TCPStore

    return TCPStore("127.0.0.1", 0, 1, True, timeout=PATIENCE)


def test_without_a_process_group_there_is_nobody_to_meet() -> None:
    import torch.distributed  # noqa: F401

    assert distributed.default_group() is None
    assert distributed.default_store() is None


def test_the_store_of_the_default_group_is_found_and_goes_with_the_group() -> None:
    import torch.distributed as dist

    with group(network_store()):
        assert distributed.default_group() == (0, 1)
        assert distributed.default_store() is not None
        dist.destroy_process_group()
        assert distributed.default_group() is None
        assert distributed.default_store() is None


def test_a_store_that_other_machines_cannot_reach_is_left_alone(tmp_path: Path) -> None:
    from torch.distributed import FileStore, HashStore

    for store in (HashStore(), FileStore(str(tmp_path / "rendezvous"), 1)):
        with group(store):
            assert distributed.default_store() is None


def test_what_is_put_through_one_connection_is_read_through_another_under_the_same_prefix() -> None:
    with group(network_store()):
        store = distributed.default_store()
        assert store is not None
        one, other = (distributed.connect(store, 5.0) for _ in range(2))
        assert [one.add("flexwarm/said", 1), other.add("flexwarm/said", 1), one.add("flexwarm/said", 0)] == [1, 2, 2]
        assert not one.check(["flexwarm/said/1"])
        other.set("flexwarm/said/1", "a text")
        assert one.check(["flexwarm/said/1"])
        assert one.get("flexwarm/said/1") == b"a text" == store.get("flexwarm/said/1")


def test_a_connection_of_our_own_has_a_limit_of_its_own() -> None:
    with group(network_store()):
        store = distributed.default_store()
        assert store is not None
        before = store.timeout
        assert distributed.connect(store, 3.0).timeout == timedelta(seconds=3)
        assert store.timeout == before


def test_a_connection_waits_for_no_question_of_the_programs_own() -> None:
    with group(network_store()):
        store = distributed.default_store()
        assert store is not None
        own = distributed.connect(store, 5.0)
        waiting = threading.Thread(target=store.wait, args=(["never before"], PATIENCE))
        waiting.start()
        time.sleep(0.2)
        began = time.monotonic()
        assert own.add("flexwarm/ranks", 1) == 1
        assert time.monotonic() - began < 2
        assert waiting.is_alive()
        own.set("never before", "now")
        waiting.join(10)
        assert not waiting.is_alive()


def test_the_server_goes_with_the_programs_own_store_and_a_question_is_then_an_error_at_once() -> None:
    from torch.distributed import TCPStore

    held = [network_store()]
    port = held[0].port
    own = distributed.connect(held[0], 5.0)
    assert own.add("flexwarm/ranks", 1) == 1
    held.clear()
    began = time.monotonic()
    with pytest.raises(RuntimeError):
        own.add("flexwarm/ranks", 0)
    assert time.monotonic() - began < 3
    # Its port is free again: a program may meet anew in the same place.
    assert TCPStore("127.0.0.1", port, 1, True, timeout=PATIENCE).port == port


def test_to_connect_in_vain_does_not_stop_the_programs_threads() -> None:
    from torch.distributed import TCPStore

    held = [TCPStore("127.0.0.1", 0, 1, True)]
    client = TCPStore("127.0.0.1", held[0].port, None, False, timeout=timedelta(seconds=1))
    held.clear()
    ticks, over = [time.monotonic()], threading.Event()

    def tick() -> None:
        while not over.wait(0.02):
            ticks.append(time.monotonic())

    thread = threading.Thread(target=tick)
    thread.start()
    with pytest.raises(RuntimeError):
        distributed.connect(client, 1.0)
    over.set()
    thread.join()
    assert max(after - before for before, after in pairwise(ticks)) < 0.5


def test_a_torch_without_the_part_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.distributed import distributed_c10d

    monkeypatch.delattr(distributed_c10d, "_get_default_store")
    with pytest.raises(UnsupportedError, match="_get_default_store"):
        distributed.default_store()
