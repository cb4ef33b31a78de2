"""A graph that torch does not cache: the reason is torch's own, and what is advised makes torch cache it."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import pytest

from tests.harness import Flexwarm

pytestmark = [pytest.mark.torch, pytest.mark.xdist_group("bypasses")]


@dataclass(frozen=True, slots=True)
class Bypass:
    """A program that is bypassed, and the same as advised.

    Attributes:
        reason: what torch says.
        advice: what is advised.
    """

    program: str
    reason: str
    advice: str
    mended: str


FUNCTION = Bypass(
    program="""
import torch

class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2

torch.compile(lambda x: Doubled.apply(x.sin()) + 1)(torch.ones(8, requires_grad=True)).sum().backward()
""",
    reason="Unsupported call_function target autograd_function_apply",
    advice="torch.library.custom_op, with register_autograd",
    mended="""
import torch

@torch.library.custom_op("mine::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2

doubled.register_fake(torch.empty_like)
doubled.register_autograd(lambda ctx, gradient: gradient * 2)
torch.compile(lambda x: doubled(x.sin()) + 1)(torch.ones(8, requires_grad=True)).sum().backward()
""",
)

ALLOWED = """
import torch

@torch.compiler.allow_in_graph
def tripled(x):
    return x * 3

torch.compile(lambda x: tripled(x.sin()) + 1)(torch.ones(8))
"""
UNSUPPORTED = Bypass(
    program=ALLOWED,
    reason="Unsupported call_function target <function tripled",
    advice="torch._inductor.config.unsafe_marked_cacheable_functions",
    mended=ALLOWED.replace(
        "import torch\n",
        'import torch\ntorch._inductor.config.unsafe_marked_cacheable_functions = {"__main__.tripled": "1"}\n',
    ),
)

PASS = Bypass(
    program="""
import torch

torch._inductor.config.post_grad_custom_post_pass = lambda graph: None
torch.compile(lambda x: x.sin() + 1)(torch.ones(8))
""",
    reason="Unsupported post grad custom pass",
    advice="torch._inductor.custom_graph_pass.CustomGraphPass",
    mended="""
import torch
from torch._inductor.custom_graph_pass import CustomGraphPass

class Nothing(CustomGraphPass):
    def __call__(self, graph):
        pass

    def uuid(self):
        return "nothing 1"

torch._inductor.config.post_grad_custom_post_pass = Nothing()
torch.compile(lambda x: x.sin() + 1)(torch.ones(8))
""",
)

FREEZING = Bypass(
    program="""
import torch

torch._inductor.config.freezing = True
model = torch.compile(torch.nn.Linear(4, 4))
with torch.no_grad():
    model(torch.ones(2, 4))
""",
    reason="Cannot cache a graph with freezing enabled",
    advice="leave freezing off",
    mended="""
import torch

model = torch.compile(torch.nn.Linear(4, 4))
with torch.no_grad():
    model(torch.ones(2, 4))
""",
)

CHOOSING = """
import torch
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

def policy(ctx, op, *args, **kwargs):
    return CheckpointPolicy.PREFER_RECOMPUTE

def contexts():
    return create_selective_checkpoint_contexts(policy)

def step(x):
    return checkpoint(lambda x: x.sin().cos(), x, use_reentrant=False, context_fn=contexts)

torch.compile(step)(torch.ones(8, requires_grad=True)).sum().backward()
"""
CHECKPOINT = Bypass(
    program=CHOOSING,
    reason="SAC context_fn does not have a cache_hash attribute",
    advice="an attribute cache_hash",
    mended=CHOOSING.replace("\ndef step", '\ncontexts.cache_hash = "recompute all, 1"\n\ndef step'),
)


@pytest.mark.parametrize(
    "bypass",
    [FUNCTION, UNSUPPORTED, PASS, FREEZING, CHECKPOINT],
    ids=["function", "unsupported", "pass", "freezing", "checkpoint"],
)
def test_a_bypass_has_torchs_reason_in_one_line_and_what_is_advised_is_cached(flexwarm: Flexwarm, bypass: Bypass) -> None:
    flexwarm.module(bypass.program, "program")
    done = flexwarm.run_json("build", "--", sys.executable, "program.py")
    assert (done.code, done.json["verdict"], done.json["jobs"][0]["outcome"]) == (1, "cold", "bypassed"), done.messages()
    (reason,) = [reason for reason in done.json["jobs"][0]["reasons"] if reason["code"] == "aot-bypass"]
    assert bypass.reason in reason["message"]
    assert "\n" not in reason["message"]
    assert bypass.advice in reason["hint"]
    flexwarm.module(bypass.mended, "program")
    done = flexwarm.run_json("build", "--", sys.executable, "program.py")
    assert (done.code, done.json["verdict"]) == (0, "built"), done.messages()
    done = flexwarm.run_json("verify", "--", sys.executable, "program.py")
    assert (done.code, done.json["verdict"]) == (0, "warm"), done.messages()
