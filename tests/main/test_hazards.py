"""Each hazard, scripted so that it happens every time, is reported with its owner, and with the remedy it does not happen."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from flexwarm import toolchain
from tests.harness import SMALL, Flexwarm

pytestmark = pytest.mark.torch

MINOR = toolchain.require_supported().minor
#: From 2.14 on torch keeps the flag for each thread.
PROCESS_WIDE = MINOR < (2, 14)
#: From 2.12 on torch keeps settings for each thread's context.
SETTINGS_OF_THREADS = MINOR >= (2, 12)

#: A mask function whose steps a test can act between: the body runs before each step, with the number of the step.
STEPS = """
import threading
import torch
from torch.fx.experimental.proxy_tensor import make_fx

step = -1

def mask(context):
    global step
    step += 1
    before(step)
    return lambda b, h, q, kv: q >= kv

"""

NOTHING = "def before(step):\n    pass\n"

#: In its second step the job is warm; another thread opens a trace and keeps it open to the end of that step.
OPEN_TRACE = """
inside, release = threading.Event(), threading.Event()

def traced(x):
    inside.set()
    release.wait(60)
    return x + 1

def open_a_trace():
    make_fx(traced)(torch.ones(2))

loader = threading.Thread(target=open_a_trace, name="loader", daemon=True)

def before(step):
    if step == 1:
        loader.start()
        inside.wait(60)
    if step == 2:
        release.set()
        loader.join(60)
