"""What flexwarm believes of the events with which torch says what a compile is in. When one of these fails, torch has moved."""

from __future__ import annotations

from pathlib import Path

import pytest

from flexwarm.costs import Part
from flexwarm.errors import UnsupportedError
from flexwarm.observer.torch_api import timing
from tests.contract.test_torch_api import in_new_process

pytestmark = pytest.mark.torch

#: Compiles two graphs, or loads them; prints the events in their order, and the probes of the processor.
FOLLOW = """
import json, threading
from flexwarm.observer.torch_api import timing
import torch
from torch.nn.attention.flex_attention import flex_attention
said, probes = [], []
timing.follow(lambda name: said.append(["begin", name, threading.get_ident()]),
              lambda name: said.append(["end", name, threading.get_ident()]))
kind = timing.instructions()
check = kind.check_build
kind.check_build = lambda self, code: probes.append(type(self).__name__) or check(self, code)
q = torch.randn(1, 1, 128, 16)
with torch.no_grad():
    torch.compile(flex_attention)(q, q.clone(), q.clone())
    torch.compile(lambda x: x.sin() + 1)(q)
from torch._dynamo.utils import counters
print(json.dumps({"said": said, "probes": probes, "hits": counters["aot_autograd"]["autograd_cache_hit"]}))
"""


def test_each_event_begins_and_ends_inside_of_the_one_before_and_each_part_is_told(tmp_path: Path) -> None:
    starts = [in_new_process(tmp_path, FOLLOW) for _ in range(2)]
    assert [start["hits"] for start in starts] == [0, 2]
    told = []
    for start in starts:
        names = set()
        open_in: dict[int, list[str]] = {}
        for what, name, thread in start["said"]:
            stack = open_in.setdefault(thread, [])
            names.add(name)
            if what == "begin":
                stack.append(name)
            else:
                assert stack.pop() == name
        assert not any(open_in.values())
        told.append(names)
    cold, warm = ({timing.EVENTS[name] for name in names if name in timing.EVENTS} for names in told)
    always = {Part.DYNAMO, Part.GUARDS, Part.AOT, Part.KEYS, Part.LOAD}
    assert cold >= {*always, Part.COMPILE}
    assert warm >= always
    assert Part.COMPILE not in warm
    assert set(timing.TOLD_BY_EVENTS) <= warm
    # torch's own sources are read once in a process, for the first key.
    assert [name for what, name, _ in starts[1]["said"] if what == "begin"].count("inductor_codecache_torch_key") == 1
    # A compile is outermost in Dynamo's own, so what comes before it is none of it.
    assert timing.EVENTS[starts[1]["said"][0][1]] in (Part.DYNAMO, Part.IMPORT)


def test_the_processor_is_tried_in_each_process_anew_and_less_where_a_variable_answers(tmp_path: Path) -> None:
    first, second = (in_new_process(tmp_path, FOLLOW) for _ in range(2))
    told = in_new_process(tmp_path, FOLLOW, TORCHINDUCTOR_VEC_ISA_OK="1")
    assert first["probes"]
    assert second["hits"] == 2
    assert second["probes"] == first["probes"]
    assert len(told["probes"]) < len(first["probes"])


def test_an_event_that_ends_with_an_error_has_ended(tmp_path: Path) -> None:
    found = in_new_process(
        tmp_path,
        """
        import json
        from flexwarm.observer.torch_api import timing
        import torch
        said = []
        timing.follow(lambda name: said.append(name), lambda name: said.append("/" + name))
        def backend(module, inputs):
            raise ValueError("no")
        try:
            torch.compile(lambda x: x + 1, backend=backend)(torch.ones(2))
        except Exception:
            pass
        print(json.dumps(said))
        """,
    )
    assert "backend_compile" in found
    assert found.index("/backend_compile") < found.index("/dynamo")
    assert sorted(name for name in found if name[0] != "/") == sorted(name[1:] for name in found if name[0] == "/")


def test_a_torch_without_these_events_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch._dynamo.utils

    monkeypatch.delattr(torch._dynamo.utils, "ChromiumEventLogger")
    with pytest.raises(UnsupportedError, match="ChromiumEventLogger"):
        timing.follow(lambda name: None, lambda name: None)
