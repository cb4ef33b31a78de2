"""What a compile and a trace write for the whole process: every name is known, and what it means to other threads is said.

A name that is not in the table is state that nobody has judged: read where torch reads it, and add it with the verdict.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch

CLOSED = "closed by guard"

#: Module globals and class attributes that differ while a compile or a trace is under way and are back afterwards.
PROCESS_WIDE = {
    "torch.fx._symbolic_trace._is_fx_tracing_flag": f"{CLOSED}: a flag for each thread (fx-race, fx-leak); gone in 2.14",
    "torch.fx._symbolic_trace.CURRENT_PATCHER": f"{CLOSED}: traces and compiles take turns (foreign-patch)",
    "torch.nn.modules.module.Module.__call__": f"{CLOSED}: patched for the tracing thread alone (foreign-patch)",
    "torch.nn.modules.module.Module.__getattr__": f"{CLOSED}: patched for the tracing thread alone (foreign-patch)",
    "torch.fx.experimental.proxy_tensor._CURRENT_MAKE_FX_TRACER": f"{CLOSED}: make_fx and compiles take turns; an uncompiled "
    "higher-order operator of a third thread still reads it",
    "torch.fx.experimental.proxy_tensor.CURRENT_DECOMPOSITION_TABLE": f"{CLOSED}: make_fx and compiles take turns; "
    "a context variable after 2.11",
    "torch.compiler._is_compiling_flag": f"{CLOSED}: is_compiling() answers for the thread; from 2.13",
    "torch.fx.traceback.current_meta": f"{CLOSED}: annotations wait in their thread",
    "torch.fx.traceback.should_preserve_node_meta": "harmless: read where nodes are made, in turn",
    "torch._dynamo.config.assume_static_by_default#override": "a key that misses, which verify sees: up to 2.11 each call of a "
    "function compiled with dynamic=True or False writes it, so another thread's compile is static or dynamic by chance",
    "torch._dynamo.config.automatic_dynamic_shapes#override": "as assume_static_by_default",
    "torch._dynamo.compiled_autograd.active_disable_ctx": "harmless: other threads' backward passes run without "
    "compiled autograd meanwhile, to the same result",
    "torch._dynamo.convert_frame.initial_global_state": "harmless: written and read by the compile that holds the lock",
    "torch._dynamo.utils.dict_keys_getitem": "harmless: a wrapper that acts on proxies, and calls the original otherwise",
    "torch.fx._symbolic_trace._assert_is_none": "harmless: a wrapper that acts on proxies, and calls the original otherwise",
    "torch._functorch.config.unlift_effect_tokens#override": "harmless: read by compiles, which hold the lock; up to 2.11",
    "torch._inductor.debug._pre_grad_graph_id": "harmless: provenance of debug files",
    "torch.fx._lazy_graph_module._use_lazy_graph_module_flag": "harmless: graph modules made meanwhile are lazy",
    "torch.fx.graph_module._forward_from_src": "harmless: code of a graph module made meanwhile is one that Dynamo skips",
    "torch.utils._python_dispatch._is_in_torch_dispatch_mode": "harmless: asked only with wrap_inductor_compiled_regions",
}

#: Seen on every version, or the survey looked at the wrong moments.
ALWAYS = {
    "torch.fx._symbolic_trace.CURRENT_PATCHER",
    "torch.nn.modules.module.Module.__call__",
    "torch.fx.experimental.proxy_tensor._CURRENT_MAKE_FX_TRACER",
    "torch.fx.traceback.should_preserve_node_meta",
}

SURVEY = '''
import enum, json, queue, sys, threading
import torch
import torch._inductor.compile_fx as compile_fx
import torch.export
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention.flex_attention import flex_attention

PARTS = ("torch.fx", "torch._dynamo", "torch._functorch", "torch._inductor", "torch.compiler", "torch._guards",
    "torch._subclasses", "torch.nn.modules.module", "torch._higher_order_ops", "torch._export", "torch.utils._python_dispatch")


def face(value):
    simple = value is None or isinstance(value, (bool, int, float, str, bytes, enum.Enum))
    return repr(value) if simple else f"{type(value).__name__} {id(value)}"


def snapshot():
    found = {}
    for name, module in list(sys.modules.items()):
        if module is None or not any(name == part or name.startswith(part + ".") for part in PARTS):
            continue
        for key, value in list(vars(module).items()):
            found[f"{name}.{key}"] = face(value)
            if isinstance(value, type) and value.__module__ == name:
                found.update({f"{name}.{key}.{k}": face(v) for k, v in list(vars(value).items())})
        settings = vars(module).get("_config")
        if isinstance(settings, dict):  # a config module: up to 2.11 an override is the process's
            for key, entry in list(settings.items()):
                if hasattr(entry, "user_override"):
                    found[f"{name}.{key}#override"] = face(entry.user_override)
    return found


asked, answered = queue.Queue(), queue.Queue()


def work(length, at):
    """Everything that is surveyed, once; ``at`` is called at each point."""

    def inner(graph, inputs, **options):
        at("lowering backward" if options.get("is_backward") else "lowering")
        return compile_fx.compile_fx_inner(graph, inputs, **options)

    def backend(graph, inputs):
        at("backend")
        return compile_fx.compile_fx(graph, inputs, inner_compile=inner)

    names = {"torch": torch}
    exec(compile("def body(x): return torch.ops.survey.probe(x).relu() * 2", __file__, "exec"), names)
    points.append(at)
    torch.compile(names["body"], backend=backend, dynamic=False)(torch.randn(8, length, requires_grad=True)).sum().backward()
    with torch.no_grad():
        q, k, v = (torch.randn(1, 2, 128 + length, 32) for _ in range(3))
        torch.compile(flex_attention, backend=backend, dynamic=False)(q, k, v)
    make_fx(lambda x: (at("make_fx"), x + 1)[1])(torch.randn(3))
    torch.fx.symbolic_trace(lambda x: (at("symbolic_trace"), x + 1)[1])
    points.pop()


points = []
library = torch.library.Library("survey", "DEF")
library.define("probe(Tensor x) -> Tensor")


@torch.library.impl(library, "probe", "CompositeImplicitAutograd")
def probe(x):
    if points:
        frame, names = sys._getframe(), set()
        while frame:
            names.add(frame.f_code.co_name)
            frame = frame.f_back
        points[-1]("tracing" if "_trace_inner" in names else "dynamo")
    return x + 1


def ask(point):
    asked.put(point)
    answered.get()


for length in (8, 9):
    work(length, lambda point: None)
before = snapshot()
thread = threading.Thread(target=lambda: (work(10, ask), asked.put(None)))
thread.start()
during = {}
while (point := asked.get()) is not None:
    during.setdefault(point, snapshot())
    answered.put(None)
thread.join()
after = snapshot()
names = {
    name: sorted(point for point, seen in during.items() if seen.get(name, value) != value)
    for name, value in before.items()
    if after.get(name) == value and any(seen.get(name, value) != value for seen in during.values())
}
print(json.dumps([len(before), sorted(during), names]))
'''


def test_each_name_that_a_compile_writes_for_the_process_is_known(tmp_path: Path) -> None:
    (tmp_path / "survey.py").write_text(SURVEY)
    environ = {
        **os.environ,
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"),
        "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0",
        "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run([sys.executable, "survey.py"], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    looked_at, points, found = json.loads(done.stdout.splitlines()[-1])
    assert looked_at > 10_000
    assert set(points) >= {"dynamo", "backend", "tracing", "lowering", "lowering backward", "make_fx", "symbolic_trace"}
    assert {name: points for name, points in found.items() if name not in PROCESS_WIDE} == {}
    assert set(found) >= ALWAYS