"""


def stepping(flexwarm: Flexwarm, body: str, extra: str = "", roles: str = "") -> None:
    """A job of three steps whose module acts before each of them."""
    flexwarm.module(STEPS + body)
    workload = SMALL.replace('"causal"', '"mymasks:mask"').replace("[[workload]]", f"{roles}\n[[workload]]")
    flexwarm.spec(workload + f"mask_args = {{}}\nsteps = 3\n{extra}\n")


def built(flexwarm: Flexwarm, extra: str = "", roles: str = "") -> None:
    """The same job, built while nothing happens between its steps."""
    stepping(flexwarm, NOTHING, extra, roles)
    done = flexwarm.run_json("build")
    assert done.code == 0, done.messages()


def test_a_warm_call_beside_an_open_trace_names_the_thread_and_its_stack(warm: Flexwarm) -> None:
    built(warm)
    stepping(warm, OPEN_TRACE)
    done = warm.run_json("verify")
    if not PROCESS_WIDE:
        assert (done.code, done.json["verdict"], done.json["hazards"]) == (0, "warm", []), done.messages()
        return
    assert (done.code, done.json["verdict"], done.codes()) == (8, "unsafe", {"fx-race"}), done.messages()
    (hazard,) = done.json["hazards"]
    assert hazard["owner"] == "thread 'loader'"
    assert hazard["fate"] == "raise"
    assert any("in open_a_trace" in line for line in hazard["stack"])
    assert "--guard fix" in hazard["hint"]
    (job,) = done.json["jobs"]
    assert job["outcome"] == "unsafe"
    said = warm("verify")
    assert "fx-race" in said.out
    assert "in open_a_trace" in said.out

    fixed = warm.run_json("verify", "--guard", "fix")
    assert (fixed.code, fixed.json["verdict"], fixed.json["hazards"]) == (0, "warm", []), fixed.messages()


def test_a_silenced_guard_is_never_warm_and_dense_attention_is_told_by_what_ran(warm: Flexwarm) -> None:
    built(warm)
    silenced = "import torch._dynamo.config as c\nc.error_on_nested_fx_trace = False\n"
    stepping(warm, silenced + OPEN_TRACE)
    done = warm.run_json("verify")
    assert (done.code, done.json["verdict"]) == (8, "unsafe"), done.messages()
    expected = {"fx-silenced", "fx-race", "dense-fallback"} if PROCESS_WIDE else {"fx-silenced"}
    assert expected <= done.codes()
    if PROCESS_WIDE:
        assert {hazard["fate"] for hazard in done.json["hazards"] if hazard["code"] == "fx-race"} == {"inline"}


def test_a_call_inside_the_threads_own_trace_is_nested(warm: Flexwarm) -> None:
    built(warm)
    nested = (
        "\ncompiled = torch.compile(lambda x: x + 1, backend='eager')\n"
        "def before(step):\n    if step == 1:\n        make_fx(lambda x: compiled(x))(torch.ones(2))\n"
    )
    stepping(warm, nested)
    done = warm.run_json("verify")
    assert done.code == 8, done.messages()
    assert done.codes() == {"fx-nested"}


def test_a_flag_that_a_trace_left_behind_is_a_leak(warm: Flexwarm) -> None:
    built(warm)
    leaking = "\nimport torch.fx._symbolic_trace as t\ndef before(step):\n    if step == 1:\n        " + (
        "t._is_fx_tracing_flag = True\n" if PROCESS_WIDE else "t._set_is_fx_tracing(True)\n"
    )
    stepping(warm, leaking)
    done = warm.run_json("verify")
    assert (done.code, done.codes()) == (8, {"fx-leak"}), done.messages()


#: In its second step the job meets a new length, so it compiles, while another thread's trace is open.
COMPILE_BESIDE = OPEN_TRACE.replace(
    "        inside.wait(60)\n",
    "        inside.wait(60)\n"
    "        threading.Timer(3.0, release.set).start()\n"
    "        torch.compile(lambda x: x * 2 + 1, backend='eager')(torch.ones(5))\n",
)


def test_a_compile_beside_another_threads_trace_is_a_foreign_patch(warm: Flexwarm) -> None:
    built(warm)
    stepping(warm, COMPILE_BESIDE)
    done = warm.run_json("verify")
    # While the flag is of the process, a compiled call does not come as far as compiling.
    assert (done.code, done.codes()) == (8, {"fx-race" if PROCESS_WIDE else "foreign-patch"}), done.messages()
    assert {hazard["owner"] for hazard in done.json["hazards"]} == {"thread 'loader'"}
    # The compile waits for the trace, and then nothing meets anything.
    fixed = warm.run_json("verify", "--guard", "fix")
    assert (fixed.code, fixed.json["hazards"]) == (0, []), fixed.messages()


LANES = '[[role]]\nname = "r"\nlanes = 2\n'


def test_a_setting_that_only_the_main_thread_has_is_drift_with_both_values(warm: Flexwarm) -> None:
    settings = "import torch._dynamo.config as c\nc.recompile_limit = 64\n"
    warm.module(settings + "def mask(b, h, q, kv):\n    return q >= kv\n")
    text = SMALL.replace('"causal"', '"mymasks:mask"').replace("[[workload]]", LANES + "\n[[workload]]")
    warm.spec(text)
    done = warm.run_json("build")
    if not SETTINGS_OF_THREADS:
        assert (done.code, done.json["hazards"]) == (0, []), done.messages()
        return
    assert (done.code, done.codes()) == (8, {"lane-config-drift"}), done.messages()
    assert {hazard["lane"] for hazard in done.json["hazards"]} == {0, 1}
    message = done.json["hazards"][0]["message"]
    assert "recompile_limit is 64 in the main thread and 8 in lane 0" in message
    # The kernels are right all the same: nothing of the build is lost.
    assert done.json["published"] is True
    again = warm.run_json("verify", "--no-drill")
    assert (again.code, again.codes()) == (8, {"lane-config-drift"})
    # A job that starts its threads in copies of the main thread's context says so, and sees what the main thread sees.
    warm.spec(text.replace("lanes = 2", 'lanes = 2\ncontext = "copy"'))
    copied = warm.run_json("verify", "--no-drill")
    assert (copied.code, copied.json["hazards"]) == (0, []), copied.messages()


def test_dynamo_that_gives_up_is_said_with_the_limit(warm: Flexwarm) -> None:
    warm.module("import torch\ntorch._dynamo.config.recompile_limit = 1\ndef mask(b, h, q, kv):\n    return q >= kv\n")
    text = SMALL.replace('"causal"', '"mymasks:mask"')
    warm.spec(text.replace("q_len = 128", "q_len = [128, 256]\ncompile = { dynamic = false }"))
    done = warm.run_json("build")
    assert (done.code, done.codes()) == (8, {"dense-fallback", "recompile-limit"}), done.messages()
    assert "at most 1 times (recompile_limit)" in done.messages()
    assert done.json["published"] is False


def test_nine_lengths_without_dynamic_are_refused_before_anything_compiles(warm: Flexwarm) -> None:
    lengths = ", ".join(str(128 * n) for n in range(1, 10))
    warm.spec(SMALL.replace("q_len = 128", f"q_len = [{lengths}]\ncompile = {{ dynamic = false }}"))
    done = warm.run_json("verify")
    assert done.code == 2
    assert "9 variants" in done.json["error"]["message"]
    assert "8 times" in done.json["error"]["message"]


def test_flex_without_compile_is_dense_with_the_calling_line(warm: Flexwarm) -> None:
    built(warm)
    branch = (
        "\nfrom torch.nn.attention.flex_attention import flex_attention\n"
        "def attend(x):\n    return flex_attention(x, x.clone(), x.clone())\n"
        "def before(step):\n    if step == 2:\n        attend(torch.randn(1, 2, 64, 32))\n"
    )
    stepping(warm, branch)
    done = warm.run_json("verify")
    assert (done.code, done.codes()) == (8, {"dense-fallback"}), done.messages()
    (hazard,) = done.json["hazards"]
    assert any("mymasks.py" in line and "in attend" in line for line in hazard["stack"])


def test_flex_that_a_selective_checkpoint_keeps_from_compiling_is_dense_by_evidence(warm: Flexwarm) -> None:
    """The call goes through the wrapper of ``torch.compile``, so only what ran can tell."""
    built(warm)
    checkpointed = (
        "\nfrom functools import partial\n"
        "from torch.nn.attention.flex_attention import flex_attention\n"
        "from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts\n"
        "compiled = torch.compile(flex_attention)\n"
        "contexts = partial(create_selective_checkpoint_contexts, [torch.ops.aten.mm.default])\n"
        "def before(step):\n    if step == 2:\n"
        "        q, k, v = (torch.randn(1, 2, 64, 32) for _ in range(3))\n"
        "        with torch.compiler.set_stance('force_eager'):\n"
        "            checkpoint(compiled, q, k, v, use_reentrant=False, context_fn=contexts)\n"
    )
    stepping(warm, checkpointed)
    done = warm.run_json("verify")
    assert done.code == 8, done.messages()
    assert "dense-fallback" in done.codes()


def test_a_graph_with_a_custom_autograd_function_is_bypassed_with_torchs_own_reason(warm: Flexwarm) -> None:
    slope = (
        "\nclass Slope(torch.autograd.Function):\n"
        "    @staticmethod\n    def forward(ctx, x):\n        return x * 2\n"
        "    @staticmethod\n    def backward(ctx, g):\n        return g * 2\n"
        "compiled = torch.compile(lambda x: Slope.apply(x) + 1)\n"
        "def before(step):\n    if step == 0:\n"
        "        with torch.enable_grad():\n            compiled(torch.ones(4, requires_grad=True)).sum().backward()\n"
    )
    stepping(warm, slope)
    done = warm.run_json("build")
    assert (done.code, done.json["verdict"]) == (1, "cold"), done.messages()
    assert done.codes() & {"aot-bypass", "fx-bypass"}
    assert "autograd" in done.messages()
    assert done.json["published"] is False


#: Lane 0 holds torch's compile lock, in the middle of its compile, and waits for lane 1, which waits to compile.
DEADLOCK = """
import threading
import torch
first, second = threading.Event(), threading.Event()

