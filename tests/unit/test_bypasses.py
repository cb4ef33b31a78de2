"""Every reason for which torch does not cache a graph has advice of its own, and one that nobody knows has some."""

from __future__ import annotations

import pytest

from flexwarm.bypasses import advice

#: As the sources of 2.11.0 and 2.14.1 have them.
REASONS = {
    "Unsupported call_function target f. \n Function module: m, \nFunction name: f": "custom_op",
    "Unsupported call_method target f. \nMethod module: m, \nMethod name: f": "custom_op",
    "Can't cache HigherOrderOperator: autograd_function_apply": "register_autograd",
    "Can't cache HigherOrderOperator: print": "this operator",
    "SAC context_fn does not have a cache_hash attribute. To enable": "cache_hash",
    "Cannot cache a graph with freezing enabled": "freezing",
    "Skipping graph with frozen constants": "freezing",
    "mkldnn tensors unpickleable": "oneDNN",
    "FX graph cache is not enabled": "fx_graph_cache",
    "Unsupported pre grad custom pass": "CustomGraphPass",
    "Unsupported joint custom pass": "CustomGraphPass",
    "Unsupported _pre_fusion_custom_pass": "CustomGraphPass",
    "Unsupported _fuse_ddp_communication_pass": "CustomGraphPass",
    "CustomRuntimeEstimator.uuid() returned None, bypassing cache": "estimator",
    "activation_memory_budget_solver is a raw callable without uuid() method": "solver",
    "Can't cache torchbind objects": "script objects",
    "compiler bisector enabled": "TORCH_BISECT_BACKEND",
    "Failed to pickle cache key": "stable text",
    "Cannot produce stable cache key for unpicklable type T": "stable text",
    "Reduce unsupported": "stable text",
}


@pytest.mark.parametrize(("reason", "said"), REASONS.items())
def test_what_is_advised_is_about_the_reason(reason: str, said: str) -> None:
    assert said in advice(f"BypassAOTAutogradCache: {reason}")


def test_a_reason_that_nobody_knows_has_advice() -> None:
    assert "what the reason names" in advice("No shape env")
