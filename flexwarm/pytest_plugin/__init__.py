"""A pytest plugin that runs a test in a process of its own, in which GPUs that are not there stand in for NVIDIA ones.

pytest finds it by itself where flexwarm is installed. It imports nothing of flexwarm before a test asks for null GPUs.

PYTEST_DONT_REWRITE: the child's plugin imports it before pytest may look for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from flexwarm.target import Target

#: In a child's config: the GPUs that its process has.
HERE: Final = pytest.StashKey["Target"]()
#: The node id under which an item was collected; xdist adds to it, for its groups.
COLLECTED: Final = pytest.StashKey[str]()
#: The variable that names a child's request.
REQUEST: Final = "FLEXWARM_PYTEST_REQUEST"

_MARKER: Final = (
    "null_gpus(count=1, *, profile='h200', timeout=300, torch=True): run the test in a process that has as many null GPUs of a "
    "flexwarm device profile; it is ended after timeout seconds, and with torch=True skipped without a CUDA build of torch."
)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", _MARKER)


def pytest_itemcollected(item: pytest.Item) -> None:
    item.stash[COLLECTED] = item.nodeid


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """A test with the marker or the fixture runs in a child, which runs it as any other."""
    mark = item.get_closest_marker("null_gpus")
    if HERE in item.config.stash or (mark is None and "null_gpus" not in getattr(item, "fixturenames", ())):
        return None
    from flexwarm.pytest_plugin.bench import run_in_child

    run_in_child(item, mark or pytest.mark.null_gpus.mark, nextitem)
    return True


@pytest.fixture
def null_gpus(request: pytest.FixtureRequest) -> Target:
    """The null GPUs of the test's process: what its ``null_gpus`` marker says, and without one a single ``h200``."""
    if HERE not in request.config.stash:
        pytest.fail("the fixture null_gpus was asked for at run time: mark the test with pytest.mark.null_gpus", pytrace=False)
    return request.config.stash[HERE]