def backend(graph, inputs):
    first.set()
    second.wait()
    return graph

def mask(context):
    if threading.current_thread().name == "lane-0":
        torch.compile(lambda x: x + 1, backend=backend)(torch.ones(3))
    else:
        first.wait()
        torch.compile(lambda x: x + 2, backend="eager")(torch.ones(3))
        second.set()
    return lambda b, h, q, kv: q >= kv
"""


def test_lanes_that_wait_for_each_other_are_found_named_and_ended(warm: Flexwarm, no_process_left: Callable[[], None]) -> None:
    warm.module("def mask(context):\n    return lambda b, h, q, kv: q >= kv\n")
    text = SMALL.replace('"causal"', '"mymasks:mask"').replace("[[workload]]", LANES + "\n[[workload]]\nmask_args = {}")
    warm.spec(text)
    assert warm.run_json("build").code == 0
    warm.module(DEADLOCK)
    began = time.monotonic()
    done = warm.run_json("verify", "--hang-timeout", "6")
    assert time.monotonic() - began < 120
    assert (done.code, done.json["verdict"]) == (6, "broken"), done.messages()
    assert done.codes() == {"hung", "compile-deadlock"}
    (hazard,) = done.json["hazards"]
    assert "lane 0 holds torch's compile lock" in hazard["message"]
    assert "lane 1" in hazard["message"]
    assert any("mymasks.py" in line for line in hazard["stacks"]["lane 0"])
    assert any("mymasks.py" in line for line in hazard["stacks"]["lane 1"])
    assert "build first" in hazard["hint"]
    assert "guard.install()" in hazard["hint"]
    no_process_left()


def test_a_lane_that_dies_of_a_segmentation_fault_is_named_with_signal_and_phase(
    warm: Flexwarm, no_process_left: Callable[[], None]
) -> None:
    warm.module(
        "import ctypes, threading\n"
        "def mask(context):\n"
        "    if threading.current_thread().name == 'lane-1':\n        ctypes.string_at(0)\n"
        "    return lambda b, h, q, kv: q >= kv\n"
    )
    text = SMALL.replace('"causal"', '"mymasks:mask"').replace("[[workload]]", LANES + "\n[[workload]]\nmask_args = {}")
    warm.spec(text)
    done = warm.run_json("build")
    assert (done.code, done.json["verdict"]) == (6, "broken")
    assert "crashed" in done.codes()
    assert "SIGSEGV" in done.messages()
    no_process_left()
    warm.spec(SMALL)
    assert warm.run_json("verify").json["verdict"] == "warm"
